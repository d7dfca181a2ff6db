"""The free choices of one kernel but for its split counts: order, tile sizes, warps and stages, and options where they are asked
for, as knobs and as batches of candidates.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import cached_property
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_model.features import Counts
from cost_model.features import Features
from cost_model.features import Sizes
from cost_model.features import evaluate
from cost_model.features import families
from cost_model.features import features
from cost_model.features import placed
from cost_model.shared_memory import SLACK
from cost_model.shared_memory import fits
from fuser.device import Device
from fuser.errors import NoValidKernelError
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import BlockGraph
from fuser.ir.placement import entangled
from fuser.ir.schedule import KernelSchedule
from fuser.ir.tiling import Init
from fuser.ir.tiling import TilingExpr
from fuser.lower.given_options import given
from fuser.lower.layers import find_layers
from fuser.lower.places import Place
from search.space.expressions import too_deep
from search.space.knobs import Choice
from search.space.knobs import Knob
from search.space.knobs import Order
from search.space.knobs import Setting
from search.space.knobs import TileSize
from search.space.knobs import settings
from search.space.knobs import settled
from search.space.knobs import settlements
from search.space.places import place_of
from search.space.prune import distinct
from search.space.prune import expressions
from search.space.prune import grid_of
from search.space.prune import tile_sets

Estimator = Callable[[Features], Counts]
"""Seconds of each candidate of a group; infinite where it cannot run."""
Rows = NDArray[np.int64]

MAX_UNROLL = 8
"""Most tiles of one accumulator that are kept at once: a loop over them is unrolled in the generated code."""
FILLED = 0.75
"""Least share of the parts of a split that have any elements, where no product is summed: others leave neutral elements."""
MAX_PIECES = 2
"""Most power-of-two pieces of a tile (80 = 64 + 16), unless it is the whole axis."""
CHUNK = 1 << 16


@dataclass(frozen=True, eq=False)
class Batch:
    """Candidates of one kernel as arrays by axis; ``which`` are the codes of their orders."""

    kernel: KernelSpace
    which: Sizes
    tiles: Mapping[str, Sizes]
    splits: Mapping[str, Any]
    warps: Sizes
    stages: Sizes
    settings: Rows
    """Codes of the options that are searched, by candidate."""
    known: dict[tuple[int, ...], Place | KernelSchedule] = field(default_factory=dict)
    """Where options are settled, of candidates without those that are searched: batches of one kernel may share it."""

    def __len__(self) -> int:
        return len(self.warps)

    @cached_property
    def groups(self) -> tuple[Features, ...]:
        k = self.kernel
        return features(k.block, k.order.values, self.tiles, self.splits, self.warps, self.stages, dict(k.given), self.which)

    def plain(self, i: int) -> KernelSchedule:
        """Without options that are searched."""
        tiles = {a: int(v[i]) for a, v in self.tiles.items()}
        splits = {a: int(np.broadcast_to(v, (len(self),))[i]) for a, v in self.splits.items()}
        order = self.kernel.order.values[self.which[i]]
        return self.kernel.spelled(order, self._dead(i), tiles, splits, int(self.warps[i]), int(self.stages[i]))

    def schedule(self, i: int) -> KernelSchedule:
        """Each different one is made once: what is around a candidate of several kernels changes one of them."""
        key = (self._code(i), tuple(self.settings[i].tolist()))
        if key not in self._schedules:
            p = self._place(i)
            self._schedules[key] = settled(p, self.kernel.settings, key[1]) if isinstance(p, Place) else p
        return self._schedules[key]

    def _place(self, i: int) -> Place | KernelSchedule:
        """Where options are settled, made once for candidates that differ in those alone; without any, the schedule."""
        if (key := self._code(i)) not in self.known:
            plain = self.plain(i)
            self.known[key] = self.kernel.place(plain) if self.kernel.settings else plain
        return self.known[key]

    def _dead(self, i: int) -> tuple[str, ...]:
        """The axes without a loop of a candidate."""
        return tuple(a for a, t in self.groups[self._group[i]].trips.items() if t[0] == 1)

    @cached_property
    def _group(self) -> Rows:
        found = np.zeros(len(self), np.int64)
        for number, f in enumerate(self.groups):
            found[f.index] = number
        return found

    def _code(self, i: int) -> tuple[int, ...]:
        """Of a candidate all but the options that are searched."""
        return tuple(v[i].item() for v in self._numbers)

    @cached_property
    def _numbers(self) -> list[Sizes]:
        splits = (np.broadcast_to(v, (len(self),)) for v in self.splits.values())
        return [self.which, *self.tiles.values(), *splits, self.warps, self.stages]

    @cached_property
    def _schedules(self) -> dict[tuple[tuple[int, ...], tuple[int, ...]], KernelSchedule]:
        return {}

    def seconds(self, estimate: Estimator, checked: bool = False) -> Counts:
        """Seconds of each candidate with its options; infinite where it breaks a rule, unless that is ``checked``."""

        def of(f: Features) -> Counts:
            valid = np.ones(len(f), np.bool_) if checked else self.kernel.valid(f)
            return np.where(valid, estimate(self.with_options(f, valid)), np.inf)

        return evaluate(self.groups, of)

    def with_options(self, f: Features, valid: NDArray[np.bool_]) -> Features:
        """Features of some of its candidates that show the options which the model sees and which the valid ones have."""
        seen = [s.name for s in self.kernel.settings if s.option.seen]
        if not seen:
            return f
        chosen = [self.schedule(i).knob if ok else {} for i, ok in zip(f.index.tolist(), valid, strict=True)]
        found = {name: np.array([c.get(name) for c in chosen], object) for name in seen}
        return f.given(dict(self.kernel.always) | found)


@dataclass(frozen=True)
class KernelSpace:
    """The free choices of one block but for its split counts. ``limit``: rule 4's bytes of shared memory by equation 1.
    ``always``: options that every schedule has, beside those that are chosen."""

    block: BlockGraph
    order: Order
    tiles: tuple[TileSize, ...]
    warps: Choice[int]
    stages: Choice[int]
    limit: float
    device: Device
    behind: bool = False
    settings: tuple[Setting, ...] = ()
    notes: tuple[str, ...] = ()
    always: tuple[tuple[str, Any], ...] = ()

    @property
    def knobs(self) -> tuple[Knob[Any], ...]:
        return (self.order, *self.tiles, self.warps, self.stages, *self.settings)

    @cached_property
    def given(self) -> tuple[tuple[str, Any], ...]:
        """Options that every schedule has where they are not searched."""
        return self.always or (() if self.settings else given(self.device.arch, self.behind))

    @property
    def size(self) -> int:
        return math.prod(k.count for k in self.knobs)

    @property
    def free(self) -> tuple[str, ...]:
        """Split axes whose counts a schedule chooses."""
        return tuple(a.name for a in self.block.axes if a.extent == FREE)

    def valid(self, f: Features) -> NDArray[np.bool_]:
        """Rule 4, few enough unrolled tiles, and no part of a split that is empty."""
        ok = fits(f, 1, self.limit)
        owner = dict(f.tree.owner)
        for item, around in f.tree.walk():
            if not isinstance(item, Init) and item.folds:
                kept = families(item, [x.axis for x in around], owner.get(item.value))
                ok = ok & (f.product(f.trips, kept) <= MAX_UNROLL)
        for axis, _ in f.block.splits:
            filled = FILLED if not f.block.contracts else 1.0
            ok = ok & ((filled * f.grid[axis] - 1) * f.trips[axis] * f.tile[axis] < f.extent[axis])
        return ok

    def repeated(self, f: Features, which: Sizes) -> NDArray[np.bool_]:
        """Whether an order in front of that of a candidate (``which`` has its number) gives the same program with the same
        tiles."""
        found = np.zeros(len(f), np.bool_)
        live = tuple(a for a, t in f.trips.items() if t[0] > 1)
        for code in np.unique(which).tolist():
            own, mine = set(self.order.values[code].axes), which == code
            for e in self._alike(live)[code]:
                named = set(self.order.values[e].axes)
                if own.intersection(live) <= named:
                    found |= mine & np.logical_and.reduce([f.grid[a] == 1 for a in named - own - set(live)], initial=True)
        return found

    def _alike(self, live: tuple[str, ...]) -> Sequence[Sequence[int]]:
        """For each order those in front of it that have its loop tree, with these loops."""
        if live not in self._trees:
            earlier: dict[str, list[int]] = {}
            found = []
            for code, order in enumerate(self.order.values):
                same = earlier.setdefault(str(placed(self.block, order, live)), [])
                found.append(tuple(same))
                same.append(code)
            self._trees[live] = found
        return self._trees[live]

    @cached_property
    def _trees(self) -> dict[tuple[str, ...], Sequence[Sequence[int]]]:
        return {}

    def batches(self, splits: Mapping[str, int], chunk: int = CHUNK) -> Iterator[Batch]:
        """Every valid candidate for given split counts, each program once; orders follow one another in a batch."""
        mine = {a: splits[a] for a in self.free}
        choices: dict[str, Sequence[int]] = {k.name: k.values for k in self.tiles}
        found: list[tuple[Sizes, ...]] = []
        rows = math.prod(map(len, choices.values())) * self.warps.count * self.stages.count
        together = max(1, chunk // rows)
        for first in range(0, len(self.order.values), together):
            codes = range(first, min(first + together, len(self.order.values)))
            for part in grid_of(choices, chunk):
                order = np.repeat(codes, len(next(iter(part.values()), (0,))))
                grid = {a: np.tile(v, len(codes)) for a, v in part.items()}
                groups = features(self.block, self.order.values, grid, mine, options=dict(self.always), which=order)
                keep = np.flatnonzero(
                    evaluate(groups, lambda f: self.valid(f) & ~self.repeated(f, order[f.index]))  # noqa: B023
                )
                if not len(keep):
                    continue
                looped = evaluate(groups, lambda f: np.full(len(f), any(t[0] > 1 for t in f.trips.values())))
                which, warps, stages = (
                    x.ravel() for x in np.meshgrid(keep, self.warps.values, self.stages.values, indexing="ij")
                )
                # without a loop there is nothing to pipeline: one depth stands for all
                used = looped[which] | (stages == self.stages.values[0])
                which, warps, stages = which[used], warps[used], stages[used]
                found.append((order[which], warps, stages, *(v[which] for v in grid.values())))
                if sum(len(x[0]) for x in found) >= chunk:
                    yield from self._batch(found, mine, chunk)
                    found = []
        if found:
            yield from self._batch(found, mine, chunk)

    def _batch(self, found: Sequence[tuple[Sizes, ...]], splits: Mapping[str, int], chunk: int) -> Iterator[Batch]:
        """What was found one after another: codes of orders, warps, stages, and tiles."""
        which, warps, stages, *tiles = (np.concatenate(x) for x in zip(*found, strict=True))
        by_axis = dict(zip((k.name for k in self.tiles), tiles, strict=True))
        plain = Batch(self, which, by_axis, splits, warps, stages, np.zeros((len(which), len(self.settings)), np.int64))
        yield from self._with_settings(plain, chunk) if self.settings else (plain,)

    def _with_settings(self, plain: Batch, chunk: int) -> Iterator[Batch]:
        """The candidates with each set of options that is for them."""
        every = ((i, codes) for i in range(len(plain)) for codes in settlements(self.place(plain.plain(i)), self.settings))
        while part := list(islice(every, chunk)):
            at = np.array([i for i, _ in part])
            tiles = {a: v[at] for a, v in plain.tiles.items()}
            codes = np.array([c for _, c in part], np.int64)
            yield Batch(self, plain.which[at], tiles, plain.splits, plain.warps[at], plain.stages[at], codes)

    def place(self, plain: KernelSchedule) -> Place:
        return place_of(self.block, plain, self.device, self.behind)

    def schedule(
        self, order: TilingExpr, tiles: Mapping[str, int], splits: Mapping[str, int], warps: int, stages: int
    ) -> KernelSchedule:
        """The schedule of a candidate: loops of one trip leave the order, and without loops the depth of the pipeline is the
        default. Of options it has those that are given."""
        (f,) = features(self.block, order, tiles, splits, options=dict(self.always))
        dead = tuple(a for a, t in f.trips.items() if t[0] == 1)
        return self.spelled(order, dead, tiles, splits, warps, stages)

    def spelled(
        self,
        order: TilingExpr,
        dead: Sequence[str],
        tiles: Mapping[str, int],
        splits: Mapping[str, int],
        warps: int,
        stages: int,
    ) -> KernelSchedule:
        """The schedule where it is known which axes have no loop."""
        if len(dead) == len(self.block.axes):
            stages = self.stages.values[0]
        by_axis = tuple(sorted(tiles.items()))
        return KernelSchedule(by_axis, order.without(dead), tuple(sorted(splits.items())), warps, stages, self.given)


def rank_kernel(
    k: KernelSpace, splits: Mapping[str, int], estimate: Estimator, top: int
) -> tuple[list[tuple[float, KernelSchedule]], int]:
    """The ``top`` best schedules of a kernel with their estimates, best first, and the number of estimates."""
    found: list[tuple[float, int, KernelSchedule]] = []
    estimated = 0
    for batch in k.batches(splits):
        seconds = batch.seconds(estimate, checked=True)
        for i in np.argsort(seconds, kind="stable")[:top].tolist():
            if np.isfinite(seconds[i]):
                found.append((float(seconds[i]), estimated + i, batch.schedule(i)))
        found = heapq.nsmallest(top, found, key=lambda x: x[:2])
        estimated += len(batch)
    return [(t, s) for t, _, s in found], estimated


@lru_cache(maxsize=1024)
def _orders(block: BlockGraph) -> tuple[tuple[TilingExpr, ...], str]:
    """The distinct orders of a block's loops, those of few loops first; kernels of many structures share a block."""
    left, note = expressions(block)
    return tuple(sorted(distinct(block, left), key=lambda e: len(e.axes))), note


def deeper(block: BlockGraph) -> tuple[int, ...]:
    """Depths of a pipeline that only blocks have room for whose products are sums over one axis: one loop, no tile between."""
    sums = {s.reduce for s in block.computes if s.contracts}
    made = any(block.by_value[a].kind == "compute" for s in block.computes if s.contracts for a in s.args)
    return (5,) if len(sums) == 1 and not made else ()


def kernel_space(
    block: BlockGraph, device: Device, slack: float = SLACK, behind: bool = False, options: bool = False
) -> KernelSpace:
    """The knobs of one block: the distinct orders that rules 1 and 2 leave, the tile sizes that rule 3 leaves, warps and
    stages; with ``options`` also those of the lowering."""
    if (why := too_deep(block)) and not entangled(block) and not any(s.contracts for s in block.computes):
        raise NoValidKernelError(why, "cut the program between its sums")
    orders, note = _orders(replace(block, name=""))
    if not orders:
        raise NoValidKernelError(f"kernel {block.name!r} has no order of loops that can run", "cut the program there")
    tiles, notes = [], [note] if note else []
    for t in tile_sets(block):
        if not t.values:
            why = f"no tile of {t.axis!r} of {block.name!r} reaches the end of its rows"
            raise NoValidKernelError(why, "store them row after row")
        few = tuple(v for v in t.values if v.bit_count() <= MAX_PIECES or v >= t.extent)
        tiles.append(TileSize(t.axis, few or t.values))
        notes += [t.note] if t.note else []
    chain = any(s.contracts for s in block.computes)
    most = device.max_threads_per_block // 32
    warps = tuple(w for w in ((4, 8, 2) if chain else (4, 8, 16, 2, 1)) if w <= most)
    # a loop over equal layers fetches their weights ahead, whatever the tiles are
    stages = (3, 4, 2) if find_layers(block, block.stmts) else (2, 3, 4, *deeper(block), 1) if chain else (2, 1)
    return KernelSpace(
        block,
        Order("order", orders),
        tuple(tiles),
        Choice("warps", warps),
        Choice("stages", stages),
        slack * device.smem_per_block,
        device,
        behind,
        settings(block, device, behind) if options else (),
        tuple(notes),
    )
