"""The sizes at which a check runs kernels: the smallest at which they do all that they do at their own.

Tile sizes, loop order, splits and whether a tile is ragged stay those of the schedule; extents shrink until every loop runs at
least twice. A tile beside which another kernel would have thousands of programs shrinks, too.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from collections.abc import Mapping
from dataclasses import replace

from fuser.ir.candidate import Candidate
from fuser.ir.candidate import scheduled_blocks
from fuser.ir.libraries import generated
from fuser.ir.libraries import products
from fuser.ir.libraries import with_library
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.lower.descriptors import LEAST_BYTES
from fuser.lower.gluon.reduced import trips_of_groups
from fuser.lower.gluon.reduced import with_stages
from fuser.lower.options import PERSISTENT
from fuser.lower.options import TMA
from fuser.lower.tiles import Tiles

FEW = 48
"""Largest extent of an axis that only a library sees."""
MANY_PARTS, FEW_PARTS = 64, 16
"""Parts of a split that are not checked one by one, and how many stand for them."""
PROGRAMS = 3
"""Of a persistent kernel at reduced size, so that each of them computes several places."""
BESIDE = 128
"""How many times the tile of one kernel that of another one may be, along an axis of both."""


def reduced_extents(graph: KernelGraph, schedule: Schedule, free: Collection[str] = ()) -> dict[str, int]:
    """Smallest extents at which every loop and every divided axis has at least two tiles, ragged where the real ones are, and
    loops of warp groups as many as show what they do (:mod:`fuser.lower.gluon.reduced`).

    Axes that are not divided keep their extents; those of ``free`` have at most :data:`FEW`. So do those of tensors that are read
    in windows, too, which lie where they are; and all of a graph with library kernels, the axes of whose tensors are not known.
    """
    if len(graph.blocks) < len(graph.kernels):
        return graph.extents
    whole = _beside_windows(graph)
    steps: dict[str, int] = {}
    divided: dict[str, int] = {}
    full: dict[str, int] = {}
    trips: dict[str, int] = {}
    for block, ks in scheduled_blocks(graph, schedule):
        trips |= {a: max(n, trips.get(a, 0)) for a, n in trips_of_groups(block, ks).items()}
        counts = dict(ks.splits)
        split_of = dict(block.splits)
        for axis, extent in block.extents.items():
            if extent == FREE or axis in split_of.values():
                continue
            full[axis] = extent
            if axis in whole:
                continue
            tile = ks.tile.get(axis, extent)
            step = tile * counts.get(split_of.get(axis, ""), 1)
            if axis in split_of and axis not in contracted(block):
                divided[axis] = of_parts(extent, tile, counts[split_of[axis]])
            if tile < extent:
                steps[axis] = math.lcm(steps.get(axis, 1), step)
    for block, ks in scheduled_blocks(graph, schedule):
        for s in block.stmts:
            if s.access and s.access.axes and TMA.of(ks, s.access.source) and s.access.axes[-1] in steps:
                # rows of a described tensor are whole units of memory
                last = s.access.axes[-1]
                steps[last] = math.lcm(steps[last], max(LEAST_BYTES // DTYPE_BYTES[s.dtype], 1))
    sizes = {}
    for axis, extent in full.items():
        step = steps.get(axis)
        tiles = trips[axis] - (extent % step > 0) if step and axis in trips else 2
        small = tiles * step + extent % step if step else FEW if axis in free and axis not in whole else extent
        sizes[axis] = min(extent, divided.get(axis, small))
    tied: set[str] = set()
    while apart := _read_in_shapes(graph, sizes):
        tied |= apart
        alike = {a: _alike({x for x in tied if full[x] == full[a]}, full[a], steps, trips) for a in tied - divided.keys()}
        grown = {a: n for a, n in alike.items() if n > sizes[a]}
        sizes |= grown or {a: full[a] for a in apart}
    return sizes


def _alike(axes: Collection[str], extent: int, steps: Mapping[str, int], trips: Mapping[str, int]) -> int:
    """A reduced extent for axes that index the same dimensions (those of a matrix and its transpose): whole tiles of each."""
    step = math.lcm(*(steps.get(a, 1) for a in axes))
    tiles = max(2, *(trips.get(a, 2) - (extent % step > 0) for a in axes))
    return min(extent, tiles * step + extent % step)


def contracted(block: BlockGraph) -> set[str]:
    """Axes over which a block sums products."""
    return {a for s in block.computes if s.contracts for a in s.reduce}


def of_parts(extent: int, tile: int, parts: int) -> int:
    """An extent at which no part is empty, each has a loop if it really has one, and the last is as ragged."""
    trips = math.ceil(extent / (parts * tile))
    few, rest = few_parts(parts), extent % tile
    if trips * parts * tile == extent:
        return few * tile * min(trips, 2)
    return ((few - 1) * tile + (rest or tile)) if trips == 1 else (2 * few - 1) * tile + rest


def few_parts(parts: int) -> int:
    """Parts of a split at reduced size: as many, or a few where there are hundreds."""
    return parts if parts <= MANY_PARTS else FEW_PARTS if parts & (parts - 1) == 0 else FEW_PARTS - 3


def _read_in_shapes(graph: KernelGraph, sizes: Mapping[str, int]) -> set[str]:
    """Axes that have been reduced and stand for a dimension of a tensor that another access would read at another extent."""
    found: dict[tuple[str, int], tuple[set[int], set[str]]] = {}
    plain = {s.access.tensor for b in graph.blocks for s in b.stmts if s.access and not s.access.window}
    for block in graph.blocks:
        extents = block.extents | {a: n for a, n in sizes.items() if a in block.extents}
        for s in block.stmts:
            if s.access and s.access.source in plain and not any(extents[a] == FREE for a in s.access.axes):
                whole = s.access.whole(block.extents)
                for i, (dim, extent) in enumerate(zip(s.access.dims, s.access.shape(extents), strict=True)):
                    if whole[i]:
                        known, axes = found.setdefault((s.access.source, i), (set(), set()))
                        known.add(extent)
                        axes |= {a for a in dim if sizes.get(a, 0) < block.extents[a]}
    return {a for known, axes in found.values() if len(known) > 1 for a in axes if a in sizes}


def _beside_windows(graph: KernelGraph) -> set[str]:
    """Axes along which tensors are read, or made, that are read in windows as well, which are not all of that dimension."""
    accesses = [(s.access, b.extents) for b in graph.blocks for s in b.stmts if s.access]
    windows = {(a.source, i) for a, extents in accesses if a.window for i, x in enumerate(a.whole(extents)) if not x}
    viewed = {a.source for a, _ in accesses if a.window and a.window.view}
    found = set[str]()
    for a, _ in accesses:
        if not a.window:
            found |= {x for i, dim in enumerate(a.dims) if a.source in viewed or (a.source, i) in windows for x in dim}
    return found


def at_reduced_sizes(program: TensorProgram, graph: KernelGraph, schedule: Schedule) -> tuple[dict[str, int], KernelGraph, bool]:
    """The reduced extents, the graph with them, and whether it has tensors both whole and in windows. A library's products take
    part as blocks that divide nothing."""
    called = tuple(k.name for k in graph.kernels if isinstance(k, LibraryKernel))
    if called and (whole := generated(program, graph)):
        mine = {b.name: s for b, s in scheduled_blocks(graph, schedule)}
        plans = tuple(mine.get(b.name, KernelSchedule()) for b in whole.blocks)
        sizes = reduced_extents(whole, Schedule(plans), whole.extents.keys() - graph.extents.keys())
        small = whole.with_extents(sizes)
        if set(called) & {b.name for b in whole.blocks} <= set(products(small)):
            return sizes, with_library(small, called), bool(_beside_windows(whole))
    sizes = reduced_extents(graph, schedule)
    return sizes, graph.with_extents(sizes), bool(_beside_windows(graph) or _cut_anew(program, graph))


def _cut_anew(program: TensorProgram, graph: KernelGraph) -> bool:
    """Whether a graph reads windows of what the program multiplies: products with few terms are written out so."""
    cut = any(s.at.window for b in graph.blocks for s in b.loads)
    return cut and sum(s.contracts for b in graph.blocks for s in b.computes) < sum(n.products for n in program.nodes)


def reduced_schedule(candidate: Candidate, small: KernelGraph) -> Schedule:
    """The schedule with few enough persistent programs for the reduced grid, with few parts, and with few stages."""

    def of(block: BlockGraph, kernel: KernelSchedule) -> KernelSchedule:
        stay = 0 < PERSISTENT.of(kernel) < Tiles.of(block, kernel).places
        kernel = replace(kernel, splits=tuple((a, few_parts(n)) for a, n in kernel.splits))
        return PERSISTENT.set(kernel, min(PERSISTENT.of(kernel), PROGRAMS)) if stay else kernel

    pairs = zip(scheduled_blocks(candidate.graph, candidate.schedule), small.blocks, strict=True)
    return Schedule(tuple(with_stages(block, kernel, fewer, of(block, kernel)) for (block, kernel), fewer in pairs))


def with_tiles_alike(candidate: Candidate) -> Candidate:
    """With tiles that are no more than :data:`BESIDE` times those of other kernels along the same axis: a kernel with rows of one
    had a program for each of 16,384 where the next one sums up 8,192 of them at once. Products keep theirs."""
    graph, pairs = candidate.graph, scheduled_blocks(candidate.graph, candidate.schedule)
    least: dict[str, int] = {}
    for _, kernel in pairs:
        for axis, tile in kernel.tiles:
            least[axis] = min(tile, least.get(axis, tile))

    def of(block: BlockGraph, kernel: KernelSchedule) -> KernelSchedule:
        if block.contracts:
            return kernel
        return replace(kernel, tiles=tuple((a, _alike_tile(block.extents[a], n, least[a])) for a, n in kernel.tiles))

    return replace(candidate, schedule=Schedule(tuple(of(b, k) for b, k in pairs))) if len(graph.blocks) > 1 else candidate


def _alike_tile(extent: int, tile: int, least: int) -> int:
    """A tile that is smaller where it is far from the least, and ragged where it was."""
    smaller = tile
    while smaller > BESIDE * least and smaller % 2 == 0 and bool(extent % (smaller // 2)) == bool(extent % tile):
        smaller //= 2
    return smaller
