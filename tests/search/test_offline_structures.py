"""Every published structure becomes code for Ampere, Hopper and Blackwell on a machine without a GPU: the schedule is the model's
choice for that device, and what the compiler emits is what the model counts on."""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import lru_cache

import pytest

from fuser.device import load_device
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.ops import op as op_def
from fuser.ir.schedule import KernelSchedule
from fuser.superopt.rewrite.stabilize import stabilize_graph
from fuser.workloads import workload
from search.realise import SPILL_LIMIT
from search.realise import realise
from search.tune import tune_fast
from tests.superopt.generate.test_published import STRUCTURES
from tests.superopt.generate.test_published import find

TENSOR_CORE = {"a100": "", "h200": "wgmma.mma_async", "b200": "tcgen05.mma"}
"""What does a product of at least 64 rows by a multiple of four warps; a smaller one, and any on Ampere, is ``mma.sync``."""
TARGET = {"a100": "sm_80", "h200": "sm_90a", "b200": "sm_100a"}
SPILLS = {"mha, FlashDecoding": 256}
"""Bytes of local memory a thread where they are over the limit at which tuning tries its next candidate: there all of the best
candidates have the same first kernel."""
INSTRUCTION = re.compile(r"\b(mma\.sync|wgmma\.mma_async|tcgen05\.mma)\b")


@lru_cache
def structure(name: str) -> KernelGraph:
    published = STRUCTURES[name]
    return stabilize_graph(find(workload(published.workload), published.signature))


def rows(block: BlockGraph, schedule: KernelSchedule) -> list[int]:
    """Rows in a tile of each contraction that has rows, columns and terms: those of the operand whose axes come first."""
    tile = {x: schedule.tile.get(x, e) for x, e in block.extents.items()}
    found = []
    for s in block.computes:
        if op_def(s.op).kind == "contract":
            a, b = (block.by_value[v].axes for v in s.args)
            left, right = ([x for x in tile if x in set(p) - set(q) and tile[x] > 1] for p, q in ((a, b), (b, a)))
            if left and right and any(tile[x] > 1 for x in s.reduce):
                found.append(math.prod(tile[x] for x in min(left, right, key=lambda axes: list(tile).index(axes[0]))))
    return found


@pytest.mark.parametrize("target", ["a100", "h200", "b200"])
@pytest.mark.parametrize("name", STRUCTURES)
def test_published_structure_compiles_offline(name: str, target: str) -> None:
    pytest.importorskip("triton")
    device = load_device(target)
    (done,) = realise([tune_fast(workload(STRUCTURES[name].workload), device, graphs=[structure(name)])], device, checked=False)
    assert len(done.artifacts) == len(structure(name).blocks)
    for block, schedule, artifact in zip(structure(name).blocks, done.candidate.schedule.kernels, done.artifacts, strict=True):
        assert f".target {TARGET[target]}" in artifact.ptx
        assert artifact.shared_bytes <= device.smem_per_block
        assert 0 <= artifact.spills <= SPILLS.get(name, SPILL_LIMIT)
        assert 0 < artifact.registers <= 255
        assert len(artifact.cubin) > 1000
        # its pointers, a map with extents (of 32 bits) and strides for each descriptor, and two pointers to scratch memory that
        # is never needed
        maps, ranks = len(artifact.descriptors), sum(len(d.shape) for d in artifact.descriptors)
        found = Counter(re.findall(r"\.param (?:\.align \d+ )?\.(\w+) ", artifact.ptx))
        assert found == Counter(u64=len(artifact.args) - maps + 2 + ranks, u32=ranks, b8=maps)
        used = set(INSTRUCTION.findall(artifact.ptx))
        sizes = rows(block, schedule)
        assert bool(used) == bool(sizes)
        large = any(m >= 64 for m in sizes) and schedule.num_warps % 4 == 0
        assert used <= {"mma.sync", TENSOR_CORE[target]}
        assert (TENSOR_CORE[target] in used) == (large and target != "a100")
