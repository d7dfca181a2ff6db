"""MCFuser's analytical model, equations 2 to 5, term by term.

    t      = (t_mem + t_comp) · α                              (2)
    t_mem  = Σ over loads and stores of TS · Π trips / W       (3)
    t_comp = Σ over computation blocks of Fp · Π trips / P     (4)
    α      = (N_block + N_SM) / N_block                        (5)

TS are the bytes of a tile, Fp the FLOP of a tile, W the memory bandwidth and P the peak rate for the dtype. The paper's
loops include those bound to blockIdx, so the trip counts of a statement multiply with the number of blocks, in which every
grid part counts: batch axes and splits too. Computation blocks are the contractions; memory-intensive operators between them
are fused and have no term.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cost_model.features import Counts
from cost_model.features import Features
from cost_model.shared_memory import equation1_terms
from fuser.device import Device
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.placement import place
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import bind
from fuser.ir.tiling import Init


@dataclass(frozen=True)
class Term:
    """One statement of equation 3 or 4. ``amount`` is of one tile, in bytes or FLOP; ``trips`` of the loops inside a block;
    ``blocks`` of those bound to blockIdx; ``rate`` in B/s or FLOP/s."""

    key: str
    amount: float
    trips: int
    blocks: int
    rate: float

    @property
    def seconds(self) -> float:
        return self.amount * self.trips * self.blocks / self.rate


@dataclass(frozen=True)
class PaperEstimate:
    """Equation 2 and what it is made of; times in seconds, shared memory (equation 1) in bytes by tensor."""

    memory: tuple[Term, ...]
    compute: tuple[Term, ...]
    n_block: int
    n_sm: int
    shared: tuple[tuple[str, int], ...]

    @property
    def t_mem(self) -> float:
        return math.fsum(t.seconds for t in self.memory)

    @property
    def t_comp(self) -> float:
        return math.fsum(t.seconds for t in self.compute)

    @property
    def alpha(self) -> float:
        return (self.n_block + self.n_sm) / self.n_block

    @property
    def seconds(self) -> float:
        return (self.t_mem + self.t_comp) * self.alpha

    @property
    def shared_bytes(self) -> int:
        return sum(b for _, b in self.shared)


def _rate(block: BlockGraph, stmt: Stmt, device: Device) -> float:
    return device.matmul_flops(block.by_value[stmt.args[0]].dtype)


def estimate(block: BlockGraph, schedule: KernelSchedule, device: Device) -> PaperEstimate:
    """The model for one schedule, counted from its loop tree. Raises :class:`fuser.errors.UsageError` where it does not fit
    the block."""
    bound, plans = bind(block, schedule)
    tree = place(bound, schedule.order, plans)
    n_block = math.prod(p.grid for p in plans.values() if not p.split)
    memory: list[Term] = []
    compute: list[Term] = []
    for s, loops in tree.walk():
        if isinstance(s, Init):
            continue
        trips = math.prod(x.trips for x in loops)
        if s.access is not None:
            amount = math.prod(plans[a].tile for a in dict.fromkeys(s.access.axes)) * DTYPE_BYTES[s.dtype]
            memory.append(Term(s.key, amount, trips, n_block, device.memory_bandwidth))
        elif s.contracts:
            amount = s.entry.flops * math.prod(plans[a].tile for a in s.related)
            compute.append(Term(s.key, amount, trips, n_block, _rate(bound, s, device)))
    shared = equation1_terms(block, schedule)
    return PaperEstimate(tuple(memory), tuple(compute), n_block, device.sm_count, tuple(shared.items()))


def seconds(f: Features, device: Device) -> Counts:
    """Equation 2 for each candidate of a group, in seconds."""
    t = np.zeros(len(f))
    for s in f.stmts:
        if s.stmt.access is not None:
            t += s.bytes * s.runs / device.memory_bandwidth
        elif s.stmt.contracts:
            t += s.flops * s.runs / _rate(f.block, s.stmt, device)
    return t * (f.blocks + device.sm_count)
