"""Time of a kernel of elements: sectors that its blocks move, its arithmetic, and loads that wait for one another."""

from __future__ import annotations

import math

from cost_model.constants import constants_of
from fuser.device import Device
from fuser.ir.element_program import RUNS
from fuser.ir.elements import Recipe
from fuser.ir.program import DTYPE_BYTES
from fuser.lower.element_tiles import operations
from fuser.lower.element_tiles import tiled

REQUESTS = 64
"""Bytes of sectors that an SM takes from its first cache in a clock."""
RUNNING = 1.2
"""Times that what runs along an axis takes, beside what each element takes alone."""
PUT_TOGETHER = 90.0
"""Operations for each element of a scan whose parts are put together by logarithms."""


def element_seconds(recipe: Recipe, device: Device) -> float:
    """Raises :class:`fuser.errors.UnsupportedError` where there is no such kernel."""
    inner = recipe
    if recipe.nodes[recipe.result][0] in RUNS and len(recipe.nodes) > 1:  # what it runs over is read as it goes
        inner = recipe.without_last
    tiling, traffic = tiled(inner)
    c = constants_of(device)
    sizes = {n: math.prod(shape) * DTYPE_BYTES[dtype] for n, (shape, dtype) in recipe.tensors.items()}
    shape, dtype = recipe.tensors[recipe.result]
    written = math.prod(shape) * DTYPE_BYTES[dtype]
    read = sum(min(x, float(sizes[n])) for n, x in traffic.tensors.items())
    flops, special = operations(tiling.tape)
    flops += PUT_TOGETHER * (recipe.nodes[recipe.result][0] == "logcumsumexp")
    rate = device.sm_count * device.clock
    work = max(
        (read + written) / (device.memory_bandwidth * c.memory_rate),
        (traffic.fetched + written) / device.l2_bandwidth,
        (traffic.asked + written) / (REQUESTS * rate),
        math.prod(shape) * (flops / device.fp32_flops + special / (device.sfu_per_clock * rate)),
    )
    work *= RUNNING if inner is not recipe else 1.0
    return device.launch_latency + c.base + c.wait * max(traffic.depth, 1) + work
