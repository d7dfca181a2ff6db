"""Schedules of kernels by warp groups (``backend=gluon``): a space beside that of Triton's, since groups share out rows of 64 and
all other tiles are powers of two.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from math import inf
from typing import Any

import numpy as np

from cost_model.features import Counts
from cost_model.features import Features
from fuser.errors import FuserError
from fuser.ir.mugraph import BlockGraph
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.lower.given_options import given
from fuser.lower.gluon.source import generate_gluon
from fuser.lower.gluon.split import GROUP_WARPS
from fuser.lower.gluon.split import MOST_GROUPS
from fuser.lower.gluon.split import ROWS
from fuser.lower.gluon.split import of_16_bits
from fuser.lower.gluon.split import row_axis
from fuser.lower.options import BACKEND
from fuser.lower.options import FLATTEN
from fuser.lower.options import OPTIONS
from fuser.lower.options import PERSISTENT
from fuser.lower.options import SPECIALIZE
from fuser.lower.options import TMA
from fuser.lower.pieces import GROUPS_ARCH
from fuser.lower.pieces import next_power
from fuser.lower.tiles import Tiles
from search.space.expressions import batch_axes
from search.space.kernels import Batch
from search.space.kernels import Estimator
from search.space.kernels import KernelSpace
from search.space.knobs import Choice
from search.space.knobs import Setting
from search.space.knobs import TileSize

STAGES = (2, 3, 4, 5)
SIZES = (32, 64, 128, 256)
"""Tiles of columns and sums; what is smaller is whole."""
TURNED = 3 * ROWS
"""Columns that three groups may share out: where rows divide badly, 128 × 192 fills SMs that 192 × 128 leaves idle."""
LINE = 128
"""Bytes of a line: of sums, tiles are as long."""
HEIGHTS = (1, 2)
"""Times 64 rows of a group."""
GROUPS = range(1, MOST_GROUPS + 1)
STAY = (0, 1, 2)
"""Blocks that stay on each SM; none where all end."""
BY_POINTERS, ALONE = "by pointers", "alone"
WAYS = (*STAY, BY_POINTERS, ALONE)
"""How a kernel is ranked: with so many blocks that stay; of blocks that end also with results that leave by pointers, for which
more of them may be side by side, and with one group that fills its slots itself."""
LISTED = 32
"""Of the best by the estimate, among which the first that have a form are taken."""
EVEN = 1.005


def group_space(space: KernelSpace) -> KernelSpace | None:
    """The schedules by warp groups of the block of a space; None where it has no such form. What decides on registers and shared
    memory the estimate knows, the rest :func:`written`. ``flatten`` has never gained there."""
    block = space.block
    if space.device.arch != GROUPS_ARCH or block.splits or space.free:
        return None
    rows, whole = _rows(space)
    if not rows:
        return None
    # of fewer rows most of what they multiply would be padding; without products they gain nothing
    if not any(s.contracts for s in block.computes) or block.extents[rows] < ROWS:
        return None
    parts = [ROWS * h for h in HEIGHTS]
    tall = tuple(sorted({n * part for n in GROUPS for part in parts if part == parts[0] or n * part < 2 * whole[rows]}))
    undivided = {t.name for t in space.tiles if t.values[0] >= block.extents[t.name]}
    columns, lines = _columns(block, rows), _lines(block)
    sizes = {a: _sizes(n, a in columns, lines.get(a, 0)) if a not in undivided else (n,) for a, n in whole.items()} | {rows: tall}
    early = () if space.settings else given(space.device.arch, space.behind)
    return replace(
        space,
        tiles=tuple(TileSize(t.name, sizes[t.name]) for t in space.tiles),
        warps=Choice("warps", tuple(GROUP_WARPS * n for n in GROUPS)),
        stages=Choice("stages", STAGES),
        settings=tuple(_settings(space)),
        always=((BACKEND.key(), "gluon"), *((n, value) for n, value in early if OPTIONS[n].groups)),
        notes=(),
    )


def _settings(space: KernelSpace) -> Iterator[Setting]:
    """Options that are searched, with the choices that are for warp groups."""
    for s in space.settings:
        if s.option.groups and s.option is not FLATTEN and not s.option.by_groups:
            yield s
    for o in OPTIONS.values() if space.settings else ():
        names = (o.key(t) for t in space.block.outputs) if o.tensors else (o.name,)
        yield from (Setting(n, (None, *o.by_groups)) for n in names if o.by_groups)


def _lines(block: BlockGraph) -> dict[str, int]:
    """Axes that products of what is loaded sum over, with the elements of a line: with rows of half of one an H200 took a third
    longer (QKV of BERT base with batch 8)."""
    found: dict[str, int] = {}
    for s in block.computes:
        operands = [block.by_value[a] for a in s.args] if s.contracts else []
        if operands and all(x.kind == "load" for x in operands):
            found |= dict.fromkeys(s.reduce, LINE // min(DTYPE_BYTES[x.dtype] for x in operands))
    return found


def _rows(space: KernelSpace) -> tuple[str, dict[str, int]]:
    """What groups share out, empty where there is nothing, and tiles of all of a block, but for what is done one by one."""
    block = space.block
    single = {*batch_axes(block), *(t.name for t in space.tiles if 1 in t.values)}
    whole = {a.name: 1 if a.name in single else next_power(a.extent) for a in block.axes}
    try:
        tiles = Tiles.of(block, KernelSchedule(tuple(sorted(whole.items()))))
        return row_axis(tiles) if all(of_16_bits(tiles, s) for s in block.computes if tiles.is_dot(s)) else "", whole
    except FuserError:
        return "", whole


def _columns(block: BlockGraph, rows: str) -> frozenset[str]:
    """Columns of products of what is loaded, which groups may share out in place of rows."""
    dots = [s for s in block.computes if s.contracts]
    loaded = all(block.by_value[a].kind == "load" for s in dots for a in s.args)
    return frozenset(a for s in dots for a in s.axes if loaded and a != rows and block.extents[a] > TURNED)


def _sizes(whole: int, turned: bool, least: int) -> tuple[int, ...]:
    sizes = sorted({*SIZES, TURNED}) if turned else SIZES
    return tuple(n for n in sizes if least <= n < whole) + ((whole,) if whole <= SIZES[-1] else ())


def ranked_groups(
    space: KernelSpace, estimate: Estimator, top: int, known: dict[Any, Any]
) -> tuple[list[tuple[float, KernelSchedule]], int]:
    """The best schedules by warp groups of the block of a space, with their estimates, and the number of these; ``known`` is what
    was found before."""
    key = ("groups", replace(space.block, name=""), top)
    if key not in known:
        mine = group_space(space)
        found, count = _ranked(mine, estimate) if mine else ([], 0)
        known[key] = list(islice((x for x in found if written(space.block, x[1])), top)), count
    return known[key]


def _ranked(space: KernelSpace, estimate: Estimator) -> tuple[list[tuple[float, KernelSchedule]], int]:
    """Schedules in each of :data:`WAYS`, best first; of those that differ in their stages alone one of the
    most stages that cost nothing, since estimates take every slot to come in time."""
    found: list[list[tuple[float, int, Batch, int]]] = [[] for _ in WAYS]
    sms = space.device.sm_count
    count = 0
    for batch in space.batches({}):
        every = ((f.index, batch.with_options(f, np.ones(len(f), np.bool_))) for f in batch.groups)
        parts = [(index, _each_way(f, estimate, sms)) for index, f in every]
        for k, mine in enumerate(found):
            seconds = np.full(len(batch), inf)
            for index, part in parts:
                seconds[index] = part[k]
            best_of = np.argsort(seconds, kind="stable")[:LISTED].tolist()
            mine += [(float(seconds[i]), count + i, batch, i) for i in best_of if seconds[i] < inf]
            found[k] = heapq.nsmallest(LISTED, mine, key=lambda x: x[:2])
        count += len(batch)
    schedules = [
        (seconds, batch.schedule(i).with_knobs(**_knobs(space.block, way, sms)))
        for way, mine in zip(WAYS, found, strict=True)
        for seconds, _, batch, i in mine
    ]
    best: dict[Any, tuple[float, KernelSchedule]] = {}
    for seconds, s in sorted(schedules, key=lambda x: x[0]):
        least, first = best.setdefault((s.tiles, s.order, s.num_warps, s.knobs), (seconds, s))
        if seconds <= EVEN * least and first.num_stages < s.num_stages:
            best[s.tiles, s.order, s.num_warps, s.knobs] = seconds, s
    kept: dict[Any, float] = {}
    gains: list[tuple[float, KernelSchedule]] = []
    for (tiles, order, warps, _), (seconds, s) in sorted(best.items(), key=lambda x: len(x[0][3])):
        if EVEN * seconds < kept.get((tiles, order, warps), inf):  # an option has to gain
            kept[tiles, order, warps] = seconds
            gains.append((seconds, s))
    columns = _columns(space.block, _rows(space)[0])
    turned = [any(dict(s.tiles)[a] == TURNED for a in columns) for _, s in gains]
    straight = min((seconds for (seconds, _), t in zip(gains, turned, strict=True) if not t), default=inf)
    gains = [x for x, t in zip(gains, turned, strict=True) if not t or EVEN * x[0] < straight]  # so has the other way round
    return sorted(gains, key=lambda x: x[0]), count * len(WAYS)


def _knobs(block: BlockGraph, way: int | str, sms: int) -> dict[str, Any]:
    """The options of one of :data:`WAYS`."""
    if way == BY_POINTERS:
        return {TMA.key(t): False for t in block.outputs}
    if way == ALONE:
        return {SPECIALIZE.key(): False}
    return {PERSISTENT.key(): way * sms} if way else {}


def _each_way(f: Features, estimate: Estimator, sms: int) -> Counts:
    """Seconds of candidates in each of :data:`WAYS`, which are counted together."""
    often = len(WAYS)
    sizes = {n: {a: np.tile(v, often) for a, v in getattr(f, n).items()} for n in ("extent", "tile", "trips", "grid")}
    knobs = [_knobs(f.block, way, sms) for way in WAYS]
    names = dict.fromkeys(n for k in knobs for n in k)
    options = {n: np.repeat(np.array([k.get(n) for k in knobs], object), len(f)) for n in names}
    index = np.arange(often * len(f))
    blocks, warps, stages = (np.tile(x, often) for x in (f.blocks, f.warps, f.stages))
    every = replace(f, index=index, blocks=blocks, warps=warps, stages=stages, options={**f.options, **options}, **sizes)
    return estimate(every).reshape(often, len(f))


def by_warp_groups(schedule: Schedule) -> bool:
    """Whether a kernel of it is, or is in Gluon otherwise: Triton's prices are of neither."""
    return any(BACKEND.of(k) != "triton" for k in schedule.kernels)


def written(block: BlockGraph, schedule: KernelSchedule) -> bool:
    """Whether Gluon's generator has a form of a schedule."""
    try:
        generate_gluon(Tiles.of(block, schedule), block.name)
    except FuserError:
        return False
    return True
