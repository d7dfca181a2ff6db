"""Measuring by several processes, on one host or many: any :class:`concurrent.futures.Executor` whose workers have a GPU each,
those of a Dask cluster among them.

A generation is shared out; each part is timed in turn with the best so far, by which the times of different GPUs are told. A part
whose worker is lost is done again by another.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from concurrent.futures import CancelledError
from concurrent.futures import Executor
from concurrent.futures import Future
from concurrent.futures import wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import cache
from typing import TypeVar

from fuser.device import Device
from fuser.errors import EnvironmentError_
from fuser.errors import UsageError
from fuser.ir.candidate import Candidate
from fuser.ir.program import TensorProgram
from search.measure.measurement import Measurement
from search.measure.measurer import Bench
from search.measure.records import Records
from search.measure.rows import Record
from search.measure.session import Options
from search.tuner.simulated import Simulated

ATTEMPTS = 3
"""So often a part is given to a worker before its candidates count as failed."""
LOST = (BrokenProcessPool, CancelledError, ConnectionError, EOFError)
"""What says that a worker is gone; Dask's own errors are told by their names."""
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Part:
    """Candidates of one program for one worker. ``simulated`` is the seed of a made-up device."""

    program: TensorProgram
    candidates: tuple[Candidate, ...]
    beside: Candidate | None
    again: bool
    options: Options
    device: Device
    simulated: int | None = None


@dataclass(frozen=True)
class Answer:
    """``rows`` are to be kept: none of a made-up device."""

    found: tuple[Measurement, ...]
    beside: Measurement | None
    rows: tuple[Record, ...] = ()


def answer(part: Part) -> Answer:
    """In a worker: compile, check and time a part."""
    if part.simulated is not None:
        measured, beside = Simulated(part.device, part.simulated).compare(part.program, part.candidates, part.beside)
        return Answer(tuple(measured), beside)
    bench = _bench(part.options)
    if bench.worker.info["arch"] != part.device.arch:
        raise EnvironmentError_(f"a worker has a {bench.worker.info['device']}, not {part.device.title}", "start others")
    rows, beside = bench.measured(part.program, part.candidates, part.again, None, part.beside)
    return Answer(tuple(r.measurement for r in rows), beside, tuple(rows))


@cache
def _bench(options: Options) -> Bench:
    """One for each worker; its GPU is the first that the worker sees."""
    bench = Bench.open("cuda", Records(":memory:"), options, max(1, (os.cpu_count() or 1) // 2), run="search")
    atexit.register(bench.__exit__)
    return bench


@dataclass
class Spread:
    """``workers`` is how many measure at once."""

    executor: Executor
    workers: int
    device: Device
    records: Records | None
    options: Options
    simulated: int | None = None
    lost: int = 0
    _known: dict[tuple[str, str], Measurement] = field(default_factory=dict)

    def each(self, work: Callable[[T], R], jobs: Sequence[T]) -> Iterable[R]:
        """Work for the same processes; by this one where one of them is lost."""
        futures = [self.executor.submit(work, job) for job in jobs]
        return (self._or_here(f, work, job) for f, job in zip(futures, jobs, strict=True))

    def _or_here(self, future: Future[R], work: Callable[[T], R], job: T) -> R:
        try:
            return future.result()
        except Exception as error:
            if not is_lost(error):
                raise
            return work(job)

    def ahead(self, candidates: Sequence[Candidate]) -> None:
        """Workers compile what they measure."""

    def compare(
        self,
        program: TensorProgram,
        candidates: Sequence[Candidate],
        beside: Candidate | None = None,
        again: bool = False,
        seconds: float | None = None,
    ) -> tuple[list[Measurement], Measurement | None]:
        """As of one device: times of all parts are told beside the first's time of ``beside``. Those that compete once more
        (``again``) are one part: only what ran on one GPU compares to the last per cent."""
        names = [(c.graph.stable_hash(), c.schedule.stable_hash()) for c in candidates]
        fresh = [i for i, n in enumerate(names) if again or n not in self._known]
        count = 1 if again else min(self.workers, len(fresh)) or 1
        shares = [fresh[k::count] for k in range(count) if fresh[k::count]]
        parts = [
            Part(program, tuple(candidates[i] for i in share), beside, again, self.options, self.device, self.simulated)
            for share in shares
        ]
        told: Measurement | None = None
        found: dict[int, Measurement] = {}
        for share, part, done in zip(shares, parts, self._answers(parts), strict=True):
            if done is None:
                found |= dict.fromkeys(share, Measurement("crash", "its workers were lost", lasting=False))
                continue
            self._keep(part, done)
            told = told or done.beside
            found |= {i: _scaled(m, _us(told), _us(done.beside)) for i, m in zip(share, done.found, strict=True)}
        self._known |= {names[i]: m for i, m in found.items() if m.lasting}
        return [found[i] if i in found else self._known[names[i]] for i in range(len(names))], told

    def _answers(self, parts: Sequence[Part]) -> list[Answer | None]:
        """Of each part; None where every worker that had it was lost."""
        done: dict[int, Answer] = {}
        for _ in range(ATTEMPTS):
            left = [i for i in range(len(parts)) if i not in done]
            futures = {i: self._submit(parts[i]) for i in left}
            wait([f for f in futures.values() if f is not None])
            for i, future in futures.items():
                try:
                    if future is not None:
                        done[i] = future.result()
                except Exception as error:
                    if not is_lost(error):
                        raise
                    self.lost += 1
            if len(done) == len(parts):
                break
        return [done.get(i) for i in range(len(parts))]

    def _submit(self, part: Part) -> Future[Answer] | None:
        with suppress(*LOST):
            return self.executor.submit(answer, part)
        return None

    def _keep(self, part: Part, done: Answer) -> None:
        if self.records is None:
            return
        for c, row in zip(part.candidates, done.rows, strict=False):
            if row.measurement.lasting:
                self.records.add_structure(c.graph, row.structure)
                self.records.add(row, again=bool(row.repeat))


def is_lost(error: BaseException) -> bool:
    """Whether an error of a job is that its worker is gone."""
    return isinstance(error, LOST) or type(error).__name__ in ("KilledWorker", "FutureCancelledError", "CommClosedError")


def _us(m: Measurement | None) -> float:
    return m.time_us if m is not None and m.ok and m.time_us else 0.0


def _scaled(m: Measurement, told: float, beside: float) -> Measurement:
    """The measurement as of the GPU on which the best took ``told`` microseconds, and ``beside`` here."""
    return replace(m, time_us=m.time_us * told / beside) if m.time_us and told and beside else m


def dask_executor(address: str) -> tuple[Executor, int]:
    """The executor of a running Dask cluster, and how many workers it has. Raises :class:`EnvironmentError_` where there is no
    such cluster, or no Dask."""
    try:
        from distributed import Client
    except ModuleNotFoundError as error:
        raise EnvironmentError_("Dask is not installed", "pip install 'mufuser[dask]', on the workers too") from error
    try:
        client = Client(address, timeout=10)
        workers = len(client.scheduler_info()["workers"])
    except (OSError, ValueError, TimeoutError) as error:
        raise EnvironmentError_(f"there is no Dask cluster at {address!r}: {error}", "dask scheduler; dask worker") from error
    if not workers:
        raise UsageError(f"the Dask cluster at {address!r} has no workers", f"dask worker {address}, one for each GPU")
    return client.get_executor(retries=ATTEMPTS, pure=False), workers
