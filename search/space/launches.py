"""When a kernel behind another one may start (programmatic dependent launch, options ``pdl``).

Early, as soon as all blocks of the one in front have started, hides most. But blocks that wait take room from those that still
work: where a long kernel is followed by a short one that only waits, the short one starts when the last blocks of the long one
are about to store (``late``). On an H200 that is 4 to 6 % for the split attentions of 16 µs and more; at 9 µs the two are even,
below early is faster.
"""

from __future__ import annotations

from math import inf

from cost_model.refined import estimate
from fuser.device import Device
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import BlockGraph
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.lower.options import HOIST
from fuser.lower.options import PDL
from search.space.places import places

LONG = 12e-6
"""Seconds of a kernel from which waiting blocks are in its way."""
SMALL_BLOCKS = 2
"""Blocks for each SM up to which a kernel without products comes early."""
SHORT = 0.4
"""Part of that kernel's time up to which the one behind it is only a tail."""


def with_launches(candidate: Candidate, device: Device, total: float = inf) -> Candidate:
    """The candidate with ``pdl=late`` for short kernels behind long ones. ``total`` is what all take together, where that is
    known."""
    if total <= LONG or not any(map(PDL.of, candidate.schedule.kernels)):
        return candidate
    times = [estimate(b, k, device)["seconds"] for b, k in candidate.blocks]
    kernels = list(candidate.schedule.kernels)
    for i in range(1, len(kernels)):
        if PDL.of(kernels[i]) and times[i - 1] > LONG and times[i] < SHORT * times[i - 1]:
            kernels[i] = PDL.set(kernels[i], "late")
    return Candidate(candidate.graph, Schedule(tuple(kernels)))


def chained(candidate: Candidate, device: Device) -> Candidate:
    """The kernels of a model: each starts before the one in front has ended, and loads what its epilogue reads in front of its
    main loop.

    A kernel that comes early finds SMs idle that the one in front leaves; where several of its blocks fit on an SM they pile up
    there and not on those that are free a moment later. So only blocks that have an SM to themselves come early, and kernels
    without products that are a few small blocks for each SM. On an H200 the other choice was at most 0.15 µs a kernel better,
    and up to 2.4 µs worse, in the 18 places of three networks where both were timed (experiments/results/h200-chains).
    """
    found: list[KernelSchedule] = []
    for i, p in enumerate(places(candidate, device)):
        mine = p.schedule
        if HOIST.at_place(p, True):
            mine = HOIST.set(mine, True)
        if i or not isinstance(candidate.graph.kernels[0], BlockGraph):
            product = any(s.contracts for s in p.block.computes)
            early = p.facts.resident() == 1 if product else p.programs <= SMALL_BLOCKS * device.sm_count
            mine = PDL.set(mine, "early" if early else "late")
        found.append(mine)
    return Candidate(candidate.graph, Schedule(tuple(found)))
