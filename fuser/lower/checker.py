"""The outcome of a check, and the processes that run kernels in Triton's interpreter. They stay for the next checks, since
starting one (torch, Triton) takes longer than most checks; they end with this process, or when nobody asked them for a while."""

from __future__ import annotations

import atexit
import math
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from fuser.pools import cores

IDLE = 300.0
"""Seconds without a job after which one ends by itself."""
READY = '{"ready": true}'
"""What it says when it can be asked."""
STARTING = 300.0
"""Seconds that it may take to start."""
MOST = 4
"""Processes at most; as many as are half of the cores, since kernels are compiled meanwhile."""
WAITING = 2
"""Checks that wait for each process that starts: one more is started for no fewer."""


@dataclass(frozen=True)
class Check:
    """Outcome of a numerical check: relative errors against float64 (largest over largest, and Frobenius), the reduced extents,
    what ran the kernels (``triton`` for the generated source, ``numpy`` for the scheduled µGraph where torch is missing), and
    what is wrong, if something is."""

    max_error: float
    error: float
    extents: tuple[tuple[str, int], ...]
    method: str
    message: str = ""

    @property
    def passed(self) -> bool:
        return not self.message and math.isfinite(self.error)


class CheckerEnded(Exception):
    """There is no answer; the text is the last that the process said."""


@dataclass(eq=False)
class Question:
    """A line that some process answers by a line, within so many seconds; and what became of it."""

    line: str
    seconds: float
    answer: str = ""
    error: str | None = None
    again: bool = True
    """Whether it is asked once more, of another process, where one ends: one that idled long enough ends as it is asked, one may
    be killed for another's sake."""
    by: int = field(default_factory=threading.get_ident)

    @property
    def over(self) -> bool:
        return bool(self.answer) or self.error is not None


class Checkers:
    """Processes that answer lines by lines: for all threads of a process; one that was forked has some of its own. What was put
    is answered while somebody waits for an answer, whichever that is."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._there: list[_Process] = []
        self._waiting = deque[Question]()

    def forked(self) -> None:
        """Those of the process that this one was forked from are not ours to end."""
        self._before = self._there
        self._begin()

    @property
    def most(self) -> int:
        if self._most is None:
            self._most = max(1, min(MOST, cores() // 2))
        return self._most

    def begin(self) -> None:
        """Have a process start, and go on."""
        with self._lock, suppress(OSError):  # who asks is told
            if not self._there:
                self._there.append(_Process())

    def put(self, line: str, seconds: float) -> Question:
        """Have a line answered, and go on. One that is being answered is not asked twice."""
        with self._lock:
            for same in (*self._waiting, *(x.question for x in self._there)):
                if same and same.line == line:
                    return same
            self._waiting.append(question := Question(line, seconds))
            with suppress(OSError):
                self._hand_out()
        return question

    def answer(self, question: Question) -> str:
        """Waits for it. Raises :class:`CheckerEnded` where two processes ended before they answered, or one needed too long."""
        with self._lock:
            try:
                while not question.over:
                    if question not in self._waiting and all(x.question is not question for x in self._there):
                        self._waiting.append(question)  # it was given up
                    self._hand_out()
                    self._listen()
            except BaseException:  # answers that nobody reads are in the way of the next ones
                self._give_up(threading.get_ident())
                raise
        if question.error is not None:
            raise CheckerEnded(question.error)
        return question.answer

    def ask(self, line: str, seconds: float) -> str:
        return self.answer(self.put(line, seconds))

    def _hand_out(self) -> None:
        """Gives what waits to those that are free; starts another where too many wait."""
        for one in [x for x in self._there if x.free and x.ended]:
            self._end(one)
        for one in self._there:
            if self._waiting and one.free:
                one.take(self._waiting.popleft())
        starting = sum(not x.ready for x in self._there)
        if not self._there:
            self._there.append(_Process())
        elif len(self._waiting) >= WAITING * (starting + 1) and len(self._there) < self.most:
            with suppress(OSError):  # one more is no need
                self._there.append(_Process())

    def _listen(self) -> None:
        """Until one of them says something, or has had its time."""
        busy = [x for x in self._there if not x.free]
        heard, _, _ = select.select(busy, [], [], max(0.0, min(x.until for x in busy) - time.monotonic()))
        for one in heard:
            said, asked = one.said(), one.question
            if said == READY + "\n" and not one.ready:
                one.ready = True
            elif said.endswith("\n"):
                one.question = None
                if asked:
                    asked.answer = said
            else:
                why = self._end(one)
                if asked is None:  # it ended before it was asked
                    asked = self._waiting.popleft() if self._waiting else None
                if asked and asked.again:
                    asked.again = False
                    self._waiting.appendleft(asked)
                elif asked:
                    asked.error = why
        for one in [x for x in busy if x not in heard and x.until <= time.monotonic()]:
            late = one.question or (self._waiting.popleft() if self._waiting else None)
            if late:
                late.error = f"no answer within {late.seconds:.0f} s"
            self._end(one)

    def _give_up(self, thread: int) -> None:
        self._waiting = deque(q for q in self._waiting if q.by != thread)
        for one in [x for x in self._there if x.question and x.question.by == thread]:
            self._end(one)

    def _end(self, one: _Process) -> str:
        self._there.remove(one)
        return one.end()

    def close(self) -> None:
        with self._lock:
            for one in list(self._there):
                self._end(one)


class _Process:
    """One interpreter, what it is asked, and until when."""

    def __init__(self) -> None:
        self.errors: Any = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the process
        env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        words = [sys.executable, "-m", "fuser.lower.check"]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, env=env
        )
        self.ready, self.until = False, time.monotonic() + STARTING
        self.question: Question | None = None

    @property
    def free(self) -> bool:
        return self.ready and self.question is None

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def fileno(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def take(self, question: Question) -> None:
        assert self.process.stdin is not None
        self.question, self.until = question, time.monotonic() + question.seconds
        with suppress(OSError):  # it has ended: what it says is nothing
            self.process.stdin.write(question.line + "\n")
            self.process.stdin.flush()

    def said(self) -> str:
        """The next answer; without the end of a line where it ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        while line and not line.startswith("{"):  # what a kernel prints
            line = self.process.stdout.readline()
        return line

    def end(self) -> str:
        """Ends it; the last line that it said."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(OSError):  # what was not read by the process
                    stream.close()
        self.errors.seek(0)
        lines = self.errors.read().strip().splitlines()
        self.errors.close()
        return lines[-1] if lines else "no output"


CHECKERS = Checkers()
atexit.register(CHECKERS.close)
os.register_at_fork(after_in_child=CHECKERS.forked)
