"""Child processes that never see Ctrl-C, not even while they start: their parent ends them (:mod:`fuser.interrupts`). They know
the operators that their parent has added to the table."""

from __future__ import annotations

import os
import sys
from multiprocessing import current_process
from multiprocessing.context import ForkContext
from multiprocessing.context import ForkProcess
from multiprocessing.context import SpawnContext
from multiprocessing.context import SpawnProcess
from types import ModuleType

from fuser.interrupts import without_interrupts
from fuser.ir import added

MOST = 8
"""Children of one call at most."""


def cores() -> int:
    """Processes that a call may spread its work over: as many as this one may use cores, at most :data:`MOST`. 1 in a process
    that must not have children."""
    return 1 if current_process().daemon else min(len(os.sched_getaffinity(0)), MOST)


class _Spawned(SpawnProcess):
    def start(self) -> None:
        self._added = added.packed()
        with without_interrupts():
            super().start()

    def run(self) -> None:
        added.unpack(self._added)
        super().run()


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
