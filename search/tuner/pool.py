"""The candidates of one program, of all its structures together, each with the model's estimate and the features by which
measurements tell about others.

A structure's best schedules by the model come first (all of its space is ranked where that is small enough); further ones are
mutants of promising ones, with options of the lowering as knobs beside tiles, orders, warps and stages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from cost_model import refined
from cost_model.features import Counts
from cost_model.features import Features
from cost_model.features import evaluate
from cost_model.models import MODELS
from cost_model.names import REFINED
from fuser.device import Device
from fuser.errors import FuserError
from fuser.errors import NoValidKernelError
from fuser.errors import UnsupportedError
from fuser.errors import UsageError
from fuser.files import counted
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.lower.pieces import GROUPS_ARCH
from fuser.superopt.verify.verdicts import kept_verdict
from search.library_time import library_seconds
from search.ranked import Effort
from search.ranked import Ranked
from search.space.estimates import estimator
from search.space.hazards import hazardous
from search.space.hazards import unwieldy
from search.space.kernels import Batch
from search.space.kernels import Rows
from search.space.polish import polished
from search.space.schedules import FORMS
from search.space.schedules import RANKED
from search.space.schedules import ScheduleSpace
from search.tune import graph_seconds
from search.tune import rank_graph
from search.tuner.features import features_of

FIRST = 24
"""Schedules of a structure, the model's best, that the pool begins with."""
WORTH = 2.0
"""Structures whose best estimate is so many times the best of all are left out."""
TOGETHER = 0.2
"""Part of the mutations that change an option for all tensors of a kernel: descriptors for all of them, say."""
STEPS = 2
"""Sizes of a tile, up and down, that are near one."""
TERMS = ("waits", "busy", "fetch", "starts", "tensor", "issue", "move", "device_memory", "l2", "into_sm")
"""Parts of the model's time that may be misjudged as a whole."""
WAVES = ("busy", "fetch")
"""Those that are of one wave of blocks."""


@dataclass(frozen=True, eq=False)
class Entry:
    """A candidate that may be measured: ``structure`` is the number of its structure, ``row`` its codes there (none where it has
    values that no search tries), ``estimate`` the model's time in seconds."""

    structure: int
    row: tuple[int, ...]
    candidate: Candidate
    estimate: float
    features: Mapping[str, float]

    @property
    def key(self) -> tuple[int, Schedule]:
        return self.structure, self.candidate.schedule

    @cached_property
    def form(self) -> tuple[int, tuple[tuple[str, int], ...]]:
        """Its structure, and the choice of splits."""
        return self.structure, splits_of(self.candidate.schedule)


@dataclass(frozen=True)
class _Priced:
    """A kernel's seconds (infinite where it cannot run), the parts of these by :data:`TERMS`, and its schedule."""

    seconds: float
    terms: tuple[float, ...]
    schedule: KernelSchedule | None


@dataclass(frozen=True, eq=False)
class Structure:
    """One structure of a program with its schedules; ``fixed`` are the seconds of what a library does, ``model`` estimates the
    rest."""

    number: int
    space: ScheduleSpace
    device: Device
    fixed: float
    model: str = REFINED

    @cached_property
    def graph(self) -> KernelGraph:
        return self.space.graph

    def first(self, effort: Effort, seed: int) -> list[Entry]:
        """The model's best, and the best of every choice of splits, with the options of the lowering that it gives them and
        without any. Raises :class:`NoValidKernelError` where nothing fits the device."""
        found: dict[Schedule, None] = {}
        if self.space.form:
            (plain,) = ScheduleSpace(self.graph, self.device).kernels
            several, _ = RANKED[self.space.form](plain, estimator(self.device, self.model), effort.top, {})
            found |= dict.fromkeys(Schedule((s,)) for _, s in several)
        apart: dict[tuple[Any, ...], Ranked] = {}
        for options in () if self.space.form else (True, False):
            ranked, _, _ = rank_graph(self.graph, self.device, np.random.default_rng(seed), effort, options=options)
            found |= dict.fromkeys(r.schedule for r in ranked)
            apart = {splits_of(r.schedule): r for r in reversed(ranked)}
        if len(apart) > 1:
            model = estimator(self.device, self.model)
            found |= {r.schedule: None for own in apart.values() for r in polished([own], self.device, model)}
        rows = []
        for schedule in found:
            with suppress(UsageError):  # options that are chosen and not searched
                rows.append(self.space.row(schedule))
        return self.entries(np.array(rows, np.int64).reshape(len(rows), len(self.space.knobs)))

    def refused(self, f: Features) -> Any:
        return hazardous(f, self.device) | unwieldy(f)

    @cached_property
    def together(self) -> tuple[tuple[int, ...], ...]:
        """Places in a row of the settings of one option for the tensors of one kernel, where there are several."""
        found: dict[tuple[int, str], list[int]] = {}
        at = len(self.space.splits)
        for number, k in enumerate(self.space.kernels):
            first = at + len(k.knobs) - len(k.settings)
            for i, setting in enumerate(k.settings):
                found.setdefault((number, setting.option.name), []).append(first + i)
            at += len(k.knobs)
        return tuple(tuple(x) for x in found.values() if len(x) > 1)

    def mutated(self, row: Sequence[int], rng: np.random.Generator) -> list[int]:
        """A row in which one knob has changed, or an option for all tensors of a kernel at once."""
        if not self.together or rng.random() > TOGETHER:
            return self.space.mutate_row(row, rng)
        places = self.together[int(rng.integers(len(self.together)))]
        return self._set(row, places, int(rng.integers(self.space.knobs[places[0]].count)))

    @cached_property
    def stages(self) -> dict[int, int]:
        """Of each tile, by its place in a row, where the stages of its kernel are."""
        found: dict[int, int] = {}
        at = len(self.space.splits)
        for k in self.space.kernels:
            found |= {at + 1 + i: at + 2 + len(k.tiles) for i in range(len(k.tiles))}
            at += len(k.knobs)
        return found

    def near(self, row: Sequence[int]) -> Rows:
        """The rows that differ from one in a single knob: of a split or a tile by up to :data:`STEPS` steps. A tile of another
        size also with every number of stages, since both have to fit into the shared memory. And those with one option for all
        tensors of a kernel."""
        found: list[list[int]] = []
        for at, k in enumerate(self.space.knobs):
            reach = STEPS if k.ordered else k.count
            codes = range(max(row[at] - reach, 0), min(row[at] + reach + 1, k.count))
            changed = [[*row[:at], code, *row[at + 1 :]] for code in codes if code != row[at]]
            found += changed
            if (place := self.stages.get(at)) is not None:
                stages = range(self.space.knobs[place].count)
                found += [[*r[:place], code, *r[place + 1 :]] for r in changed for code in stages if code != row[place]]
        for places in self.together:
            for code in range(self.space.knobs[places[0]].count):
                found.append(self._set(row, places, code))
        return np.unique(np.array(found, np.int64).reshape(len(found), len(self.space.knobs)), axis=0)

    def _set(self, row: Sequence[int], places: Sequence[int], code: int) -> list[int]:
        """A row with knobs of as many values at some places set alike."""
        out = list(row)
        for at in places:
            out[at] = min(code, self.space.knobs[at].count - 1)
        return out

    def entries(self, rows: Rows) -> list[Entry]:
        """The rows that can run, with their estimates."""
        if not self.space.kernels:
            return [self.entry((), Schedule(()), self.fixed, {})]
        total, terms, schedules = self._evaluated(rows)
        found = []
        for i, row in enumerate(rows.tolist()):
            if np.isfinite(total[i]):
                seconds = float(total[i])
                shares = {f"term:{t}": float(x[i]) / seconds for t, x in terms.items() if self.model == REFINED}
                found.append(self.entry(tuple(row), Schedule(tuple(schedules[i])), self.fixed + seconds, shares))
        return found

    def price(self, rows: Rows) -> None:
        """What is asked for soon, all at once: the model takes hardly longer for many kernels than for one."""
        self._evaluated(rows)

    def known(self, schedule: Schedule) -> list[Entry]:
        """The entry of a schedule of this space that can run."""
        try:
            row = self.space.row(schedule)
        except (UsageError, KeyError):  # it may be one by warp groups
            return []
        return self.entries(np.array([row], np.int64).reshape(1, -1))

    def outside(self, candidate: Candidate) -> list[Entry]:
        """The entry of a candidate that no row gives."""
        try:
            seconds = graph_seconds(candidate, self.device, self.model)
        except FuserError:
            return []
        return [self.entry((), candidate.schedule, seconds, {})] if math.isfinite(seconds) else []

    def entry(self, row: tuple[int, ...], schedule: Schedule, seconds: float, shares: Mapping[str, float]) -> Entry:
        """A candidate, of which the price is known."""
        return Entry(self.number, row, Candidate(self.graph, schedule), seconds, features_of(self.number, schedule, shares))

    def _evaluated(self, rows: Rows) -> tuple[Counts, dict[str, Counts], list[list[KernelSchedule]]]:
        """Seconds of each row's generated kernels, what its terms are in all, and their schedules."""
        total = np.zeros(len(rows))
        terms = np.zeros((len(TERMS), len(rows)))
        schedules: list[list[KernelSchedule]] = [[] for _ in rows]
        for number in range(len(self.space.kernels)):
            priced = self._priced_kernels(number, rows)
            total += [p.seconds for p in priced]
            terms += np.array([p.terms for p in priced]).reshape(-1, len(TERMS)).T
            for mine, p in zip(schedules, priced, strict=True):
                if p.schedule is not None:
                    mine.append(p.schedule)
        return total, dict(zip(TERMS, terms, strict=True)), schedules

    def _priced_kernels(self, number: int, rows: Rows) -> list[_Priced]:
        """One kernel of each row; each different one is priced once in a search: mutants of several kernels change few."""
        known, codes = self._priced[number], self.space.mine(number, rows)
        new = list({c: i for i, c in enumerate(codes) if c not in known}.values())
        if new:
            batch = self.space.batch(number, rows[new])
            seconds, parts = self._batch(batch)
            shares = np.array([np.where(np.isfinite(seconds), parts[t], 0.0) for t in TERMS]).T
            for at, (i, s) in enumerate(zip(new, seconds.tolist(), strict=True)):
                schedule = batch.schedule(at) if math.isfinite(s) else None
                known[codes[i]] = _Priced(s, tuple(shares[at].tolist()), schedule)
        return [known[c] for c in codes]

    @cached_property
    def _priced(self) -> tuple[dict[tuple[int, ...], _Priced], ...]:
        return tuple({} for _ in self.space.kernels)

    def _batch(self, batch: Batch) -> tuple[Counts, dict[str, Counts]]:
        known: dict[int, Mapping[str, Counts]] = {}

        def terms(f: Features) -> Mapping[str, Counts]:
            if id(f) not in known:
                ok = batch.kernel.valid(f) & ~self.refused(f)
                shown = batch.with_options(f, ok)
                found = refined.terms(shown, self.device)
                fits = found["shared_bytes"] <= self.device.smem_per_block
                seconds = found["seconds"] if self.model == REFINED else MODELS[self.model](shown, self.device)
                known[id(f)] = {**found, "seconds": np.where(ok & fits, seconds, np.inf)}
            return known[id(f)]

        def part(name: str) -> Counts:
            waves = name in WAVES
            return evaluate(batch.groups, lambda f: terms(f)[name] * (terms(f)["waves"] if waves else 1.0))

        return evaluate(batch.groups, lambda f: terms(f)["seconds"]), {t: part(t) for t in TERMS}


def splits_of(schedule: Schedule) -> tuple[tuple[str, int], ...]:
    """Into how many parts reductions are split."""
    return tuple(dict.fromkeys(x for k in schedule.kernels for x in k.splits))


@dataclass
class Pool:
    """All candidates so far, each once, in the order in which they came."""

    structures: Mapping[int, Structure]
    entries: dict[tuple[int, Schedule], Entry] = field(default_factory=dict)

    def add(self, entries: Sequence[Entry]) -> list[Entry]:
        """Those that are new."""
        new = [e for e in {e.key: e for e in entries}.values() if e.key not in self.entries]
        self.entries |= {e.key: e for e in new}
        return new

    def breed(
        self,
        parents: Sequence[Entry],
        weights: Sequence[float],
        count: int,
        rng: np.random.Generator,
        looked: Sequence[Entry] = (),
    ) -> list[Entry]:
        """Mutants of parents drawn by weight; those that are new and can run. Half of them differ in one knob, a quarter in
        two, and so on. Around those that are ``looked`` at is looked next."""
        share = np.array(weights)
        drawn = rng.choice(len(parents), count, p=share / share.sum())
        rows: dict[int, list[list[int]]] = {}
        for i in drawn.tolist():
            parent = parents[i]
            structure = self.structures[parent.structure]
            row: Sequence[int] = parent.row
            if not row:
                continue
            for _ in range(int(rng.geometric(0.5))):
                row = structure.mutated(row, rng)
            rows.setdefault(parent.structure, []).append(list(row))
        made: list[Entry] = []
        for number, codes in rows.items():
            structure, mine = self.structures[number], np.unique(np.array(codes, np.int64), axis=0)
            structure.price(np.concatenate([mine, *(structure.near(e.row) for e in looked if e.structure == number and e.row)]))
            made += structure.entries(mine)
        return self.add(made)

    def around(self, entry: Entry) -> list[Entry]:
        """What differs from an entry in one knob."""
        structure = self.structures[entry.structure]
        made = structure.entries(structure.near(entry.row)) if entry.row else []
        self.add(made)
        return [found for key in dict.fromkeys(e.key for e in made) if (found := self.entries[key]) is not entry]

    def include(self, candidates: Sequence[Candidate]) -> list[Entry]:
        """Entries of candidates that somebody knows already: of one with values that no search tries by itself, without any near
        it. Those of other structures are left out."""
        made: list[Entry] = []
        for c in candidates:
            if own := [s for s in self.structures.values() if s.graph == c.graph]:
                made += next((found for s in own if (found := s.known(c.schedule))), None) or own[0].outside(c)
        self.add(made)
        return [self.entries[e.key] for e in made]


Part = tuple[Structure, list[Entry]]
"""A structure with its first entries."""
Job = tuple[TensorProgram, KernelGraph, int, Device, Effort, int, str]


def jobs_of(program: TensorProgram, graphs: Sequence[KernelGraph], device: Device, effort: Effort, seed: int = 0) -> list[Job]:
    """What :func:`part` is called with for a program: each structure, and those of one kernel in every other form too."""
    alone = [g for g in graphs if len(g.kernels) == len(g.blocks) == 1 and device.arch >= GROUPS_ARCH]
    ways = [*((g, "") for g in graphs), *((g, form) for form in FORMS for g in alone)]
    return [(program, g, i, device, effort, seed, form) for i, (g, form) in enumerate(ways)]


def part(job: Job) -> Part | None:
    """A structure's part of the pool; None where it is not verified or nothing of it fits the device. May run in a process of its
    own."""
    program, graph, number, device, effort, seed, form = job
    try:
        fixed = math.fsum(library_seconds(graph, k, device) for k in graph.kernels if isinstance(k, LibraryKernel))
        space = ScheduleSpace(graph, device, options=True, form=form)
        if form and not any(k.always for k in space.kernels):
            return None
        structure = Structure(number, space, device, fixed, effort.model)
        if not kept_verdict(program, graph).accepted:
            return None
        entries = structure.first(replace(effort, top=FIRST, each=1), seed)
    except (NoValidKernelError, UnsupportedError):
        return None
    return (structure, entries) if entries else None


def pool_of(program: TensorProgram, device: Device, parts: Iterable[Part | None]) -> Pool:
    """The pool of a program: its structures but those that are far from the best, with the model's best schedules of each. Raises
    :class:`NoValidKernelError` where none has any."""
    every = list(parts)
    found = [p for p in every if p is not None]
    if not found:
        raise NoValidKernelError(
            f"no schedule of {program.name!r} fits {device.title}: tried {counted(len(every), 'structure')}",
            "choose a device with more shared memory, or cut the region",
        )
    best = {s.number: min(e.estimate for e in entries) for s, entries in found}
    pool = Pool({s.number: s for s, _ in found})
    for s, entries in sorted(found, key=lambda p: best[p[0].number]):
        if best[s.number] <= WORTH * min(best.values()):
            pool.add(entries)
    return pool
