"""Modules that return views of their inputs, or of what they compute: nothing is copied for these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from fuser.frontends.imported import Imported
from fuser.frontends.imported import Result
from fuser.ir.program import TensorProgram
from search.cover.rebuild import living


def with_views(known: Imported) -> Imported:
    """The program without the outputs that are views; where nothing else is left it stays, and its outputs are not used."""
    if known.called is None:
        return known
    some = _worth(known.program, known.inputs, known.called.results)
    results = tuple(replace(r, name="") if r.base in some and r.name else r for r in known.called.results)
    if results == known.called.results:
        return known
    wanted = [r.name or (r.base if r.base not in known.inputs else "") for r in results]
    outputs = tuple(dict.fromkeys(n for n in wanted if n))
    program = living(replace(known.program, outputs=outputs), known.inputs) if outputs else known.program
    params = {n: x for n, x in known.params.items() if n in program.inputs}
    return replace(known, program=program, params=params, called=replace(known.called, results=results))


def _worth(program: TensorProgram, inputs: Sequence[str], results: Sequence[Result]) -> set[str]:
    """Tensors of which views are to be returned: inputs, and results that are wanted as a whole."""
    found = {r.base for r in results if r.base in inputs}
    for name in {r.base for r in results if r.base} - found:
        views = [r for r in results if r.base == name and r.name]
        whole = any(r.name == name for r in results)
        if name in program.producers and (whole or sum(prod(program[r.name].shape) for r in views) >= prod(program[name].shape)):
            found.add(name)
    return found
