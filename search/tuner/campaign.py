"""Several searches at once on one device: which one measures next, when all of it ends, and who hears of it.

Compilers work for all searches while the device measures for one, and a thread thinks about what the others ask for next; where
several devices measure, several processes do (:mod:`search.tuner.thinking`). Which search is next decides only where time is
short: each depends on nothing but its own measurements.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from dataclasses import field
from typing import Any
from typing import Protocol
from typing import TypeVar
from typing import runtime_checkable

from fuser.console import warn
from fuser.errors import DiedError
from fuser.interrupts import Terminated
from fuser.ir.candidate import Candidate
from fuser.ir.program import TensorProgram
from search.measure.measurement import Found
from search.measure.measurement import Turn
from search.tuner.hunt import Hunt
from search.tuner.pool import Entry
from search.tuner.thinking import NOTHING
from search.tuner.thinking import Elsewhere
from search.tuner.thinking import Here
from search.tuner.thinking import News
from search.tuner.thinking import Thinker
from search.tuner.thinking import some_ready
from search.tuner.thinking import thinkers

AHEAD = 6
"""Candidates beyond their next generation that searches have compiled, in case they come next: of many searches hardly any, for
which compilers have time while the others are measured."""
FINALISTS = 8
"""Of each search, timed once more in turn with each other at the end."""
CLOSE = 0.08
"""Finalists are at most so much slower than the best: on an H200 kernels of 4 µs took 8 % longer in one batch than in another."""


T = TypeVar("T")
R = TypeVar("R")


class Judge(Protocol):
    """What measures candidates."""

    def each(self, work: Callable[[T], R], jobs: Sequence[T]) -> Iterable[R]:
        """The work for each job, in order, by all processes that there are; begins at once."""
        ...

    def foresee(self, candidates: Sequence[Candidate]) -> None:
        """What another thread can do for them before they are compiled."""
        ...

    def ahead(self, candidates: Sequence[Candidate]) -> None:
        """Begin to compile them."""
        ...

    def compare(self, turn: Turn[Candidate]) -> Found:
        """What became of each; checked against float64 before it is timed."""
        ...


class Asked(Protocol):
    """A generation under way."""

    def result(self) -> Found:
        """As :meth:`Judge.compare` gives it; once it is done."""
        ...

    def drop(self) -> None:
        """Give it up."""
        ...


@runtime_checkable
class Several(Judge, Protocol):
    """What has ``lanes`` generations under way at once, of different searches."""

    @property
    def lanes(self) -> int: ...

    def load(self, program: TensorProgram) -> int:
        """Generations under way where this program would be measured."""
        ...

    def ready(self, candidates: Sequence[Candidate]) -> bool:
        """Whether all of them are compiled."""
        ...

    def begin(self, turn: Turn[Candidate], searches: int = 1) -> Asked:
        """As :meth:`Judge.compare`, which is not waited for; ``searches`` are under way in all."""
        ...

    def wait(self, asked: Mapping[int, Any], thoughts: Sequence[Future[Any]] = ()) -> list[int]:
        """The numbers of those that are done; waits until there is one, or one of the ``thoughts`` is done."""
        ...


@dataclass(frozen=True)
class _Done:
    found: Found

    def result(self) -> Found:
        return self.found

    def drop(self) -> None:
        """There is nothing left to do."""


@dataclass
class Campaign:
    """``watch`` hears of every generation: the search that it was for. ``processes`` think (None: as many as are worth having
    where several generations are measured at once, else a thread of this one)."""

    hunts: Sequence[Hunt]
    judge: Judge
    seconds: float | None = None
    watch: Callable[[Hunt], None] = lambda hunt: None
    clock: Callable[[], float] = time.monotonic
    processes: int | None = None
    why: str = "converged"
    current: int = 0
    """The search that measures now."""
    stage: str = "searching"
    end: float = math.inf
    spent: dict[int, float] = field(default_factory=dict)
    """Seconds of each search, by its number."""
    _thinker: Thinker | None = None
    _gains: dict[int, float] = field(default_factory=dict)
    """Seconds that the next generation of each search may save."""
    _running: dict[int, Asked] = field(default_factory=dict)
    """Generations that are being measured."""
    _pending: dict[int, list[Entry]] = field(default_factory=dict)
    _asked: dict[int, tuple[float, list[Entry], list[Entry]]] = field(default_factory=dict)

    def run(self) -> None:
        """Until all have converged, the time is up, or Ctrl-C; what was measured is in the searches."""
        self.end = math.inf if self.seconds is None else self.clock() + self.seconds
        self._thinker = self._thinking()
        try:
            for i in range(len(self.hunts)):
                self._prepare(i)
            self._flow(self._next, self._ask, self._told)
            if self._pending or self._thinker.waiting():
                self.why = "budget"
            self.stage = "timing the fastest in turn"
            close = {i: found for i, hunt in enumerate(self.hunts) if len(found := self._finalists(hunt)) > 1}
            left = list(close)
            self._flow(
                lambda: left.pop(0) if left and self.clock() < self.end else None,
                lambda i: self._begin(i, close[i], (), True, None),
                lambda i, found: self._settle(i, close[i], found),
            )
        except KeyboardInterrupt as error:
            self.why = "terminated" if isinstance(error, Terminated) else "interrupted"
        finally:
            self._thinker.close()

    def _thinking(self) -> Thinker:
        lanes = self.judge.lanes if isinstance(self.judge, Several) else 1
        count = min(self.processes or thinkers(len(self.hunts), lanes), lanes)
        return Elsewhere(self.hunts, count) if count > 1 else Here(self.hunts, self.judge.foresee)

    @property
    def left(self) -> float | None:
        """Seconds; None where there is no end."""
        return None if math.isinf(self.end) else max(self.end - self.clock(), 0.0)

    def _flow(self, next_: Callable[[], int | None], begin: Callable[[int], Asked], tell: Callable[[int, Found], None]) -> None:
        """Generations of searches, as many at once as the judge has lanes for."""
        self._running = running = {}
        lanes = self.judge.lanes if isinstance(self.judge, Several) else 1
        try:
            while True:
                while len(running) < lanes and (number := next_()) is not None:
                    running[number] = begin(number)
                if not running:
                    return
                beside = self._beside() if len(running) < lanes else []
                for number in self.judge.wait(running, beside) if isinstance(self.judge, Several) else list(running):
                    tell(number, running.pop(number).result())
        finally:
            for asked in running.values():
                asked.drop()

    def _beside(self) -> list[Future[Any]]:
        """Thoughts that something else may be waited for with: where one process alone thinks, it has enough to do."""
        several = self._thinker is not None and self._thinker.count > 1 and self.clock() < self.end
        return self._thinker.waiting() if several and self._thinker else []

    def _begin(self, number: int, entries: Sequence[Entry], beside: Sequence[Entry], again: bool, seconds: float | None) -> Asked:
        self.current = number
        items, others = (tuple(e.candidate for e in x) for x in (entries, beside))
        turn = Turn(self.hunts[number].program, items, others, again, seconds)
        if isinstance(self.judge, Several):
            return self.judge.begin(turn, sum(not h.done for h in self.hunts))
        return _Done(self.judge.compare(turn))

    def _prepare(self, number: int, news: News = NOTHING) -> None:
        """Ask a search for its next generation, and for some of what may come behind it."""
        assert self._thinker is not None
        if not self.hunts[number].done:
            self._thinker.begin(number, news, AHEAD // max(1, sum(not h.done for h in self.hunts)))

    def _hear(self) -> None:
        """Take what was thought of, and let compilers begin; waits where there is nothing else to do. One device under a budget
        waits for all, to know where most can be gained."""
        every = self.seconds is not None and not isinstance(self.judge, Several)
        while self._thinker is not None and self._thinker.waiting():
            if not (ready := self._thinker.ready()):
                if (self._pending and not every) or (self._running and self._beside()):
                    return
                some_ready(self._thinker)
            for number in ready:
                self._take(self._thinker, number)

    def _take(self, thinker: Thinker, number: int) -> None:
        try:
            found = thinker.take(number)
        except DiedError as error:
            self.hunts[number].ended = "died"
            warn(f"{self.hunts[number].program.name}: {error.message}; its search ends with the best so far")
            return
        if found.entries:
            self._pending[number], self._gains[number] = found.entries, found.gain
            self.judge.ahead([e.candidate for e in (*found.entries, *found.more)])

    def _next(self) -> int | None:
        """The search that measures next: one whose worker has least to do, and whose candidates are compiled; under a budget the
        one with most to gain, else each in its turn."""
        if self.clock() < self.end:
            self._hear()
        if not self._pending or self.clock() >= self.end:
            return None
        load = {i: self.judge.load(self.hunts[i].program) if isinstance(self.judge, Several) else 0 for i in self._pending}
        idle = [i for i in self._pending if load[i] == min(load.values())]
        if isinstance(self.judge, Several):
            idle = [i for i in idle if self.judge.ready([e.candidate for e in self._pending[i]])] or idle
        return idle[0] if self.seconds is None else max(idle, key=lambda i: (self._gains[i], -i))

    def _ask(self, number: int) -> Asked:
        entries, beside = self._pending.pop(number), self.hunts[number].beside
        self._asked[number] = self.clock(), entries, beside
        return self._begin(number, entries, beside, False, self.left)

    def _told(self, number: int, found: Found) -> None:
        hunt, (start, entries, again), (measured, beside) = self.hunts[number], self._asked.pop(number), found
        self.current = number
        told = [(e, m) for e, m in zip(entries, measured, strict=True) if m.lasting or m.status != "timeout"]  # time was up
        news = told, list(zip(again, beside, strict=False))
        hunt.tell(*news)
        self.spent[number] = self.spent.get(number, 0.0) + self.clock() - start
        self.watch(hunt)
        self._prepare(number, news)

    def _finalists(self, hunt: Hunt) -> list[Entry]:
        """The fastest few of a search: in turn with each other what wins by luck of a batch is found out."""
        best = hunt.times[hunt.best] if hunt.best else 0.0
        return [e for e, s in sorted(hunt.times.items(), key=lambda x: x[1]) if s <= (1 + CLOSE) * best][:FINALISTS]

    def _settle(self, number: int, close: Sequence[Entry], found: Found) -> None:
        self.current, hunt = number, self.hunts[number]
        hunt.settle(list(zip(close, found[0], strict=True)))
        self.watch(hunt)
