"""The stages of a long piece of work: said when they begin, their seconds kept."""

from __future__ import annotations

import time
from collections.abc import Callable

Say = Callable[[str], None]


def silent(_: str) -> None:
    """Says nothing."""


class Stages:
    """``begin`` ends the stage before; ``seconds`` has what each took in all, in the order in which they began."""

    def __init__(self, say: Say = silent) -> None:
        self.say = say
        self.seconds: dict[str, float] = {}
        self._name = ""
        self._start = 0.0

    def begin(self, name: str, text: str = "") -> None:
        """``text`` is said in place of the ``name``."""
        self.end()
        self._name, self._start = name, time.perf_counter()
        self.say(text or name)

    def end(self) -> None:
        if self._name:
            self.seconds[self._name] = self.seconds.get(self._name, 0.0) + time.perf_counter() - self._start
        self._name = ""
