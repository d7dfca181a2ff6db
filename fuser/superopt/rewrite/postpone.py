"""Move divisions behind contractions: ``Σ (x / d) · (y / e) = (Σ x · y) / d / e`` where d and e do not vary along the sum.

This is the one algebraic step that every fused softmax and normalization needs (FlashAttention's final division, Mirage's
RMSNorm); as a rewriting it costs nothing, so that the fast path need not search for it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any
from typing import NamedTuple

from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.mugraph import live
from fuser.ir.mugraph import ordered

Attrs = tuple[tuple[str, Any], ...]


def postpone_divisions(block: BlockGraph) -> BlockGraph:
    """The same block with every division as late as the linearity of its users allows."""
    return _Postponer(block).run()


class _Ratio(NamedTuple):
    """A numerator, and by what it is divided, one after the other: denominators with the attributes of their quotients."""

    top: str
    bottoms: tuple[tuple[str, Attrs], ...]


class _Postponer:
    def __init__(self, block: BlockGraph) -> None:
        self.block = block
        self.out: list[Stmt] = []
        self.axes = {s.value: s.axes for s in block.stmts if s.kind != "store"}
        self.ratio: dict[str, _Ratio] = {}  # values that are not divided yet
        self.done: set[str] = set()

    def run(self) -> BlockGraph:
        for stmt in self.block.stmts:
            if stmt.kind == "compute":
                self.compute(stmt)
                continue
            if stmt.kind == "store":
                self.need(stmt.value)
            self.out.append(stmt)
        return replace(self.block, stmts=live(self.out)).validate()

    def compute(self, stmt: Stmt) -> None:
        if stmt.divides and stmt.args[0] != stmt.args[1]:
            top, bottom = stmt.args
            if top not in self.ratio:
                self.need(bottom)
                self.ratio[stmt.value] = _Ratio(top, ((bottom, stmt.attrs),))
                return
        pulled = {i: self.ratio[stmt.args[i]] for i in self.pulled(stmt)}
        for i, a in enumerate(stmt.args):
            if i not in pulled:
                self.need(a)
        if not pulled:
            self.out.append(stmt)
            return
        args = tuple(pulled[i].top if i in pulled else a for i, a in enumerate(stmt.args))
        union = self.block.axes_of(stmt.reduce, *(self.axes[a] for a in args))
        name = f"{stmt.value}_top"
        self.axes[name] = ordered(union, self.block.axes)
        self.out.append(replace(stmt, value=name, args=args, axes=self.axes[name]))
        self.ratio[stmt.value] = _Ratio(name, tuple(chain.from_iterable(r.bottoms for r in pulled.values())))

    def pulled(self, stmt: Stmt) -> list[int]:
        """Operands in which the statement is linear and whose denominators do not vary along its sum: the first, and of others
        those as large as what it computes, so that no larger tensor is divided instead."""
        linear = () if stmt.divides else stmt.entry.linear
        found = list[int]()
        for i, a in enumerate(stmt.args[: len(linear)]):
            if linear[i] and a in self.ratio and stmt.args.count(a) == 1:
                varies = {x for bottom, _ in self.ratio[a].bottoms for x in self.axes[bottom]}
                whole = not found or {*stmt.axes, *stmt.reduce} <= set(self.axes[a])
                if whole and not varies & set(stmt.reduce):
                    found.append(i)
        return found

    def need(self, value: str) -> None:
        """Carry out a division that something must read."""
        if value not in self.ratio or value in self.done:
            return
        top, bottoms = self.ratio[value]
        self.need(top)
        self.done.add(value)
        dtype = self.block.by_value[value].dtype
        for i, (bottom, attrs) in enumerate(bottoms, 1):
            name = value if i == len(bottoms) else f"{value}_over_{i}"
            self.axes[name] = self.axes[value]
            self.out.append(Stmt("compute", name, self.axes[value], dtype, "div", (top, bottom), attrs=attrs))
            top = name
