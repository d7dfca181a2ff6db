"""How tensors lie in memory between the parts of a model.

A tensor lies row after row, or, where its rows are no multiples of 16 bytes, in longer rows with zeros between them: then whole
vectors are moved (:mod:`fuser.ir.rows`). (That a result may be stored as a view of it shows it, heads outside, is a part of its
own: :mod:`search.cover.parts`.) There is a part for every choice at the border of a candidate, and one for every conversion;
what a user gives and takes lies row after row. Parameters are laid as their readers want them when a model is compiled.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import replace

from fuser.ir.builder import Builder
from fuser.ir.program import FLOAT_DTYPES
from fuser.ir.program import TensorProgram
from fuser.ir.rows import pitch_of
from fuser.ir.subprogram import canonical
from search.cover.parts import Part
from search.cover.parts import Rows

EVERY = 3
"""Tensors at a border of which every choice is offered; of more, all, none, and each alone."""


def with_layouts(program: TensorProgram, parts: Iterable[Part], params: Collection[str]) -> tuple[Part, ...]:
    """The parts in every choice of layouts at their borders, and the conversions between these. Longer rows are for what a
    product reads or writes: others take all elements as one row."""
    parts = tuple(parts)
    multiplied = {
        p.back[n] for p in parts if any(n.products for n in p.program.nodes) for n in (*p.program.inputs, *p.program.outputs)
    }
    found = [p for part in parts for p in _choices(program, part, params, multiplied)]
    pitched = dict.fromkeys(stored for p in found for stored in (*p.takes, *p.leaves) if stored[1])
    return (*found, *(c for name, pitch in pitched for c in _conversions(program, name, pitch)))


def _choices(program: TensorProgram, part: Part, params: Collection[str], multiplied: Collection[str]) -> Iterator[Part]:
    if not part.nodes or any(n.entry.kind in ("library", "opaque") for n in part.program.nodes):
        yield part
        return
    odd = {
        name: pitch
        for name in (*part.program.inputs, *part.program.outputs)
        if part.back[name] in multiplied and part.program[name].dtype in FLOAT_DTYPES and (pitch := pitch_of(part.program[name]))
    }
    weights = tuple((n, pitch) for n, pitch in odd.items() if part.back[n] in params)
    free = [(n, pitch) for n, pitch in odd.items() if part.back[n] not in params]
    for rows in _subsets(free):
        yield replace(part, rows=rows, weights=weights)


def _subsets(free: list[tuple[str, int]]) -> list[Rows]:
    if len(free) > EVERY:
        return list(dict.fromkeys([(), *((one,) for one in free), tuple(free)]))
    return [s for n in range(len(free) + 1) for s in itertools.combinations(free, n)]


def _conversions(program: TensorProgram, name: str, pitch: int) -> Iterator[Part]:
    """Parts that read a tensor in one layout and write it in the other."""
    b = Builder("copy")
    x = b.input("X", program[name].shape, program[name].dtype)
    copy, new = canonical(b.build(Y=b.op("cast", x, dtype=program[name].dtype)), "cast")
    given, made = new["X"], new["Y"]
    names = ((name, given), (name, made))
    yield Part((), copy, names, ((made, pitch),))
    if name in program.producers:
        yield Part((), copy, names, ((given, pitch),))
