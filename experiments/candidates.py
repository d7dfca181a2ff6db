"""What is measured of each case of a bench: choices of the model, the best schedules that records know, random ones."""

from __future__ import annotations

import fnmatch
import math
import os
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cost_model import refined
from cost_model.features import Counts
from cost_model.features import Features
from experiments.drawn import draw_candidates
from experiments.peers import peers_of
from fuser.device import Device
from fuser.device import load_device
from fuser.errors import FuserError
from fuser.errors import UsageError
from fuser.ir.candidate import Candidate
from fuser.ir.program import TensorProgram
from fuser.pools import SPAWN
from fuser.superopt.structures import structures
from fuser.workloads import match
from fuser.workloads import workload
from search.libraries import with_libraries
from search.measure.records import Records
from search.measure.rows import Record
from search.measure.timing import External
from search.ranked import INSTANT
from search.ranked import Effort
from search.ranked import Ranked
from search.ranked import Tuned
from search.space.evolve import search
from search.space.hazards import hazardous
from search.space.hazards import unwieldy
from search.space.schedules import ScheduleSpace
from search.tune import RUNNERS
from search.tune import judged
from search.tune import tune_fast

MANY = 4
"""Cases from which on fast tuning is worth several processes."""
RANDOM = 24
"""Random schedules of a case that no records know."""


@dataclass(frozen=True)
class Choice:
    """What fast tuning chose for a program, the seconds it took, and the best candidate with a library's products in it (None
    where the program has none)."""

    tuned: Tuned
    seconds: float
    library: Ranked | None = None

    def candidates(self, runners: int) -> tuple[Candidate, ...]:
        """The winner, that many runners-up, and the best with a library where it is none of them."""
        shown = (self.tuned.winner, *self.tuned.runners[:runners], *((self.library,) if self.library else ()))
        return tuple(dict.fromkeys(c.candidate for c in shown))


@dataclass(frozen=True)
class Recorded:
    """A schedule that records know, and its time there in microseconds."""

    candidate: Candidate
    us: float


@dataclass(frozen=True)
class Case:
    """A named workload with what is to be measured of it. ``choice`` is None where the model was not asked or found nothing
    (``note`` says why)."""

    name: str
    program: TensorProgram
    choice: Choice | None
    chosen: tuple[Candidate, ...]
    recorded: tuple[Recorded, ...]
    drawn: tuple[Candidate, ...]
    peers: tuple[External, ...]
    note: str = ""

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Those that are timed beside the peers; the random ones have to win a place there first."""
        return tuple(dict.fromkeys((*self.chosen, *(r.candidate for r in self.recorded))))


@dataclass(frozen=True)
class Request:
    """How many candidates of each kind a case gets. ``top``: the model's best, ``best``: the fastest known ones, ``random``: None
    for :data:`RANDOM` where records know nothing, and none elsewhere. ``target`` is the device that the model assumes. An
    ``effort`` that measures searches each case first."""

    target: str = "h200"
    top: int = 3
    best: int = 3
    random: int | None = None
    seed: int = 0
    effort: Effort = INSTANT


def cases_of(suites: Sequence[str], cases: Sequence[str] = ()) -> tuple[str, ...]:
    """Workloads of suites (``mcfuser``, or globs of workloads), cut down to ``cases`` (globs of the part after the slash)."""
    names = match([s if "/" in s else f"{s}/*" for s in suites])
    if not cases:
        return tuple(names)
    found = tuple(n for n in names if any(fnmatch.fnmatchcase(n.partition("/")[2], c) for c in cases))
    if not found:
        more = ", …" if len(names) > 12 else ""
        short = ", ".join(n.partition("/")[2] for n in names[:12]) + more
        raise UsageError(f"no case of {', '.join(suites)} is called {', '.join(cases)}", f"cases are {short}")
    return found


def choose(name: str, target: str) -> Choice:
    """Fast tuning of a named workload for a device, on which a library may do products."""
    start = time.perf_counter()
    program, device = workload(name), load_device(target)
    graphs = structures(program)
    tuned, library = tune_fast(program, device, graphs=graphs), None
    if mixed := with_libraries(graphs)[len(graphs) :]:
        other = tune_fast(program, device, graphs=mixed)
        library = other.winner
        ranked = sorted((tuned.winner, *tuned.runners, other.winner, *other.runners), key=judged)
        tuned = replace(
            tuned,
            winner=ranked[0],
            runners=tuple(ranked[1 : 1 + RUNNERS]),
            structures=tuned.structures + other.structures,
            candidates=tuned.candidates + other.candidates,
        )
    return Choice(tuned, time.perf_counter() - start, library)


def _choose(name: str, target: str) -> Choice | str:
    try:
        return choose(name, target)
    except FuserError as error:
        return error.message


def choose_all(names: Sequence[str], target: str) -> dict[str, Choice | str]:
    """Fast tuning of several workloads, in several processes where that pays; a text says why one has no choice."""
    workers = min(len(names), len(os.sched_getaffinity(0)))
    if workers < MANY or len(names) < MANY:
        return {n: _choose(n, target) for n in names}
    with ProcessPoolExecutor(workers, SPAWN) as pool:
        return dict(zip(names, pool.map(_choose, names, [target] * len(names)), strict=True))


def model_best(
    program: TensorProgram, device: Device, count: int, of_each: int, fits: Callable[[Features], NDArray[np.bool_]] | None = None
) -> list[Candidate]:
    """The schedules that the model puts first, over all structures that need no search, ``of_each`` of one at most; those that
    ``fits``, if it is given."""

    def estimate(f: Features) -> Counts:
        out = hazardous(f, device) | unwieldy(f)
        return np.where(out if fits is None else out | ~fits(f), np.inf, refined.seconds(f, device))

    found: list[Ranked] = []
    for graph in structures(program):
        with suppress(FuserError):  # this structure has no such schedule
            space = ScheduleSpace(graph, device)
            found += search(space, estimate, np.random.default_rng(0), replace(INSTANT, top=of_each)).top
    return [r.candidate for r in sorted(found, key=lambda r: r.seconds)[:count]]


def best_known(records: Records, name: str, device: str, count: int) -> tuple[Recorded, ...]:
    """The fastest correct schedules of a workload that records know of such a device, by the latest run of each one, none that
    ever failed."""
    rows = list(records.rows(workload=name, device=device, kind="kernel"))
    failed = {(r.structure, r.schedule) for r in rows if not r.ok}
    found: dict[Candidate, float] = {}
    for r in fastest_first(latest(rows)):
        if len(found) == count:
            break
        if (r.structure, r.schedule) not in failed and (candidate := records.candidate(r)):
            found.setdefault(candidate, r.time_us or math.inf)
    return tuple(Recorded(c, us) for c, us in found.items())


def latest(rows: Iterable[Record]) -> list[Record]:
    """Of the rows of each structure and schedule that were right the last one: the fastest of many runs was lucky, or its kernels
    were others."""
    good = sorted((r for r in rows if r.ok and r.time_us), key=lambda r: r.timestamp)
    return list({(r.structure, r.schedule): r for r in good}.values())


def fastest_first(rows: Iterable[Record]) -> list[Record]:
    """Those that were right and timed."""
    return sorted((r for r in rows if r.ok and r.time_us), key=lambda r: r.time_us or math.inf)


def fastest(rows: Iterable[Record]) -> Record | None:
    return next(iter(fastest_first(rows)), None)


def plan(names: Sequence[str], request: Request, sources: Sequence[Records], device: str, peers: Sequence[str]) -> list[Case]:
    """The cases with all their candidates; ``device`` is the name of the device in the records."""
    choices = choose_all(names, request.target) if request.top else {}
    found = []
    for name in names:
        choice = choices.get(name, "")
        program = choice.tuned.program if isinstance(choice, Choice) else workload(name)
        recorded: dict[Candidate, Recorded] = {}
        for source in sources:
            for r in best_known(source, name, device, request.best):
                recorded.setdefault(r.candidate, r)
        note = choice if isinstance(choice, str) else ""
        count = request.random if request.random is not None else 0 if recorded else RANDOM
        drawn: list[Candidate] = []
        if count:
            try:
                drawn = draw_candidates(program, count, request.seed)
            except FuserError as error:
                note = note or error.message
        found.append(
            Case(
                name,
                program,
                choice if isinstance(choice, Choice) else None,
                choice.candidates(request.top - 1) if isinstance(choice, Choice) else (),
                tuple(recorded.values()),
                tuple(drawn),
                peers_of(program, peers),
                note,
            )
        )
    return found
