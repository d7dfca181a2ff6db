"""Row-major products of iteration ranges that are tied to each other: a union-find whose members may fall apart into factors.

A dimension is such a product. Where one side of a tie is finer than the other, the coarser one is split; extents of one element
need no factor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class TieError(Exception):
    """Two products that cannot be one: ``extents`` that do not divide each other, or none where only the numbers of elements
    differ."""

    def __init__(self, *extents: int) -> None:
        super().__init__(*extents)
        self.extents = extents


@dataclass(eq=False)
class Factor:
    """An iteration range, or the product of smaller ones."""

    extent: int
    parent: Factor | None = None
    parts: tuple[Factor, ...] = ()

    def leaves(self) -> list[Factor]:
        """What it is a product of now, the slowest first."""
        node = self
        while node.parent is not None:
            node = node.parent
        return leaves(node.parts) if node.parts else [node] if node.extent != 1 else []


def leaves(factors: Iterable[Factor]) -> list[Factor]:
    """The leaves of several, in order."""
    return [x for f in factors for x in f.leaves()]


def tie(left: Iterable[Factor], right: Iterable[Factor]) -> None:
    """Make two products one, splitting where their factors differ. Raises :class:`TieError`."""
    a, b = leaves(left), leaves(right)
    while a and b:
        x, y = a.pop(0), b.pop(0)
        if x.parts or y.parts or x.parent or y.parent:  # tied or split since they were listed
            (x, *more), (y, *others) = x.leaves(), y.leaves()
            a, b = more + a, others + b
        if x is y:
            continue
        if x.extent == y.extent:
            y.parent = x
            continue
        big, small = (x, y) if x.extent > y.extent else (y, x)
        if not small.extent or big.extent % small.extent:
            raise TieError(big.extent, small.extent)
        big.parts = (Factor(small.extent), Factor(big.extent // small.extent))
        a, b = x.leaves() + a, y.leaves() + b
    if a or b:
        raise TieError
