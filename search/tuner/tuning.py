"""Programs tuned with an effort: what is known is taken, the rest searched by measurements, and what was found is kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextlib import nullcontext
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from datetime import UTC
from datetime import datetime

from fuser.console import warn
from fuser.device import Device
from fuser.errors import NoValidKernelError
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.lower.assembler import compiler
from search.measure.compiling import source_hash
from search.measure.winners import Winner
from search.space.evolve import INSTANT
from search.space.evolve import Effort
from search.tune import RUNNERS
from search.tune import Searched
from search.tune import Tuned
from search.tuner.campaign import Campaign
from search.tuner.campaign import Judge
from search.tuner.efforts import measures
from search.tuner.hunt import Hunt
from search.tuner.judges import open_judge
from search.tuner.memory import Known
from search.tuner.memory import Memory
from search.tuner.memory import program_key
from search.tuner.pool import jobs_of
from search.tuner.pool import part
from search.tuner.pool import pool_of
from search.tuner.spread import Workers

STOPPED = ("interrupted", "terminated")
"""Ends of a search that a user has made."""
BEGIN = 4
"""Schedules that somebody knows, with which a search begins."""


Watch = Callable[[Sequence[Hunt], Campaign | str], None]
"""Hears of every generation, and before of the stages, as texts."""


@dataclass(frozen=True)
class Task:
    """A program to tune among some structures; ``weight`` is how often it runs, ``scope`` what it may use (see
    :mod:`search.tuner.memory`); ``optional``: that nothing of it can be searched is no error."""

    program: TensorProgram
    graphs: tuple[KernelGraph, ...]
    weight: int = 1
    scope: str = ""
    optional: bool = False


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
        if not measures(self.effort):
            return [known(task, device, self.effort, self.memory) for task in tasks]
        with self.watch() as watch:
            return tune_measured(tasks, device, self.effort, self.memory, lambda: self._judge(device), seed, watch)

    def _judge(self, device: Device) -> AbstractContextManager[Judge]:
        return open_judge(device, self.memory, self.effort.name, self.jobs, self.workers)


MODEL_ALONE = Tuning()
"""Nothing is measured, and nothing remembered."""


def known(task: Task, device: Device, effort: Effort, memory: Memory) -> Tuned | None:
    """What is known of a program, as far as the effort would search."""
    start = time.perf_counter()
    found = memory.find(task.program, device, task.scope, effort)
    return _remembered(task, device, found, time.perf_counter() - start) if found else None


def tune_measured(
    tasks: Sequence[Task],
    device: Device,
    effort: Effort,
    memory: Memory,
    judge: Callable[[], AbstractContextManager[Judge]],
    seed: int = 0,
    watch: Watch = lambda hunts, campaign: None,
) -> list[Tuned | None]:
    """Each program's winner and what came next, in order (None where it is optional and there is none). ``judge`` opens what
    measures, where anything has to be. Raises :class:`NoValidKernelError` naming a program of which no candidate is right, and
    KeyboardInterrupt where Ctrl-C comes before there is anything to return."""
    start = time.monotonic()
    share = replace(effort, seconds=float(f"{effort.seconds / len(tasks):.4g}")) if effort.seconds and tasks else effort
    found: dict[int, Tuned] = {i: t for i, task in enumerate(tasks) if (t := known(task, device, share, memory))}
    left = [i for i in range(len(tasks)) if i not in found]
    if not left:
        return [found.get(i) for i in range(len(tasks))]
    watch((), "starting what measures")
    with judge() as measuring:
        hunts, left = _hunts(tasks, left, device, effort, memory, seed, measuring, watch)
        left_s = None if effort.seconds is None else max(effort.seconds - (time.monotonic() - start), 0.0)
        campaign = Campaign(hunts, measuring, left_s)
        campaign.watch = lambda _: watch(hunts, campaign)
        campaign.run()
    for number, (i, hunt) in enumerate(zip(left, hunts, strict=True)):
        try:
            found[i] = _searched(hunt, campaign, number, device)
        except NoValidKernelError:
            if tasks[i].optional:
                continue
            raise
        if hunt.best is None and campaign.why == "budget":
            warn(f"{tasks[i].program.name}: {effort.seconds:g} s were over before anything was measured; a larger budget helps")
        if hunt.best is not None:
            _keep(tasks[i], replace(hunt.effort, seconds=share.seconds), hunt, found[i], memory, device)
    return [found.get(i) for i in range(len(tasks))]


def _hunts(
    tasks: Sequence[Task],
    left: Sequence[int],
    device: Device,
    effort: Effort,
    memory: Memory,
    seed: int,
    judge: Judge,
    watch: Watch,
) -> tuple[list[Hunt], list[int]]:
    """The searches, and which tasks they are of. Their pools are made by the processes that will compile."""
    parts = [judge.each(part, jobs_of(tasks[i].program, tasks[i].graphs, device, effort, seed)) for i in left]
    hunts, numbers = list[Hunt](), list[int]()
    for number, (i, found) in enumerate(zip(left, parts, strict=True)):
        task = tasks[i]
        watch((), f"making candidates of {task.program.name} ({number + 1} of {len(left)})")
        try:
            pool = pool_of(task.program, device, found)
        except NoValidKernelError:
            if task.optional:
                continue
            raise
        pool.include(memory.candidates(task.program, device, BEGIN))
        hunts.append(Hunt(task.program, pool, effort, seed, task.weight))
        numbers.append(i)
    return hunts, numbers


def _searched(hunt: Hunt, campaign: Campaign, number: int, device: Device) -> Tuned:
    ranked = hunt.top(1 + RUNNERS)
    interrupted = campaign.why in STOPPED
    if hunt.times and hunt.best is None and not interrupted:
        counts = ", ".join(f"{n} {what}" for what, n in hunt.failures.most_common())
        raise NoValidKernelError(
            f"none of {len(hunt.times)} measured candidates of {hunt.program.name!r} is right and runs: {counts}",
            "the effort instant does not measure; look at the failures with mufuser records list",
        )
    searched = Searched(
        "measured" if hunt.best else "model",
        hunt.why if hunt.done else campaign.why,
        len(hunt.times),
        dict(hunt.failures),
        tuple(hunt.history),
        campaign.spent.get(number, 0.0),
        hunt.times.get(hunt.first, math.nan),
    )
    structures = len({e.structure for e in hunt.pool.entries.values()})
    return Tuned(hunt.program, device.name, ranked[0], tuple(ranked[1:]), structures, len(hunt.pool.entries), searched=searched)


def _keep(task: Task, effort: Effort, hunt: Hunt, tuned: Tuned, memory: Memory, device: Device) -> None:
    """``effort``: with the seconds that are this program's part."""
    winner, searched = tuned.winner, tuned.searched
    assert searched is not None
    first = searched.first_seconds
    reached = effort.name if hunt.done else ""
    if not hunt.done and searched.why == "budget" and effort.seconds is not None:
        reached = f"{effort.name}:{max(effort.seconds, searched.seconds):.4g}"
    memory.keep(
        Winner(
            program_key(task.program),
            memory.device_name(device),
            compiler(),
            task.scope,
            task.program.name,
            winner.graph.stable_hash(),
            winner.schedule.text,
            source_hash(winner.candidate),
            reached,
            winner.us,
            winner.estimate * 1e6,
            first * 1e6 if math.isfinite(first) else 0.0,
            hunt.seed,
            searched.measured,
            sum(searched.failures.values()),
            searched.seconds,
            searched.why,
            datetime.now(UTC).isoformat(timespec="seconds"),
        ),
        winner.candidate,
    )


def _remembered(task: Task, device: Device, found: Known, seconds: float) -> Tuned:
    w = found.winner
    failures = {"failed": w.failed} if w and w.failed else {}
    first = w.first_us * 1e-6 if w and w.first_us else math.nan
    searched = Searched(found.origin, w.why if w else "known", w.measured if w else 0, failures, (), seconds, first)
    return Tuned(task.program, device.name, found.ranked, (), 1, 1, searched=searched)
