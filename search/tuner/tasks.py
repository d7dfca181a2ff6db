"""Programs to tune, and what is known of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from typing import TYPE_CHECKING

from fuser.device import Device
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from search.ranked import Effort
from search.ranked import Searched
from search.ranked import Tuned
from search.tuner.memory import Memory

if TYPE_CHECKING:
    from search.tuner.campaign import Campaign
    from search.tuner.hunt import Hunt

STOPPED = ("interrupted", "terminated")
"""Ends of a search that a user has made."""


Watch = Callable[[Sequence["Hunt"], "Campaign | str"], None]
"""Hears of every generation, and before of the stages, as texts."""


@dataclass(frozen=True)
class Task:
    """A program to tune among some structures, which are asked for where nothing is known; ``weight`` is how often it runs,
    ``scope`` what it may use (see :mod:`search.tuner.memory`); ``optional``: that nothing of it can be searched is no error."""

    program: TensorProgram
    graphs: Callable[[], Sequence[KernelGraph]]
    weight: int = 1
    scope: str = ""
    optional: bool = False


def at_hand(tasks: Sequence[Task], device: Device, effort: Effort, memory: Memory) -> list[Tuned | None]:
    """What is known of each program, as far as its share of the effort would search."""
    share = share_of(effort, len(tasks))
    return [known(task, device, share, memory) for task in tasks]


def share_of(effort: Effort, programs: int) -> Effort:
    """The effort for one of so many programs."""
    return replace(effort, seconds=float(f"{effort.seconds / programs:.4g}")) if effort.seconds and programs else effort


def known(task: Task, device: Device, effort: Effort, memory: Memory) -> Tuned | None:
    """What is known of a program, as far as the effort would search."""
    start = time.perf_counter()
    found = memory.find(task.program, device, task.scope, effort)
    if found is None:
        return None
    w = found.winner
    failures = {"failed": w.failed} if w and w.failed else {}
    first = w.first_us * 1e-6 if w and w.first_us else math.nan
    searched = Searched(
        found.origin, w.why if w else "known", w.measured if w else 0, failures, (), time.perf_counter() - start, first
    )
    return Tuned(task.program, device.name, found.ranked, (), 1, 1, searched=searched)
