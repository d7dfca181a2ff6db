"""Schedules drawn over a wide space, good and bad: what a cost model is fitted and judged on.

The space is deliberately plain and independent of the one that is searched, so that measurements do not depend on what a search
believes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fuser.errors import UsageError
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.schedule import bind
from fuser.ir.tiling import TilingExpr

POWERS = (16, 32, 64, 128, 256)
SPLITS = (2, 4, 8, 16)
WARPS = (4, 8)
STAGES = (1, 2, 3, 4)
SHARED_LIMIT = 1.2 * 232_448
"""Bytes of the estimate beyond which a schedule is not worth compiling; the estimate is rough."""
REGISTERS = 512
"""Most 4-byte values a thread that may be alive at once by the estimate; beyond, compiling is slow and kernels spill."""


def batch_axes(block: BlockGraph) -> set[str]:
    """Axes that index every tensor of a contraction alike: one element of them a block."""
    common: set[str] | None = None
    for s in block.computes:
        if s.folds and s.contracts:
            both = set.intersection(*(set(block.by_value[a].axes) for a in s.args)) - set(s.reduce)
            common = both if common is None else common & both
    return common or set()


def _tile(rng: np.random.Generator, extent: int, full: bool, few: bool) -> int:
    """A tile of an axis: a power of two that is not absurdly larger than it, or all of it where that is allowed and small."""
    choices = [p for p in POWERS if p < 2 * extent] or [16]
    if few:
        choices += [p for p in (1, 2, 4, 8) if p <= extent]
    if full and extent <= 512:
        choices += [extent] * max(1, len(choices) // 2)
    return int(rng.choice(choices))


def _order(rng: np.random.Generator, block: BlockGraph, loops: list[str]) -> TilingExpr:
    """The loops with what is reduced last outermost (later folds use the results of earlier ones), now and then any other
    nesting."""
    last = {a: i for i, s in enumerate(block.computes) for a in s.reduce}
    nest = sorted(loops, key=lambda a: -last.get(a, -1))
    draw = rng.random()
    if len(nest) > 1 and draw < 0.12:
        nest = [nest[int(i)] for i in rng.permutation(len(nest))]
    elif len(nest) > 2 and draw < 0.6:
        return TilingExpr((nest[0],), tuple(TilingExpr((a,)) for a in nest[1:]))
    return TilingExpr(tuple(nest))


def draw(rng: np.random.Generator, block: BlockGraph, splits: dict[str, int]) -> KernelSchedule:
    """One schedule of a block; ``splits`` gives the parts of its free axes."""
    batch = batch_axes(block)
    has_dot = any(s.contracts for s in block.computes)
    tiles: dict[str, int] = {}
    loops: list[str] = []
    split = dict(block.splits)
    for axis, extent in block.extents.items():
        if extent == FREE or axis in split.values():
            continue
        spatial = axis in block.spatial and axis not in block.reduced
        if axis in batch:
            tiles[axis] = 1
            continue
        tiles[axis] = _tile(rng, extent, full=True, few=spatial and not has_dot)
        cut = tiles[axis] < extent
        if cut and (not spatial or axis in split):
            loops.append(axis)
        elif cut and rng.random() < 0.08 and len(block.spatial) > 1:
            loops.append(axis)  # a spatial axis inside the block: more reuse, fewer blocks
    return KernelSchedule(
        tuple(sorted(tiles.items())),
        _order(rng, block, loops),
        tuple(sorted((a, n) for a, n in splits.items() if a in block.extents)),
        int(rng.choice(WARPS)),
        int(rng.choice(STAGES)),
    )


def known_good(block: BlockGraph, splits: dict[str, int]) -> Iterator[KernelSchedule]:
    """What a person would try first for two chained contractions: all of k and h, 64 or 128 rows and columns."""
    batch = batch_axes(block)
    has_dot = any(s.contracts for s in block.computes)
    for m, n, warps, stages in ((64, 64, 4, 2), (64, 128, 4, 3), (128, 64, 4, 2), (128, 128, 8, 3), (32, 128, 4, 2)):
        tiles: dict[str, int] = {}
        loops: list[str] = []
        for axis, extent in block.extents.items():
            if extent == FREE or axis in dict(block.splits).values():
                continue
            spatial = axis in block.spatial and axis not in block.reduced
            if axis in batch:
                tiles[axis] = 1
            elif not has_dot and spatial:
                tiles[axis] = min(n, extent) if axis == block.spatial[-1] else 4
            elif axis == "m":
                tiles[axis] = min(m, max(16, 1 << (extent - 1).bit_length()))
            elif axis == "n" or extent > 256:
                tiles[axis] = min(n if axis == "n" else 64, max(16, 1 << (extent - 1).bit_length()))
            else:
                tiles[axis] = extent
            if tiles[axis] < extent and (not spatial or axis in dict(block.splits)):
                loops.append(axis)
        last = {a: i for i, s in enumerate(block.computes) for a in s.reduce}
        order = TilingExpr(tuple(sorted(loops, key=lambda a: -last.get(a, -1))))
        mine = tuple(sorted((a, p) for a, p in splits.items() if a in block.extents))
        yield KernelSchedule(tuple(sorted(tiles.items())), order, mine, warps, stages)


PATIENCE = 40
"""Draws in a row that give nothing new after which a space counts as exhausted."""


def footprint(block: BlockGraph, schedule: KernelSchedule) -> tuple[float, float]:
    """Rough ``(bytes of shared memory, 4-byte values a thread)`` of a schedule: operands of contractions are staged
    (``num_stages`` times in a loop), results of contractions live in registers, once for every trip of a loop that their
    accumulator outlives."""
    bound, plans = bind(block, schedule)
    size = {a: max(16, 1 << (p.tile - 1).bit_length()) if p.tile > 1 else 1 for a, p in plans.items()}
    looped = [a for a in schedule.order.axes if plans[a].trips > 1]
    shared, values = 0.0, 0.0
    for s in bound.computes:
        if s.folds and s.contracts:
            width = math.prod(size[a] for a in s.axes)
            inside = looped.index(s.reduce[0]) if s.reduce and s.reduce[0] in looped else len(looped)
            width *= math.prod(plans[a].trips for a in s.axes if a in looped and looped.index(a) > inside)
            values += width
            for a in s.args:
                v = bound.by_value[a]
                if v.kind == "load":
                    stages = schedule.num_stages if any(x in looped for x in v.axes) else 1
                    shared += math.prod(size[x] for x in v.axes) * DTYPE_BYTES[v.dtype] * stages
        elif s.folds:
            values += math.prod(size[a] for a in s.related)
        else:
            values += 0.25 * math.prod(size[a] for a in s.axes)
    return shared, values / (32 * schedule.num_warps)


def plausible(block: BlockGraph, schedule: KernelSchedule) -> bool:
    """Worth compiling: it fits the block, and the rough footprint is within reach of the device."""
    try:
        shared, values = footprint(block, schedule)
    except UsageError:
        return False
    parts = {axis: block.extents[g] or dict(schedule.splits)[g] for axis, g in block.splits}
    idle = any(math.ceil(block.extents[a] / schedule.tile.get(a, block.extents[a])) < n for a, n in parts.items())
    return shared <= SHARED_LIMIT and values <= REGISTERS and not idle


def sample(graph: KernelGraph, count: int, rng: np.random.Generator) -> list[Schedule]:
    """Up to ``count`` different plausible schedules: first the known good ones, then random ones."""
    found: dict[Schedule, None] = {}
    free = sorted({a.name for b in graph.blocks for a in b.axes if a.extent == FREE})
    firsts = [tuple(known_good(b, dict.fromkeys(free, 4))) for b in graph.blocks]
    for kernels in zip(*firsts, strict=True):
        if all(plausible(b, k) for b, k in zip(graph.blocks, kernels, strict=True)):
            found[Schedule(kernels)] = None
    empty, before = 0, len(found)
    for _ in range(200 * count):
        empty, before = (empty + 1, before) if len(found) == before else (0, len(found))
        if len(found) >= count or empty == PATIENCE:
            break
        splits = {a: int(rng.choice(SPLITS)) for a in free}
        drawn: list[KernelSchedule] = []
        for block in graph.blocks:
            for _ in range(50):
                kernel = draw(rng, block, splits)
                if plausible(block, kernel):
                    drawn.append(kernel)
                    break
        if len(drawn) == len(graph.blocks):
            found[Schedule(tuple(drawn))] = None
    return list(found)[:count]
