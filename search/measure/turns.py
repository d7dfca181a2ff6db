"""Many candidates of many programs measured in limited time, turn after turn. Compilers work ahead while the device measures, and
a turn that is ready goes before one that is not."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence

from fuser.errors import EnvironmentError_
from fuser.ir.candidate import Candidate
from search.measure.measurement import Measurement
from search.measure.measurement import Turn
from search.measure.measurer import Bench
from search.measure.planned import planned
from search.measure.rows import Record

AHEAD = 40
"""Turns that are being compiled or wait to be measured."""
FUTILE = 4
"""Turns without one correct result after which the machine is at fault."""
LEAST = 3.0
"""Seconds in which no turn is begun any more."""


Of = Turn[Candidate]


def take_turns(todo: Sequence[Of], bench: Bench, seconds: float, tell: Callable[[list[Record]], None]) -> None:
    """Measure until all is done or the time is up. ``tell`` hears of each turn. Raises :class:`EnvironmentError_` where nothing
    works."""
    start, left, futile = time.monotonic(), list(todo), 0
    while left:
        window = left[:AHEAD]
        for turn in window:
            bench.submit(turn.items)
        rest = seconds - (time.monotonic() - start)
        if rest < LEAST:
            break
        left.remove(turn := first_ready(window, bench, rest))
        rows = bench.measure(turn.program, turn.items, compile_timeout=rest)
        futile = 0 if any(x.ok for x in rows) else futile + 1
        if len(todo) - len(left) == futile == FUTILE:
            raise EnvironmentError_(f"nothing works here; the last: {rows[-1].status}: {rows[-1].detail}", "see the lines above")
        tell(rows)


def first_ready(window: Sequence[Of], bench: Bench, seconds: float) -> Of:
    """The first turn that is compiled; if none is, the first of all once some time has passed."""
    end = time.monotonic() + min(seconds, 5.0)
    while True:
        found = next((t for t in window if _ready(t, bench)), None)
        if found or time.monotonic() > end:
            return found or window[0]
        time.sleep(0.02)


def _ready(turn: Of, bench: Bench) -> bool:
    return all(bench.pool.ready(p) for c in turn.items if not isinstance(p := planned(c), Measurement))
