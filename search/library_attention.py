"""Estimates of torch's own kernels for attention: blocks of queries, each of which goes through the keys in tiles.

Those of float32 are CUTLASS's (three products of tf32), with tiles by the depth of heads; those of half precision cuDNN's, beyond
a depth of 256 CUTLASS's, too. Fitted to 33 shapes on an H200.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cost_model import refined
from fuser.device import Device
from fuser.ir.opdef import Shape
from fuser.ir.program import DTYPE_BYTES

ALIGNED = 16
"""Bytes that a row of a head is a multiple of; for others torch has no such kernel."""
STEP = 32
"""Columns that a product of queries and keys is summed in."""


@dataclass(frozen=True)
class _Kernel:
    """Queries of a block, keys of a tile, and columns of the values that it treats at once; ``rate``: the part of the peak for
    products that all SMs reach; ``alone``: how many times as long as its share of an SM a block takes; ``begin``: keys for which
    it could go on in the time that it takes to begin and end; ``diagonal``: the part of the rate where blocks are of unequal
    length; ``seconds``: what a call takes besides."""

    queries: int
    keys: int
    columns: int
    rate: float
    alone: float = 1.0
    begin: int = 32
    diagonal: float = 1.0
    seconds: float = 0.0


SINGLE = ((64, _Kernel(64, 64, 64, 0.52, 1.67)), (128, _Kernel(64, 128, 128, 0.69)), (math.inf, _Kernel(32, 128, 128, 0.69)))
"""Of float32, by the largest depth; the peak is that without tensor cores."""
HALF = (
    (64, _Kernel(128, 128, 64, 0.48, begin=64, diagonal=0.8, seconds=6e-6)),
    (256, _Kernel(128, 128, 128, 0.7, begin=64, diagonal=0.8, seconds=6e-6)),
    (math.inf, _Kernel(32, 128, 128, 0.16, diagonal=0.8)),
)
"""Of half precision."""


def is_aligned(q: Shape, v: Shape, dtype: str) -> bool:
    """Whether torch has such kernels for heads of this depth."""
    return all(x[-1] * DTYPE_BYTES[dtype] % ALIGNED == 0 for x in (q, v))


def attention_seconds(q: Shape, k: Shape, v: Shape, dtype: str, causal: bool, device: Device) -> float:
    """Estimate of torch's attention of these shapes."""
    depth, out = q[-1], v[-1]
    kernels = SINGLE if dtype == "float32" else HALF
    kernel = next(x for most, x in kernels if max(depth, out) <= most)
    keys = _tiles(q[-2], k[-2], causal, kernel)
    each = 2.0 * kernel.queries * (_up(depth, STEP) + _up(out, kernel.columns))
    heads, longest = math.prod(q[:-2]), each * (max(keys) + kernel.begin)
    per_sm = kernel.rate * device.matmul_flops(dtype, "ieee") / device.sm_count
    if causal:  # the longest come last
        work = heads * each * math.fsum(n + kernel.begin for n in keys) / device.sm_count / kernel.diagonal
        work += longest * kernel.alone / 2 if kernel.diagonal == 1.0 else 0.0
    else:
        work = math.ceil(heads * len(keys) / device.sm_count) * longest
    moved = sum(math.prod(x) for x in (q, k, v, (*q[:-1], out))) * DTYPE_BYTES[dtype]
    seconds = max(work, longest * kernel.alone) / per_sm + kernel.seconds
    return max(refined.memory_kernel_seconds(moved, device), seconds)


def _tiles(queries: int, keys: int, causal: bool, kernel: _Kernel) -> list[int]:
    """Keys that each block of queries goes through."""
    last = range(kernel.queries, queries + kernel.queries, kernel.queries)
    return [_up(min(keys, n) if causal else keys, kernel.keys) for n in last]


def _up(n: int, step: int) -> int:
    return -(-n // step) * step
