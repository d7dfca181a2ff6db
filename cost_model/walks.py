"""What the assembler made of a kernel's products, beside what the model took them to be."""

from __future__ import annotations

from cost_model.constants import constants_of
from cost_model.features import schedule_features
from cost_model.refined import times
from cost_model.work import work
from fuser.device import Device
from fuser.ir.mugraph import BlockGraph
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.schedule import KernelSchedule
from fuser.lower.options import BACKEND
from fuser.lower.pace import Pace

FLOPS = 2 * 16 * 8 * 16
"""Of one product on fragments of 16 bits."""


def longer(block: BlockGraph, schedule: KernelSchedule, pace: Pace, device: Device) -> float:
    """Seconds beyond its estimate that a kernel takes whose warps get through their products at a pace; none where it is as the
    model takes it to be, or the products are none of 16 bits on fragments."""
    dtypes = {block.by_value[v].dtype for s in block.computes if s.contracts for v in s.args}
    if not pace.products or not dtypes or {DTYPE_BYTES[d] for d in dtypes} != {2} or BACKEND.of(schedule) != "triton":
        return 0.0
    w, c = work(schedule_features(block, schedule), device), constants_of(device)
    products = w.mma * device.matmul_flops(min(dtypes)) / device.sm_count / FLOPS / w.warps
    walk = products * pace.cycles / pace.products / device.clock
    made, priced = (float(times(w, device, c, walk=x)["seconds"][0]) for x in (walk, 0.0))
    return made - priced
