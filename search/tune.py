"""Tune one program: rank every schedule of every structure with the model, take the best.

Fast tuning runs nothing on a GPU: for each structure, every kernel's candidates (orders × tiles × splits × warps × stages, after the pruning rules)
are estimated as arrays, the best of each kernel make the structure's schedule, and structures compete by the sum of their kernels.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from cost_model import refined
from cost_model.features import features
from cost_model.features import placed
from cost_model.shared_memory import fits
from fuser.device import Device
from fuser.errors import NoValidKernelError
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from search.expressions import is_contraction
from search.expressions import rule1
from search.expressions import rule2
from search.expressions import tiling_expressions
from search.prune import tile_sets
from search.structures import structures

WARPS = (4, 8)
STAGES = (2, 3, 4)
SPLITS = (2, 4, 8, 16, 32)
BATCH = 1 << 17
"""Candidates that are estimated at once; beyond it tile sizes are thinned."""
FAMILY = 16
"""Most register blocks of one accumulator: more spill on every device."""


@dataclass(frozen=True)
class Ranked:
    """A kernel's schedule with its estimate in seconds."""

    seconds: float
    schedule: KernelSchedule


@dataclass(frozen=True)
class Candidate:
    """A µGraph with a schedule and its estimated time in seconds."""

    graph: KernelGraph
    schedule: Schedule
    seconds: float

    @property
    def us(self) -> float:
        return self.seconds * 1e6


@dataclass(frozen=True)
class Tuned:
    """The winner, what came next (best first; other structures and the winner's own next schedules), and how much was looked at."""

    program: TensorProgram
    device: str
    winner: Candidate
    runners: tuple[Candidate, ...]
    structures: int
    candidates: int
    notes: tuple[str, ...] = ()

    @property
    def runner_up(self) -> Candidate | None:
        return self.runners[0] if self.runners else None


@lru_cache(maxsize=512)
def orders(block: BlockGraph) -> tuple[TilingExpr, ...]:
    """Sub-tiling expressions after rules 1 and 2, one for each program that they place to."""
    kept: dict[Any, TilingExpr] = {}
    for expr in rule2(block, rule1(block, tiling_expressions(block))):
        live = tuple(a.name for a in block.axes if a.name in expr.axes)
        kept.setdefault(placed(block, expr, live), expr)
    return tuple(kept.values()) or (TilingExpr(),)


def _thin(sets: list[tuple[str, tuple[int, ...]]], limit: int) -> list[tuple[str, tuple[int, ...]]]:
    """Fewer tile sizes where the product is too large: the longest list loses every second size that is no power of two, then any."""
    sets = list(sets)
    while math.prod(len(v) for _, v in sets) > limit:
        i = max(range(len(sets)), key=lambda j: len(sets[j][1]))
        axis, values = sets[i]
        odd = [v for v in values if v & (v - 1) and v != values[-1]]
        drop = set(odd[::2] if odd else values[-2::-2])
        sets[i] = (axis, tuple(v for v in values if v not in drop))
        if len(sets[i][1]) == len(values):
            break
    return sets


def rank_block(block: BlockGraph, device: Device, top: int = 4) -> tuple[list[Ranked], int]:
    """The ``top`` schedules of one kernel by the refined model, and the number of candidates estimated."""
    best: list[tuple[float, int, KernelSchedule]] = []
    count = 0
    sets = [(t.axis, t.values) for t in tile_sets(block)]
    free = [a.name for a in block.axes if a.extent == FREE]
    matmul = any(is_contraction(s) for s in block.computes)
    warps = WARPS if matmul else (1, 2, 4, 8)
    for order in orders(block):
        own = [(a, _usable(block, order, a, v)) for a, v in sets]
        own = _thin(own, BATCH // (len(warps) * len(STAGES) * len(SPLITS) ** len(free)))
        names = [a for a, _ in own] + free + ["warps", "stages"]
        grid = np.meshgrid(*(v for _, v in own), *(SPLITS for _ in free), warps, STAGES, indexing="ij")
        columns = {n: g.ravel().astype(np.int64) for n, g in zip(names, grid, strict=True)}
        tiles = {a: columns[a] for a, _ in own}
        splits = {a: columns[a] for a in free}
        for f in features(block, order, tiles, splits, columns["warps"], columns["stages"]):
            t = refined.seconds(f, device)
            t = np.where(fits(f, device.smem_per_block), t, np.inf)
            for b in f.buffers:
                t = np.where(b.tiles > FAMILY, np.inf, t)
            for a in free:  # a part without work is a waste
                axis = next(r for r, g in block.splits if g == a) if any(g == a for _, g in block.splits) else ""
                if axis:
                    parts = -(-f.extent[axis] // f.tile[axis])
                    t = np.where(f.extent[a] > parts, np.inf, t)
            count += len(f)
            for i in np.argsort(t, kind="stable")[:top].tolist():
                if np.isfinite(t[i]):
                    at = int(f.index[i])
                    ks = KernelSchedule(
                        tuple(sorted((a, int(tiles[a][at])) for a in tiles)),
                        order,
                        tuple(sorted((a, int(splits[a][at])) for a in splits)),
                        int(columns["warps"][at]),
                        int(columns["stages"][at]),
                    )
                    best.append((float(t[i]), len(best), ks))
    return [Ranked(s, ks) for s, _, ks in heapq.nsmallest(top, best)], count


def _usable(block: BlockGraph, order: TilingExpr, axis: str, values: tuple[int, ...]) -> tuple[int, ...]:
    """Tile sizes of an axis under an order: one that has no loop, is not spatial and not split is whole."""
    if axis in order.axes or axis in block.spatial and axis not in block.reduced or axis in dict(block.splits):
        return values
    extent = block.extents[axis]
    return (extent if extent % 16 == 0 or extent < 16 else max(*values, extent),)


def rank_graph(graph: KernelGraph, device: Device, top: int = 4) -> tuple[list[Candidate], int]:
    """Schedules of one structure, best first, and the number of candidates."""
    count = 0
    options: list[list[Ranked]] = []
    fixed = 0.0
    for kernel in graph.kernels:
        if isinstance(kernel, LibraryKernel):
            fixed += library_seconds(graph, kernel, device)
            continue
        shared = [a.name for a in kernel.axes if a.extent == FREE]
        # the count of a split is shared by kernels: keep the best schedules of every count
        ranked, n = rank_block(kernel, device, top if not shared else top * len(SPLITS) * 2)
        count += n
        if not ranked:
            return [], count
        options.append(ranked)
    found: list[Candidate] = []
    free = sorted({a.name for b in graph.blocks for a in b.axes if a.extent == FREE})
    for counts in itertools.product(*(SPLITS for _ in free)):
        wanted = dict(zip(free, counts, strict=True))
        filtered = [[r for r in o if all(wanted[a] == n for a, n in r.schedule.splits)] for o in options]
        if not all(filtered):
            continue
        depth = top if len(filtered) == 1 else 1
        for i in range(min(depth, len(filtered[0]))):
            picks = [o[i] if j == 0 else o[0] for j, o in enumerate(filtered)]
            found.append(Candidate(graph, Schedule(tuple(p.schedule for p in picks)), fixed + math.fsum(p.seconds for p in picks)))
    found.sort(key=lambda c: c.seconds)
    return found[:top], count


def library_seconds(graph: KernelGraph, kernel: LibraryKernel, device: Device) -> float:
    """Estimate of a library kernel on tensors of the program."""
    shapes = [graph.table[a].shape for a in kernel.args]
    if kernel.op != "matmul":
        nbytes = sum(graph.table[a].nbytes for a in (*kernel.args, kernel.output))
        return refined.memory_kernel_seconds(nbytes, device)
    a, b = shapes
    return refined.matmul_seconds(math.prod(a[:-2]), a[-2], b[-1], a[-1], graph.table[kernel.args[0]].dtype, device)


def tune_fast(program: TensorProgram, device: Device, top: int = 4) -> Tuned:
    """Fast tuning: the model alone decides. Raises :class:`NoValidKernelError` where no schedule fits the device, and
    :class:`fuser.errors.UnsupportedError` where no structure lowers."""
    refined.check_device(device)
    graphs = structures(program)
    found: list[Candidate] = []
    count = 0
    for graph in graphs:
        ranked, n = rank_graph(graph, device, top)
        found += ranked
        count += n
    if not found:
        raise NoValidKernelError(
            f"no schedule of {program.name!r} fits {device.title}: {len(graphs)} structures, {count} candidates",
            "choose a device with more shared memory, or cut the region",
        )
    found.sort(key=lambda c: c.seconds)
    return Tuned(program, device.name, found[0], tuple(found[1 : 2 * top]), len(graphs), count)
