"""Child processes that never see Ctrl-C, not even while they start: their parent ends them (:mod:`fuser.interrupts`). They know
the operators that their parent has added to the table. One that dies costs the job that it died of alone (:class:`Children`)."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from concurrent.futures import CancelledError
from concurrent.futures import Executor
from concurrent.futures import Future
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import current_process
from multiprocessing import parent_process
from multiprocessing.context import BaseContext
from multiprocessing.context import ForkContext
from multiprocessing.context import ForkProcess
from multiprocessing.context import SpawnContext
from multiprocessing.context import SpawnProcess
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any
from typing import TypeVar

from fuser.errors import DiedError
from fuser.interrupts import without_interrupts
from fuser.ir import added

R = TypeVar("R")
MOST = 16
"""Children of one call at most."""


def cores() -> int:
    """Processes that a call may spread its work over: as many as this one may use cores, at most :data:`MOST`. 1 in a process
    that must not have children."""
    return min(len(os.sched_getaffinity(0)), MOST) if may_start() else 1


class _Spawned(SpawnProcess):
    def start(self) -> None:
        self._added = added.packed()
        with without_interrupts():
            super().start()

    def run(self) -> None:
        threading.Thread(target=_end_with, args=(parent_process(),), daemon=True).start()
        added.unpack(self._added)
        super().run()


def _end_with(parent: BaseProcess | None) -> None:
    """Idle children of a process that was killed would wait for work for ever."""
    if parent is not None:
        parent.join()
        os._exit(1)


class _Apart(_Spawned):
    def start(self) -> None:
        script = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")  # a child would run the caller's script again, which may have no guard
        try:
            super().start()
        finally:
            sys.modules["__main__"] = script


class _Forked(ForkProcess):
    def start(self) -> None:
        with without_interrupts():
            super().start()


class _Spawning(SpawnContext):
    Process = _Spawned  # type: ignore[assignment]


class _SpawningApart(SpawnContext):
    Process = _Apart  # type: ignore[assignment]


class _Forking(ForkContext):
    Process = _Forked  # type: ignore[assignment]


SPAWN = _Spawning()
"""multiprocessing's context ``spawn``, with such children."""
APART = _SpawningApart()
"""The same for calls from a user's script, of which the children know nothing: they can do what modules have alone."""
FORK = _Forking()
"""Its context ``fork``, with such children."""

OUTSIDE = (
    signal.SIGKILL,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGPIPE,
    signal.SIGBUS,  # of a file whose disk is full, mapped into memory
    signal.SIGXCPU,
    signal.SIGXFSZ,
)
"""Signals that a candidate does not cause by a mistake."""


def may_start() -> bool:
    """Whether this process may have children."""
    return not current_process().daemon


class _Care:
    taken = False


def careful() -> bool:
    """Whether this process does again what another may have died of, and is to leave what is dangerous to a third."""
    return _Care.taken


def _careful(start: Callable[..., None] | None, given: tuple[Any, ...]) -> None:
    _Care.taken = True
    if start is not None:
        start(*given)


def died(code: int, of: str) -> DiedError:
    """The error of a process that ended with an exit code."""
    how = signal.Signals(-code).name if -code in set(signal.Signals) else f"exit code {code}"
    return DiedError(f"a process died of {of}: {how}", ended=code, outside=-code in OUTSIDE)


class Job(Future[R]):
    """Work of a child; ``result`` has it done again where the child died of something else, and raises :class:`DiedError` where
    it died of this."""

    def __init__(self, children: Children, work: Callable[..., R], args: tuple[Any, ...]) -> None:
        super().__init__()
        self.children, self.work, self.args = children, work, args
        self.inner: Future[R] = Future()

    @property
    def lost(self) -> bool:
        return self.inner.cancelled() or (self.inner.done() and isinstance(self.inner.exception(), BrokenProcessPool))

    def done(self) -> bool:
        return self.inner.done() and not self.lost

    def result(self, timeout: float | None = None) -> R:
        while True:
            try:
                return self.inner.result(timeout)
            except (BrokenProcessPool, CancelledError):
                if not self.children.open:
                    raise
                self.children.restart()
            finally:
                if self.done():
                    self.children.jobs.pop(id(self), None)


class Children(Executor):
    """``count`` children, which start when there is work for them. Where one dies, the first of what was not done is done again
    one at a time, in processes of their own, and the rest by new children. ``start`` runs with ``given`` in each; ``seconds``
    is what a job that is done by itself may take. For one thread of the parent."""

    def __init__(
        self,
        count: int,
        context: BaseContext | None = None,
        start: Callable[..., None] | None = None,
        given: tuple[Any, ...] = (),
        seconds: float | None = None,
    ) -> None:
        self.count, self.open, self.seconds = count, True, seconds
        self._context, self._begin = context or APART, (start, given)
        self._pool: ProcessPoolExecutor | None = None
        self.jobs: dict[int, Job[Any]] = {}
        """Those whose result nobody has yet, in order."""

    @property
    def started(self) -> bool:
        return self._pool is not None

    def submit(self, work: Callable[..., R], /, *args: Any, **named: Any) -> Job[R]:
        assert not named, "arguments by place"
        job = Job(self, work, args)
        self.jobs[id(job)] = job
        self._submit(job)
        return job

    def map(self, fn: Callable[..., R], *given: Iterable[Any], timeout: float | None = None, chunksize: int = 1) -> Iterator[R]:
        jobs = [self.submit(fn, *args) for args in zip(*given, strict=False)]
        return (j.result(timeout) for j in jobs)

    def _submit(self, job: Job[Any]) -> None:
        self._pool = self._pool or ProcessPoolExecutor(self.count, self._context, *self._begin)
        job.inner = Future()
        with without_interrupts():  # the first one starts the processes
            try:
                # here, not by the pool's thread: what arguments keep in their dictionaries grows while this one goes on
                packed = ForkingPickler.dumps((job.work, job.args)).tobytes()
            except Exception as error:  # noqa: BLE001 - whatever an argument raises is its job's, as what the work raises
                job.inner.set_exception(error)
                return
            try:
                job.inner = self._pool.submit(_unpacked, packed)
            except BrokenProcessPool as error:
                job.inner.set_exception(error)

    def restart(self) -> None:
        """After a child has died. Children take jobs in their order: what it died of is most likely among the first."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        lost = [j for j in self.jobs.values() if j.lost]
        for job in lost[: self.count]:
            pool = ProcessPoolExecutor(1, self._context, _careful, self._begin)
            job.inner = _by_itself(pool, self.seconds, job.work, *job.args)
        for job in lost[self.count :]:
            self._submit(job)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.open = False
        if self._pool is not None:
            self._pool.shutdown(wait, cancel_futures=cancel_futures)
            self._pool = None

    def kill(self) -> None:
        """Stop at once; what is not done is given up."""
        processes = list((self._pool._processes or {}).values()) if self._pool else []
        self.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()


def started(executor: Executor) -> bool:
    """Whether its processes are there, as far as it says."""
    return not isinstance(executor, Children) or executor.started


def alone(work: Callable[..., R], *args: Any) -> R:
    """Work done in a process of its own. Raises :class:`DiedError` where that dies."""
    return _by_itself(ProcessPoolExecutor(1, APART), None, work, *args).result()


class _Lasting:
    """The child of this process that stays, for one thread at a time; a forked process has none of its parent's."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.child: Children | None = None

    def do(self, work: Callable[..., R], *args: Any) -> R:
        folder = os.curdir
        with suppress(OSError):  # it was removed
            folder = os.getcwd()
        with self.lock:
            self.child = self.child or Children(1)
            try:
                return self.child.submit(_as_there, dict(os.environ), folder, work, *args).result()
            except Exception:
                raise
            except BaseException:  # an interruption: what nobody waits for is not to be in the next one's way
                self.child.kill()
                self.child = None
                raise


_LASTING = _Lasting()
os.register_at_fork(after_in_child=_LASTING.__init__)


def elsewhere(work: Callable[..., R], *args: Any) -> R:
    """Work done in a child that stays for more of it, as it would be done here: in the same folder and environment. Raises
    :class:`DiedError` where it dies of it, and dies of it again in a process of its own."""
    return _LASTING.do(work, *args)


def _as_there(environment: Mapping[str, str], folder: str, work: Callable[..., R], *args: Any) -> R:
    if environment != dict(os.environ):
        os.environ.clear()
        os.environ.update(environment)
    with suppress(OSError):
        os.chdir(folder)
    return work(*args)


def _unpacked(packed: bytes) -> Any:
    work, args = pickle.loads(packed)
    return work(*args)


def _by_itself(pool: ProcessPoolExecutor, seconds: float | None, work: Callable[..., R], *args: Any) -> Future[R]:
    """What the one process of a pool makes of it, within some seconds: its result, its exception, or a :class:`DiedError`."""
    with without_interrupts():
        future = pool.submit(work, *args)
    (process,) = pool._processes.values()
    try:
        with suppress(TimeoutError):
            future.exception(seconds)
    finally:
        if not future.done():
            process.kill()
        pool.shutdown()
    if isinstance(future.exception(), BrokenProcessPool):
        future = Future()
        future.set_exception(died(process.exitcode or 0, getattr(work, "__name__", "its work")))
    return future
