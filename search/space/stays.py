"""Which weights of a model stay in L2 from one call to the next.

Where a call reads more than L2 holds, each tensor pushes out what the next call reads first, and nothing is left of any. So as
much as fits is to stay, and the rest to go first.
"""

from __future__ import annotations

from fuser.device import Device
from fuser.ir.candidate import Candidate
from fuser.ir.schedule import Schedule
from fuser.lower.options import BACKEND
from fuser.lower.options import EVICT
from fuser.lower.options import TMA
from fuser.lower.places import operands
from search.space.launches import at_once
from search.space.places import places

STAYING = 0.4
"""Part of L2 that may hold on to weights. Of 24, 16, 32 and 40 MB an H200 (60) gained 5.1, 3.0, 3.7 and 2.8 µs of 178 for a token
of LLaMA; without the rest going first 24 MB gained a third."""
LEAST = 1 << 20
"""Bytes of a tensor from which it matters."""


def with_stays(candidate: Candidate, device: Device) -> Candidate:
    """The kernels of a model with hints how long L2 keeps what those read that only stream weights: products of a few rows,
    without descriptors, which take no hints."""
    table = candidate.graph.table
    made = {t for k in candidate.graph.kernels for t in k.outputs}
    kernels, streams = list(candidate.schedule.kernels), list[tuple[int, str]]()
    for i, p in enumerate(places(candidate, device)):
        streaming = BACKEND.of(p.schedule) == "triton" and any(s.contracts for s in p.block.computes) and at_once(p)
        described = TMA.named(p.schedule)
        weights = (t for t in operands(p.block) if streaming and t not in made and t not in described)
        streams += [(i, t) for t in weights if table[t].nbytes >= LEAST]
    if sum(table[t].nbytes for t in {t for _, t in streams}) <= device.l2_bytes:
        return candidate
    left = STAYING * device.l2_bytes
    hints: dict[str, str] = {}
    for i, t in streams:
        if t not in hints:
            hints[t] = "evict_last" if table[t].nbytes <= left else "evict_first"
            left -= table[t].nbytes * (hints[t] == "evict_last")
        kernels[i] = EVICT.set(kernels[i], hints[t], t)
    return Candidate(candidate.graph, Schedule(tuple(kernels)))
