"""Why one schedule beats another: the model's terms side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cost_model.refined import estimate
from fuser.device import Device
from fuser.ir.candidate import Candidate

TIMES = (
    "launch",
    "base",
    "chain",
    "waits",
    "fetch",
    "busy",
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
    "seconds",
)
COUNTS = ("waves", "blocks", "resident", "occupancy", "spills", "cuts", "registers", "shared_bytes", "l2_bytes", "memory_bytes")

MEANING = {
    "launch": "start of the kernel in a graph",
    "base": "first and last block",
    "chain": "life of one block",
    "waits": "of it, loads that nothing hides",
    "fetch": "of it, least that its pipeline needs",
    "busy": "of it, trips, folds and arithmetic",
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
}


@dataclass(frozen=True)
class Row:
    """One term of each candidate; times in microseconds."""

    kernel: str
    term: str
    meaning: str
    values: tuple[float | None, ...]


def explain(candidates: Sequence[Candidate], device: Device) -> list[Row]:
    """Every term of every kernel of some candidates; a candidate with fewer kernels has None there."""
    found: list[list[tuple[str, dict[str, float]]]] = [
        [(b.name, estimate(b, s, device)) for b, s in c.blocks] for c in candidates
    ]
    rows: list[Row] = []
    for i in range(max(len(f) for f in found)):
        name = next(f[i][0] for f in found if i < len(f))
        for term in (*TIMES, *COUNTS):
            values = tuple(_value(term, f[i][1][term]) if i < len(f) else None for f in found)
            rows.append(Row(name, term, MEANING[term], values))
    return rows


def _value(term: str, x: float) -> float:
    return x * 1e6 if term in TIMES else x
