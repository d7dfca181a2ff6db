"""Many candidates of many programs measured in limited time: programs take turns, a chunk of candidates each. Compilers work
ahead while the device measures, and a chunk that is ready goes before one that is not."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field

from fuser.errors import EnvironmentError_
from fuser.ir.candidate import Candidate
from fuser.ir.program import TensorProgram
from search.measure.compiling import planned
from search.measure.measurement import Measurement
from search.measure.measurer import Bench
from search.measure.rows import Record
from search.measure.timing import External

AHEAD = 40
"""Chunks that are being compiled or wait to be measured."""
FUTILE = 4
"""Chunks without one correct result after which the machine is at fault."""
LEAST = 3.0
"""Seconds in which no chunk is begun any more."""


@dataclass
class Work:
    """A program with what is still to be measured: ``wanted`` correct schedules besides the ``have`` that records know."""

    name: str
    program: TensorProgram
    candidates: list[Candidate]
    peers: tuple[External, ...] = ()
    wanted: float = math.inf
    have: int = 0
    rows: list[Record] = field(default_factory=list)

    @property
    def kernels(self) -> list[Record]:
        return [r for r in self.rows if r.kind == "kernel" and not r.repeat]

    @property
    def done(self) -> bool:
        return sum(r.ok for r in self.kernels) >= self.wanted


@dataclass(frozen=True)
class Chunk:
    """Candidates that are timed in turn with each other."""

    work: Work
    items: tuple[Candidate | External, ...]

    def ready(self, bench: Bench) -> bool:
        plans = [planned(c) for c in self.items if isinstance(c, Candidate)]
        return all(bench.pool.ready(p) for p in plans if not isinstance(p, Measurement))


def take_turns(todo: Sequence[Chunk], bench: Bench, seconds: float, tell: Callable[[Chunk, list[Record]], None]) -> int:
    """Measure chunk after chunk until all is done or the time is up; returns how many are left. ``tell`` hears of each. Raises
    :class:`EnvironmentError_` where nothing works."""
    start, left, number, futile = time.monotonic(), list(todo), 0, 0
    while left := [c for c in left if not c.work.done]:
        window = left[:AHEAD]
        for chunk in window:
            bench.submit(chunk.items)
        rest = seconds - (time.monotonic() - start)
        if rest < LEAST:
            break
        chunk = first_ready(window, bench, rest)
        left.remove(chunk)
        rows = bench.measure(chunk.work.program, chunk.items, compile_timeout=rest)
        chunk.work.rows += rows
        number += 1
        futile = 0 if any(x.ok for x in rows) else futile + 1
        if number == futile == FUTILE:
            raise EnvironmentError_(f"nothing works here; the last: {rows[-1].status}: {rows[-1].detail}", "see the lines above")
        tell(chunk, rows)
    return len(left)


def first_ready(window: Sequence[Chunk], bench: Bench, seconds: float) -> Chunk:
    """The first chunk that is compiled; if none is, the first of all once some time has passed."""
    end = time.monotonic() + min(seconds, 5.0)
    while True:
        found = next((c for c in window if c.ready(bench)), None)
        if found or time.monotonic() > end:
            return found or window[0]
        time.sleep(0.02)
