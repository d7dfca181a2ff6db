"""What the assembler made of a kernel's products, beside what the model took them to be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

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


def longer(block: BlockGraph, schedule: KernelSchedule, pace: Pace, registers: int, device: Device) -> float:
    """Seconds beyond its estimate that a kernel takes whose warps get through their products at a pace, or of which an SM holds
    fewer blocks, since a thread has so many registers and not those of the model; none where it is as the model takes it to be,
    or the products are none of 16 bits. Of eight sentences' BERT a product of 128 × 128 with 8 warps of 164 to 180 registers
    (the model: 109) took an H200 1.2 times as long as with 4 warps of 200, of which two blocks fit."""
    dtypes = {block.by_value[v].dtype for s in block.computes if s.contracts for v in s.args}
    if not dtypes or {DTYPE_BYTES[d] for d in dtypes} != {2} or BACKEND.of(schedule) != "triton":
        return 0.0
    w, c = work(schedule_features(block, schedule), device), constants_of(device)
    walk, made = 0.0, w
    if pace.products:
        products = w.mma * device.matmul_flops(min(dtypes)) / device.sm_count / FLOPS / w.warps
        walk = products * pace.cycles / pace.products / device.clock
    if w.wgmma.any():
        blocks = device.blocks_per_sm(32 * schedule.num_warps, registers, int(w.shared[0]))
        made = replace(w, resident=np.clip(blocks, 1.0, w.resident))
    slower, priced = (float(times(x, device, c, walk=y)["seconds"][0]) for x, y in ((made, walk), (w, 0.0)))
    return slower - priced
