"""Who has to be timed again: candidates whose difference to the fastest is neither clear nor a tie.

All take turns, so that a round is a pair of times for each two of them; what is the same for both in a round (clocks,
temperature) is in none of their ratios.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from collections.abc import Sequence

SURE = 2.5
"""Standard errors of a mean ratio beyond which it is taken for certain."""
TIE = 0.004
"""Relative difference that nobody cares about."""


def undecided(times: Mapping[int, Sequence[float]]) -> list[int]:
    """The fastest, and those that may be as fast but are not sure to be; nobody where all is clear. Each has as many times as it
    had rounds; the longest were in all of them."""
    most = max((len(t) for t in times.values()), default=0)
    live = {i: t for i, t in times.items() if len(t) == most}
    if most < 2 or len(live) < 2:
        return []
    best = min(live, key=lambda i: statistics.median(live[i]))
    open_ = [i for i in live if i != best and not decided(live[i], live[best])]
    return [best, *open_] if open_ else []


def decided(times: Sequence[float], best: Sequence[float]) -> bool:
    """Whether a candidate is surely slower than the best, or surely about as fast."""
    ratios = [math.log(t / b) for t, b in zip(times, best, strict=True) if t > 0 and b > 0]
    if len(ratios) < 2:
        return True
    mean, error = statistics.fmean(ratios), SURE * statistics.stdev(ratios) / math.sqrt(len(ratios))
    return mean - error > TIE or abs(mean) + error < TIE
