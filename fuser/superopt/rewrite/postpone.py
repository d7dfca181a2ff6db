"""Move divisions behind contractions: ``Σ (x / d) · y = (Σ x · y) / d`` where d does not vary along the sum.

This is the one algebraic step that every fused softmax and normalization needs (FlashAttention's final division, Mirage's
RMSNorm); as a rewriting it costs nothing, so that the fast path need not search for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.mugraph import live
from fuser.ir.mugraph import ordered


def postpone_divisions(block: BlockGraph) -> BlockGraph:
    """The same block with every division as late as the linearity of its users allows."""
    return _Postponer(block).run()


class _Postponer:
    def __init__(self, block: BlockGraph) -> None:
        self.block = block
        self.out: list[Stmt] = []
        self.axes = {s.value: s.axes for s in block.stmts if s.kind != "store"}
        self.ratio: dict[str, tuple[str, str]] = {}  # value -> numerator and denominator, not divided yet
        self.attrs: dict[str, tuple[tuple[str, Any], ...]] = {}  # of the quotient that a ratio is
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
                self.ratio[stmt.value], self.attrs[stmt.value] = (top, bottom), stmt.attrs
                return
        linear = stmt.entry.linear
        pulled = [
            i
            for i, a in enumerate(stmt.args)
            if a in self.ratio
            and i < len(linear)
            and linear[i]
            and not stmt.divides
            and stmt.args.count(a) == 1
            and not set(self.axes[self.ratio[a][1]]) & set(stmt.reduce)
        ]
        if not pulled:
            for a in stmt.args:
                self.need(a)
            self.out.append(stmt)
            return
        i = pulled[0]
        top, bottom = self.ratio[stmt.args[i]]
        for j, a in enumerate(stmt.args):
            if j != i:
                self.need(a)
        args = tuple(top if j == i else a for j, a in enumerate(stmt.args))
        union = self.block.axes_of(stmt.reduce, *(self.axes[a] for a in args))
        name = f"{stmt.value}_top"
        self.axes[name] = ordered(union, self.block.axes)
        self.out.append(replace(stmt, value=name, args=args, axes=self.axes[name]))
        self.ratio[stmt.value], self.attrs[stmt.value] = (name, bottom), self.attrs[stmt.args[i]]

    def need(self, value: str) -> None:
        """Carry out a division that something must read."""
        if value not in self.ratio or value in self.done:
            return
        top, bottom = self.ratio[value]
        self.need(top)
        self.done.add(value)
        dtype, attrs = self.block.by_value[value].dtype, self.attrs.get(value, ())
        self.out.append(Stmt("compute", value, self.axes[value], dtype, "div", (top, bottom), attrs=attrs))
