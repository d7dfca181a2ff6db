"""Two ways to do a call, which a user's own calls take in turn until it is known which is the faster: nothing runs that was not
asked for, since nobody knows what else a module's Python does."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import field
from time import perf_counter
from typing import Any

from search.beside import Beside

OURS, THEIRS = "ours", "theirs"
TIMED = 3
"""The last calls of a row that are timed: the first compile, load, and capture what comes again."""
ORDER = tuple((name, i >= n - TIMED) for name, n in ((OURS, 7), (THEIRS, 6), (OURS, 4), (THEIRS, 4)) for i in range(n))
"""Which has each of the calls behind the first one, and whether that is timed."""


def event() -> Any:
    """A point in the work of the current stream."""
    import torch

    return torch.cuda.Event(enable_timing=True)


@dataclass(eq=False)
class Turns:
    _calls: int = 0
    _timed: list[tuple[str, Any, Any, float]] = field(default_factory=list)

    @property
    def _next(self) -> tuple[str, bool]:
        return next(iter(ORDER[self._calls :]), (OURS, False))

    @property
    def now(self) -> str:
        """Which is to run. Ours as long as the GPU has not told all times."""
        return self._next[0]

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Around a call; one that raises is not counted."""
        name, timed = self._next
        if timed:
            start, end, began = event(), event(), perf_counter()
            start.record()
            yield
            end.record()
            self._timed.append((name, start, end, 1e6 * (perf_counter() - began)))
        else:
            yield
        self._calls += 1

    @property
    def found(self) -> Beside | None:
        """What is known when all have run. Of a call behind others that the GPU still works on it knows its own part alone: it
        takes as long as the host needs, at least."""
        if self._calls < len(ORDER) or not all(end.query() for _, _, end, _ in self._timed):
            return None
        us: dict[str, list[float]] = {OURS: [], THEIRS: []}
        with suppress(RuntimeError):  # events of another GPU
            for name, start, end, host in self._timed:
                us[name].append(max(1e3 * start.elapsed_time(end), host))
            return Beside(statistics.median(us[OURS]), statistics.median(us[THEIRS]))
        return Beside(1.0, 1.0)
