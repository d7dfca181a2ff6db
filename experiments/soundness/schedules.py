"""Schedules for a correctness check: the model's best, random ones, and ugly ones.

An ugly schedule stresses one thing: tiles that leave a ragged end or are no power of two, a single row, one warp or sixteen,
split counts that divide nothing, loops in any order (spatial ones too), or the lowering's options.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cost_model.features import Features
from cost_model.features import schedule_features
from experiments.sampler import REGISTERS
from experiments.sampler import SHARED_LIMIT
from experiments.sampler import batch_axes
from experiments.sampler import footprint
from fuser.device import Device
from fuser.errors import FuserError
from fuser.errors import NoValidKernelError
from fuser.ir.candidate import scheduled_blocks
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.lower.options import OPTIONS
from fuser.lower.options import rivals
from fuser.lower.triton_source import generate_graph
from search.space.hazards import hazardous
from search.space.hazards import unwieldy
from search.space.schedules import ScheduleSpace
from search.tune import rank_graph

KINDS = ("model", "odd", "thin", "ragged", "parts", "wide", "loops", "options", "random", "tuned")
"""``model`` is what the cost model likes best, ``tuned`` the same with other options of the lowering, ``random`` a row of the
searched space; the others are ugly."""

ODD = (24, 40, 48, 80, 96, 112, 144, 160)
"""Tiles that are no power of two: some are cut into pieces, some padded."""
RAGGED = (5, 7, 11, 19, 33, 50, 100, 130)
SIZES = {"odd": (ODD, 1), "thin": ((16, 32, 64), 1), "wide": ((32, 64, 128, 256), 2)}
"""Tiles of a kind, smaller than so many times the axis."""
PARTS = (1, 3, 5, 6, 7, 11)
TRIES = 60
BLOCKS = 1 << 22
"""Most blocks of a grid: tiles of one element of a large tensor would make millions."""
WORK = 1e12
"""Most elements that all statements compute together, padding and what is computed again included: 17 times the largest case,
a tenth of a second without tensor cores."""
PASSES = 3e5
"""Most times that the innermost statement runs one after the other, with 1,000 blocks at once."""

Rng = np.random.Generator


def choose(graph: KernelGraph, kind: str, rng: Rng, device: Device) -> Schedule | None:
    """A schedule of that kind that lowers, or None where there is none."""
    if kind == "model":
        return _ranked(graph, rng, device)
    best = _ranked(graph, rng, device) if kind == "tuned" else None
    for _ in range(TRIES):
        if kind == "tuned":
            found = _with_options(graph, best, rng) if best else None
        else:
            found = _row(graph, rng, device) if kind == "random" else _draw(graph, kind, rng)
        if found is not None and lowers(graph, found):
            return found
    return None


def _ranked(graph: KernelGraph, rng: Rng, device: Device) -> Schedule | None:
    try:
        ranked, _, _ = rank_graph(graph, device, rng)
    except FuserError:
        return None
    return ranked[0].schedule if ranked else None


def _row(graph: KernelGraph, rng: Rng, device: Device) -> Schedule | None:
    space = ScheduleSpace(graph, device)
    try:
        rows = space.population(4, rng)
    except NoValidKernelError:
        return None
    return space.schedule(rows[int(rng.integers(len(rows)))])


def lowers(graph: KernelGraph, schedule: Schedule) -> bool:
    """It becomes source, compiles in reasonable time, and its footprint is not far beyond the device."""
    try:
        generate_graph(graph, schedule)
        for block, ks in scheduled_blocks(graph, schedule):
            shared, values = footprint(block, ks)
            f = schedule_features(block, ks)
            if shared > SHARED_LIMIT or values > REGISTERS or unwieldy(f).any() or _endless(f):
                return False
    except FuserError:
        return False
    return True


def _endless(f: Features) -> bool:
    """It would keep the device busy for much longer than a good schedule does: chains of many contractions in nested loops."""
    blocks = float(f.blocks[0])
    work = blocks * sum(float(s.runs[0] * s.work[0]) for s in f.stmts)
    runs = max(float(s.runs[0]) for s in f.stmts) * max(1.0, blocks / 1000)
    return blocks > BLOCKS or work > WORK or runs > PASSES


def suspect(graph: KernelGraph, schedule: Schedule, device: Device) -> bool:
    """The compiler is known to get such a schedule wrong, so that tuning leaves it out."""
    return any(bool(hazardous(schedule_features(b, k), device).any()) for b, k in scheduled_blocks(graph, schedule))


def _draw(graph: KernelGraph, kind: str, rng: Rng) -> Schedule | None:
    free = sorted({a.name for b in graph.blocks for a in b.axes if a.extent == FREE})
    splits = {a: int(rng.choice(PARTS if kind == "parts" else PARTS[:4])) for a in free}
    if kind == "parts" and not free:
        kind = "ragged"
    kernels: list[KernelSchedule] = []
    for block in graph.blocks:
        for _ in range(20):
            ks = ugly(block, kind, splits, rng)
            if _fits(block, ks):
                kernels.append(ks)
                break
    if len(kernels) < len(graph.blocks):
        return None
    found = Schedule(tuple(kernels))
    return _with_options(graph, found, rng) if kind == "options" else found


def _fits(block: BlockGraph, ks: KernelSchedule) -> bool:
    try:
        shared, values = footprint(block, ks)
    except FuserError:
        return False
    return shared <= SHARED_LIMIT and values <= REGISTERS


def ugly(block: BlockGraph, kind: str, splits: dict[str, int], rng: Rng) -> KernelSchedule:
    """One ugly schedule of a block; ``splits`` gives the parts of its free axes. It may not lower."""
    batch = batch_axes(block)
    has_dot = any(s.contracts for s in block.computes)
    parts_of = set(dict(block.splits).values())
    axes = [a for a, e in block.extents.items() if e != FREE and a not in parts_of]
    spatial = {a for a in axes if a in block.spatial and a not in block.reduced}
    first = next((a for a in axes if a in spatial and a not in batch), "")
    tiles: dict[str, int] = {}
    loops: list[str] = []
    for axis in axes:
        extent = block.extents[axis]
        if axis in batch:
            tiles[axis] = 1
        elif kind == "thin" and axis == first:
            tiles[axis] = 1
        else:
            tiles[axis] = min(_size(kind, extent, rng), extent)
        if not has_dot and axis in spatial and axis == first:
            tiles[axis] = min(tiles[axis], int(rng.choice((1, 2, 3, 4, 5, 8))))
        cut = tiles[axis] < extent
        if cut and (axis not in spatial or axis in dict(block.splits)):
            loops.append(axis)
        elif cut and axis in spatial and len(spatial) > 1 and rng.random() < (0.5 if kind == "loops" else 0.05):
            loops.append(axis)
    warps = {"thin": (1,), "wide": (16,)}.get(kind, (1, 2, 4, 8, 16))
    stages = {"wide": (1,), "thin": (1, 2)}.get(kind, (1, 2, 3, 4, 5))
    return KernelSchedule(
        tuple(sorted(tiles.items())),
        _order(block, loops, kind, rng),
        tuple(sorted((a, n) for a, n in splits.items() if a in block.extents)),
        int(rng.choice(warps)),
        int(rng.choice(stages)),
    )


def _order(block: BlockGraph, loops: Sequence[str], kind: str, rng: Rng) -> TilingExpr:
    last = {a: i for i, s in enumerate(block.computes) for a in s.reduce}
    nest = sorted(loops, key=lambda a: -last.get(a, -1))
    if kind == "loops" or rng.random() < 0.2:
        nest = [nest[int(i)] for i in rng.permutation(len(nest))]
    if len(nest) > 1 and rng.random() < 0.4:
        cut = int(rng.integers(0, len(nest) - 1))
        if len(nest) - cut > 1:
            return TilingExpr(tuple(nest[:cut]), tuple(TilingExpr((a,)) for a in nest[cut:]))
    return TilingExpr(tuple(nest))


def _options(block: BlockGraph, rng: Rng) -> tuple[tuple[str, object], ...]:
    """Random values of the lowering's options; that for the start behind the kernel in front is set by graph."""
    found: dict[str, object] = {}
    tensors = [*block.inputs, *block.outputs]
    chance = float(rng.choice((0.15, 0.4)))
    for option in sorted(OPTIONS.values(), key=lambda o: o.name == "evict"):
        for tensor in tensors if option.tensors else ("",):
            name, excluded = option.key(tensor), rivals(option, tensor).keys() & found.keys()
            if option.name in ("pdl", "precision") or excluded or rng.random() > chance:
                continue
            if option.name == "flatten" and "persistent" not in found:
                continue
            if option.kind is bool:
                found[name] = True
            elif option.values:
                found[name] = option.values[int(rng.integers(len(option.values)))]
            elif option.name == "grid_order":
                found[name] = ".".join(str(a) for a in rng.permutation(list(block.spatial)))
            elif option.kind is int:
                found[name] = int(rng.choice((1, 3, 7, 132)))
    return tuple(sorted(found.items()))


def _with_options(graph: KernelGraph, schedule: Schedule, rng: Rng) -> Schedule:
    """Other options for each kernel, and now and then an early start of later ones."""
    kernels: list[KernelSchedule] = []
    for i, (block, ks) in enumerate(scheduled_blocks(graph, schedule)):
        knobs = dict(_options(block, rng))
        if i and rng.random() < 0.5:
            knobs["pdl"] = str(rng.choice(("early", "late")))
        kernels.append(replace(ks, knobs=tuple(sorted(knobs.items()))))
    return Schedule(tuple(kernels))


def _size(kind: str, extent: int, rng: Rng) -> int:
    """A tile of an axis; a ragged one leaves a part of the last tile outside of the tensor."""
    if kind == "ragged":
        fits = [t for t in (*RAGGED, *ODD, 16, 32, 64, 128) if t < extent and extent % t] or [max(1, extent - 1)]
    else:
        sizes, times = SIZES.get(kind, ((16, 32, 64, 128, *ODD[:6]), 2))
        fits = [t for t in sizes if t < times * extent or t == extent] or [extent]
    return int(rng.choice(fits))
