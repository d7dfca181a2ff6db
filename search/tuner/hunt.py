"""The search for the fastest candidate of one program by measurements, algorithm 1 over structures, schedules and options
together, as two questions: which candidates to measure next, and what to make of what was measured.

A generation is the top n of the pool by the model, corrected by what the measurements so far say of its error. Between
generations the pool grows by mutants of what was measured fastest and of what is predicted to be. A search has converged when
generations bring no gain. It depends on nothing but its seed and what it is told.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from statistics import fmean
from typing import Any

import numpy as np

from fuser.ir.program import TensorProgram
from search.measure.measurement import Measurement
from search.ranked import Effort
from search.ranked import Generation
from search.ranked import Ranked
from search.tuner.pool import Entry
from search.tuner.pool import Pool
from search.tuner.residual import Residual

PARENTS = 32
"""Candidates that mutants are made of: the best by measurement or prediction."""
SHARPNESS = 12.0
"""How much more often the faster of two is a parent: the power of 1/seconds (the paper's is 1, over a whole population)."""
BOLDNESS = 1.0
"""Deviations below its prediction at which a candidate is taken to be: what nobody knows is worth a try."""
LEAST = 4
"""Candidates of each structure, and of each form of it (a choice of splits), that are measured before it is given up."""
FAR = 1.25
"""Times the best so far that a form may be predicted to take to be worth that, and its fastest to be worth a look around."""
HOPELESS = 1.5
"""The same for a structure of which little was measured."""
FORMS = 6
"""Forms around whose fastest candidates is looked."""
NEAR = 256
"""Candidates, the best predicted, among which is chosen so that they differ."""
FIRST_BOLDNESS = 0.3
"""The same for the first generation, when there is no best yet that others could be measured beside."""


@dataclass
class Hunt:
    """One program's search. ``weight`` is how often a model runs it; ``corrected`` False leaves the model's estimates as they
    are."""

    program: TensorProgram
    pool: Pool
    effort: Effort
    seed: int = 0
    weight: int = 1
    corrected: bool = True
    boldness: float = BOLDNESS
    residual: Residual = field(default_factory=Residual)
    times: dict[Entry, float] = field(default_factory=dict)
    """Seconds of what was measured, infinite where it failed; the mean where it was measured several times."""
    anchor: Entry | None = None
    """What is measured beside every generation, by which the times of all are told."""
    _told: dict[Entry, list[float]] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    history: list[Generation] = field(default_factory=list)
    stale: int = 0
    asked: int = 0
    ended: str = ""
    """Why it is not to go on, though it has not converged."""
    near: dict[Entry, list[Entry]] = field(default_factory=dict)
    """What differs in one knob from the fastest of each form, by that one."""
    _guesses: tuple[int, dict[Entry, tuple[float, float]]] = (0, {})
    """What is predicted since so many measurements: mean and deviation of the logarithm of measured over estimated time."""

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.first = min(self.pool.entries.values(), key=lambda e: e.estimate)

    # -- what is known ------------------------------------------------------------------------------------------------------

    @property
    def best(self) -> Entry | None:
        """The fastest that was measured."""
        found = min(self.times.items(), key=lambda x: x[1], default=None)
        return found[0] if found and math.isfinite(found[1]) else None

    @property
    def seconds(self) -> float:
        """Of the best; before anything was measured, the model's estimate of its first choice."""
        best = self.best
        return self.times[best] if best else min(e.estimate for e in list(self.pool.entries.values()))

    @property
    def beside(self) -> list[Entry]:
        """What is measured once more with the next generation: the anchor, and the best so far."""
        return list(dict.fromkeys(e for e in (self.anchor, self.best) if e))

    @property
    def done(self) -> bool:
        return bool(self.ended) or self.stale >= self.effort.patience or len(self.history) >= self.effort.generations

    @property
    def why(self) -> str:
        return self.ended or ("converged" if self.stale >= self.effort.patience else "generations")

    def predicted(self, entries: Sequence[Entry]) -> tuple[np.ndarray, np.ndarray]:
        """Seconds of each, and the relative deviation of that."""
        told = len(self.residual.ratios)
        if self._guesses[0] != told:
            self._guesses = told, {}
        known = self._guesses[1]
        if new := [e for e in entries if e not in known]:
            known |= zip(new, zip(*self.residual.predict([e.features for e in new]), strict=True), strict=True)
        mean, deviation = np.array([known[e] for e in entries]).reshape(-1, 2).T
        return np.array([e.estimate for e in entries]) * np.exp(mean if self.corrected else 0.0), deviation

    @property
    def gain(self) -> float:
        """Seconds of the whole model that another generation may save: from the best so far to where the best unmeasured ones
        are, optimistically, predicted."""
        left = [e for e in self.pool.entries.values() if e not in self.times]
        if self.done or not left:
            return 0.0
        seconds, deviation = self.predicted(left)
        hoped = float(np.min(seconds * np.exp(-self.boldness * deviation)))
        return self.weight * max(self.seconds - hoped, 0.0)

    # -- the two questions --------------------------------------------------------------------------------------------------

    def ask(self, count: int = 0) -> list[Entry]:
        """The next generation: candidates that were not measured yet, none where there are no more."""
        if self.asked:
            self._breed()
        self._look_around()
        self.asked += 1
        return self._top(count or self.effort.top)

    def ahead(self, count: int) -> list[Entry]:
        """What may well be asked for next: compilers can begin."""
        return self._top(count)

    def tell(self, found: Sequence[tuple[Entry, Measurement]], again: Sequence[tuple[Entry, Measurement]] = ()) -> None:
        """What became of a generation, and of what was measured ``again`` beside it.

        Times are told by the anchor's, the first that was right: beside the best so far they would shrink from generation to
        generation, since the best of many has been lucky. What it takes the next time counts as much as the first.
        """
        drift = next((self._told[e][0] / s for e, m in again if e is self.anchor and (s := _seconds(m))), 1.0)
        for entry, measurement in again:
            if entry is not self.anchor and (seconds := _seconds(measurement)):
                self._told[entry].append(seconds * drift)
                self.times[entry] = fmean(self._told[entry])
        before = self.seconds if self.best else math.inf
        for entry, measurement in found:
            if seconds := _seconds(measurement):
                self.anchor = self.anchor or entry
                self.times[entry] = seconds * drift
                self._told[entry] = [seconds * drift]
                self.residual.add(entry.features, seconds * drift / entry.estimate)
            else:
                self.times[entry] = math.inf
                self.failures[measurement.status] += 1
        now = self.seconds if self.best else math.inf
        fastest = min((self.times[e] for e, _ in found), default=math.inf)
        self.history.append(Generation(fastest, now, len(found)))
        gained = now < before * (1 - self.effort.epsilon)
        self.stale = 0 if gained or not math.isfinite(now) else self.stale + 1

    def settle(self, found: Sequence[tuple[Entry, Measurement]]) -> None:
        """The fastest, measured once more in turn with each other; those that failed now are out. The first of them is the best:
        its time stays, the others are told beside it."""
        first = _seconds(found[0][1])
        drift = self.times[found[0][0]] / first if first else 1.0
        for entry, measurement in found:
            seconds = _seconds(measurement)
            self.times[entry] = seconds * drift if seconds else math.inf
            self.failures[measurement.status] += not seconds
        self.failures = +self.failures

    # -- parts --------------------------------------------------------------------------------------------------------------

    def _look_around(self) -> None:
        """Around the fastest, and the fastest of other forms not far behind: what holds one back may be a single knob."""
        self.near = {e: self.near.get(e) or self.pool.around(e) for e in self._fastest()}

    def _fastest(self) -> list[Entry]:
        fastest: dict[Any, Entry] = {}
        best = self.seconds
        for e, s in sorted(self.times.items(), key=lambda x: x[1]):
            if s <= FAR * best and len(fastest) < FORMS:
                fastest.setdefault(e.form, e)
        return list(fastest.values())

    def _top(self, count: int) -> list[Entry]:
        left = [e for e in self.pool.entries.values() if e not in self.times]
        if not left:
            return []
        if not self.corrected:
            return sorted(left, key=lambda e: e.estimate)[:count]
        if not self.residual.ratios:
            return self._first(left, count)
        chosen = self._neglected(left, max(1, count // 4))
        around = dict.fromkeys(e for found in self.near.values() for e in found)  # one may be near to several
        near = [e for e in around if e not in self.times and e not in chosen]
        chosen += self._chosen(near, count // 3, self.boldness)
        rest = [e for e in left if e not in chosen]
        return chosen + self._chosen(rest, count - len(chosen), self.boldness)

    def _chosen(self, among: Sequence[Entry], count: int, boldness: float) -> list[Entry]:
        seconds, deviation = self.predicted(among)
        near = [among[i] for i in np.argsort(seconds * np.exp(-boldness * deviation), kind="stable")[: max(NEAR, count)]]
        estimates = np.array([e.estimate for e in near])
        return [near[i] for i in self.residual.choose([e.features for e in near], estimates, count, boldness)]

    def _neglected(self, left: Sequence[Entry], count: int) -> list[Entry]:
        """One candidate each of the forms that were hardly measured: one bad schedule says little about all of them."""
        tried, forms = Counter(e.structure for e in self.times), Counter(e.form for e in self.times)
        seconds, _ = self.predicted(left)
        best: dict[Any, float] = {}
        fastest = self.seconds
        for e, s in zip(left, seconds.tolist(), strict=True):
            worth = HOPELESS if tried[e.structure] < LEAST else FAR if forms[e.form] < LEAST else 0.0
            if s < worth * fastest:
                best[e.form] = min(best.get(e.form, math.inf), s)
        found = sorted(best, key=lambda n: best[n])[:count]
        return [self._chosen([e for e in left if e.form == n], 1, self.boldness)[0] for n in found]

    def _first(self, left: Sequence[Entry], count: int) -> list[Entry]:
        """The best by the model; of those that differ in little the best few alone."""
        chosen = self._chosen(sorted(left, key=lambda e: e.estimate), count, FIRST_BOLDNESS)
        return chosen if self.first in chosen or self.first in self.times else [self.first, *chosen[:-1]]

    def _breed(self) -> None:
        every = list(self.pool.entries.values())
        seconds, _ = self.predicted(every)
        known = np.array([self.times.get(e, s) for e, s in zip(every, seconds, strict=True)])
        parents = np.argsort(known, kind="stable")[:PARENTS]
        parents = parents[np.isfinite(known[parents])]
        weights = (known[parents[0]] / known[parents]) ** SHARPNESS
        looked = [e for e in self._fastest() if not self.near.get(e)]
        self.pool.breed([every[i] for i in parents], weights.tolist(), self.effort.population, self.rng, looked)

    def top(self, count: int) -> list[Ranked]:
        """The fastest, then the best predicted of what was not measured."""
        found = sorted((x for x in self.times.items() if math.isfinite(x[1])), key=lambda x: x[1])
        ranked = [Ranked(e.candidate, e.estimate, s) for e, s in found[:count]]
        left = sorted((e for e in self.pool.entries.values() if e not in self.times), key=lambda e: e.estimate)
        return ranked + [Ranked(e.candidate, e.estimate) for e in left[: count - len(ranked)]]


def _seconds(m: Measurement) -> float:
    """Of a candidate that was right; 0 otherwise."""
    return m.time_us * 1e-6 if m.ok and m.time_us and 0 < m.time_us < math.inf else 0.0
