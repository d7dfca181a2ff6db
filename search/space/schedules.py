"""The schedules of a µGraph as a product of knobs, for searches and for the model.

A candidate is a row of codes, one for each knob: shared split counts first, then for each kernel its order, tile sizes,
warps and stages, and where they are asked for the options of the lowering. Rows are evaluated in batches; what rules 3 and 4
allow is checked on arrays. One program may have several rows (a loop of one trip may stand in the order or not, an option that
is not for its tiles may be chosen or not); exhaustive enumeration gives it once, and :meth:`ScheduleSpace.schedule` gives all of
them the same schedule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from functools import cached_property
from itertools import accumulate
from itertools import pairwise
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_model.features import Counts
from cost_model.features import evaluate
from cost_model.shared_memory import SLACK
from fuser.device import Device
from fuser.errors import NoValidKernelError
from fuser.errors import UsageError
from fuser.files import counted
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from search.space.clusters import cluster_space
from search.space.clusters import ranked_clusters
from search.space.groups import group_space
from search.space.groups import ranked_groups
from search.space.kernels import Batch
from search.space.kernels import Estimator
from search.space.kernels import KernelSpace
from search.space.kernels import Rows
from search.space.kernels import kernel_space
from search.space.knobs import Knob
from search.space.knobs import Split
from search.space.knobs import settings_of
from search.space.places import behind

SPLITS = (2, 4, 8, 16, 32, 64)
MANY = tuple(1 << i for i in range(1, 13))
"""Parts of what has no product: partial results are a few numbers, and every SM needs blocks that wait for memory."""
NEAR = 0.9
"""Parts that fill this much of the device's SMs, or of whole waves of them, need no number of their own."""
LEAST = 1024
"""Elements of the shortest tile that a part may be as a whole where its extent is no power of two."""
REMEMBERED = 4096
"""Places of a kernel that are kept while it is searched."""


def counts_of(block: BlockGraph, extent: int, sizes: Sequence[int], device: Device) -> tuple[int, ...]:
    """The numbers of parts of an axis with tiles of these sizes that are tried for a block: powers of two, without products also
    whole waves, and parts of one tile."""
    if any(s.contracts for s in block.computes):
        return SPLITS
    waves = [device.sm_count << i for i in range(4)]
    apart = (w for w in waves if not any(NEAR * w <= n <= w for n in MANY))
    return tuple(sorted({*MANY, *apart, *whole_tiles(extent, sizes, device)}))


def whole_tiles(extent: int, sizes: Sequence[int], device: Device) -> tuple[int, ...]:
    """The numbers of parts that are one tile each, which half of an SM's registers hold, with no elements over: a row of 204,800
    is 25 parts of 8,192, which no mask cuts, and one of 9 · 2**20 is read once as 1,152, whatever folds have to know of a part
    first."""
    held = device.registers_per_sm // 2
    return tuple(extent // n for n in sizes if LEAST <= n <= held and extent % n == 0 and 1 < extent // n <= MANY[-1])


FORMS: dict[str, Callable[[KernelSpace], KernelSpace | None]] = {"groups": group_space, "clusters": cluster_space}
"""Spaces beside that of loops in Triton: by warp groups, and with rows that the blocks of a cluster share out."""
RANKED = {"groups": ranked_groups, "clusters": ranked_clusters}
"""What ranks the schedules of each by a model."""


@dataclass(frozen=True)
class ScheduleSpace:
    """All schedules of a kernel graph on a device. ``slack`` is rule 4's multiple of the device's shared memory; with
    ``options`` those of the lowering are knobs too, else every schedule has the ones that are given; kernels that have a
    ``form`` of :data:`FORMS` have that."""

    graph: KernelGraph
    device: Device
    slack: float = SLACK
    options: bool = False
    form: str = ""
    ranked: dict[Any, Any] | None = field(default=None, compare=False, repr=False)
    """What was found for single kernels with one estimator: spaces that share it rank a kernel that they have in common once."""
    least: Callable[[BlockGraph, Mapping[str, int]], float] | None = field(default=None, compare=False, repr=False)
    """A bound on that estimator's seconds of a block with so many parts of its splits."""

    @cached_property
    def kernels(self) -> tuple[KernelSpace, ...]:
        pairs = zip(self.graph.blocks, behind(self.graph), strict=True)
        found = (kernel_space(b, self.device, self.slack, follows, self.options) for b, follows in pairs)
        return tuple((FORMS[self.form](k) or k) if self.form else k for k in found)

    @cached_property
    def splits(self) -> tuple[Split, ...]:
        """A knob for each axis that counts the parts of a split, shared by the kernels that have it."""
        most: dict[str, int] = {}
        tried: dict[str, tuple[int, ...]] = {}
        for k in self.kernels:
            for axis, parts in k.block.splits:
                if parts in k.free:
                    sizes = next(t.values for t in k.tiles if t.name == axis)
                    tried[parts] = counts_of(k.block, k.block.extents[axis], sizes, self.device)
                    # a part has at least one tile of every tile size that is left
                    most[parts] = min(most.get(parts, tried[parts][-1]), k.block.extents[axis] // sizes[0])
        free = dict.fromkeys(a for k in self.kernels for a in k.free)
        return tuple(Split(a, tuple(s for s in tried.get(a, SPLITS) if s <= most.get(a, SPLITS[-1])) or (1,)) for a in free)

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
            rows[:, i] = k.sample_codes(count, rng)
        return rows

    def mutate_row(self, row: Sequence[int] | Rows, rng: np.random.Generator) -> list[int]:
        """A row in which one knob has changed, as algorithm 1 changes the tile size of one loop; other knobs are drawn half
        as often, options a quarter as often."""
        out = [int(x) for x in row]
        if self._drawn is not None:
            at = int(rng.choice(len(out), p=self._drawn))
            out[at] = self.knobs[at].mutate_code(out[at], rng)
        return out

    @cached_property
    def _drawn(self) -> NDArray[np.float64] | None:
        """How likely a mutation changes each knob; None where none has a choice."""
        weight = np.array([k.weight * (k.count > 1) for k in self.knobs])
        return weight / weight.sum() if weight.sum() else None

    def batches(self, rows: Rows) -> Iterator[Batch]:
        """The rows' candidates of one kernel after another."""
        return (self.batch(number, rows) for number in range(len(self.kernels)))

    def batch(self, number: int, rows: Rows) -> Batch:
        """The rows' candidates of one kernel."""
        k, (at, end), known = self.kernels[number], self.places[number], self._places[number]
        if len(known) > REMEMBERED:
            known.clear()
        codes, tiled = rows[:, at:end], 1 + len(k.tiles)
        counts = {s.name: np.array(s.values)[rows[:, i]] for i, s in enumerate(self.splits)}
        tiles = {t.name: np.array(t.values)[codes[:, 1 + j]] for j, t in enumerate(k.tiles)}
        warps, stages = np.array(k.warps.values)[codes[:, tiled]], np.array(k.stages.values)[codes[:, tiled + 1]]
        return Batch(k, codes[:, 0], tiles, {a: counts[a] for a in k.free}, warps, stages, codes[:, tiled + 2 :], known)

    @cached_property
    def _places(self) -> tuple[dict[Any, Any], ...]:
        """Of each kernel what its batches share: it stays in this process."""
        return tuple({} for _ in self.kernels)

    def __getstate__(self) -> dict[str, Any]:
        return {n: x for n, x in vars(self).items() if n != "_places"}

    @cached_property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Where in a row the codes of each kernel are."""
        ends = list(accumulate((len(k.knobs) for k in self.kernels), initial=len(self.splits)))
        return tuple(pairwise(ends))

    def mine(self, number: int, rows: Rows) -> list[tuple[int, ...]]:
        """Of each row the codes that one kernel depends on: rows in which these are equal have the same kernel."""
        at, end = self.places[number]
        shared = [i for i, s in enumerate(self.splits) if s.name in self.kernels[number].free]
        return [tuple(x) for x in rows[:, [*shared, *range(at, end)]].tolist()]

    def estimate_rows(self, rows: Rows, estimate: Estimator) -> Counts:
        """Seconds of each row, the sum over its kernels; infinite where a kernel breaks a rule."""
        total = np.zeros(len(rows))
        for batch in self.batches(rows):
            total += batch.seconds(estimate)
        return total

    def runs(self, rows: Rows) -> NDArray[np.bool_]:
        """Which rows keep the rules, whatever their options."""
        found = np.ones(len(rows), np.bool_)
        for batch in self.batches(rows):
            found &= evaluate(batch.groups, batch.kernel.valid)
        return found

    def schedule(self, row: Sequence[int] | Rows) -> Schedule:
        rows = np.asarray([row], np.int64)
        return Schedule(tuple(batch.schedule(0) for batch in self.batches(rows)))

    def row(self, schedule: Schedule) -> list[int]:
        """The first row that gives a schedule, or what is the same kernel: loops of one trip, and the depth of a pipeline without
        a loop, may be spelled in any way. Raises :class:`UsageError` where the schedule is not in the space."""
        if len(schedule.kernels) != len(self.kernels):
            raise UsageError(f"the schedule has {counted(len(schedule.kernels), 'kernel')}, the graph {len(self.kernels)}")
        counts = {a: v for s in schedule.kernels for a, v in s.splits}
        out = [s.encode(counts[s.name]) for s in self.splits]
        for k, s in zip(self.kernels, schedule.kernels, strict=True):
            if left := [n for n, value in k.always if s.knob.get(n) != value]:
                raise UsageError(f"the schedule of {k.block.name!r} lacks the option {left[0]!r} of this space")
            tiles = {t.name: s.tile[t.name] for t in k.tiles}
            splits = {a: counts[a] for a in k.free}
            plain = k.schedule(s.order, tiles, splits, s.num_warps, s.num_stages)
            same = (k.schedule(e, tiles, splits, s.num_warps, s.num_stages) == plain for e in k.order.values)
            code = next((i for i, equal in enumerate(same) if equal), None)
            if code is None:
                raise UsageError(f"the order {s.order} of {k.block.name!r} is not in the space", f"orders: {k.order}")
            out += [code, *(t.encode(tiles[t.name]) for t in k.tiles), k.warps.encode(s.num_warps)]
            out += [k.stages.encode(plain.num_stages)]
            out += settings_of(k.place(plain), k.settings, s) if k.settings else ()
        return out

    # -- schedules

    def population(self, count: int, rng: np.random.Generator) -> Rows:
        """Up to ``count`` different valid rows, drawn at random. Raises :class:`NoValidKernelError` where there is none."""
        found: dict[tuple[int, ...], None] = {}
        for _ in range(20):
            rows = self.sample_rows(max(4 * count, 64), rng)
            found |= dict.fromkeys(map(tuple, rows[self.runs(rows)].tolist()))
            if len(found) >= min(count, self.size):
                break
        if not found:
            first = self._first()
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

    def enumerate(self) -> Iterator[Schedule]:
        """Every valid schedule, each once."""
        for splits in self.split_choices():
            if len(self.kernels) == 1:
                yield from (Schedule((s,)) for s in _each(self.kernels[0], splits))
            else:
                yield from map(Schedule, product(*(_each(k, splits) for k in self.kernels)))

    def _first(self) -> Schedule | None:
        """The first of them; no more are made."""
        for splits in self.split_choices():
            found = [next(_each(k, splits), None) for k in self.kernels]
            if None not in found:
                return Schedule(tuple(s for s in found if s is not None))
        return None


def _each(kernel: KernelSpace, splits: Mapping[str, int]) -> Iterator[KernelSchedule]:
    """The valid schedules of a kernel."""
    for batch in kernel.batches(splits):
        yield from map(batch.schedule, range(len(batch)))
