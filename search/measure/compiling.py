"""Kernels of candidates before they are measured, compiled by a pool of processes that never touch the GPU."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent.futures import CancelledError
from concurrent.futures import Future
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from dataclasses import replace
from typing import Any
from typing import TypeVar

from fuser.errors import EnvironmentError_
from fuser.errors import NoValidKernelError
from fuser.interrupts import without_interrupts
from fuser.lower.compile import KernelArtifact
from fuser.lower.compile import compile_kernel
from fuser.pools import APART
from fuser.runtime.plan import Plan
from search.measure.measurement import Measurement
from search.measure.measurement import failed
from search.measure.worker import OUTSIDE
from search.processes import ignore_interrupts

T = TypeVar("T")
R = TypeVar("R")
COMPILE_SECONDS = 60
"""After that long a kernel is not worth waiting for."""
STARTS = 60.0
"""Seconds in which a process of the pool has begun."""
ALIVE = 2.0
"""Seconds between two looks of a compiler at whether its parent is alive."""


@dataclass(frozen=True)
class Built:
    """Compiled kernels of a plan, or what the compiler said; ``result`` has the seconds that it took."""

    result: Measurement
    artifacts: tuple[KernelArtifact | None, ...] = ()


class _TooLong(Exception):
    pass


def _alarm(*_: object) -> None:
    raise _TooLong


@contextlib.contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    """Interrupts the compiler after ``seconds``, in the main thread of a process. One that never comes back to Python has its
    process ended, when it has worked twice as long."""
    before = signal.signal(signal.SIGALRM, _alarm)
    signal.alarm(seconds)
    signal.setitimer(signal.ITIMER_PROF, 2 * seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def build(made: Plan, arch: int, seconds: int = COMPILE_SECONDS) -> Built:
    """Compile every generated kernel of a plan for ``arch``; runs in a process of the pool."""
    start = time.perf_counter()
    artifacts: tuple[KernelArtifact | None, ...] = ()
    result = Measurement()
    try:
        with _at_most(seconds):
            artifacts = tuple(compile_kernel(s, arch) if s else None for s in made.sources)
    except (_TooLong, SystemError, RecursionError) as error:
        result = Measurement("compile", f"{type(error).__name__} after {time.perf_counter() - start:.0f} s")
    except SyntaxError as error:  # a generator's mistake costs its own candidate, not those beside it
        result = Measurement("compile", f"the generated module is no Python: {error}")
    except (NoValidKernelError, EnvironmentError_, OSError, MemoryError) as error:
        result = failed(error, "compile")
    return Built(replace(result, seconds=time.perf_counter() - start), artifacts)


def _quiet_start(cache: str) -> None:
    """A pool process ignores Ctrl-C (its parent ends it), and what its compiler prints is no part of a command's document."""
    ignore_interrupts()
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    if cache:
        os.environ["TRITON_CACHE_DIR"] = cache


def _end_with(parent: int) -> None:
    """Ends this process when its parent is gone, which may have been killed: nobody would ask it for anything any more."""
    while os.getppid() == parent:
        time.sleep(ALIVE)
    os._exit(1)


class CompilePool:
    """Compiles plans in parallel; a compiler that crashes costs its own candidate only. ``arch`` 0 compiles nothing
    (interpreter). ``seconds`` is the time limit of each plan."""

    def __init__(self, arch: int, workers: int | None = None, cache: str = "") -> None:
        self.arch, self.cache = arch, cache
        self.seconds = COMPILE_SECONDS
        self.workers = workers or max(1, (os.cpu_count() or 1) - 1)  # one core for the process that measures
        self._pool: ProcessPoolExecutor | None = None
        self._futures: dict[int, Future[Built]] = {}
        self._plans: dict[int, Plan] = {}

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, workers: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(workers, mp_context=APART, initializer=_quiet_start, initargs=(self.cache,))

    def _begin(self, pool: ProcessPoolExecutor, planned: Plan) -> Future[Built]:
        with without_interrupts():  # the first one starts the processes
            return pool.submit(build, planned, self.arch, self.seconds)

    def submit(self, planned: Plan) -> None:
        """Begin to compile; ``result`` waits for it."""
        if not self.arch or id(planned) in self._futures:
            return
        if self._pool is None:
            self._pool = self._start(self.workers)
        try:
            self._futures[id(planned)] = self._begin(self._pool, planned)
        except BrokenProcessPool:
            self._restart()
            self._futures[id(planned)] = self._begin(self._pool, planned)
        self._plans[id(planned)] = planned  # keeps the id taken

    def each(self, work: Callable[[T], R], jobs: Sequence[T]) -> Iterable[R]:
        """Other work for these processes: its results, in order. Where one of them dies this process does what is left."""
        if not self.arch or len(jobs) < 2:
            return map(work, jobs)
        if self._pool is None:
            self._pool = self._start(self.workers)
        try:
            with without_interrupts():
                futures = [self._pool.submit(work, job) for job in jobs]
        except BrokenProcessPool:
            self._restart()
            return map(work, jobs)
        return (self._or_here(f, work, job) for f, job in zip(futures, jobs, strict=True))

    def _or_here(self, future: Future[R], work: Callable[[T], R], job: T) -> R:
        try:
            return future.result()
        except (BrokenProcessPool, CancelledError):
            return work(job)

    def ready(self, planned: Plan) -> bool:
        return not self.arch or (id(planned) in self._futures and self._futures[id(planned)].done())

    def result(self, planned: Plan, timeout: float | None = None) -> Built:
        """The compiled kernels. Raises :class:`TimeoutError` if they are not there in ``timeout`` seconds."""
        if not self.arch:
            return Built(Measurement())
        self.submit(planned)
        future = self._futures[id(planned)]
        try:
            built = future.result(timeout)
        except BrokenProcessPool:
            built = self._alone(planned)
        del self._futures[id(planned)], self._plans[id(planned)]
        return built

    def _restart(self) -> None:
        """A compiler process died and took the pool with it: everything that is not done goes to a new one."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = self._start(self.workers)
        for key, future in self._futures.items():
            if not future.done() or future.cancelled() or future.exception() is not None:
                self._futures[key] = self._begin(self._pool, self._plans[key])

    def _alone(self, planned: Plan) -> Built:
        """Some compiler process died: this candidate by itself, in a process of its own; the others start again. One that is
        killed from outside even so is not the candidate's fault."""
        processes: list[Any] = []
        try:
            with self._start(1) as pool:
                future = self._begin(pool, planned)
                processes = list((pool._processes or {}).values())
                try:
                    built = future.result(STARTS + 3 * self.seconds)
                finally:
                    for p in processes if not future.done() else ():
                        p.kill()
        except (BrokenProcessPool, TimeoutError):
            codes = {-(p.exitcode or 0) for p in processes}
            killed, hung = bool(codes & set(OUTSIDE)), signal.SIGPROF in codes
            why = "the compiler was killed" if killed else "the compiler did not end" if hung else "the compiler crashed"
            built = Built(Measurement("compile", why, lasting=not killed))
        self._futures[id(planned)] = Future()
        self._futures[id(planned)].set_result(built)
        self._restart()
        return built

    def close(self) -> None:
        """Stop at once; what is not compiled yet is given up."""
        if self._pool is None:
            return
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        self._pool = None
        self._futures.clear()
        self._plans.clear()
