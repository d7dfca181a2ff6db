"""Why one schedule beats another: the model's terms side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cost_model import paper
from cost_model import refined
from cost_model.names import REFINED
from fuser.device import Device
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import BlockGraph
from fuser.ir.schedule import KernelSchedule

TIMES = (
    "launch",
    "base",
    "chain",
    "waits",
    "fetch",
    "busy",
    "barriers",
    "starts",
    "turns",
    "roof",
    "tensor",
    "issue",
    "special",
    "arithmetic",
    "move",
    "into_sm",
    "l2",
    "device_memory",
    "t_mem",
    "t_comp",
    "seconds",
)
COUNTS = (
    *("waves", "blocks", "resident", "occupancy", "spills", "cuts", "registers", "shared_bytes", "l2_bytes", "memory_bytes"),
    *("n_block", "n_sm", "equation_1"),
)

MEANING = {
    "launch": "start of the kernel in a graph",
    "base": "first and last block",
    "chain": "life of one block",
    "waits": "of it, loads that nothing hides",
    "fetch": "of it, least that its pipeline needs",
    "busy": "of it, trips, folds and arithmetic",
    "barriers": "of it, slots of rings handed over",
    "starts": "starts of an SM's blocks",
    "turns": "blocks of an SM, one after another",
    "roof": "what the scarcest resource needs",
    "tensor": "contractions of the busiest SM",
    "issue": "loads and stores by pointers there",
    "special": "special functions there",
    "arithmetic": "fp32 there",
    "move": "shared memory to registers there",
    "into_sm": "from L2 into that SM",
    "l2": "L2 of the device",
    "device_memory": "device memory",
    "seconds": "estimate",
    "waves": "waves of blocks",
    "blocks": "thread blocks",
    "resident": "blocks an SM works on at once",
    "occupancy": "blocks an SM could hold",
    "spills": "slowdown by spilled registers",
    "cuts": "slowdown by a product in pieces",
    "registers": "registers that a thread wants",
    "shared_bytes": "shared memory a block, B",
    "l2_bytes": "bytes through L2",
    "memory_bytes": "bytes of the tensors",
    "t_mem": "eq. 3: loads and stores",
    "t_comp": "eq. 4: contractions",
    "alpha": "eq. 5: slowdown by few blocks",
    "n_block": "thread blocks",
    "n_sm": "SMs",
    "equation_1": "eq. 1: shared memory a block, B",
}


@dataclass(frozen=True)
class Row:
    """One term of each candidate; times in microseconds."""

    kernel: str
    term: str
    meaning: str
    values: tuple[float | None, ...]


def terms(block: BlockGraph, schedule: KernelSchedule, device: Device, model: str = REFINED) -> dict[str, float]:
    """What a model's estimate of a kernel is made of; times in seconds."""
    if model == REFINED:
        return refined.estimate(block, schedule, device)
    found = paper.estimate(block, schedule, device)
    shown = {"t_mem": found.t_mem, "t_comp": found.t_comp, "seconds": found.seconds, "alpha": found.alpha}
    return shown | {"n_block": found.n_block, "n_sm": found.n_sm, "equation_1": found.shared_bytes}


def explain(candidates: Sequence[Candidate], device: Device, model: str = REFINED) -> list[Row]:
    """Every term of every kernel of some candidates; None where a candidate has fewer kernels, or one in another language has no
    such term."""
    found = [[(b.name, terms(b, s, device, model)) for b, s in c.blocks] for c in candidates]
    rows: list[Row] = []
    for i in range(max(len(f) for f in found)):
        name = next(f[i][0] for f in found if i < len(f))
        here = [f[i][1] if i < len(f) else {} for f in found]
        for term in (t for t in (*TIMES, "alpha", *COUNTS) if any(t in x for x in here)):
            values = tuple(_value(term, x[term]) if term in x else None for x in here)
            rows.append(Row(name, term, MEANING[term], values))
    return rows


def _value(term: str, x: float) -> float:
    return x * 1e6 if term in TIMES else x
