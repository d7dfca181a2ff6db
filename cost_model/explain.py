"""Why one schedule beats another: the model's terms side by side."""

from __future__ import annotations

from dataclasses import dataclass

from cost_model.refined import estimate
from fuser.device import Device
from fuser.ir.mugraph import KernelGraph
from fuser.ir.schedule import Schedule

TIMES = ("launch", "base", "round", "throughput", "latency", "tensor", "special", "traffic", "memory", "seconds")
COUNTS = ("rounds", "blocks", "resident", "occupancy", "registers", "shared_bytes", "l2_bytes", "memory_bytes")

MEANING = {
    "launch": "start of the kernel in a graph",
    "base": "first and last block",
    "round": "one round: the larger of throughput and latency",
    "throughput": "what the blocks of one SM need of its units",
    "latency": "dependent chain of one block",
    "tensor": "tensor cores",
    "special": "exponentials and fp32 arithmetic",
    "traffic": "L2 to SM",
    "memory": "device memory",
    "seconds": "estimate",
    "rounds": "rounds of blocks",
    "blocks": "thread blocks",
    "resident": "blocks an SM works on at once",
    "occupancy": "blocks an SM could hold",
    "registers": "registers a thread",
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


def explain(candidates: list[tuple[KernelGraph, Schedule]], device: Device) -> list[Row]:
    """Every term of every kernel of some candidates; a candidate with fewer kernels has None there."""
    found: list[list[tuple[str, dict[str, float]]]] = [
        [(b.name, estimate(b, s, device)) for b, s in zip(g.blocks, ks.kernels, strict=True)] for g, ks in candidates
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
