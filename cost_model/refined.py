"""The default model: time of a generated kernel from what each block does (:mod:`cost_model.work`) and some constants of the
device.

    time = launch + base + norm(waves · chain, throughput, memory) · spills · cuts

*Chain* is the life of one block: loads that it has to wait for, trips, contractions, folds and exchanges one after the other,
and at least what its pipeline needs to bring the data. *Waves* is how often an SM starts over, which occupancy decides.
*Throughput* is what the busiest SM needs for the arithmetic of all its blocks; *memory* what device memory, L2 or the path into
an SM need. The norm lies between the largest of the three (nothing in each other's way) and their sum. Everything is an array
over a batch of candidates; :func:`terms` keeps each part visible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from dataclasses import replace

import numpy as np

from cost_model.constants import Constants
from cost_model.constants import constants_of
from cost_model.features import Counts
from cost_model.features import Features
from cost_model.features import schedule_features
from cost_model.resources import WGMMA
from cost_model.resources import resources
from cost_model.work import Work
from cost_model.work import work
from fuser.device import Device
from fuser.errors import UnsupportedError
from fuser.ir.mugraph import BlockGraph
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.schedule import KernelSchedule

SPILL_RAMP = 40.0
"""Registers beyond those of a thread at which spills cost all that they can."""
SLIVERS, PIECES = 0.3, 0.15
"""Slowdown of a kernel with one product whose tile is cut into powers of two along a side, with a piece of 16 columns (48 as 32
and 16) and without (96 as 64 and 32): by exchanging tiles within three networks on an H200 (experiments/results/h200-chains)."""
LIBRARY_NORM = 2.0
"""How far a library's matmul overlaps arithmetic and memory. With it eager PyTorch on an H200 is met within 5 % (root mean square
over 19 programs of matmuls, small and skinny ones, and a large product)."""
TIE = 1e-4
"""Relative weight of what decides between candidates of equal time: fewer registers and bytes of shared memory."""


def shared_memory(f: Features, device: Device) -> Counts:
    """Bytes of shared memory a block as Triton allocates them (:mod:`cost_model.resources`)."""
    return resources(f, device).shared


def registers(f: Features, device: Device) -> Counts:
    """32-bit registers that a thread wants; more than the device has are spilled."""
    return resources(f, device).registers


def _join(p: float, *parts: Counts) -> Counts:
    return sum(x**p for x in parts) ** (1 / p)


def times(w: Work, device: Device, c: Constants) -> dict[str, Counts]:
    """Every part of the estimate in seconds, for candidates whose work is counted."""
    sm, clock = device.sm_count, device.clock
    mma = c.fragment_cost if device.arch >= WGMMA else c.group_cost
    tensor = c.group_cost * w.wgmma + mma * w.mma + c.flat_cost * w.flat
    special = c.special_cost * w.special + c.arithmetic_cost * w.arithmetic
    move = c.move_cost * w.fragments / (device.smem_bandwidth_per_sm * clock)
    traffic = w.loaded + w.stored

    # a quarter of the SM's units serves each fourth warp
    alone = np.maximum(4.0 / w.warps, 1.0)
    each = np.ceil(w.blocks / sm)
    shared_out = np.maximum(4.0 / (w.warps * np.minimum(w.resident, each)), 1.0)
    steps = w.trips * c.trip + w.dots * c.contraction + w.folds * c.fold + w.passes * c.exchange + w.streamed * c.streamed
    busy = steps + alone * (c.serial * tensor + special + move)
    fetch = w.fetched * c.fetch + traffic / (c.block_bandwidth * clock)
    waits = w.waits * c.wait + w.rewaits * c.rewait + w.unbuffered * c.fetch
    chain = waits + _join(4.0, busy, fetch)

    waves = np.ceil(each / w.resident)
    throughput = each * (shared_out * (tensor + special + move) + c.block)
    into_sm = each * traffic / (c.sm_bandwidth * clock)
    l2 = w.blocks * traffic / (device.l2_bandwidth * c.l2_rate)
    dram = w.memory / (device.memory_bandwidth * c.memory_rate)
    memory = _join(6.0, into_sm, l2, dram)
    over = np.clip((w.registers - device.registers_per_thread) / SPILL_RAMP, 0.0, 1.0)
    spills = 1.0 + over * np.where(w.wgmma > w.mma, c.spill_groups, c.spill)
    cuts = 1.0 + SLIVERS * w.slivers + PIECES * w.pieces
    body = _join(c.norm, waves * chain, throughput, memory) * spills * cuts
    launch = np.full(len(w), device.launch_latency)
    base = c.base - c.overlap * w.dependent
    return {
        "seconds": launch + base + body,
        "launch": launch,
        "base": base,
        "chain": chain,
        "waits": waits,
        "fetch": fetch,
        "busy": busy,
        "throughput": throughput,
        "tensor": each * tensor,
        "special": each * special,
        "move": each * move,
        "memory": memory,
        "device_memory": dram,
        "l2": l2,
        "spills": spills,
        "cuts": cuts,
        "waves": waves,
    }


def terms(f: Features, device: Device, constants: Constants | None = None) -> dict[str, Counts]:
    """Every part of the estimate for each candidate: times in seconds, and the counts that they come from."""
    w = work(f, device)
    found = times(w, device, constants or constants_of(device))
    found["blocks"], found["resident"] = w.blocks, np.minimum(w.resident, np.ceil(w.blocks / device.sm_count))
    found["occupancy"], found["shared_bytes"], found["registers"] = w.resident, w.shared, w.registers
    found["l2_bytes"], found["memory_bytes"] = w.blocks * (w.loaded + w.stored), w.memory
    return found


def seconds(f: Features, device: Device, constants: Constants | None = None) -> Counts:
    """Estimated time of each candidate of a group; infinite where it cannot run (shared memory beyond the device's limit)."""
    w = work(f, device)
    total = times(w, device, constants or constants_of(device))["seconds"]
    thrift = w.shared / device.smem_per_sm + w.registers / device.registers_per_thread + f.warps / device.max_warps_per_sm
    return np.where(w.shared > device.smem_per_block, np.inf, total * (1.0 + TIE * thrift))


def estimate(block: BlockGraph, schedule: KernelSchedule, device: Device) -> dict[str, float]:
    """All terms for one schedule."""
    return {k: float(v[0]) for k, v in terms(schedule_features(block, schedule), device).items()}


# -- what no generated kernel does --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Product:
    """A batched matmul (batch, m, k) × (batch, k, n)."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k


Shape = tuple[int, ...]


def matmul_product(a: Shape, b: Shape, out: Shape, dtype: str) -> Product:
    """Of a matmul of these shapes."""
    *batch, m, n = out
    if math.prod(b[:-2]) == 1:  # the batch is further rows
        batch, m = [], math.prod((*batch, m))
    return Product(math.prod(batch), m, n, a[-1], dtype)


def attention_products(q: Shape, k: Shape, v: Shape, dtype: str) -> tuple[Product, Product]:
    """Of attention over queries, keys and values of these shapes."""
    batch = math.prod(q[:-2])
    return Product(batch, q[-2], k[-2], q[-1], dtype), Product(batch, q[-2], v[-1], k[-2], dtype)


@dataclass(frozen=True)
class LibraryChoice:
    """What the model takes a library's matmul to be: its tile of the output, the parts of its sum, and its time."""

    rows: int
    columns: int
    split: int
    seconds: float


def matmul_choice(p: Product, device: Device, constants: Constants | None = None, precision: str = "tf32") -> LibraryChoice:
    """A library matmul: the best of its usual tiles, with and without a split of the sum. ``precision`` is that of float32."""
    c = constants or constants_of(device)
    batch, m, n, k = p.batch, p.m, p.n, p.k
    sm, item = device.sm_count, DTYPE_BYTES[p.dtype]
    peak = device.matmul_flops(p.dtype, precision) / sm
    one = device.launch_latency + c.base
    memory = batch * (m * k + k * n + m * n) * item / (device.memory_bandwidth * c.memory_rate)
    best = LibraryChoice(0, 0, 0, np.inf)
    for tm in (64, 128, 256):
        for tn in (64, 128, 256):
            for split in (1, 2, 4):
                blocks = batch * -(-m // tm) * -(-n // tn) * split
                each, part = -(-blocks // sm), -(-k // split)
                steps = -(-part // 64)
                work_ = c.library * 2 * tm * tn * part / peak
                traffic = (tm + tn) * part * item
                fetch = max(traffic / (c.block_bandwidth * device.clock), steps * c.fetch / 4)
                chain = (1 + (split > 1)) * c.wait + max(steps * c.contraction + c.serial * work_, fetch) + 2 * c.exchange
                l2 = blocks * traffic / (device.l2_bandwidth * c.l2_rate)
                parts = np.array([each * chain, each * work_, max(memory, l2)])
                summed = one if split > 1 else 0.0  # a kernel of its own adds the parts
                seconds = float(np.sum(parts**LIBRARY_NORM) ** (1 / LIBRARY_NORM)) + summed
                if seconds < best.seconds:
                    best = LibraryChoice(tm, tn, split, seconds)
    return replace(best, seconds=one + best.seconds)


def matmul_seconds(p: Product, device: Device, constants: Constants | None = None, precision: str = "tf32") -> float:
    """Time of a library matmul: :func:`matmul_choice`."""
    return matmul_choice(p, device, constants, precision).seconds


def memory_kernel_seconds(nbytes: float, device: Device, constants: Constants | None = None) -> float:
    """A kernel that only moves data: element-wise operators, a softmax or normalization over rows, a copy."""
    c = constants or constants_of(device)
    return device.launch_latency + c.base + c.wait + nbytes / (device.memory_bandwidth * c.memory_rate)


def check_device(device: Device) -> None:
    """Raise where nothing can be generated for a device."""
    if device.no_triton:
        raise UnsupportedError(
            f"no kernels can be generated for {device.title}: {device.no_triton}",
            "choose another target, or ask for estimates alone: mufuser explain, mufuser space",
        )
