"""Intervals of real numbers: what an operator is defined on, and where its result lies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

MARGIN = 0.25
"""How far from 0 what must not be 0 is drawn."""


@dataclass(frozen=True)
class Domain:
    """The numbers from ``lo`` to ``hi``, without 0 if ``nonzero``. ``choice``: 0 and 1 alone say something (a condition)."""

    lo: float = -math.inf
    hi: float = math.inf
    nonzero: bool = False
    choice: bool = False

    def holds(self, other: Domain) -> bool:
        """Every number of the other domain is one of this."""
        away = other.nonzero or other.lo > 0 or other.hi < 0
        return self.lo <= other.lo and other.hi <= self.hi and (away or not self.nonzero)

    def within(self, other: Domain) -> Domain:
        """The numbers of both."""
        return Domain(max(self.lo, other.lo), min(self.hi, other.hi), self.nonzero or other.nonzero, self.choice or other.choice)


ANY = Domain()
NOT_NEGATIVE = Domain(lo=0.0)
POSITIVE = Domain(lo=0.0, nonzero=True)
NONZERO = Domain(nonzero=True)
CHOICE = Domain(choice=True)


def place(domain: Domain, x: Any, factor: float = 1.0) -> Any:
    """Standard normal numbers (numpy or torch), scaled and brought into a domain."""
    if domain.choice:
        return (x > 0) * 1.0
    lo, hi, margin = domain.lo, domain.hi, MARGIN if domain.nonzero else 0.0
    if lo == -math.inf and hi == math.inf:
        return (x + margin * (2.0 * (x >= 0) - 1.0)) * factor if margin else x * factor
    if hi == math.inf:
        return lo + factor * (margin * (lo == 0) + abs(x))
    if lo == -math.inf:
        return hi - factor * (margin * (hi == 0) + abs(x))
    inside = 0.5 + 0.5 * x / (1.0 + abs(x))
    if margin and lo == 0:
        inside = margin + (1 - margin) * inside
    elif margin and hi == 0:
        inside = (1 - margin) * inside
    return lo + (hi - lo) * inside
