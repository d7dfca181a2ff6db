"""Several searches at once on one device: which one measures next, when all of it ends, and who hears of it.

Compilers work for all searches while the device measures for one. Which search is next decides only where time is short: each
depends on nothing but its own measurements.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import Protocol
from typing import TypeVar

from fuser.interrupts import Terminated
from fuser.ir.candidate import Candidate
from fuser.ir.program import TensorProgram
from search.measure.measurement import Measurement
from search.tuner.hunt import Hunt
from search.tuner.pool import Entry

AHEAD = 6
"""Candidates of a search that are compiled beyond its next generation, in case they come next."""
FINALISTS = 4
"""Of each search, timed once more in turn with each other at the end."""
CLOSE = 0.03
"""Finalists are at most so much slower than the best."""


T = TypeVar("T")
R = TypeVar("R")


class Judge(Protocol):
    """What measures candidates."""

    def each(self, work: Callable[[T], R], jobs: Sequence[T]) -> Iterable[R]:
        """The work for each job, in order, by all processes that there are; begins at once."""
        ...

    def ahead(self, candidates: Sequence[Candidate]) -> None:
        """Begin to compile them."""
        ...

    def compare(
        self,
        program: TensorProgram,
        candidates: Sequence[Candidate],
        beside: Candidate | None = None,
        again: bool = False,
        seconds: float | None = None,
    ) -> tuple[list[Measurement], Measurement | None]:
        """What became of each, and of ``beside``, which is timed in turn with them; checked against float64 before. What was
        measured before is not measured again, unless ``again``. ``seconds`` are waited for compilers."""
        ...


@dataclass
class Campaign:
    """``watch`` hears of every generation: the search that it was for."""

    hunts: Sequence[Hunt]
    judge: Judge
    seconds: float | None = None
    watch: Callable[[Hunt], None] = lambda hunt: None
    clock: Callable[[], float] = time.monotonic
    why: str = "converged"
    current: int = 0
    """The search that measures now."""
    spent: dict[int, float] = field(default_factory=dict)
    """Seconds of each search, by its number."""
    _pending: dict[int, list[Entry]] = field(default_factory=dict)

    def run(self) -> None:
        """Until all have converged, the time is up, or Ctrl-C; what was measured is in the searches."""
        start = self.clock()
        end = math.inf if self.seconds is None else start + self.seconds
        try:
            for i in range(len(self.hunts)):
                self._prepare(i)
            while self._pending and self.clock() < end:
                number = self._next(limited=self.seconds is not None)
                self._generation(number, end)
                self._prepare(number)
            if self._pending:
                self.why = "budget"
            self._finals(end)
        except KeyboardInterrupt as error:
            self.why = "terminated" if isinstance(error, Terminated) else "interrupted"

    def _prepare(self, number: int) -> None:
        """Ask a search for its next generation, and let compilers begin."""
        hunt = self.hunts[number]
        self._pending.pop(number, None)
        if hunt.done or not (entries := hunt.ask()):
            return
        self._pending[number] = entries
        more = [e for e in hunt.ahead(len(entries) + AHEAD) if e not in entries]
        self.judge.ahead([e.candidate for e in (*entries, *more)])

    def _next(self, limited: bool) -> int:
        """The search that measures now: under a budget the one with most to gain, else each in its turn."""
        if not limited:
            return next(iter(self._pending))
        return max(self._pending, key=lambda i: (self.hunts[i].gain, -i))

    def _generation(self, number: int, end: float) -> None:
        start, self.current = self.clock(), number
        hunt, entries = self.hunts[number], self._pending[number]
        best = hunt.best
        left = None if math.isinf(end) else max(end - start, 0.0)
        found, beside = self.judge.compare(
            hunt.program, [e.candidate for e in entries], best.candidate if best else None, seconds=left
        )
        drift = 1.0
        if best and beside and beside.ok and beside.time_us:
            drift = hunt.times[best] / (beside.time_us * 1e-6)
        told = [(e, m) for e, m in zip(entries, found, strict=True) if m.lasting or m.status != "timeout"]  # time was up
        hunt.tell([(e, m, (m.time_us or math.inf) * 1e-6 * drift) for e, m in told])
        self.spent[number] = self.spent.get(number, 0.0) + self.clock() - start
        self.watch(hunt)

    def _finals(self, end: float) -> None:
        """The fastest few of each search, in turn with each other: what wins by luck of a batch is found out."""
        for number, hunt in enumerate(self.hunts):
            self.current, best = number, hunt.best
            if best is None or self.clock() >= end:
                continue
            close = [e for e, s in sorted(hunt.times.items(), key=lambda x: x[1]) if s <= (1 + CLOSE) * hunt.times[best]]
            close = close[:FINALISTS]
            if len(close) < 2:
                continue
            found, _ = self.judge.compare(hunt.program, [e.candidate for e in close], again=True)
            hunt.settle(list(zip(close, found, strict=True)))
            self.watch(hunt)
