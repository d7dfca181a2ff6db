"""Work that a thread does while this one waits for other processes, and that may turn out not to be wanted."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic
from typing import TypeVar

R = TypeVar("R")


class Ahead(Generic[R]):
    """The result of ``work``, which begins at once."""

    def __init__(self, work: Callable[[], R]) -> None:
        self._work, self._found, self._error = work, list[R](), list[Exception]()
        self._thread = threading.Thread(target=self._run, name="ahead")
        self._thread.start()

    def _run(self) -> None:
        with suppress(SystemExit):  # it is given up
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
