"""What searches ended with: for a program, a device and a compiler the fastest candidate, and how far was searched.

A search that measured is worth more than the fastest row: it says that nothing else is left to try. The list of candidates is not
part of what a winner is known by, so that a new option of the lowering voids none; the hash of its kernels' text is beside it, so
that one whose kernels would be written otherwise today is not taken for measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from dataclasses import fields
from typing import Any

from search.measure.store import Table

EFFORTS = ("", "quick", "full")
"""Of winners, by rank; the first was not searched to its end."""


@dataclass(frozen=True)
class Winner:
    """``scope`` says among what was chosen: ``library`` where products may be left to one. ``seed``, ``measured`` and ``failed``
    (numbers of candidates), ``seconds`` and ``why`` tell of the search; ``time_us`` is the winner's time, ``first_us`` that of
    the model's first choice (0 where it failed or was not measured). Where time ended it ``effort`` is ``full:SECONDS``."""

    program: str
    device: str
    compiler: str
    scope: str
    workload: str
    structure: str
    schedule: str
    source: str
    effort: str
    time_us: float
    estimate_us: float
    first_us: float = 0.0
    seed: int = 0
    measured: int = 0
    failed: int = 0
    seconds: float = 0.0
    why: str = ""
    timestamp: str = ""

    def values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, n) for n in WINNERS.columns)

    @property
    def reach(self) -> tuple[int, float]:
        """How far was searched, to compare: the rank of the effort, and the seconds after which time ended it, if it did."""
        name, _, seconds = self.effort.partition(":")
        rank = EFFORTS.index(name) if name in EFFORTS else 0
        if self.why != "budget" or not rank:
            return rank, math.inf
        return rank, float(seconds) if seconds else self.seconds  # earlier versions wrote no seconds behind the effort


_SQL = {"str": "TEXT NOT NULL", "int": "INTEGER NOT NULL", "float": "REAL NOT NULL"}
WINNERS = Table("winners", {f.name: _SQL[str(f.type)] for f in fields(Winner)}, ("program", "device", "compiler", "scope"))
