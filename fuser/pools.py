"""Child processes that never see Ctrl-C, not even while they start: their parent ends them (:mod:`fuser.interrupts`)."""

from __future__ import annotations

from multiprocessing.context import ForkContext
from multiprocessing.context import ForkProcess
from multiprocessing.context import SpawnContext
from multiprocessing.context import SpawnProcess

from fuser.interrupts import without_interrupts


class _Spawned(SpawnProcess):
    def start(self) -> None:
        with without_interrupts():
            super().start()


class _Forked(ForkProcess):
    def start(self) -> None:
        with without_interrupts():
            super().start()


class _Spawning(SpawnContext):
    Process = _Spawned  # type: ignore[assignment]


class _Forking(ForkContext):
    Process = _Forked  # type: ignore[assignment]


SPAWN = _Spawning()
"""multiprocessing's context ``spawn``, with such children."""
FORK = _Forking()
"""Its context ``fork``, with such children."""
