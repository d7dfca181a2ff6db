"""What the op table says of an operator where it is applied: by a node, a statement, or a library's kernel."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from fuser.ir.opdef import OPS
from fuser.ir.opdef import OpDef

NOTHING = OpDef("", "opaque", 0)
"""In place of the operator of a load or a store."""


class Applied:
    """Properties of the operator ``op`` that its rules ask for."""

    op: Any

    @property
    def entry(self) -> OpDef:
        return OPS.get(self.op, NOTHING)

    @cached_property
    def contracts(self) -> bool:
        """It is a product that is summed."""
        return self.entry.kind == "contract"

    @property
    def products(self) -> int:
        """How many products it is."""
        return 1 if self.contracts else self.entry.products

    @property
    def regroups(self) -> bool:
        """Its result has the same elements, row after row, under another shape."""
        return self.entry.regroups

    @cached_property
    def folds(self) -> bool:
        """It sums over axes, or folds them otherwise."""
        return self.entry.kind in ("contract", "reduce")

    @property
    def adds(self) -> bool:
        """It folds by adding."""
        return self.entry.adds

    @property
    def sums(self) -> bool:
        """It folds one operand by adding."""
        return self.entry.kind == "reduce" and self.entry.adds

    @property
    def maximizes(self) -> bool:
        """It folds by taking the largest."""
        return self.entry.maximizes

    @property
    def multiplies(self) -> bool:
        """It multiplies its two operands, element by element."""
        return self.entry.multiplies

    @property
    def subtracts(self) -> bool:
        """It is the difference of its two operands."""
        return self.entry.subtracts

    @property
    def divides(self) -> bool:
        """It is the quotient of its two operands."""
        return self.entry.divides

    @property
    def exponential(self) -> bool:
        """Its sum is a product of functions of its addends: what a shift of its operand scales."""
        return self.entry.kind == "map" and self.entry.has_exponential

    @property
    def indexed(self) -> bool:
        """Its value depends on where an element stands."""
        return self.entry.indexed

    @property
    def masks(self) -> bool:
        """Where an element stands decides whether it is -inf."""
        return self.entry.indexed and self.entry.hidden < 0

    @property
    def chooses(self) -> bool:
        """Its first operand is a condition."""
        return self.entry.typed == "choices"

    @property
    def casts(self) -> bool:
        """Its result is of the type that an attribute names."""
        return self.entry.typed == "named"
