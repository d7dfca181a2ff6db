"""Causal masks at other sizes. What decides is kept: two masks that differ at the real size differ at every reduced one, and what
removes a part of the elements still removes a part.

A mask with ``offset`` keeps the columns up to row + offset. Over R rows and C columns it removes everything up to −R, leaves each
row something from 0 on, leaves each column to some row from C − R on, and removes nothing from C − 1 on. These are its corners:
reduced offsets lie at the corner, or between the corners, where the real ones lie, and in the same order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fuser.errors import UnsupportedError

Size = tuple[int, int]  # rows, columns


@dataclass(frozen=True)
class Mask:
    """A causal mask over the atoms ``rows`` and ``columns`` (row-major products, empty for one row or column)."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    offset: int

    def size(self, extents: Sequence[int]) -> Size:
        return math.prod(extents[i] for i in self.rows), math.prod(extents[i] for i in self.columns)


Offsets = Mapping[Mask, int]  # of each mask at other sizes


def groups(masks: Iterable[Mask]) -> dict[tuple[tuple[int, ...], tuple[int, ...]], list[Mask]]:
    """Masks over the same rows and columns."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], list[Mask]] = {}
    for m in dict.fromkeys(masks):
        found.setdefault((m.rows, m.columns), []).append(m)
    return found


def effective(offset: int, size: Size) -> int:
    """The same mask's offset between that which removes all and that which removes nothing."""
    return min(max(offset, -size[0]), size[1] - 1)


def gap(masks: Sequence[Mask], real: Sequence[int]) -> int:
    """Columns less rows that these masks (of one group) need at least; rows less columns where the result is negative."""
    rows, columns = masks[0].size(real)
    if rows == columns:
        return 0
    low, high = sorted((0, columns - rows))
    inside = 1 + len({m.offset for m in masks if low < m.offset < high})
    return inside if columns > rows else -inside


def reduced_offsets(
    masks: Iterable[Mask], real: Sequence[int], small: Sequence[int], rng: np.random.Generator | None = None
) -> dict[Mask, int]:
    """The offset of each mask at the sizes ``small`` of the atoms, random between its corners (evenly spread without ``rng``).

    Raises :class:`UnsupportedError` where the small sizes have less room than there are different masks.
    """
    found: dict[Mask, int] = {}
    for group in groups(masks).values():
        size = group[0].size(real)
        places = _places({effective(m.offset, size) for m in group}, size, group[0].size(small), rng)
        found |= {m: places[effective(m.offset, size)] for m in group}
    return found


def _places(offsets: set[int], real: Size, small: Size, rng: np.random.Generator | None) -> dict[int, int]:
    corners = _corners(real, small)
    places = {r: s for r, s in corners if r in offsets}
    for (low, first), (high, last) in itertools.pairwise(corners):
        inside = sorted(x for x in offsets if low < x < high)
        room = range(first + 1, last)
        if len(inside) > len(room):
            raise UnsupportedError(f"{len(inside)} causal masks of {real[0]} × {real[1]} elements have no room at {small}")
        if rng is None:
            chosen = [room[(2 * i + 1) * len(room) // (2 * len(inside))] for i in range(len(inside))]
        else:
            chosen = sorted(int(x) for x in rng.choice(room, len(inside), replace=False)) if inside else []
        places |= dict(zip(inside, chosen, strict=True))
    return places


def _corners(real: Size, small: Size) -> list[tuple[int, int]]:
    """Real and reduced offset of each corner, ascending in both; an inner one is left out where sizes compare otherwise."""
    (rows, columns), (r, c) = real, small
    inner = {0: 0, columns - rows: c - r} if rows != columns else {0: max(0, c - r)}
    found = [(-rows, -r)]
    for x, y in sorted(inner.items()):
        if found[-1][1] < y < c - 1 and found[-1][0] < x < columns - 1:
            found.append((x, y))
    return [*found, (columns - 1, c - 1)]


def block_offsets(masks: Iterable[Mask], real: Sequence[int], small: Sequence[int]) -> dict[Mask, int]:
    """Offsets in one box of the real elements, of the sizes ``small``: every mask moves by the first row less the first column of
    the box, which lies where most of its masks remove some of its elements.
    """
    found: dict[Mask, int] = {}
    for group in groups(masks).values():
        (rows, columns), (r, c) = group[0].size(real), group[0].size(small)
        moves = [first - left for first in (0, rows - r) for left in (0, columns - c)]
        parts = [sum(-r < m.offset + x < c - 1 for m in group) for x in moves]
        move = moves[parts.index(max(parts))]
        found |= {m: m.offset + move for m in group}
    return found
