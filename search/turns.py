"""Two ways to do a call, which a user's own calls take in turn until it is known which is the faster: nothing runs that was not
asked for, since nobody knows what else a module's Python does."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import field
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
    _timed: list[tuple[str, Any, Any]] = field(default_factory=list)

    @property
    def now(self) -> str:
        """Which is to run. Ours as long as the GPU has not told all times."""
        return ORDER[self._calls][0] if self._calls < len(ORDER) else OURS

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Around a call; one that raises is not counted."""
        name, timed = ORDER[self._calls] if self._calls < len(ORDER) else (OURS, False)
        if timed:
            start, end = event(), event()
            start.record()
            yield
            end.record()
            self._timed.append((name, start, end))
        else:
            yield
        self._calls += 1

    @property
    def found(self) -> Beside | None:
        """What is known when all have run."""
        if self._calls < len(ORDER) or not all(end.query() for _, _, end in self._timed):
            return None
        with suppress(RuntimeError):  # recorded in a capture, or on another GPU
            us = {which: [1e3 * a.elapsed_time(b) for name, a, b in self._timed if name == which] for which in (OURS, THEIRS)}
            return Beside(*(statistics.median(us[which]) for which in (OURS, THEIRS)))
        return Beside(1.0, 1.0)
