"""What kernels that start early do beside the one in front of them (programmatic dependent launch): all that needs nothing of it,
a whole loop over weights, say, where their blocks find SMs that the one in front leaves."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

from cost_model.features import schedule_features
from cost_model.refined import estimate
from fuser.device import Device
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.schedule import KernelSchedule
from fuser.lower.dependent_launch import divide
from fuser.lower.dependent_launch import statements
from fuser.lower.options import BACKEND
from fuser.lower.options import PDL
from fuser.lower.options import PERSISTENT
from search.space.launches import flat

KEPT = 0.8
"""Of the shorter of both what is saved. Of 552 schedules of products with a low-rank one beside them on an H200 the sums of
estimates were a quarter too high where most could be done so; first choices among what was measured of 18 such programs took
1.08 x the best with this, 1.14 x without, 1.09 x where all of it was taken to be saved."""


def saved(candidate: Candidate, device: Device) -> float:
    """Seconds in which a candidate's kernels run beside one another, which the sum of their estimates counts twice."""
    made: frozenset[str] = frozenset()
    total = 0.0
    for (front, first), (block, mine) in pairwise(candidate.blocks):
        made |= frozenset(front.outputs)
        if part := _ahead(block, mine, made):
            total += KEPT * _beside(front, first, block, mine, part, device)
    return total


def _ahead(block: BlockGraph, mine: KernelSchedule, made: frozenset[str]) -> float:
    """Part of a kernel's products by tensor cores that it does before it waits for what makes these tensors: of others, where
    memory is what both wait for, nothing was measured."""
    if PDL.of(mine) != "early" or PERSISTENT.of(mine) or BACKEND.of(mine) != "triton":
        return 0.0
    if not block.contracts or flat(block):
        return 0.0
    f = schedule_features(block, mine)
    early, _ = divide(f.tree.body, made)
    done = {s.value for n in early for s in statements(n) if isinstance(s, Stmt)}
    flops = {s.value: float(f.product(f.extent, s.related)[0]) for s in block.computes if s.contracts}
    return sum(n for v, n in flops.items() if v in done) / sum(flops.values())


@lru_cache(1 << 12)
def _beside(
    front: BlockGraph, first: KernelSchedule, block: BlockGraph, mine: KernelSchedule, part: float, device: Device
) -> float:
    """Seconds of the shorter of the kernel in front and of that part of the one behind it, whose blocks must all find room on
    SMs that the one in front leaves."""
    one, other = estimate(front, first, device), estimate(block, mine, device)
    if other["blocks"] > (device.sm_count - one["blocks"]) * other["occupancy"]:
        return 0.0
    return min(one["seconds"] - one["launch"], part * (other["seconds"] - other["launch"] - other["base"]))
