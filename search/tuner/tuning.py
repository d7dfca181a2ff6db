"""Programs tuned with an effort: what is known is taken, the rest searched by measurements (:mod:`search.tuner.measured`).

A hit needs neither structures nor a model nor anything that searches: none of it is loaded for one.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextlib import nullcontext
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING

from fuser.device import Device
from search.ranked import INSTANT
from search.ranked import Effort
from search.ranked import Tuned
from search.tuner.efforts import measures
from search.tuner.memory import Memory
from search.tuner.tasks import Task
from search.tuner.tasks import Watch
from search.tuner.tasks import at_hand

if TYPE_CHECKING:
    from search.tuner.campaign import Judge
    from search.tuner.spread import Workers


@dataclass(frozen=True)
class Tuning:
    """How programs are tuned: by the ``effort``, with what ``memory`` knows. ``jobs`` processes compile (None: all cores but
    one). Or ``workers`` measure in place of this machine."""

    effort: Effort = INSTANT
    memory: Memory = field(default_factory=Memory)
    jobs: int | None = None
    workers: Workers | None = None
    watch: Callable[[], AbstractContextManager[Watch]] = lambda: nullcontext(lambda hunts, campaign: None)

    def tune(self, tasks: Sequence[Task], device: Device, seed: int = 0) -> list[Tuned | None]:
        """What is known of each program or found by measuring; None where the model alone is to decide."""
        found = at_hand(tasks, device, self.effort, self.memory)
        if not measures(self.effort) or all(found):
            return found
        from search.tuner.judges import open_judge
        from search.tuner.measured import tune_left

        def judge() -> AbstractContextManager[Judge]:
            return open_judge(device, self.memory, self.effort.name, self.jobs, self.workers)

        with self.watch() as watch:
            return tune_left(tasks, found, device, self.effort, self.memory, judge, seed, watch)


MODEL_ALONE = Tuning()
"""Nothing is measured, and nothing remembered."""
