"""A process that owns one GPU: it survives what a bad kernel does to it, because it is replaced.

The parent sends a program and a batch of candidates; the child says what it is about to do, so that when it hangs or dies the
candidate at fault is known, marked, and the rest of the batch goes to a new process.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any

from fuser.errors import EnvironmentError_
from fuser.errors import FuserError
from fuser.errors import first_line
from fuser.ir.program import TensorProgram
from search.machine import device_info
from search.session import Options
from search.session import Session
from search.timing import DeviceLost
from search.timing import External
from search.timing import Kernels
from search.timing import Measurement
from search.timing import prepare
from search.timing import sync
from search.timing import time_batch

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted parent closes the pipe
    sessions: OrderedDict[tuple[str, Options], Session] = OrderedDict()
    try:
        connection.send(("ready", device_info(device)))
        while True:
            batch = connection.recv()
            _answer(connection, batch, sessions, device)
    except (EOFError, BrokenPipeError):
        return
    except DeviceLost as error:
        connection.send(("lost", str(error)))
        os._exit(3)  # the driver's own clean-up may hang


def _answer(connection: Connection, batch: _Batch, sessions: OrderedDict[tuple[str, Options], Session], device: str) -> None:
    connection.send(("doing", -1))
    try:
        session = _session(sessions, batch, device)
    except (RuntimeError, FuserError) as error:
        sync(device)
        text = f"no inputs or no reference: {first_line(error)}"
        connection.send(("done", [Measurement("resources", text)] * len(batch.candidates)))
        return
    prepared = []
    for i, candidate in enumerate(batch.candidates):
        connection.send(("doing", i))
        prepared.append(prepare(session, candidate))
        if not prepared[-1].result.ok:
            connection.send(("failed", i, prepared[-1].result))
    results = time_batch(session, prepared, lambda i: connection.send(("doing", i)))
    connection.send(("done", results))


def _session(sessions: OrderedDict[tuple[str, Options], Session], batch: _Batch, device: str) -> Session:
    key = (batch.program.stable_hash(), batch.options)
    if key in sessions:
        sessions.move_to_end(key)
        return sessions[key]
    while sessions and sum(s.bytes for s in sessions.values()) > KEPT_BYTES:
        sessions.popitem(last=False)
    sessions[key] = Session(batch.program, batch.options, device)
    return sessions[key]


class Worker:
    """``device`` is ``cuda`` or ``cpu`` (Triton's interpreter); ``index`` the number of the GPU. ``patience`` is the number of
    seconds in which the child must say something (an :class:`External` may compile for long: ``slow_patience``)."""

    def __init__(self, device: str = "cuda", index: int = 0, patience: float = 60.0, slow_patience: float = 420.0) -> None:
        self.device, self.index = device, index
        self.patience, self.slow_patience = patience, slow_patience
        self.restarts = 0
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._info: dict[str, Any] = {}

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def info(self) -> dict[str, Any]:
        """The machine, as :func:`search.machine.device_info` reports it; starts the process."""
        self._start()
        return self._info

    def _start(self) -> Connection:
        if self._pipe is not None:
            return self._pipe
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        self._process = context.Process(target=serve, args=(there, self.device, self.index), daemon=True)
        self._process.start()
        there.close()
        self._pipe = here
        message = self._receive(self.slow_patience)
        if not message or message[0] != "ready":
            self.close()
            raise EnvironmentError_(
                f"the measuring process for {self.device} does not start",
                "see its messages on stderr; is torch installed with a GPU?",
            )
        self._info = message[1]
        return here

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
        """A message; ``None`` if none came in time, ``("died",)`` if the process is gone."""
        assert self._pipe is not None
        try:
            return self._pipe.recv() if self._pipe.poll(seconds) else None
        except (EOFError, ConnectionResetError):
            return ("died",)

    def run(self, program: TensorProgram, candidates: Sequence[Kernels | External], options: Options) -> list[Measurement]:
        """Check and time candidates of one program, interleaved; one result for each, in order."""
        results: dict[int, Measurement] = {}
        todo = list(range(len(candidates)))
        while todo:
            found, culprit = self._attempt(program, [candidates[i] for i in todo], options)
            for j, result in found.items():
                results[todo[j]] = result
            if culprit is not None:
                number, result = culprit
                self.close()
                self.restarts += 1
                if number < 0:  # between candidates: the batch as a whole cannot be told apart, so the rest goes one by one
                    if len(todo) == 1:
                        results[todo[0]] = result
                    else:
                        for i in [i for i in todo if i not in results]:
                            results[i] = self.run(program, [candidates[i]], options)[0]
                else:
                    results[todo[number]] = result
            todo = [i for i in todo if i not in results]
        return [results[i] for i in range(len(candidates))]

    def _attempt(
        self, program: TensorProgram, candidates: list[Kernels | External], options: Options
    ) -> tuple[dict[int, Measurement], tuple[int, Measurement] | None]:
        """Results so far, and who broke the process, with what."""
        pipe = self._start()
        found: dict[int, Measurement] = {}
        doing = -1
        try:
            pipe.send(_Batch(program, options, tuple(candidates)))
        except (BrokenPipeError, ConnectionResetError):
            return found, (-1, Measurement("crash", "the measuring process ended"))
        while True:
            slow = doing >= 0 and isinstance(candidates[doing], External)
            message = self._receive(self.slow_patience if slow else self.patience)
            if message is None:
                return found, (
                    doing,
                    Measurement("timeout", f"no answer within {self.slow_patience if slow else self.patience:g} s"),
                )
            if message[0] == "doing":
                doing = message[1]
            elif message[0] == "failed":
                found[message[1]] = message[2]
            elif message[0] == "done":
                return dict(enumerate(message[1])), None
            else:
                detail = str(message[1]) if message[0] == "lost" else "the measuring process ended"
                return found, (doing, Measurement("crash", detail))
