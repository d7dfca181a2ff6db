"""Editing the statements of a block: what mutations and rewritings share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from fuser.errors import FuserError
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.mugraph import live
from fuser.ir.mugraph import ordered

T = TypeVar("T")


class NotApplicable(FuserError):
    """This edit has no place in this µGraph."""


def pick(rng: np.random.Generator, choices: Sequence[T]) -> T:
    if not choices:
        raise NotApplicable("nothing to choose from")
    return choices[int(rng.integers(len(choices)))]


def some_compute(rng: np.random.Generator, block: BlockGraph, *ops: str) -> Stmt:
    return pick(rng, [s for s in block.computes if not ops or s.op in ops])


def swap(block: BlockGraph, old: Stmt, *new: Stmt) -> BlockGraph:
    """``new`` statements in the place of ``old``."""
    return replace(block, stmts=tuple(x for s in block.stmts for x in (new if s is old else (s,))))


def rename_uses(block: BlockGraph, value: str, other: str, after: Stmt | None = None) -> BlockGraph:
    """Read ``other`` wherever ``value`` is read (behind ``after``, if it is given)."""
    on = after is None
    out = []
    for s in block.stmts:
        if on and value in s.args:
            s = replace(s, args=tuple(other if a == value else a for a in s.args))
        if on and s.kind == "store" and s.value == value:
            s = replace(s, value=other)
        out.append(s)
        on = on or s is after
    return replace(block, stmts=tuple(out))


def without(block: BlockGraph, s: Stmt, instead: str) -> BlockGraph:
    return rename_uses(replace(block, stmts=tuple(x for x in block.stmts if x is not s)), s.value, instead)


def tidy(block: BlockGraph) -> BlockGraph:
    """Axes of all values recomputed, statements in an order in which operands come first, dead ones gone.

    Raises :class:`NotApplicable` where that is impossible: a fold over an axis that its operand lacks, a store that would lose
    one.
    """
    axes: dict[str, tuple[str, ...]] = {}
    out: list[Stmt] = []
    todo = list(block.stmts)
    while todo:
        ready = next((s for s in todo if all(a in axes for a in s.args) and (s.kind != "store" or s.value in axes)), None)
        if ready is None:
            raise NotApplicable("operands in a circle")
        todo.remove(ready)
        s = ready
        if s.kind == "compute":
            union = {a for v in s.args for a in axes[v]}
            if not set(s.reduce) <= union or (s.folds and not s.reduce):
                raise NotApplicable("a fold over an axis that is not there")
            s = replace(s, axes=ordered(block.axes_of(s.reduce, union), block.axes))
            if any(a and a not in s.axes for k, a in s.attrs if k in ("rows", "cols")):
                raise NotApplicable("a mask without its axes")
        elif s.kind == "store" and set(axes[s.value]) - set(s.axes):
            raise NotApplicable("a store that would lose an axis")
        if s.kind != "store":
            axes[s.value] = s.axes
        out.append(s)
    kept = live(out)
    used = {a for s in kept for a in (*s.axes, *s.reduce, *s.constant_axes)}
    return replace(block, axes=tuple(a for a in block.axes if a.name in used), stmts=kept).validate()


def fresh(block: BlockGraph, base: str) -> str:
    taken = {s.value for s in block.stmts}
    return next(n for n in (f"{base}{i}" for i in range(1, 1000)) if n not in taken)


def with_block(graph: KernelGraph, old: BlockGraph, *new: BlockGraph) -> KernelGraph:
    return replaced(graph, old, *new).validate()


def replaced(graph: KernelGraph, old: BlockGraph, *new: BlockGraph) -> KernelGraph:
    """The same, well formed or not."""
    return replace(graph, kernels=tuple(x for k in graph.kernels for x in (new if k is old else (k,))))
