"""The default model: time of a generated kernel from what each block does, how many blocks an SM holds, and how many rounds that makes.

A kernel takes ``launch + max(rounds · round, device memory)``. A *round* is what one SM needs for the blocks that it holds at once: the larger
of throughput (tensor cores plus what of the special-function and fp32 work does not hide behind them, L2 traffic, shared memory) and of latency (the
dependent chain of one block: first load, trips, fold, store). Rounds follow from occupancy, which shared memory, registers and warps bound.
Everything is an array over a batch of candidates (:mod:`cost_model.features`); :func:`terms` keeps each part visible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields

import numpy as np

from cost_model.features import Counts
from cost_model.features import Features
from cost_model.features import StmtFeatures
from cost_model.features import schedule_features
from fuser.device import Device
from fuser.errors import UnsupportedError
from fuser.ir.mugraph import BlockGraph
from fuser.ir.ops import op as op_def
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.schedule import KernelSchedule

WGMMA = 90
"""First architecture whose tensor cores are fed by warp groups of four warps."""


@dataclass(frozen=True)
class Constants:
    """What no data sheet says. Times in seconds; the rest are factors. Fitted by :mod:`cost_model.calibrate`."""

    base: float = 1.0e-6  # start of the grid to the first load, last store to the end of the kernel
    load_latency: float = 0.7e-6  # a load that has to be waited for
    trip: float = 0.10e-6  # one trip of a loop: barriers and the start of its contraction
    fold: float = 0.15e-6  # one row fold or online-softmax update in a trip
    mma_depth: float = 0.5  # seconds a block waits for its tensor work, as a multiple of that work at full rate of an SM
    tensor_efficiency: float = 0.75
    hidden: float = 0.5  # part of special-function and fp32 work that hides behind the tensor cores
    l2_efficiency: float = 0.7
    dram_efficiency: float = 0.9
    spill: float = 6.0  # slowdown per register file overcommitted


def _in_dots(f: Features) -> set[str]:
    """Values that are operands of contractions."""
    return {a for s in f.block.computes if op_def(s.op).kind == "contract" for a in s.args}


def shared_memory(f: Features, device: Device) -> Counts:
    """Bytes of shared memory a block as Triton allocates them: operands of contractions that are loaded in a loop have one buffer for each stage
    (one less before Hopper), those outside of loops one."""
    dots = _in_dots(f)
    total = np.zeros(len(f))
    buffers = np.maximum(f.stages - (0 if device.arch >= WGMMA else 1), 1)
    seen: set[str] = set()
    for s in f.stmts:
        if s.stmt.kind == "load" and s.stmt.value in dots and s.stmt.value not in seen:
            seen.add(s.stmt.value)
            total += s.bytes * (np.minimum(buffers, f.trips[s.loops[-1]]) if s.loops else 1)
    # operands that are computed pass through shared memory before Hopper only where layouts differ; folds across warps need a row each
    return total + 1024


def registers(f: Features) -> Counts:
    """32-bit registers a thread: accumulators and the widest intermediates stay in registers, in fp32."""
    held = np.zeros(len(f))
    widest = np.zeros(len(f))
    for b in f.buffers:
        size = b.elements * b.tiles
        if b.kind == "fold":
            held += size
        elif b.kind == "map":
            widest = np.maximum(widest, size)
    return (held + 0.6 * widest) / (32 * f.warps) + 40


def occupancy(f: Features, device: Device) -> Counts:
    """Blocks that one SM holds at once, at least one."""
    regs = np.minimum(registers(f), device.registers_per_thread)
    by_shared = device.smem_per_sm // (shared_memory(f, device) + device.smem_reserved_per_block)
    by_registers = device.registers_per_sm // (np.ceil(regs / 8) * 8 * 32 * f.warps)
    by_warps = device.max_warps_per_sm // f.warps
    return np.maximum(np.minimum.reduce([by_shared, by_registers, by_warps, np.full(len(f), device.max_blocks_per_sm)]), 1.0)


def _rate(f: Features, s: StmtFeatures, device: Device, precision: str) -> Counts:
    """FLOP/s of one SM for a contraction: less where the tile is too small for the widest tensor instruction."""
    args = [f.block.by_value[a] for a in s.stmt.args]
    dtype = min((a.dtype for a in args), key=lambda d: DTYPE_BYTES[d])
    peak = device.matmul_flops(dtype, precision) / device.sm_count
    axes = [set(a.axes) - set(s.stmt.reduce) for a in args]
    rows = f.product(f.tile, [a for a in s.stmt.axes if a in axes[0] and a not in axes[1]])
    cols = f.product(f.tile, [a for a in s.stmt.axes if a in axes[1] and a not in axes[0]])
    rate = np.full(len(f), peak)
    if device.arch >= WGMMA:
        rate = np.where((rows < 64) | (f.warps % 4 != 0), peak * 0.5, rate)
    # without rows or columns there is nothing for tensor cores
    slow = device.fp32_flops / device.sm_count
    return np.where((rows < 2) | (cols < 2), slow, rate)


def terms(f: Features, device: Device, constants: Constants | None = None, precision: str = "tf32x3") -> dict[str, Counts]:
    """Every part of the estimate for each candidate: times in seconds, and the counts that they come from."""
    c = constants or constants_of(device)
    n = len(f)
    sm = device.sm_count
    tensor, sfu, alu, loaded, stored, chain = (np.zeros(n) for _ in range(6))
    waited = np.zeros(n)
    trips = np.zeros(n)
    unique: dict[str, float] = {}
    dots = _in_dots(f)
    loops_seen: dict[tuple[str, ...], Counts] = {}
    for s in f.stmts:
        if s.stmt.access is not None:
            amount = s.bytes * s.runs
            size = float(np.prod([f.block.extents[a] for a in s.stmt.access.axes if f.block.extents[a]])) * DTYPE_BYTES[s.stmt.dtype]
            if s.stmt.kind == "load":
                loaded += amount
                if not s.loops or s.stmt.value not in dots:
                    waited = np.maximum(waited, s.runs)
            else:
                stored += amount
            unique[s.stmt.access.tensor] = max(unique.get(s.stmt.access.tensor, 0.0), size)
        elif op_def(s.stmt.op).kind == "contract":
            tensor += s.flops * s.runs / _rate(f, s, device, precision)
        else:
            sfu += s.sfu * s.runs / (device.sfu_rate / sm)
            alu += s.flops * s.runs / (device.fp32_flops / sm)
            if s.stmt.folds:
                chain += s.runs * c.fold
        if s.loops:
            loops_seen[s.loops] = s.runs
    for runs in loops_seen.values():
        trips = np.maximum(trips, runs)
    held = occupancy(f, device)
    blocks = f.blocks
    resident = np.minimum(held, np.ceil(blocks / sm))
    rounds = np.ceil(blocks / (sm * resident))
    # the last round may be partly empty, but it takes as long
    special = sfu + alu
    compute = tensor / c.tensor_efficiency + (1 - c.hidden) * special
    traffic = (loaded + stored) / (device.l2_bandwidth * c.l2_efficiency / np.minimum(sm, np.ceil(blocks / resident)))
    throughput = resident * np.maximum(compute, traffic)
    latency = c.load_latency + trips * c.trip + chain + c.mma_depth * tensor + special
    over = np.maximum(registers(f) / device.registers_per_thread - 1.0, 0.0)
    round_time = np.maximum(throughput, latency) * (1.0 + c.spill * over)
    memory = np.full(n, sum(unique.values()) / (device.memory_bandwidth * c.dram_efficiency))
    reread = blocks * loaded / np.maximum(sum(unique.values()), 1.0)
    overflow = sum(unique.values()) > device.l2_bytes
    if overflow:
        memory = np.maximum(memory, np.minimum(reread, 4.0) * memory)
    launch = np.full(n, device.launch_latency)
    total = launch + c.base + np.maximum(rounds * round_time, memory)
    return {
        "seconds": total,
        "launch": launch,
        "base": np.full(n, c.base),
        "rounds": rounds,
        "round": round_time,
        "throughput": throughput,
        "latency": latency,
        "tensor": resident * tensor / c.tensor_efficiency,
        "special": resident * special,
        "traffic": resident * traffic,
        "memory": memory,
        "blocks": blocks,
        "resident": resident,
        "occupancy": held,
        "shared_bytes": shared_memory(f, device),
        "registers": registers(f),
        "l2_bytes": blocks * (loaded + stored),
        "memory_bytes": np.full(n, sum(unique.values())),
    }


def seconds(f: Features, device: Device, constants: Constants | None = None) -> Counts:
    """Estimated time of each candidate of a group; infinite where it cannot run (shared memory beyond the device's limit)."""
    found = terms(f, device, constants)
    return np.where(found["shared_bytes"] > device.smem_per_block, np.inf, found["seconds"])


def estimate(block: BlockGraph, schedule: KernelSchedule, device: Device) -> dict[str, float]:
    """All terms for one schedule."""
    precision = str(schedule.knob.get("precision", "tf32x3"))
    return {k: float(v[0]) for k, v in terms(schedule_features(block, schedule), device, precision=precision).items()}


# -- what no generated kernel does --------------------------------------------------------------------------------------------


def matmul_seconds(batch: int, m: int, n: int, k: int, dtype: str, device: Device, constants: Constants | None = None) -> float:
    """A library matmul: the best of its usual tiles, with and without a split of the sum."""
    c = constants or constants_of(device)
    sm, item = device.sm_count, DTYPE_BYTES[dtype]
    peak = device.matmul_flops(dtype, "tf32") / sm
    bytes_ = batch * (m * k + k * n + m * n) * item
    memory = bytes_ / (device.memory_bandwidth * c.dram_efficiency)
    best = np.inf
    for tm in (64, 128, 256):
        for tn in (64, 128, 256):
            for split in (1, 2, 4):
                blocks = batch * -(-m // tm) * -(-n // tn) * split
                rounds = -(-blocks // sm)
                part = -(-k // split)
                work = 2 * tm * tn * part / peak / c.tensor_efficiency
                traffic = (tm + tn) * part * item / (device.l2_bandwidth * c.l2_efficiency / min(sm, blocks))
                latency = c.load_latency + -(-part // 64) * c.trip
                extra = c.load_latency if split > 1 else 0.0
                best = min(best, max(rounds * max(work, traffic, latency), memory) + extra)
    return device.launch_latency + c.base + float(best)


def memory_kernel_seconds(nbytes: float, device: Device, constants: Constants | None = None) -> float:
    """A kernel that only moves data: element-wise operators, a softmax or normalization over rows, a copy."""
    c = constants or constants_of(device)
    return device.launch_latency + c.base + c.load_latency + nbytes / (device.memory_bandwidth * c.dram_efficiency)


_FITTED: Mapping[str, Constants] = {}


def constants_of(device: Device) -> Constants:
    """The fitted constants of a device where there are any, else the defaults scaled to its clock."""
    if device.name in _FITTED:
        return _FITTED[device.name]
    slower = 1.98e9 / device.clock
    base = Constants()
    scaled = {n: getattr(base, n) * slower for n in ("base", "load_latency", "trip", "fold")}
    return Constants(**{f.name: scaled.get(f.name, getattr(base, f.name)) for f in fields(Constants)})


def check_device(device: Device) -> None:
    """Raise where nothing can be generated for a device."""
    if device.no_triton:
        raise UnsupportedError(f"no kernels can be generated for {device.title}: {device.no_triton}", "choose another target")
