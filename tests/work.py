"""How much work something is, in calls of Python functions: the same on every machine, however busy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Work:
    calls: int = 0


@contextmanager
def at_most(calls: int) -> Iterator[Work]:
    """Counts calls in this thread, and ends in an assertion at the first one too many: what would not end is found too."""
    work = Work()

    def count(_: FrameType, event: str, __: object) -> None:
        if event == "call":
            work.calls += 1
            if work.calls > calls:
                sys.setprofile(None)
                raise AssertionError(f"more than {calls:,} calls")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield work
    finally:
        sys.setprofile(before)
