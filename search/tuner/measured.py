"""Programs tuned by measuring: their searches side by side, and what was found is kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC
from datetime import datetime

from fuser.console import warn
from fuser.device import Device
from fuser.errors import NoValidKernelError
from search.measure.planned import source_hash
from search.measure.winners import Winner
from search.ranked import Effort
from search.ranked import Searched
from search.ranked import Tuned
from search.tune import RUNNERS
from search.tuner.campaign import Campaign
from search.tuner.campaign import Judge
from search.tuner.hunt import Hunt
from search.tuner.memory import Memory
from search.tuner.memory import made_for
from search.tuner.memory import program_key
from search.tuner.pool import jobs_of
from search.tuner.pool import part
from search.tuner.pool import pool_of
from search.tuner.tasks import STOPPED
from search.tuner.tasks import Task
from search.tuner.tasks import Watch
from search.tuner.tasks import at_hand
from search.tuner.tasks import share_of

BEGIN = 4
"""Schedules that somebody knows, with which a search begins."""


def tune_measured(
    tasks: Sequence[Task],
    device: Device,
    effort: Effort,
    memory: Memory,
    judge: Callable[[], AbstractContextManager[Judge]],
    seed: int = 0,
) -> list[Tuned | None]:
    """As :meth:`search.tuner.tuning.Tuning.tune`, by a judge of one's own."""
    return tune_left(tasks, at_hand(tasks, device, effort, memory), device, effort, memory, judge, seed)


def tune_left(
    tasks: Sequence[Task],
    known: Sequence[Tuned | None],
    device: Device,
    effort: Effort,
    memory: Memory,
    judge: Callable[[], AbstractContextManager[Judge]],
    seed: int = 0,
    watch: Watch = lambda hunts, campaign: None,
) -> list[Tuned | None]:
    """Each program's winner and what came next, in order (None where it is optional and there is none); what is ``known`` is not
    searched. ``judge`` opens what measures, where anything has to be. Raises :class:`NoValidKernelError` naming a program of
    which no candidate is right, and KeyboardInterrupt where Ctrl-C comes before there is anything to return."""
    start = time.monotonic()
    share = share_of(effort, len(tasks))
    found: dict[int, Tuned] = {i: t for i, t in enumerate(known) if t}
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
    parts = [judge.each(part, jobs_of(tasks[i].program, tasks[i].graphs(), device, effort, seed)) for i in left]
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
    reached = effort.name if hunt.done and not hunt.ended else ""
    if not hunt.done and searched.why == "budget" and effort.seconds is not None:
        reached = f"{effort.name}:{max(effort.seconds, searched.seconds):.4g}"
    memory.keep(
        Winner(
            program_key(task.program),
            memory.device_name(device),
            made_for(task.scope),
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
