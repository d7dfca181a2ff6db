"""Work that a thread does while this one waits for other processes, and that may turn out not to be wanted."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic
from typing import TypeVar

R = TypeVar("R")


TURN = 0.0002
"""Seconds after which a thread that computes lets the other one go on: each call of that to the system would wait as long."""


class _Turns:
    """Threads take short turns as long as one of them works ahead."""

    def __init__(self) -> None:
        self.lock, self.count, self.before = threading.Lock(), 0, 0.0

    def __enter__(self) -> None:
        with self.lock:
            if not self.count:
                self.before = sys.getswitchinterval()
                sys.setswitchinterval(min(self.before, TURN))
            self.count += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.count -= 1
            if not self.count:
                sys.setswitchinterval(self.before)


_TURNS = _Turns()


class Ahead(Generic[R]):
    """The result of ``work``, which begins at once."""

    def __init__(self, work: Callable[[], R]) -> None:
        self._work, self._found, self._error = work, list[R](), list[Exception]()
        self._thread = threading.Thread(target=self._run, name="ahead")
        self._thread.start()

    def _run(self) -> None:
        with suppress(SystemExit), _TURNS:  # it is given up
            try:
                self._found.append(self._work())
            except Exception as error:  # noqa: BLE001 - it is raised where the result is asked for
                self._error.append(error)

    def result(self) -> R:
        """Waits for it; raises what the work raised."""
        self._thread.join()
        if self._error:
            raise self._error[0]
        return self._found[0]

    def stop(self) -> None:
        """Give up what is not done: the thread ends at its next step in Python."""
        if self._thread.is_alive() and self._thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), ctypes.py_object(SystemExit))
