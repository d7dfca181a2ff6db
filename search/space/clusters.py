"""Schedules in which the blocks of a cluster share out what a kernel folds (the option ``cluster``): a space beside that of whole
rows, since what a block has is a part of a row, and no loop is left.

FlashFuser (Huang et al., 2025) has such exchanges for chains of products; here they are for folds: a row too long for the
registers of a block is read once, and few rows keep all SMs busy without a second kernel that adds parts.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from fuser.ir.mugraph import BlockGraph
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.schedule import KernelSchedule
from fuser.ir.tiling import TilingExpr
from fuser.lower.cluster_code import MOST
from fuser.lower.given_options import given
from fuser.lower.options import CLUSTER
from fuser.lower.pieces import next_power
from fuser.lower.prefetch_code import LINE
from search.space.kernels import Estimator
from search.space.kernels import KernelSpace
from search.space.kernels import rank_kernel
from search.space.knobs import Choice
from search.space.knobs import Order
from search.space.knobs import TileSize

WARPS = (4, 8, 16)
BLOCKS = (2, 4, MOST)
LEAST = 512
"""Elements that are worth a block of its own."""


def cluster_space(space: KernelSpace) -> KernelSpace | None:
    """The schedules in clusters of the block of a space: of the axes that all its folds go over the slowest is shared out, or the
    one that leaves whole lines to be read and written; others of them are whole, and all else is single. None where it has no
    such form."""
    block = space.block
    folded = _folded(block)
    if not folded or space.free or block.splits or space.device.arch < CLUSTER.capability:
        return None
    axis = max(folded, key=lambda a: _run(block, a))
    rest = math.prod(block.extents[a] for a in folded if a != axis)
    parts = sorted({next_power(math.ceil(block.extents[axis] / n)) for n in BLOCKS})
    parts = [n for n in parts if n < block.extents[axis] and n * rest >= LEAST]
    if not parts:
        return None
    sizes = {a: (block.extents[a],) if a in folded else (1,) for a in block.extents} | {axis: tuple(parts)}
    early = given(space.device.arch, space.behind)
    return replace(
        space,
        order=Order("order", (TilingExpr(),)),
        tiles=tuple(TileSize(a, n) for a, n in sizes.items()),
        warps=Choice("warps", tuple(n for n in WARPS if n in space.warps.values)),
        stages=Choice("stages", space.stages.values[:1]),
        settings=(),
        always=tuple(sorted((*early, (CLUSTER.key(), axis)))),
        notes=(),
    )


def _folded(block: BlockGraph) -> tuple[str, ...]:
    """The axes that every fold of a block goes over; empty where it multiplies, or another axis has no place on the grid."""
    sums = [frozenset(s.reduce) for s in block.computes if s.reduce]
    if not sums or any(s.contracts for s in block.computes) or any(s != sums[0] for s in sums):
        return ()
    others = {a.name for a in block.axes} - sums[0]
    return tuple(a.name for a in block.axes if a.name in sums[0]) if others <= set(block.spatial) else ()


def _run(block: BlockGraph, axis: str) -> int:
    """The least bytes side by side, up to a line, that a block reads or writes at once where an axis is shared out: images that
    are read channels last have 16 of each place where that are the channels (22.9 µs, not the 11 of the estimate)."""
    found = [LINE]
    for s in block.stmts:
        strides = s.access.strides(block.extents) if s.access else {}
        if axis in strides:
            inner = min(strides, key=strides.__getitem__)
            parts = MOST if inner == axis else 1
            found.append(max(1, block.extents[inner] // parts) * DTYPE_BYTES[s.dtype])
    return min(found)


def ranked_clusters(
    space: KernelSpace, estimate: Estimator, top: int, known: dict[Any, Any]
) -> tuple[list[tuple[float, KernelSchedule]], int]:
    """The best of them by the estimate, and how many there are; ``known`` is what was found before."""
    key = ("clusters", replace(space.block, name=""), top, space.behind)
    if key not in known:
        mine = cluster_space(space)
        known[key] = rank_kernel(mine, {}, estimate, top) if mine else ([], 0)
    return known[key]
