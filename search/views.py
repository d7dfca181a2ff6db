"""Modules that return views of their inputs, or of what they compute: nothing is copied for these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fuser.frontends.imported import Imported
from fuser.frontends.imported import Result
from fuser.frontends.imported import Views
from fuser.frontends.torch_views import order_of
from fuser.frontends.torch_views import seen
from fuser.ir.program import Tensor
from fuser.ir.program import TensorProgram
from fuser.ir.subprogram import living

MOVED = tuple(f"aten.{n}." for n in ("squeeze", "unsqueeze", "view", "reshape", "flatten"))
"""Views that leave elements in their order."""
LARGEST = 1 << 22
"""Elements of views that are compared one by one."""


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
    shown = frozenset(r.base for r in results if _in_order(r, known.program)) - {r.name for r in results}
    traced = known.traced and replace(known.traced, viewed=shown)
    return replace(known, program=program, params=params, called=replace(known.called, results=results), traced=traced)


def _worth(program: TensorProgram, inputs: Sequence[str], results: Sequence[Result]) -> set[str]:
    """Tensors of which views are to be returned: inputs, and those wanted as a whole, or whose views share elements, and lie as
    the module's do where what they show lies row after row."""
    found = {r.base for r in results if r.base in inputs}
    for name in {r.base for r in results if r.base} - found:
        views = [r for r in results if r.base == name and r.name]
        whole = any(r.name == name for r in results)
        if name not in program.producers:
            continue
        base = _empty(program[name])
        same = all(order_of(seen(base, r.views)) == r.order for r in views)
        if whole or (same and shared(base, [r.views for r in views])):
            found.add(name)
    return found


def _in_order(result: Result, program: TensorProgram) -> bool:
    """Whether a result is a view that has all elements of what is computed in their order: others torch's compiler writes in an
    order of its own."""
    made = program.producers.get(result.base)
    if result.name or made is None or made.op == "transpose":
        return False
    return all(str(call).startswith(MOVED) for call, *_ in result.views)


def _empty(tensor: Tensor) -> Any:
    import torch

    return torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype), device="meta")


def shared(base: Any, several: Sequence[Views]) -> bool:
    """Whether views of a tensor (of ``meta``) are together as large as it is, or some of them have elements in common."""
    found = [seen(base, views) for views in several]
    total = sum(y.numel() for y in found)
    if len(found) == 1 or total >= base.numel():
        return total >= base.numel()
    return total > LARGEST or len(np.unique(np.concatenate([_places(y) for y in found]))) < total


def _places(x: Any) -> Any:
    """The bytes at which the elements of a tensor begin."""
    found = np.array([x.storage_offset()])
    for n, step in zip(x.shape, x.stride(), strict=True):
        found = np.add.outer(found, np.arange(n) * step)
    return found.reshape(-1) * x.element_size()
