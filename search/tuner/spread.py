"""Measuring by several processes, on one host or many: any :class:`concurrent.futures.Executor` whose workers have a GPU each,
those of a Dask cluster among them (:mod:`search.tuner.cluster`); another may compile for them.

Several searches have a generation under way at once, a worker each, so that every GPU has something to do. Where there are more
workers than searches a generation is shared out; each part is timed in turn with one that all have, by which the times of
different GPUs are told. A part whose worker is lost is done again by another.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED
from concurrent.futures import BrokenExecutor
from concurrent.futures import CancelledError
from concurrent.futures import Executor
from concurrent.futures import Future
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from typing import Any
from typing import Protocol
from typing import TypeVar
from typing import runtime_checkable

from fuser.device import Device
from fuser.ir.candidate import Candidate
from fuser.ir.program import TensorProgram
from search.measure.compiling import COMPILE_SECONDS
from search.measure.measurement import Found
from search.measure.measurement import Measurement
from search.measure.measurement import Turn
from search.measure.planned import source_hash
from search.measure.records import Records
from search.measure.session import Options
from search.measure.timing import Kernels
from search.tuner.shares import Answer
from search.tuner.shares import Made
from search.tuner.shares import Part
from search.tuner.shares import answer
from search.tuner.shares import make

ATTEMPTS = 3
"""So often a part is given to a worker before its candidates count as failed."""
SLICE = 2.0
"""Seconds between two looks at whether workers are still there."""
DEEP = 2
"""Generations for each worker: while one is measured, another is compiled and waits."""
RECENT = 256
"""Compiled candidates that are kept: the best so far is timed again and again."""
LOST = (BrokenExecutor, CancelledError, ConnectionError, EOFError)
"""What says that a worker is gone; Dask's own errors are told by their names."""
T = TypeVar("T")
R = TypeVar("R")


@runtime_checkable
class Placing(Protocol):
    """An executor that knows its workers by name."""

    def places(self) -> Sequence[str]: ...

    def submit_at(self, place: str, work: Callable[..., R], *args: Any) -> Future[R]: ...


@dataclass(frozen=True)
class Workers:
    """``count`` workers of an executor with a GPU each; ``compilers`` compile for them, where there are others that can, else
    each of them with ``jobs`` processes (None: as many as there are cores)."""

    executor: Executor
    count: int
    compilers: Executor | None = None
    jobs: int | None = None


class Asked:
    """A generation under way: first its kernels are compiled, where others do that, then its parts are measured."""

    def __init__(self, spread: Spread, turn: Turn[Candidate], shares: int, deadline: float) -> None:
        self.spread, self.turn, self.shares, self.deadline = spread, turn, shares, deadline
        self.place = spread.home(turn.program) if shares == 1 else ""
        self.names = [_name(c) for c in turn.items]
        self.left = [i for i, n in enumerate(self.names) if turn.again or n not in spread.known]
        self.found: dict[int, Measurement] = {}
        self.told: tuple[Measurement, ...] = ()
        self.parts: list[tuple[tuple[int, ...], Part]] = []
        self.answers: dict[int, Answer | None] = {}
        self.futures: dict[int, Future[Any] | None] = {}
        self.tries: Counter[int] = Counter()
        self.making = spread.workers.compilers is not None and bool(self.left)
        if self.making:
            self.futures = {i: spread.making(c) for i, c in self._wanted()}
        else:
            self._share(self.left, turn.beside, {})

    def _wanted(self) -> list[tuple[int, Candidate]]:
        """What has to be compiled, by number; of those beside it is negative."""
        beside = [(-1 - i, c) for i, c in enumerate(self.turn.beside)]
        return [(i, self.turn.items[i]) for i in self.left] + beside

    def waiting(self) -> list[Future[Any]]:
        return [f for f in self.futures.values() if f is not None and not f.done()]

    def advance(self) -> bool:
        """Take what is there, and go on; whether all is done. Raises what a worker raised."""
        if self.making:
            self._remake()
            if not self.waiting() or time.monotonic() >= self.deadline:
                self._made()
        if not self.making:
            for number in range(len(self.parts)):
                if number not in self.answers and ((future := self.futures[number]) is None or future.done()):
                    self._take(number)
        return not self.making and len(self.answers) == len(self.parts)

    def _remake(self) -> None:
        for i, candidate in self._wanted():
            if gone(self.futures[i]) and self.tries[i] < ATTEMPTS:
                self.tries[i] += 1
                self.spread.lost += 1
                self.futures[i] = self.spread.making(candidate)

    def _made(self) -> None:
        """All are compiled, or the time is up."""
        self.making, made = False, {i: self._outcome(f) for i, f in self.futures.items()}
        self.tries.clear()
        self.spread.compiled += sum(m.seconds for i, m in made.items() if i >= 0)
        self.found = {i: m for i, m in made.items() if i >= 0 and isinstance(m, Measurement)}
        good = {i: m for i, m in made.items() if isinstance(m, Made)}
        chosen = [good[i].candidate if i in good else c for i, c in enumerate(self.turn.items)]
        self.turn = replace(self.turn, items=tuple(chosen))
        beside = [good[-1 - i].candidate if -1 - i in good else c for i, c in enumerate(self.turn.beside)]
        self._share([i for i in sorted(good) if i >= 0], tuple(beside), good)

    def _outcome(self, future: Future[Made | Measurement] | None) -> Made | Measurement:
        if future is not None and not future.done():
            return Measurement("timeout", "the compiler was not done in the time of the run", lasting=False)
        if future is None or gone(future):
            return Measurement("compile", "the workers that compile were lost", lasting=False)
        return future.result()

    def _share(self, numbers: Sequence[int], beside: tuple[Candidate, ...], made: Mapping[int, Made]) -> None:
        """Those that compete once more are one part: only what ran on one GPU compares to the last per cent."""
        count = 1 if self.turn.again else min(self.shares, len(numbers)) or 1
        for share in (tuple(numbers[k::count]) for k in range(count)):
            if share:
                kernels = tuple((source_hash(made[i].candidate), made[i].kernels) for i in made if i in share or i < 0)
                turn = replace(self.turn, items=tuple(self.turn.items[i] for i in share), beside=beside)
                self.parts.append((share, self.spread.part(turn, kernels)))
        self.futures = {k: self.spread.measuring(part, self.place) for k, (_, part) in enumerate(self.parts)}

    def _take(self, number: int) -> None:
        part, future = self.parts[number][1], self.futures[number]
        if future is not None and not gone(future):
            self.answers[number] = done = future.result()
            self.told = self.told or done.beside
            self.spread.measured += done.seconds
            self.spread.keep(part, done)
            return
        self.spread.lost += 1
        self.tries[number] += 1
        if self.tries[number] < ATTEMPTS:
            self.futures[number] = self.spread.measuring(part, "")
        else:
            self.answers[number] = None

    def result(self) -> Found:
        """As of one device: times of all parts are told beside the first's time of the first ``beside``."""
        for number, (share, _) in enumerate(self.parts):
            done = self.answers[number]
            if done is None:
                self.found |= dict.fromkeys(share, Measurement("crash", "its workers were lost", lasting=False))
                continue
            self.found |= {i: _scaled(m, _us(self.told), _us(done.beside)) for i, m in zip(share, done.found, strict=True)}
        self.spread.at_work.pop(self, None)
        known = self.spread.known
        known |= {self.names[i]: m for i, m in self.found.items() if m.lasting}
        return [self.found[i] if i in self.found else known[n] for i, n in enumerate(self.names)], self.told

    def drop(self) -> None:
        """Give up what is not done; what is done is kept."""
        self.spread.at_work.pop(self, None)
        for number, future in self.futures.items():
            if future is not None and not future.cancel() and not self.making and number not in self.answers and future.done():
                with suppress(Exception):
                    self._take(number)


@dataclass
class Spread:
    """What measures by workers. ``compiled`` and ``measured`` are seconds of work of all compilers and of all GPUs."""

    workers: Workers
    device: Device
    records: Records | None
    options: Options
    simulated: int | None = None
    lost: int = 0
    compiled: float = 0.0
    measured: float = 0.0
    at_work: dict[Asked, str] = field(default_factory=dict)
    """Generations under way, with their workers."""
    homes: dict[str, str] = field(default_factory=dict)
    """The worker that measures a program, by its hash: it has the inputs, and what comes out, in its memory."""
    known: dict[tuple[str, str], Measurement] = field(default_factory=dict)
    _making: dict[tuple[str, str], Future[Made | Measurement] | None] = field(default_factory=dict)

    @property
    def lanes(self) -> int:
        return DEEP * self.workers.count

    def _submitted(self, executor: Executor, work: Callable[..., R], *args: Any) -> Future[R] | None:
        """None where there is no worker."""
        with suppress(*LOST):
            return executor.submit(work, *args)
        return None

    def each(self, work: Callable[[T], R], jobs: Sequence[T]) -> Iterable[R]:
        """Work for the processes that compile; by this one where one of them is lost."""
        futures = [self._submitted(self.workers.compilers or self.workers.executor, work, job) for job in jobs]
        return (self._or_here(f, work, job) for f, job in zip(futures, jobs, strict=True))

    def _or_here(self, future: Future[R] | None, work: Callable[[T], R], job: T) -> R:
        while future is not None and not future.done():
            self._wait([future])
        return work(job) if future is None or gone(future) else future.result()

    def foresee(self, candidates: Sequence[Candidate]) -> None:
        """Those that compile do all of it."""

    def ahead(self, candidates: Sequence[Candidate]) -> None:
        """Begin to compile them, where workers do not do that themselves."""
        if self.workers.compilers is not None:
            for c in candidates:
                self.making(c)

    def making(self, candidate: Candidate) -> Future[Made | Measurement] | None:
        """A candidate on its way through a compiler; None where no worker is left."""
        assert self.workers.compilers is not None
        name, arch = _name(candidate), 0 if self.simulated is not None else self.device.arch
        if name not in self._making or gone(self._making[name]):
            for old in [n for n, f in self._making.items() if f is None or f.done()][: max(len(self._making) - RECENT, 0)]:
                del self._making[old]
            self._making[name] = self._submitted(self.workers.compilers, make, candidate, arch, COMPILE_SECONDS)
        return self._making[name]

    def part(self, turn: Turn[Candidate], made: tuple[tuple[str, Kernels], ...]) -> Part:
        return Part(turn, self.options, self.device, made, self.simulated, self.workers.jobs)

    def measuring(self, part: Part, place: str) -> Future[Answer] | None:
        """By the worker at a place, if there is one, else by any."""
        executor = self.workers.executor
        if isinstance(executor, Placing) and place in executor.places():
            with suppress(*LOST):
                return executor.submit_at(place, answer, part)
        return self._submitted(executor, answer, part)

    def ready(self, candidates: Sequence[Candidate]) -> bool:
        """Whether all of them are compiled, where workers do not do that themselves."""
        made = [self._making.get(_name(c)) for c in candidates] if self.workers.compilers is not None else []
        return all(f is not None and f.done() for f in made)

    def load(self, program: TensorProgram) -> int:
        """Generations under way on the worker that has a program; none where any may measure it."""
        return sum(place == self.homes.get(program.stable_hash(), None) for place in self.at_work.values())

    def home(self, program: TensorProgram) -> str:
        """The worker that measures a program: the one that did, unless another has nothing to do. Empty where workers have no
        names."""
        if not isinstance(self.workers.executor, Placing) or not (places := self.workers.executor.places()):
            return ""
        load = {p: sum(p == other for other in self.at_work.values()) for p in places}
        name, idle = program.stable_hash(), min(places, key=lambda p: (load[p], sum(h == p for h in self.homes.values())))
        if (home := self.homes.get(name)) not in load or (load[home] and not load[idle]):
            self.homes[name] = idle
        return self.homes[name]

    def begin(self, turn: Turn[Candidate], searches: int = 1) -> Asked:
        """A generation on its way, beside those of so many ``searches`` in all. Workers wait for their compilers."""
        deadline = math.inf if turn.seconds is None else time.monotonic() + turn.seconds
        asked = Asked(self, replace(turn, seconds=None), max(1, self.workers.count // max(1, searches)), deadline)
        self.at_work[asked] = asked.place
        return asked

    def wait(self, asked: Mapping[int, Asked], thoughts: Sequence[Future[Any]] = ()) -> list[int]:
        """Those that are done; waits until there is one, or one of the thoughts is done."""
        while not (done := [number for number, a in asked.items() if a.advance()]):
            if any(f.done() for f in thoughts):
                return []
            left = min((a.deadline for a in asked.values() if a.making), default=math.inf) - time.monotonic()
            self._wait([*thoughts, *(f for a in asked.values() for f in a.waiting())], min(SLICE, max(left, 0.0)))
        return done

    def _wait(self, futures: Sequence[Future[Any]], seconds: float = SLICE) -> None:
        done, _ = wait(futures, seconds, FIRST_COMPLETED)
        if not done:
            for executor in (self.workers.executor, self.workers.compilers):
                getattr(executor, "sweep", lambda: None)()

    def compare(self, turn: Turn[Candidate]) -> Found:
        """A generation by itself."""
        asked = self.begin(turn)
        self.wait({0: asked})
        return asked.result()

    def keep(self, part: Part, done: Answer) -> None:
        if self.records is None:
            return
        for c, row in zip(part.turn.items, done.rows, strict=False):
            if row.measurement.lasting:
                self.records.add_structure(c.graph, row.structure)
                self.records.add(row, again=bool(row.repeat))


def gone(future: Future[Any] | None) -> bool:
    """Whether the worker that had a job is gone."""
    if future is None or future.cancelled():
        return True
    return future.done() and (error := future.exception()) is not None and is_lost(error)


def is_lost(error: BaseException) -> bool:
    """Whether an error of a job is that its worker is gone."""
    return isinstance(error, LOST) or type(error).__name__ in ("KilledWorker", "FutureCancelledError", "CommClosedError")


def _name(candidate: Candidate) -> tuple[str, str]:
    return candidate.graph.stable_hash(), candidate.schedule.stable_hash()


def _us(beside: Sequence[Measurement]) -> float:
    return beside[0].time_us or 0.0 if beside and beside[0].ok else 0.0


def _scaled(m: Measurement, told: float, beside: float) -> Measurement:
    """The measurement as of the GPU on which what was beside took ``told`` microseconds, and ``beside`` here."""
    return replace(m, time_us=m.time_us * told / beside) if m.time_us and told and beside else m
