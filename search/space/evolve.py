"""Search of a schedule space: the paper's algorithm 1 (section IV-B), random and exhaustive search behind one interface.

A strategy takes a space, an estimator (the model), a generator of random numbers, an effort and, unless the model alone is
to decide, a function that measures schedules. The same input gives the same result; a clock is asked only where the effort
has a budget in seconds.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace

import numpy as np

from fuser.errors import NoValidKernelError
from fuser.errors import UsageError
from fuser.ir.candidate import Candidate
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from search.ranked import INSTANT
from search.ranked import Effort
from search.ranked import Generation
from search.ranked import Ranked
from search.space.kernels import Estimator
from search.space.kernels import Rows
from search.space.kernels import rank_kernel
from search.space.schedules import ScheduleSpace

Measure = Callable[[Sequence[Schedule]], Sequence[float]]
"""Seconds of each schedule on the device; infinite, or no time at all (NaN, zero), where it failed."""


SAMPLED = 8192
"""Schedules that are drawn of a large space to see whether it is worth a search."""
ENOUGH = 200
"""Of these so many must be able to run, for the best of them to mean something."""
HOPELESS, RARE = 1.3, 2.0
"""How much longer the best of a sample may take than what is known, for a search, and where few of the sample can run. In the
spaces of chains of a BERT and a LLaMA the best of all was at most 1.26 times faster than the best of the sample; of 12 spaces in
which under 200 of it ran at most 1.53 times."""
LOOKED, SEEN = ((128, 10.0), (1024, 3.0)), 8
"""Of a sample that many are looked at first: where the best of these takes so many times what is known, of at least so many that
can run, the rest is not looked at. In the spaces of the models above, and of losses and attentions, the best of the whole sample
was 1.0 to 3.0 times faster than the best of the first 128; in 72 of a speech model at most 1.62 times than that of 1024."""
FEWEST, FIRST = 10, 4
"""Of those so many must be able to run at all; generations behind which nothing is left that is that much longer."""
PRESSURE = 3
"""Power of 1/estimate by which parents are drawn. The paper's is 1, where a schedule twice as slow has half the children; a
search by cubes ends in two thirds of the time with the same predictions."""
ROUNDED = 1 - 1e-9
"""Of a bound what is one however sums are rounded."""


@dataclass(frozen=True)
class SearchResult:
    """``top`` is best first, measured schedules before estimated ones. ``why`` says what ended the search: complete, converged,
    generations, budget or interrupted."""

    strategy: str
    top: tuple[Ranked, ...]
    estimated: int
    measured: int
    why: str
    history: tuple[Generation, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Ranked:
        return self.top[0]


Strategy = Callable[[ScheduleSpace, Estimator, np.random.Generator, Effort, Measure | None], SearchResult]


@dataclass
class _Best:
    """The best few of what was seen, each schedule once; ties go to what was seen first."""

    limit: int
    seen: dict[Schedule, Ranked] = field(default_factory=dict)

    def add(self, ranked: Ranked) -> None:
        known = self.seen.get(ranked.schedule)
        if known is None or known.measured is None:
            self.seen[ranked.schedule] = ranked

    def top(self) -> tuple[Ranked, ...]:
        found = sorted(self.seen.values(), key=lambda r: (r.measured is None, r.seconds))
        return tuple(found[: self.limit])


# -- exhaustive


def rank(space: ScheduleSpace, estimate: Estimator, top: int = 8, each: int = 0) -> SearchResult:
    """Every schedule by its estimate: the ``top`` best, best first, ties in the order of the space; then the best ``each`` of
    every choice of splits that are not among them.

    Kernels are independent once the splits are chosen, so each is ranked alone; splits of which even the space's bound is above
    the best so far are left out, unless some of each are wanted. Raises :class:`NoValidKernelError` if no schedule is left.
    """
    found: list[tuple[float, int, tuple[KernelSchedule, ...]]] = []
    apart: list[tuple[float, int, tuple[KernelSchedule, ...]]] = []
    known = {} if space.ranked is None else space.ranked
    blocks = [replace(k.block, name="") for k in space.kernels]  # names of kernels change nothing
    seen: dict[object, int] = {}
    for splits in space.split_choices():
        if not each and len(found) >= top and _least(space, splits) > heapq.nsmallest(top, found)[-1][0]:
            continue
        lists = []
        for number, k in enumerate(space.kernels):
            key = (blocks[number], k.behind, k.settings, k.always, k.limit, tuple(splits[a] for a in k.free), top)
            if key not in known:
                known[key] = rank_kernel(k, splits, estimate, top)
            lists.append(known[key][0])
            seen[key] = known[key][1]
        combined: list[tuple[float, tuple[KernelSchedule, ...]]] = [(0.0, ())]
        for ranked in lists:
            combined = heapq.nsmallest(top, ((t + u, (*s, v)) for t, s in combined for u, v in ranked), key=lambda x: x[0])
        mine = [(t, len(found) + i, s) for i, (t, s) in enumerate(combined)]
        found, apart = found + mine, apart + mine[:each]
    kept = heapq.nsmallest(top, found)
    kept += sorted(x for x in apart if not kept or x[:2] > kept[-1][:2])
    best = tuple(Ranked(Candidate(space.graph, Schedule(s)), t) for t, _, s in kept)
    if not best:
        raise none_left(space)
    return SearchResult("exhaustive", best, sum(seen.values()), 0, "complete", notes=space.notes)


def _least(space: ScheduleSpace, splits: Mapping[str, int]) -> float:
    """A bound on the estimates of all schedules with so many parts of the splits."""
    return ROUNDED * math.fsum(space.least(k.block, splits) for k in space.kernels) if space.least else 0.0


def none_left(space: ScheduleSpace) -> NoValidKernelError:
    return NoValidKernelError(
        f"no schedule of {space.graph.name!r} can run on {space.device.name}: rule 4 or the estimate refuses all of them",
        "cut the program into more kernels, or choose a device with more shared memory",
    )


# -- strategies


def exhaustive(
    space: ScheduleSpace, estimate: Estimator, rng: np.random.Generator, effort: Effort, measure: Measure | None = None
) -> SearchResult:
    """Rank all by the model; with ``measure``, measure the top n of each round until a round brings no gain of epsilon."""
    rounds = effort.generations if measure else 1
    ranked = rank(space, estimate, effort.top * min(rounds, 32), 0 if measure else effort.each)
    if measure is None:
        return ranked
    pools = [ranked.top[i : i + effort.top] for i in range(0, len(ranked.top), effort.top)]
    return _measured("exhaustive", (list(p) for p in pools), effort, measure, ranked.estimated, space.notes)


def random_search(
    space: ScheduleSpace, estimate: Estimator, rng: np.random.Generator, effort: Effort, measure: Measure | None = None
) -> SearchResult:
    """Independent populations; of each the top n by the model."""
    counter = [0]

    def pools():
        for _ in range(effort.generations):
            rows, seconds = _estimated(space, space.population(effort.population, rng), estimate)
            counter[0] += len(rows)
            yield _ranked(space, rows, seconds, effort.top)

    found = _measured("random", pools(), effort, measure, 0, space.notes)
    return replace(found, estimated=counter[0])


def evolution(
    space: ScheduleSpace,
    estimate: Estimator,
    rng: np.random.Generator,
    effort: Effort,
    measure: Measure | None = None,
    first: tuple[Rows, np.ndarray] | None = None,
    worth: float = np.inf,
) -> SearchResult:
    """Algorithm 1: estimate a population, measure its top n, stop when the best changes by less than epsilon, draw the next
    population weighted by 1/estimate (to the power of :data:`PRESSURE`) and mutate one knob of each.

    Two additions: the top n survive unchanged, and children that break rule 4 are replaced by their parents. Without
    ``measure`` the estimate of the best stands for its time, and it ends early where that stays far above ``worth`` seconds.
    ``first``: rows and their estimates in seconds, where a sample is at hand; the best of them are the first population.
    """
    counter = [0]

    def pools():
        if first is None:
            rows, seconds = _estimated(space, space.population(effort.population, rng), estimate)
        else:
            best = np.argsort(first[1], kind="stable")[: effort.population]
            rows, seconds = first[0][best], first[1][best]
            counter[0] += len(first[1]) - len(best)
        for generation in range(effort.generations):
            counter[0] += len(rows)
            yield _ranked(space, rows, seconds, effort.top)
            if measure is None and generation >= FIRST and seconds.min() > HOPELESS * worth:
                break
            rows, seconds = _next(space, rows, seconds, estimate, rng, effort)

    found = _measured("evolution", pools(), effort, measure, 0, space.notes)
    return replace(found, estimated=counter[0])


STRATEGIES: Mapping[str, Strategy] = {"exhaustive": exhaustive, "random": random_search, "evolution": evolution}


def search(
    space: ScheduleSpace,
    estimate: Estimator,
    rng: np.random.Generator,
    effort: Effort = INSTANT,
    measure: Measure | None = None,
    strategy: str = "",
    worth: float = np.inf,
) -> SearchResult:
    """The best schedules of a space. Without a strategy: exhaustive for the model alone where the space is small enough for
    the effort, else evolution. A space of more than :data:`SAMPLED` estimates of which a sample takes much longer than ``worth``
    seconds is left at that. Raises :class:`NoValidKernelError` where nothing can run and :class:`UsageError` for an
    unknown strategy."""
    first = None
    if np.isfinite(worth) and space.work > SAMPLED and space.kernels:
        rows, seconds, looked, hopeless = _sampled(space, estimate, rng, worth)
        if hopeless:
            top = _ranked(space, rows, seconds, effort.top)
            return SearchResult("sample", tuple(top), looked, 0, "hopeless", notes=space.notes)
        if len(rows):
            first = rows, seconds
    if not strategy:
        strategy = "exhaustive" if measure is None and space.work <= effort.exhaustive else "evolution"
    if strategy not in STRATEGIES:
        raise UsageError(f"there is no search strategy {strategy!r}", f"known: {', '.join(STRATEGIES)}")
    if not space.kernels:  # libraries alone have one schedule, the empty one
        strategy = "exhaustive"
    if strategy == "evolution":
        return evolution(space, estimate, rng, effort, measure, first, worth)
    return STRATEGIES[strategy](space, estimate, rng, effort, measure)


# -- parts of the strategies


def _sampled(
    space: ScheduleSpace, estimate: Estimator, rng: np.random.Generator, worth: float
) -> tuple[Rows, np.ndarray, int, bool]:
    """Rows drawn of a large space that can run, with their seconds; how many were looked at, and whether these say that none will
    come near ``worth`` seconds."""
    rows, seconds = space.sample_rows(SAMPLED, rng), np.empty(0)
    for count, times in (*LOOKED, (SAMPLED, np.inf)):
        seconds = np.concatenate([seconds, space.estimate_rows(rows[len(seconds) : count], estimate)])
        if np.isfinite(seconds).sum() >= SEEN and seconds.min() > times * worth:
            rows = rows[:count]
            break
    runs = np.isfinite(seconds)
    many = runs.sum()
    least = seconds.min(initial=np.inf)
    hopeless = len(rows) < SAMPLED or (many >= FEWEST and least > (HOPELESS if many >= ENOUGH else RARE) * worth)
    return rows[runs], seconds[runs], len(rows), bool(hopeless)


def _estimated(space: ScheduleSpace, rows: Rows, estimate: Estimator) -> tuple[Rows, np.ndarray]:
    seconds = space.estimate_rows(rows, estimate)
    runs = np.isfinite(seconds)
    if not runs.any():
        raise none_left(space)
    return rows[runs], seconds[runs]


def _ranked(space: ScheduleSpace, rows: Rows, seconds: np.ndarray, top: int) -> list[Ranked]:
    """The ``top`` different schedules of a population, best first."""
    found: dict[Schedule, Ranked] = {}
    for i in np.argsort(seconds, kind="stable").tolist():
        schedule = space.schedule(rows[i])
        found.setdefault(schedule, Ranked(Candidate(space.graph, schedule), float(seconds[i])))
        if len(found) == top:
            break
    return list(found.values())


def _next(
    space: ScheduleSpace, rows: Rows, seconds: np.ndarray, estimate: Estimator, rng: np.random.Generator, effort: Effort
) -> tuple[Rows, np.ndarray]:
    """The next population: the top n, and mutants of rows drawn by their estimates."""
    weight = (seconds.min() / seconds) ** PRESSURE
    parents = rng.choice(len(rows), effort.population, p=weight / weight.sum())
    children = np.array([space.mutate_row(rows[i], rng) for i in parents], np.int64)
    times = space.estimate_rows(children, estimate)
    runs = np.isfinite(times)
    children[~runs], times[~runs] = rows[parents[~runs]], seconds[parents[~runs]]
    elite = np.argsort(seconds, kind="stable")[: effort.top]
    merged, first = np.unique(np.concatenate([rows[elite], children]), axis=0, return_index=True)
    return merged, np.concatenate([seconds[elite], times])[first]


def _seconds(measured: float) -> float:
    """A time; what is none (NaN, zero) is a failure."""
    return float(measured) if 0 < measured < np.inf else np.inf


def _measured(
    strategy: str,
    pools: Iterator[list[Ranked]],
    effort: Effort,
    measure: Measure | None,
    estimated: int,
    notes: tuple[str, ...],
) -> SearchResult:
    """Lines 5 to 16 of algorithm 1 for pools of ranked candidates, one pool a generation; nothing is measured twice."""
    best = _Best(max(effort.top, 1))
    history: list[Generation] = []
    so_far, stale, measured, why = np.inf, 0, 0, "generations"
    start = time.monotonic() if effort.seconds is not None else 0.0
    try:
        for pool in pools:
            new = [r for r in pool if r.schedule not in best.seen]
            if measure is not None:
                times = measure([r.schedule for r in new]) if new else []
                new = [replace(r, measured=_seconds(t)) for r, t in zip(new, times, strict=True)]
                measured += len(new)
            for r in new:
                best.add(r)
            top1 = min((best.seen[r.schedule].seconds for r in pool), default=np.inf)
            gained = top1 < so_far * (1 - effort.epsilon) if np.isfinite(so_far) else np.isfinite(top1)
            so_far = min(so_far, top1)
            history.append(Generation(top1, so_far, len(new) if measure else 0))
            stale = 0 if gained else stale + 1
            if stale >= effort.patience:
                why = "converged"
                break
            if effort.seconds is not None and time.monotonic() - start > effort.seconds:
                why = "budget"
                break
    except KeyboardInterrupt:
        if not best.seen:
            raise
        why = "interrupted"
    top = best.top()
    if not top or not np.isfinite(top[0].seconds):
        raise NoValidKernelError(
            f"none of {measured} measured schedules ran", "look at the failures in the records, or choose another device"
        )
    return SearchResult(strategy, top, estimated, measured, why, tuple(history), notes)
