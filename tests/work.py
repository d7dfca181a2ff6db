"""How much work something is, in calls of Python functions: the same on every machine, however busy."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import pytest


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


class Calls:
    """Counts calls of functions by what ``key`` makes of their arguments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch, self.seen = monkeypatch, Counter[Any]()

    def of(self, name: str, key: Callable[..., Any], *modules: Any) -> None:
        real = getattr(modules[0], name)

        def counted(*args: Any, **named: Any) -> Any:
            self.seen[name, key(*args)] += 1
            return real(*args, **named)

        for module in modules:
            self.patch.setattr(module, name, counted)
