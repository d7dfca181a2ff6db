"""Schedules that test a µGraph of reduced sizes: grids of two tiles, loops of three trips, splits of three parts or more."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from collections.abc import Iterator

from fuser.ir.candidate import scheduled_blocks
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.placement import entangled
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr

PARTS = 3
"""Least parts of a split reduction: the kernel that adds them loops over them, and loops have three trips."""

REAL_TILE = 128
REAL_ROWS = 8
REAL_PARTS = 4
REAL_TRIPS, LONGEST_TILE = 1024, 2048
"""Tiles along what is summed over and along what is not, and parts, of a test at the real size."""

NESTED = 6
"""Most loops of a test: each loop inside of another makes three times as many trips."""
KEPT = 3
"""Loops of a test of a block that sums over more axes than :data:`NESTED`, as the layers of a deep chain do."""


def checking_schedules(graph: KernelGraph, like: Schedule | None = None, real: KernelGraph | None = None) -> Iterator[Schedule]:
    """Schedules to test a µGraph of reduced sizes with, the most demanding first.

    With ``like``, a schedule of the structure at its ``real`` size, the same axes are looped over and divided, in the same
    order; without, every reduced axis is a loop and every common spatial axis is divided over the grid, in up to six orders of
    the loops.
    """
    if like is not None and real is not None:
        blocks = zip(graph.blocks, scheduled_blocks(real, like), strict=True)
        yield Schedule(tuple(_like(small, big, ks) for small, (big, ks) in blocks))
        return
    if not graph.blocks:  # nothing but library kernels
        yield Schedule(())
        return
    orders = [itertools.islice(itertools.permutations(_loops(b)), 6) for b in graph.blocks]
    for chosen in itertools.zip_longest(*orders):
        kernels = [_tiled(b, c if c is not None else tuple(_loops(b))) for b, c in zip(graph.blocks, chosen, strict=True)]
        yield Schedule(tuple(kernels))


def real_schedules(graph: KernelGraph) -> Iterator[Schedule]:
    """Schedules of a µGraph at its real size: tiles of middling sizes, every reduced axis a loop, splits in four parts, in up to
    six orders of the loops."""
    orders = [itertools.islice(itertools.permutations(_loops(b)), 6) for b in graph.blocks]
    summed = {a for b in graph.blocks for a in b.reduced}
    for chosen in itertools.zip_longest(*orders):
        loops = [c if c is not None else tuple(_loops(b)) for b, c in zip(graph.blocks, chosen, strict=True)]
        yield Schedule(tuple(_middling(b, c, summed) for b, c in zip(graph.blocks, loops, strict=True)))


def real_tile(extent: int) -> int:
    """Tile of an axis that is summed over: of very long ones a larger one, so that a test has no thousands of trips."""
    return min(max(REAL_TILE, extent // REAL_TRIPS), LONGEST_TILE, extent)


def _middling(block: BlockGraph, loops: tuple[str, ...], summed: Collection[str]) -> KernelSchedule:
    """``summed``: axes that some kernel sums over; what another one does along them has tiles as long."""
    parts = dict(block.splits)
    counts = {a: n or REAL_PARTS for a, n in block.extents.items() if n == FREE or a in parts.values()}
    tiles: dict[str, int] = {}
    for axis, extent in block.extents.items():
        if axis in parts:
            tiles[axis] = min(real_tile(extent), math.ceil(extent / counts[parts[axis]]))
        elif axis in loops:
            tiles[axis] = real_tile(extent)
        elif axis in block.spatial and axis not in block.reduced and axis not in counts:
            tiles[axis] = real_tile(extent) if axis in summed else min(REAL_ROWS, extent)
    return KernelSchedule(tuple(sorted(tiles.items())), TilingExpr(loops), tuple(sorted(counts.items())))


def _loops(block: BlockGraph) -> list[str]:
    """Loops of a block, outermost first: what is summed over last stands outside. In a deep chain the other axes are whole, and
    all are where folds along several follow one another so often that no search tiles them."""
    found = dict.fromkeys(a for s in block.computes for a in s.reduce)
    counts = {g for _, g in block.splits}
    loops = [a for a in reversed(found) if block.extents[a] > 1 and a not in counts]
    split = [a for a in loops if a in dict(block.splits)]
    if entangled(block):
        return split
    return loops if len(loops) <= NESTED else list(dict.fromkeys((*loops[:KEPT], *split)))


def checking_tile(extent: int, role: str, parts: int = PARTS) -> int:
    """The tile of an axis for three trips through its loop, in each of ``parts`` if it is split, or for two blocks."""
    return max(1, math.ceil(extent / {"split": 3 * parts, "loop": 3, "grid": 2}[role]))


def _splits(block: BlockGraph) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((g, block.extents[g]) for _, g in block.splits))


def _tiled(block: BlockGraph, loops: tuple[str, ...]) -> KernelSchedule:
    parts = dict(block.splits)
    tiles: dict[str, int] = {}
    for axis, extent in block.extents.items():
        if axis in parts:
            tiles[axis] = checking_tile(extent, "split", block.extents[parts[axis]])
        elif axis in loops:
            tiles[axis] = checking_tile(extent, "loop")
        elif axis in block.spatial and axis not in block.reduced:
            tiles[axis] = checking_tile(extent, "grid")
    return KernelSchedule(tuple(sorted(tiles.items())), TilingExpr(loops), _splits(block))


def _like(small: BlockGraph, big: BlockGraph, schedule: KernelSchedule) -> KernelSchedule:
    parts = dict(small.splits)
    tiles: dict[str, int] = {}
    for axis, extent in small.extents.items():
        full = big.extents[axis]
        if axis in parts:
            tiles[axis] = checking_tile(extent, "split", small.extents[parts[axis]])
        elif schedule.tile.get(axis, full) < full:
            tiles[axis] = checking_tile(extent, "loop" if axis in schedule.order.axes else "grid")
    return KernelSchedule(tuple(sorted(tiles.items())), schedule.order, _splits(small), knobs=schedule.knobs)
