"""Two ways to do a call, which a user's own calls take in turn until it is known which is the faster: nothing runs that was not
asked for, since nobody knows what else a module's Python does."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from time import perf_counter
from typing import Any

from search.beside import Beside

OURS, THEIRS = "ours", "theirs"
TIMED = 3
"""The last calls of a row that are timed: the first compile, load, and capture what comes again."""
ORDER = tuple((name, i >= n - TIMED) for name, n in ((OURS, 7), (THEIRS, 6), (OURS, 4), (THEIRS, 4)) for i in range(n))
"""Which has each of the calls behind the first one, and whether that is timed."""


def event() -> Any:
    """A point in the work of a stream."""
    import torch

    return torch.cuda.Event(enable_timing=True)


@dataclass(eq=False)
class Turns:
    """Calls on a ``device``; the answer is kept in a ``file``, if there is one."""

    device: str
    file: Path | None = None
    _calls: int = 0
    _timed: list[tuple[str, Any, Any, float]] = field(default_factory=list)
    _lock: Any = field(default_factory=threading.Lock)

    def begin(self) -> tuple[str, bool]:
        """Which is to run, and whether it is timed. Ours as long as the GPU has not told all times."""
        with self._lock:
            self._calls += 1
            return next(iter(ORDER[self._calls - 1 :]), (OURS, False))

    @contextmanager
    def timing(self, name: str, timed: bool) -> Iterator[None]:
        """Around a call; one that raises is not counted."""
        import torch

        if not timed:
            yield
            return
        stream = None if self.device == "cpu" else torch.cuda.current_stream(self.device)
        start, end, began = event(), event(), perf_counter()
        start.record(stream)
        yield
        end.record(stream)
        self._timed.append((name, start, end, 1e6 * (perf_counter() - began)))

    @property
    def found(self) -> Beside | None:
        """What is known when all have run. Of a call behind others that the GPU still works on it knows its own part alone: it
        takes as long as the host needs, at least."""
        if self._calls < len(ORDER) or not all(end.query() for _, _, end, _ in [*self._timed]):
            return None
        us: dict[str, list[float]] = {OURS: [], THEIRS: []}
        for name, start, end, host in [*self._timed]:
            us[name].append(max(1e3 * start.elapsed_time(end), host))
        if not all(us.values()):  # calls that raised, or several threads
            return Beside(1.0, 1.0)
        return Beside(statistics.median(us[OURS]), statistics.median(us[THEIRS]))
