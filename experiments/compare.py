"""Cases measured: each beside its peers, in turn with each other, in limited time and so that a second run goes on."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.candidates import Case
from experiments.candidates import Choice
from experiments.candidates import best_known
from experiments.candidates import fastest
from experiments.drawn import name_of
from fuser.console import note
from fuser.files import counted
from fuser.ir.candidate import Candidate
from fuser.ir.program import TensorProgram
from search.measure.measurer import Bench
from search.measure.rows import Record
from search.measure.timing import External

CHUNK = 8
"""Random schedules that are timed in turn with each other."""
FINALISTS = 2
"""Random schedules of a case that are timed beside the peers."""
PATIENCE = (30.0, 420.0)
"""Seconds that a peer's own compiler may be silent: at least, and at most; a quarter of what is left of the budget in between,
since one that hangs is tried twice."""
LAST_START = 5.0
"""Seconds that must be left for another case to begin."""


@dataclass(frozen=True)
class Result:
    """Rows of one program that were timed in turn with each other."""

    program: TensorProgram
    rows: tuple[Record, ...]
    choice: Choice | None = None
    note: str = ""

    @property
    def ours(self) -> Record | None:
        """The fastest of our kernels."""
        return fastest(r for r in self.rows if r.kind == "kernel")

    @property
    def peers(self) -> dict[str, Record]:
        return {r.structure: r for r in self.rows if r.kind == "peer"}

    @property
    def peer(self) -> Record | None:
        """The fastest peer."""
        return fastest(self.peers.values())

    def row_of(self, candidate: Candidate) -> Record | None:
        return next((r for r in self.rows if (r.structure, r.schedule) == name_of(candidate)), None)

    @property
    def speedup(self) -> float | None:
        """Time of the fastest peer over ours."""
        ours, peer = self.ours, self.peer
        return peer.time_us / ours.time_us if ours and peer and ours.time_us and peer.time_us else None


def measured(bench: Bench, case: Case) -> tuple[Record, ...]:
    """Rows of this case in this run, all of one comparison, or none if it has to be measured (again).

    Only rows that were timed in turn with each other compare, so a peer that is missing, or kernels that another version of the
    generator made, ask for all of it.
    """
    rows = list(bench.records.rows(workload=case.name, repeat=bench.run, device=bench.worker.info["device"]))
    timed = [r for r in rows if r.batch]
    if not timed:
        return ()
    rows = [r for r in rows if r.batch == timed[-1].batch or (not r.batch and r.timestamp >= timed[-1].timestamp)]
    kernels = [r for r in rows if r.kind == "kernel"]
    complete = {p.name for p in case.peers} <= {r.structure for r in rows if r.kind == "peer"}
    current = all(r.generator == bench.generator for r in kernels) and (bool(kernels) or not case.candidates)
    return tuple(rows) if complete and current else ()


def compare(
    bench: Bench,
    program: TensorProgram,
    candidates: Sequence[Candidate],
    peers: Sequence[External],
    compile_timeout: float | None = None,
) -> Result:
    """Check and time everything together."""
    wanted = [*dict.fromkeys(candidates), *peers]
    return Result(program, tuple(bench.measure(program, wanted, again=True, compile_timeout=compile_timeout)))


def explore(bench: Bench, case: Case, deadline: float) -> tuple[Candidate, ...]:
    """Measure the random schedules of a case and return the fastest; what is in the records already is not measured again."""
    for i in range(0, len(case.drawn), CHUNK):
        if (left := deadline - time.monotonic()) <= LAST_START:
            break
        bench.measure(case.program, case.drawn[i : i + CHUNK], compile_timeout=_finite(left))
    device = bench.worker.info["device"]
    drawn = {name_of(c) for c in case.drawn}
    known = (r.candidate for r in best_known(bench.records, case.name, device, len(drawn) + FINALISTS))
    return tuple(c for c in known if name_of(c) in drawn)[:FINALISTS]


def _finite(seconds: float) -> float | None:
    """A time limit as those take it that wait for ever without one."""
    return None if math.isinf(seconds) else seconds


def run(bench: Bench, cases: Sequence[Case], seconds: float = math.inf) -> Iterator[Result]:
    """A result for each case that the time allows; compilers work ahead while the device measures."""
    end = time.monotonic() + seconds
    bench.batches = len(bench.records)  # names of batches are never used twice in one file
    todo: list[tuple[Case, tuple[Record, ...]]] = [(c, measured(bench, c)) for c in cases]
    for case, rows in todo:
        if not rows:
            bench.submit([*case.drawn, *case.candidates])
    for done, (case, rows) in enumerate(todo):
        left = end - time.monotonic()
        if not rows and left < LAST_START:
            note(f"time is up before {counted(len(cases) - done, 'case')}: the same command goes on with that")
            return
        if rows:
            result = Result(case.program, rows)
        else:
            bench.worker.slow_patience = min(max(PATIENCE[0], left / 4), PATIENCE[1])
            # at most a third of the time goes to random schedules
            found = explore(bench, case, time.monotonic() + left / 3) if case.drawn else ()
            left = end - time.monotonic()
            result = compare(bench, case.program, [*case.candidates, *found], case.peers, _finite(left))
        ours = result.ours
        times = f"{ours.time_us:.2f} µs" if ours else "no correct kernel"
        note(f"{case.name}: {times}, {counted(len(result.rows), 'row')}{' (measured before)' if rows else ''}")
        yield Result(case.program, result.rows, case.choice, case.note)
