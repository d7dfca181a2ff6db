"""The outcome of a check, and the process that runs kernels in Triton's interpreter. It stays for the next check, since starting
one (torch, Triton) takes longer than most checks; it ends with this process, or when nobody asked it for a while."""

from __future__ import annotations

import atexit
import math
import os
import select
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

IDLE = 300.0
"""Seconds without a job after which it ends by itself."""


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


class Checker:
    """Answers a line by a line. One for all threads of a process; a process that was forked has one of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0
        self._said: Any = None
        self._others: list[Any] = []

    def ask(self, line: str, timeout: float) -> str:
        """The answer. A process that ends is asked for once more, anew: one that idled long enough ends as it is asked, one may
        be killed for another's sake. Raises :class:`CheckerEnded` where that ends too, or needs more than ``timeout`` seconds."""
        with self._lock:
            why = ""
            for _ in range(2):
                try:
                    return self._asked(line, timeout)
                except EOFError as ended:
                    why = str(ended)
            raise CheckerEnded(why)

    def begin(self) -> None:
        """Have the process start, and go on."""
        with self._lock, suppress(OSError):  # who asks is told
            self._started()

    def _asked(self, line: str, timeout: float) -> str:
        """As :meth:`ask`; raises :class:`EOFError`, with the last that it said, where the process ends first."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], timeout)
            answer = process.stdout.readline() if ready else ""
            while answer and not answer.startswith("{"):  # what a kernel prints
                answer = process.stdout.readline()
        except BaseException as error:
            why = self._end()  # an answer that nobody reads would be taken for that to the next job
            if isinstance(error, OSError):
                raise EOFError(why) from error
            raise
        if answer.endswith("\n"):
            return answer
        why = self._end()
        if not ready:
            raise CheckerEnded(f"no answer within {timeout:.0f} s")
        raise EOFError(why)

    def _started(self) -> subprocess.Popen[str]:
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return self._process
        if self._owner == os.getpid():
            self._end()
        else:
            self._others.append((self._process, self._said))  # of the process that this one was forked from: not ours to end
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the process
        env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        words = [sys.executable, "-m", "fuser.lower.check"]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True, env=env
        )
        self._owner = os.getpid()
        return self._process

    def _end(self) -> str:
        """Ends the process; the last line that it said."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return "no output"
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):  # what was not read by the process
                    stream.close()
        self._said.seek(0)
        lines = self._said.read().strip().splitlines()
        self._said.close()
        return lines[-1] if lines else "no output"

    def close(self) -> None:
        with self._lock:
            self._end()


CHECKER = Checker()
atexit.register(CHECKER.close)
