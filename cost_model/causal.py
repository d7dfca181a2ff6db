"""Loops over the columns of a causal mask that end behind its diagonal: their trips in the mean of all blocks, and how unevenly
those lie on SMs."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.tiling import Loop
from fuser.ir.tiling import LoopTree
from fuser.lower.causal_code import ends_early

Counts = NDArray[np.float64]
Sizes = Mapping[str, Any]
MANY = 8
"""Times that SMs start over from which on blocks that end even each other out."""


@lru_cache(maxsize=8192)
def shortened(block: BlockGraph, tree: LoopTree) -> dict[str, Stmt]:
    """The mask behind whose diagonal a loop ends, by the loop's axis."""
    if not any(s.masks for s in block.computes):
        return {}
    owner = dict(tree.owner)
    found: dict[str, Stmt] = {}
    for loop in _loops(tree.body):
        mask = ends_early(block, owner, loop)
        if mask is not None and mask.attr["rows"] not in {x.axis for x in _loops(loop.body)}:
            found[loop.axis] = mask
    return found


def _loops(body: Any) -> Iterator[Loop]:
    for n in body:
        if isinstance(n, Loop):
            yield n
            yield from _loops(n.body)


def mean_part(axis: str, mask: Stmt, extent: Sizes, tile: Sizes, trips: Sizes, grid: Sizes) -> Counts:
    """Of the trips of a loop those that blocks take in the mean."""
    rows = mask.attr["rows"]
    every = trips[axis] * grid[axis]

    def part(extent: int, height: int, width: int, most: int) -> float:
        return float(np.mean(_needed(extent, height, width, most, _offset(mask))) / most)

    return _each(part, extent[rows], tile[rows], tile[axis], every)


def unevenness(
    mask: Stmt, axis: str, sizes: tuple[Sizes, Sizes, Sizes, Sizes], where: tuple[Counts, int, NDArray[np.bool_]], groups: bool
) -> tuple[Counts, Counts]:
    """How much longer the busiest of so many places for blocks on the device is at work than if all blocks had the mean's trips,
    and the same of so many SMs (``where``). Blocks that stay (the last of ``where``) have their places of the grid from the
    start, the others begin wherever one ends. ``sizes``: extents, tiles, trips and parts by axis; the last axis of the grid
    varies fastest. Kernels by warp ``groups`` begin with the longest (:mod:`fuser.lower.gluon.places`)."""
    extent, tile, trips, grid = sizes
    rows = mask.attr["rows"]
    names = list(grid)
    faster = np.multiply.reduce([np.ones_like(trips[axis]), *(grid[a] for a in names[names.index(rows) + 1 :])])
    places = np.multiply.reduce([np.ones_like(trips[axis]), *grid.values()])
    alone = (grid[axis] == 1) & (trips[rows] == 1)
    faster = np.zeros_like(faster) if groups else faster

    def busiest(extent: int, height: int, width: int, trips: int, *how: int) -> tuple[float, float]:
        return _busiest(_needed(extent, height, width, trips, _offset(mask)), *how)

    found = _each(busiest, extent[rows], tile[rows], tile[axis], trips[axis], faster, places, *where)
    return np.where(alone, found[:, 0], 1.0), np.where(alone, found[:, 1], 1.0)


def _offset(mask: Stmt) -> int:
    return int(mask.attr["offset"] or 0)


def _each(of: Any, *columns: Any) -> Counts:
    """A function of each row of integers, once for each different one."""
    table = [np.asarray(c, np.int64) for c in np.broadcast_arrays(*columns)]
    code = np.zeros_like(table[0])
    for c in table:
        if (top := int(c.max())) != c.min():
            code = np.unique(code * (top + 1) + c, return_inverse=True)[1]
    _, first, which = np.unique(code, return_index=True, return_inverse=True)
    return np.array([of(*(int(c[i]) for c in table)) for i in first.tolist()])[which]


def _needed(extent: int, height: int, width: int, trips: int, offset: int) -> tuple[int, ...]:
    """Trips that each tile of rows takes."""
    last = np.minimum(np.arange(height, extent + height, height), extent) - 1 + offset
    return tuple(np.clip(last // width + 1, 1, trips).tolist())


@lru_cache(maxsize=8192)
def _busiest(needed: tuple[int, ...], faster: int, places: int, slots: int, sms: int, stay: int) -> tuple[float, float]:
    waves = -(-places // slots)
    if not stay and waves > MANY:
        return 1.0, 1.0
    at = np.arange(places)
    rows = at // faster % len(needed) if faster else len(needed) - 1 - at * len(needed) // places
    each = np.array(needed, float)[rows]
    if stay:
        slot, turn, full = at % slots, at // slots, places // slots
        back = (turn % 2 == 1) & (turn < full) & (full > 1) & (faster == 0)  # rounds go back and forth
        busy = np.bincount(np.where(back, slots - 1 - slot, slot), each)
    else:
        busy = each[:slots]
        for first in range(slots, places, slots):  # the next begin where the shortest have ended
            more = each[first : first + slots]
            busy[np.argsort(busy, kind="stable")[: len(more)]] += more
    sms = min(sms, len(busy))
    together = np.bincount(np.arange(len(busy)) % sms, busy)
    mean = waves * np.mean(needed)
    return float(busy.max() / mean), float(together.max() / mean / -(-len(busy) // sms))
