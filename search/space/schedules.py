"""The schedules of a µGraph as a product of knobs, for searches and for the model.

A candidate is a row of codes, one for each knob: shared split counts first, then for each kernel its order, tile sizes,
warps and stages. Rows are evaluated in batches; what rules 3 and 4 allow is checked on arrays. One program may have several
rows (a loop of one trip may stand in the order or not); exhaustive enumeration gives it once, and
:meth:`ScheduleSpace.schedule` gives all of them the same schedule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from functools import cached_property
from itertools import product
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
from fuser.errors import UsageError
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Kernel
from fuser.ir.mugraph import KernelGraph
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import Init
from fuser.ir.tiling import TilingExpr
from fuser.lower.layers import find_layers
from fuser.lower.options import OPTIONS
from search.space.expressions import is_contraction
from search.space.knobs import Choice
from search.space.knobs import Knob
from search.space.knobs import Order
from search.space.knobs import Split
from search.space.knobs import TileSize
from search.space.prune import distinct
from search.space.prune import expressions
from search.space.prune import grid_of
from search.space.prune import tile_sets

Estimator = Callable[[Features], Counts]
"""Seconds of each candidate of a group; infinite where it cannot run."""
Rows = NDArray[np.int64]

MAX_UNROLL = 8
"""Most tiles of one accumulator that are kept at once: a loop over them is unrolled in the generated code."""
MAX_PIECES = 2
"""Most power-of-two pieces of a tile (80 = 64 + 16), unless it is the whole axis."""
SPLITS = (2, 4, 8, 16, 32, 64)
DEPENDENT = (("pdl", "early"), ("prefetch", 2))
"""Options of a kernel behind another one: on an H200 they pay for nearly all schedules and cost none more than 2 %."""
CHUNK = 1 << 16


@dataclass(frozen=True, eq=False)
class Batch:
    """Candidates of one kernel with the same order, as arrays by axis."""

    kernel: KernelSpace
    order: TilingExpr
    tiles: Mapping[str, Sizes]
    splits: Mapping[str, Any]
    warps: Sizes
    stages: Sizes

    def __len__(self) -> int:
        return len(self.warps)

    @cached_property
    def groups(self) -> tuple[Features, ...]:
        return features(
            self.kernel.block, self.order, self.tiles, self.splits, self.warps, self.stages, dict(self.kernel.options)
        )

    def schedule(self, i: int) -> KernelSchedule:
        tiles = {a: int(v[i]) for a, v in self.tiles.items()}
        splits = {a: int(np.broadcast_to(v, (len(self),))[i]) for a, v in self.splits.items()}
        return self.kernel.schedule(self.order, tiles, splits, int(self.warps[i]), int(self.stages[i]))


@dataclass(frozen=True)
class KernelSpace:
    """The free choices of one block but for its split counts. ``limit``: rule 4's bytes of shared memory by equation 1."""

    block: BlockGraph
    order: Order
    tiles: tuple[TileSize, ...]
    warps: Choice[int]
    stages: Choice[int]
    limit: float
    notes: tuple[str, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    """Options of the lowering that every schedule of the kernel has (:mod:`fuser.lower.options`)."""

    @property
    def knobs(self) -> tuple[Knob[Any], ...]:
        return (self.order, *self.tiles, self.warps, self.stages)

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
            ok = ok & ((f.grid[axis] - 1) * f.trips[axis] * f.tile[axis] < f.extent[axis])
        return ok

    def repeated(self, f: Features) -> NDArray[np.bool_]:
        """Whether an earlier order gives the same program with the same tiles."""
        found = np.zeros(len(f), np.bool_)
        live = {a for a, t in f.trips.items() if t[0] > 1}
        for e in self.order.values:
            if e == f.order:
                break
            named = set(e.axes)
            if live & set(f.order.axes) <= named:
                in_order = tuple(a for a in f.trips if a in live)
                if str(placed(f.block, e, in_order)) == str(f.tree):
                    same = np.ones(len(f), np.bool_)
                    for a in named - live - set(f.order.axes):
                        same &= f.grid[a] == 1
                    found |= same
        return found

    def batches(self, splits: Mapping[str, int], chunk: int = CHUNK) -> Iterator[Batch]:
        """Every valid candidate for given split counts, each program once."""
        mine = {a: splits[a] for a in self.free}
        choices: dict[str, Sequence[int]] = {k.name: k.values for k in self.tiles}
        for e in self.order.values:
            for grid in grid_of(choices, chunk):
                groups = features(self.block, e, grid, mine)
                keep = np.flatnonzero(evaluate(groups, lambda f: self.valid(f) & ~self.repeated(f)))
                if not len(keep):
                    continue
                looped = evaluate(groups, lambda f: np.full(len(f), any(t[0] > 1 for t in f.trips.values())))
                which, warps, stages = (
                    x.ravel() for x in np.meshgrid(keep, self.warps.values, self.stages.values, indexing="ij")
                )
                # without a loop there is nothing to pipeline: one depth stands for all
                used = looped[which] | (stages == self.stages.values[0])
                which, warps, stages = which[used], warps[used], stages[used]
                yield Batch(self, e, {a: v[which] for a, v in grid.items()}, mine, warps, stages)

    def schedule(
        self, order: TilingExpr, tiles: Mapping[str, int], splits: Mapping[str, int], warps: int, stages: int
    ) -> KernelSchedule:
        """The schedule of a candidate: loops of one trip leave the order, and without loops the depth of the pipeline is the
        default."""
        (f,) = features(self.block, order, tiles, splits)
        dead = [a for a, t in f.trips.items() if t[0] == 1]
        if len(dead) == len(f.trips):
            stages = self.stages.values[0]
        by_axis = tuple(sorted(tiles.items()))
        return KernelSchedule(by_axis, order.without(dead), tuple(sorted(splits.items())), warps, stages, self.options)


def kernel_space(block: BlockGraph, device: Device, slack: float = SLACK) -> KernelSpace:
    """The knobs of one block: the distinct orders that rules 1 and 2 leave, the tile sizes that rule 3 leaves, warps and
    stages."""
    left, note = expressions(block)
    orders = sorted(distinct(block, left), key=lambda e: len(e.axes))
    if not orders:
        raise NoValidKernelError(f"kernel {block.name!r} has no order of loops that can run", "cut the program there")
    tiles, notes = [], [note] if note else []
    for t in tile_sets(block):
        few = tuple(v for v in t.values if v.bit_count() <= MAX_PIECES or v >= t.extent)
        tiles.append(TileSize(t.axis, few or t.values))
        notes += [t.note] if t.note else []
    chain = any(is_contraction(s) for s in block.computes)
    most = device.max_threads_per_block // 32
    warps = tuple(w for w in ((4, 8, 2) if chain else (4, 8, 16, 2, 1)) if w <= most)
    # a loop over equal layers fetches their weights ahead, whatever the tiles are
    stages = (3, 4, 2) if find_layers(block, block.stmts) else (2, 3, 4, 1) if chain else (2, 1)
    return KernelSpace(
        block,
        Order("order", tuple(orders)),
        tuple(tiles),
        Choice("warps", warps),
        Choice("stages", stages),
        slack * device.smem_per_block,
        tuple(notes),
    )


@dataclass(frozen=True)
class ScheduleSpace:
    """All schedules of a kernel graph on a device. ``slack`` is rule 4's multiple of the device's shared
    memory."""

    graph: KernelGraph
    device: Device
    slack: float = SLACK

    @cached_property
    def kernels(self) -> tuple[KernelSpace, ...]:
        found: list[KernelSpace] = []
        before: Kernel | None = None
        for kernel in self.graph.kernels:
            if isinstance(kernel, BlockGraph):
                space = kernel_space(kernel, self.device, self.slack)
                # a kernel behind a generated one need not wait for its end to start
                overlaps = isinstance(before, BlockGraph) and self.device.arch >= OPTIONS["pdl"].capability
                found.append(replace(space, options=DEPENDENT) if overlaps else space)
            before = kernel
        return tuple(found)

    @cached_property
    def splits(self) -> tuple[Split, ...]:
        """A knob for each axis that counts the parts of a split, shared by the kernels that have it."""
        most: dict[str, int] = {}
        for k in self.kernels:
            for axis, parts in k.block.splits:
                if parts in k.free:
                    # a part has at least one tile of every tile size that is left
                    least = min(t.values[0] for t in k.tiles if t.name == axis)
                    most[parts] = min(most.get(parts, SPLITS[-1]), k.block.extents[axis] // least)
        free = dict.fromkeys(a for k in self.kernels for a in k.free)
        return tuple(Split(a, tuple(s for s in SPLITS if s <= most.get(a, SPLITS[-1])) or (1,)) for a in free)

    @cached_property
    def knobs(self) -> tuple[Knob[Any], ...]:
        """All knobs in the order of the codes in a row."""
        return (*self.splits, *(k for kernel in self.kernels for k in kernel.knobs))

    @cached_property
    def size(self) -> int:
        """Rows: the product of all knobs, before rule 4."""
        return math.prod(k.count for k in self.knobs)

    @cached_property
    def work(self) -> int:
        """Estimates that an exhaustive ranking makes: kernels are independent once the splits are chosen."""
        return math.prod(s.count for s in self.splits) * sum(k.size for k in self.kernels)

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(n for k in self.kernels for n in k.notes))

    def split_choices(self) -> Iterator[dict[str, int]]:
        for values in product(*(s.values for s in self.splits)):
            yield dict(zip((s.name for s in self.splits), values, strict=True))

    # -- rows of codes

    def sample_rows(self, count: int, rng: np.random.Generator) -> Rows:
        """``count`` rows drawn from the whole product; some may break rule 4."""
        rows = np.empty((count, len(self.knobs)), np.int64)
        for i, k in enumerate(self.knobs):
            rows[:, i] = rng.integers(k.count, size=count)
        return rows

    def mutate_row(self, row: Sequence[int] | Rows, rng: np.random.Generator) -> list[int]:
        """A row in which one knob has changed, as algorithm 1 changes the tile size of one loop; other knobs are drawn half
        as often."""
        weight = np.array([(1.0 if isinstance(k, TileSize) else 0.5) * (k.count > 1) for k in self.knobs])
        out = [int(x) for x in row]
        if weight.sum():
            at = int(rng.choice(len(weight), p=weight / weight.sum()))
            out[at] = self.knobs[at].mutate_code(out[at], rng)
        return out

    def kernel_batches(self, rows: Rows) -> Iterator[tuple[int, Sizes, Batch]]:
        """The rows' candidates of each kernel, by order: kernel number, positions of the rows, batch."""
        n = len(self.splits)
        counts = {s.name: np.array(s.values)[rows[:, i]] for i, s in enumerate(self.splits)}
        for number, k in enumerate(self.kernels):
            codes = rows[:, n : n + len(k.knobs)]
            n += len(k.knobs)
            for code in np.unique(codes[:, 0]).tolist():
                index = np.flatnonzero(codes[:, 0] == code)
                mine = codes[index]
                tiles = {t.name: np.array(t.values)[mine[:, 1 + j]] for j, t in enumerate(k.tiles)}
                splits = {a: counts[a][index] for a in k.free}
                warps, stages = np.array(k.warps.values)[mine[:, -2]], np.array(k.stages.values)[mine[:, -1]]
                yield number, index, Batch(k, k.order.values[code], tiles, splits, warps, stages)

    def estimate_rows(self, rows: Rows, estimate: Estimator) -> Counts:
        """Seconds of each row, the sum over its kernels; infinite where a kernel breaks a rule."""
        total = np.zeros(len(rows))
        for _, index, batch in self.kernel_batches(rows):
            total[index] += evaluate(batch.groups, lambda f, k=batch.kernel: np.where(k.valid(f), estimate(f), np.inf))
        return total

    def schedule(self, row: Sequence[int] | Rows) -> Schedule:
        rows = np.asarray([row], np.int64)
        return Schedule(tuple(batch.schedule(0) for _, _, batch in self.kernel_batches(rows)))

    def row(self, schedule: Schedule) -> list[int]:
        """The first row that gives a schedule. Raises :class:`UsageError` where the schedule is not in the space."""
        if len(schedule.kernels) != len(self.kernels):
            raise UsageError(f"the schedule has {len(schedule.kernels)} kernels, the graph {len(self.kernels)}")
        counts = {a: v for s in schedule.kernels for a, v in s.splits}
        out = [s.encode(counts[s.name]) for s in self.splits]
        for k, s in zip(self.kernels, schedule.kernels, strict=True):
            tiles = {t.name: s.tile[t.name] for t in k.tiles}
            splits = {a: counts[a] for a in k.free}
            plain = replace(s, knobs=k.options)
            same = (k.schedule(e, tiles, splits, s.num_warps, s.num_stages) == plain for e in k.order.values)
            code = next((i for i, equal in enumerate(same) if equal), None)
            if code is None:
                raise UsageError(f"the order {s.order} of {k.block.name!r} is not in the space", f"orders: {k.order}")
            out += [code, *(t.encode(tiles[t.name]) for t in k.tiles), k.warps.encode(s.num_warps), k.stages.encode(s.num_stages)]
        return out

    # -- schedules

    def population(self, count: int, rng: np.random.Generator) -> Rows:
        """Up to ``count`` different valid rows, drawn at random. Raises :class:`NoValidKernelError` where there is none."""
        found: dict[tuple[int, ...], None] = {}
        for _ in range(20):
            rows = self.sample_rows(max(4 * count, 64), rng)
            ok = np.isfinite(self.estimate_rows(rows, lambda f: np.zeros(len(f))))
            found |= dict.fromkeys(map(tuple, rows[ok].tolist()))
            if len(found) >= min(count, self.size):
                break
        if not found:
            first = next(self.enumerate(), None)
            if first is None:
                raise NoValidKernelError(
                    f"no schedule of {self.graph.name!r} fits into the shared memory of {self.device.name} (rule 4)",
                    "cut the program into more kernels, or choose a device with more shared memory",
                )
            found[tuple(self.row(first))] = None
        return np.array(list(found)[:count], np.int64)

    def sample(self, rng: np.random.Generator) -> Schedule:
        """A valid schedule drawn at random."""
        return self.schedule(self.population(1, rng)[0])

    def mutate(self, schedule: Schedule, rng: np.random.Generator, tries: int = 32) -> Schedule:
        """A valid schedule that differs in one knob; the same one if no such is found in ``tries`` draws."""
        row = self.row(schedule)
        rows = np.array([self.mutate_row(row, rng) for _ in range(tries)], np.int64)
        ok = np.isfinite(self.estimate_rows(rows, lambda f: np.zeros(len(f))))
        for i in np.flatnonzero(ok):
            if (changed := self.schedule(rows[i])) != schedule:
                return changed
        return schedule

    def enumerate(self) -> Iterator[Schedule]:
        """Every valid schedule, each once."""
        for splits in self.split_choices():

            def of(k: KernelSpace, splits: dict[str, int] = splits) -> Iterator[KernelSchedule]:
                for batch in k.batches(splits):
                    yield from map(batch.schedule, range(len(batch)))

            if len(self.kernels) == 1:
                yield from (Schedule((s,)) for s in of(self.kernels[0]))
            else:
                yield from map(Schedule, product(*(of(k) for k in self.kernels)))
