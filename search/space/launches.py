"""When a kernel behind another one may start (programmatic dependent launch, options ``pdl``).

Early, as soon as all blocks of the one in front have started, hides most. But blocks that wait take room from those that still
work: where a long kernel is followed by a short one that only waits, the short one starts when the last blocks of the long one
are about to store (``late``). On an H200 that is 4 to 6 % for the split attentions of 16 µs and more; at 9 µs the two are even,
below early is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from cost_model.refined import estimate
from fuser.device import Device
from fuser.ir.candidate import Candidate
from fuser.ir.schedule import Schedule
from fuser.lower.options import PDL

LONG = 12e-6
"""Seconds of a kernel from which waiting blocks are in its way."""
SHORT = 0.4
"""Part of that kernel's time up to which the one behind it is only a tail."""


def block_seconds(candidate: Candidate, device: Device) -> list[float]:
    """The estimate of each generated kernel."""
    return [estimate(b, k, device)["seconds"] for b, k in candidate.blocks]


def with_launches(candidate: Candidate, device: Device, total: float = inf, seconds: Sequence[float] | None = None) -> Candidate:
    """The candidate with ``pdl=late`` for short kernels behind long ones. ``total`` is what all take together and ``seconds``
    what each generated kernel takes, where that is known."""
    if total <= LONG or not any(map(PDL.of, candidate.schedule.kernels)):
        return candidate
    times = block_seconds(candidate, device) if seconds is None else seconds
    kernels = list(candidate.schedule.kernels)
    for i in range(1, len(kernels)):
        if PDL.of(kernels[i]) and times[i - 1] > LONG and times[i] < SHORT * times[i - 1]:
            kernels[i] = PDL.set(kernels[i], "late")
    return Candidate(candidate.graph, Schedule(tuple(kernels)))
