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
from dataclasses import dataclass
from dataclasses import replace
from typing import TypeVar

from fuser.errors import DiedError
from fuser.errors import EnvironmentError_
from fuser.errors import NoValidKernelError
from fuser.lower.compile import KernelArtifact
from fuser.lower.compile import compile_kernel
from fuser.pools import APART
from fuser.pools import Children
from fuser.pools import Job
from fuser.runtime.plan import Plan
from search.measure.measurement import Measurement
from search.measure.measurement import failed
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
        self.workers = workers or max(1, len(os.sched_getaffinity(0)) - 1)  # one core for the process that measures
        self._children: Children | None = None
        self._jobs: dict[int, tuple[Plan, Job[Built]]] = {}

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _started(self) -> Children:
        if self._children is None:
            self._children = Children(self.workers, APART, _quiet_start, (self.cache,), STARTS + 3 * self.seconds)
        return self._children

    def submit(self, planned: Plan) -> None:
        """Begin to compile; ``result`` waits for it."""
        if self.arch and id(planned) not in self._jobs:  # a plan that is kept keeps its id
            self._jobs[id(planned)] = planned, self._started().submit(build, planned, self.arch, self.seconds)

    def each(self, work: Callable[[T], R], jobs: Sequence[T]) -> Iterable[R]:
        """Other work for these processes: its results, in order. What one of them dies of this process does."""
        if not self.arch or len(jobs) < 2:
            return map(work, jobs)
        given = [self._started().submit(work, job) for job in jobs]
        return (_or_here(g, work, job) for g, job in zip(given, jobs, strict=True))

    def ready(self, planned: Plan) -> bool:
        return not self.arch or (id(planned) in self._jobs and self._jobs[id(planned)][1].done())

    def result(self, planned: Plan, timeout: float | None = None) -> Built:
        """The compiled kernels. Raises :class:`TimeoutError` if they are not there in ``timeout`` seconds."""
        if not self.arch:
            return Built(Measurement())
        self.submit(planned)
        try:
            built = self._jobs[id(planned)][1].result(timeout)
        except DiedError as error:
            hung = error.ended == -signal.SIGPROF
            why = "the compiler was killed" if error.outside else "the compiler did not end" if hung else "the compiler crashed"
            built = Built(Measurement("compile", why, lasting=not error.outside))
        del self._jobs[id(planned)]
        return built

    def close(self) -> None:
        """Stop at once; what is not compiled yet is given up."""
        if self._children is not None:
            self._children.kill()
            self._children = None
            self._jobs.clear()


def _or_here(given: Job[R], work: Callable[[T], R], job: T) -> R:
    try:
        return given.result()
    except DiedError:
        return work(job)
