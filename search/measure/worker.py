"""A process that owns one GPU: it survives what a bad kernel does to it, because it is replaced.

The parent sends a program and a batch of candidates; the child says who is at work, so that when it hangs, dies or finds its
inputs changed there is a suspect: that candidate, or all that were timed in turn. Each suspect runs again alone; what fails
alone, in a process that has done nothing else, is its own fault, the others go on together. What may be the machine's fault (a
process that was killed, or that ends before anybody is at work) is tried again and never kept.
"""

from __future__ import annotations

import math
import os
import pickle
import signal
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any

from fuser.errors import EnvironmentError_
from fuser.errors import first_line
from fuser.interrupts import without_interrupts
from fuser.ir.program import TensorProgram
from fuser.pools import APART
from fuser.pools import OUTSIDE
from search.measure.guard import Guard
from search.measure.guard import Spoiled
from search.measure.machine import device_info
from search.measure.measurement import Measurement
from search.measure.session import Options
from search.measure.session import Session
from search.measure.timing import DeviceLost
from search.measure.timing import External
from search.measure.timing import Kernels
from search.measure.timing import Watch
from search.measure.timing import prepare
from search.measure.timing import sync
from search.measure.timing import time_batch
from search.processes import ignore_interrupts

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

SEVERAL, NOBODY = -1, -2
"""In place of a candidate's number: all that are timed in turn; none yet."""
ATTEMPTS = 3
"""So often is tried what may fail for reasons of the machine."""
START = 300.0
"""Seconds in which a process has to begin: it imports torch, maybe from a slow disk."""
SLICE = 0.5
"""Seconds of waiting at a time."""
HANG = 5.0
"""Seconds after which a kernel on a GPU hangs, at least: it is loaded, run a few times and compared in a fraction of one."""
LONGER = 5
"""Times that a kernel may take longer than the slowest before it, until it hangs."""
KEPT_BYTES = 24 << 30
"""Device memory for input sets of programs that may be asked for again."""


@dataclass(frozen=True)
class _Batch:
    program: TensorProgram
    options: Options
    candidates: tuple[Kernels | External, ...]


def serve(connection: Connection, device: str, index: int) -> None:
    """The child: answers batches until the pipe closes."""
    if device != "cpu":  # before torch is imported, which reads it once
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", str(index)).split(",")[0]
    ignore_interrupts()  # an interrupted parent closes the pipe
    os.dup2(2, 1)  # what peers print is no part of a command's document
    known: OrderedDict[tuple[str, Options], tuple[Session, Guard]] = OrderedDict()
    try:
        connection.send(("ready", device_info(device)))
        while True:
            batch = connection.recv()
            if batch is None:
                connection.send(("ready",))
            else:
                _answer(connection, batch, known, device)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except (DeviceLost, Spoiled) as error:
        connection.send(("lost", str(error)) if isinstance(error, DeviceLost) else ("spoiled", error.who, str(error)))
        os._exit(3)  # the driver's own clean-up may hang


class _Telling(Watch):
    """Tells the parent who is at work, and ends the process when somebody has changed what all share."""

    def __init__(self, connection: Connection, guard: Guard) -> None:
        self._connection, self._guard = connection, guard

    def doing(self, number: int) -> None:
        self._connection.send(("doing", number))

    def done(self, number: int) -> None:
        self._guard.check(number)


def _answer(
    connection: Connection, batch: _Batch, known: OrderedDict[tuple[str, Options], tuple[Session, Guard]], device: str
) -> None:
    try:
        session, guard = _session(known, batch, device)
    except Exception as error:  # noqa: BLE001 - a reference calls everything that torch has
        sync(device)
        connection.send(("unable", f"no inputs or no reference: {first_line(error)}"))
        return
    watch = _Telling(connection, guard)
    prepared = []
    for i, candidate in enumerate(batch.candidates):
        watch.doing(i)
        prepared.append(prepare(session, candidate))
        watch.done(i)
        if not prepared[-1].result.ok:
            connection.send(("failed", i, prepared[-1].result))
    connection.send(("done", time_batch(session, prepared, watch)))


def _session(known: OrderedDict[tuple[str, Options], tuple[Session, Guard]], batch: _Batch, device: str) -> tuple[Session, Guard]:
    key = (batch.program.stable_hash(), batch.options)
    if key in known:
        known.move_to_end(key)
        return known[key]
    while known and sum(s.bytes for s, _ in known.values()) > KEPT_BYTES:
        known.popitem(last=False)
    session = Session(batch.program, batch.options, device)
    known[key] = session, Guard(session)
    return known[key]


@dataclass(frozen=True)
class _Attempt:
    """Results so far, and why the process had to be replaced: ``doing`` is the candidate that was at work, :data:`SEVERAL` or
    :data:`NOBODY`; ``fresh`` says that the process had done nothing before."""

    found: dict[int, Measurement]
    broken: Measurement | None
    doing: int
    fresh: bool


class Worker:
    """``device`` is ``cuda`` or ``cpu`` (Triton's interpreter); ``index`` the number of the GPU. ``patience`` is the number of
    seconds in which the child must say something (an :class:`External` may compile for long: ``slow_patience``). Of one kernel
    less is enough, by what others took, and ``hang`` seconds at least (interpreted ones get all of it)."""

    def __init__(
        self,
        device: str = "cuda",
        index: int = 0,
        patience: float = 60.0,
        slow_patience: float = 420.0,
        hang: float | None = None,
    ) -> None:
        self.device, self.index = device, index
        self.patience, self.slow_patience = patience, slow_patience
        self.hang = (patience if device == "cpu" else HANG) if hang is None else hang
        self._longest = 0.0
        self.restarts = 0
        self._used = False
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._info: dict[str, Any] = {}

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def info(self) -> dict[str, Any]:
        """The machine, as :func:`search.measure.machine.device_info` reports it; starts the first process."""
        if not self._info:
            self._start()
        return self._info

    def _start(self) -> Connection:
        if self._pipe is not None and (not self._used or self._answers()):
            return self._pipe
        self.close()  # one that was killed while it had nothing to do is nobody's fault
        death = Measurement("crash")
        for _ in range(ATTEMPTS):
            pipe = self._spawn()
            message = self._receive(START)
            if message and message[0] == "ready":
                self._info, self._used = message[1], False
                return pipe
            death = self._death() if message else Measurement("timeout", f"no sign of life within {START:g} s")
            self.close()
            if death.lasting:
                break
        raise EnvironmentError_(
            f"the measuring process for {self.device} does not start: {death.detail}",
            "see its messages on stderr; is torch installed with a GPU?",
        )

    def _spawn(self) -> Connection:
        self._pipe, there = APART.Pipe()
        self._process = APART.Process(target=serve, args=(there, self.device, self.index), daemon=True)
        with without_interrupts():
            self._process.start()
        there.close()
        return self._pipe

    def _answers(self) -> bool:
        """Whether the process that waits for a batch is still there."""
        assert self._pipe is not None
        try:
            self._pipe.send(None)
        except OSError:
            return False
        return self._receive(self.patience) == ("ready",)

    def close(self) -> None:
        """End the process; the next batch starts a new one."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self._process is not None:
            self._process.join(0.2)
            if self._process.is_alive():
                self._process.kill()
            self._process.join()
            self._process = None

    def _receive(self, seconds: float) -> tuple[Any, ...] | None:
        """A message; ``None`` if none came in time, ``("died",)`` if the process is gone. Time in which this process was stopped
        does not count."""
        assert self._pipe is not None
        assert self._process is not None
        for _ in range(math.ceil(seconds / SLICE)):
            try:
                alive = self._process.is_alive()  # what a peer has started may keep the pipe open
                if self._pipe.poll(min(SLICE, seconds) if alive else 0):
                    return self._pipe.recv()
            except (EOFError, OSError, pickle.UnpicklingError):
                return ("died",)
            if not alive:
                return ("died",)
        return None

    def _death(self) -> Measurement:
        """What the end of the process says. A signal from outside says nothing about what ran: the machine's lack of memory, an
        administrator, a batch system."""
        assert self._process is not None
        self._process.join(2.0)
        code = self._process.exitcode
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
            outside = -code in OUTSIDE
            return Measurement("crash", f"the measuring process was ended by {name}", lasting=not outside)
        return Measurement("crash", "the measuring process ended" + (f" with status {code}" if code is not None else ""))

    def run(self, program: TensorProgram, candidates: Sequence[Kernels | External], options: Options) -> list[Measurement]:
        """Check and time candidates of one program, interleaved; one result for each, in order. Raises
        :class:`EnvironmentError_` where no process can be started."""
        results: dict[int, Measurement] = {}
        try:
            self._run(program, candidates, options, results)
        except EnvironmentError_ as error:
            if not results:
                raise
            for i in range(len(candidates)):
                results.setdefault(i, Measurement("crash", error.message, lasting=False))
        except BaseException:
            self.close()  # it would answer the batch that was given up
            raise
        return [results[i] for i in range(len(candidates))]

    def _run(
        self,
        program: TensorProgram,
        candidates: Sequence[Kernels | External],
        options: Options,
        results: dict[int, Measurement],
    ) -> None:
        alone: dict[int, Measurement] = {}
        broken = 0
        todo = list(range(len(candidates)))
        while len(todo) > 1:
            began = todo
            attempt = self._attempt(program, [candidates[i] for i in began], options)
            results.update({began[j]: m for j, m in attempt.found.items()})
            if attempt.broken is None:
                break
            todo = [i for i in todo if i not in results]
            if attempt.doing == NOBODY:
                broken += 1
                if broken == ATTEMPTS or (attempt.fresh and attempt.broken.status == "resources"):
                    results.update(dict.fromkeys(todo, attempt.broken))
                    return
                continue
            for i in todo if attempt.doing == SEVERAL else [began[attempt.doing]]:
                if i in alone:  # it fails in company only: its time by itself is all there is
                    results[i] = alone[i]
                    continue
                alone[i] = self._alone(program, candidates[i], options)
                if not alone[i].ok:
                    results[i] = alone[i]
            todo = [i for i in todo if i not in results]
        short = [i for i in range(len(candidates)) if i not in results or _for_want_of_room(results[i])]
        for i in short:
            if i in results:  # without the others there may be room
                self.close()
            results[i] = alone[i] if i in alone else self._alone(program, candidates[i], options)

    def _alone(self, program: TensorProgram, candidate: Kernels | External, options: Options) -> Measurement:
        """A candidate by itself. A failure of the process counts if it had done nothing before, and if nothing from outside ended
        it."""
        broken = Measurement("crash", "the measuring process ended", lasting=False)
        for _ in range(ATTEMPTS):
            attempt = self._attempt(program, [candidate], options)
            if attempt.broken is None:
                return attempt.found[0]
            broken = attempt.broken
            if attempt.fresh and (broken.lasting or broken.status == "resources"):
                return broken
        return replace(broken, lasting=False)

    def _attempt(self, program: TensorProgram, candidates: list[Kernels | External], options: Options) -> _Attempt:
        """Send a batch and take what comes; a process that breaks is closed."""
        pipe = self._start()
        fresh, self._used = not self._used, True
        found: dict[int, Measurement] = {}
        doing = NOBODY
        try:
            pipe.send(_Batch(program, options, tuple(candidates)))
        except OSError:
            return self._broken(found, self._death(), doing, fresh)
        while True:
            at_work = candidates[doing] if doing >= 0 else None
            seconds = self._limit(at_work, alone=len(candidates) == 1)
            begin = time.monotonic()
            message = self._receive(seconds)
            if message is None:
                return self._broken(found, Measurement("timeout", f"no answer within {seconds:g} s"), doing, fresh)
            kind, *rest = message
            if isinstance(at_work, Kernels) and kind in ("doing", "failed", "done"):
                self._longest = max(self._longest, time.monotonic() - begin)
            if kind == "doing":
                doing = rest[0]
            elif kind == "failed":
                found[rest[0]] = rest[1]
            elif kind == "done":
                return _Attempt(dict(enumerate(rest[0])), None, doing, fresh)
            elif kind == "unable":
                return self._broken(found, Measurement("resources", rest[0]), NOBODY, fresh)
            elif kind == "spoiled":
                return self._broken(found, Measurement("invalid", rest[1]), rest[0], fresh)
            else:
                why = Measurement("crash", rest[0]) if kind == "lost" else self._death()
                return self._broken(found, why, doing, fresh)

    def _limit(self, at_work: Kernels | External | None, alone: bool) -> float:
        """Seconds in which the child must say something: few while a kernel is at work, twice as many where it would be to blame
        for good."""
        if isinstance(at_work, External):
            return self.slow_patience
        if at_work is None:
            return self.patience
        return min(self.patience, (2 if alone else 1) * max(self.hang, LONGER * self._longest))

    def _broken(self, found: dict[int, Measurement], why: Measurement, doing: int, fresh: bool) -> _Attempt:
        self.close()
        self.restarts += 1
        return _Attempt(found, replace(why, lasting=why.lasting and doing != NOBODY), doing, fresh)


def _for_want_of_room(result: Measurement) -> bool:
    return result.status == "resources" and not result.lasting
