"""The least time that a program can take on a device: every input read once, every output written once, at the vendor's peaks;
and the least that the model expects of a kernel, whatever its schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping

from cost_model.constants import constants_of
from fuser.device import Device
from fuser.ir.mugraph import BlockGraph
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.program import FLOATS
from fuser.ir.program import TensorProgram


def contraction_flops(program: TensorProgram) -> int:
    """Of matmuls and of attention; a multiply-add is two. Causal attention needs what lies on and below its diagonal alone."""
    total = 0
    for node in program.nodes:
        shapes = [program[n].shape for n in node.inputs]
        if node.contracts:
            total += 2 * math.prod(program[node.output].shape) * shapes[0][-1]
        elif node.products > 1:
            rows, keys = math.prod(shapes[0][:-1]), shapes[1][-2]
            pairs = rows * keys
            if node.attr.get("causal"):
                n = shapes[0][-2]
                pairs = rows // n * sum(min(keys, max(0, i + 1 + keys - n)) for i in range(n))
            total += 2 * pairs * (shapes[0][-1] + shapes[2][-1])
    return total


def nbytes(program: TensorProgram) -> int:
    """Of all inputs and outputs."""
    return sum(program[n].nbytes for n in (*program.inputs, *program.outputs))


def floor_seconds(program: TensorProgram, device: Device) -> float:
    """A bound on any kernels of the program; a launch is not counted."""
    peak = device.matmul_flops(program[program.outputs[0]].dtype, "tf32")
    return max(nbytes(program) / device.memory_bandwidth, contraction_flops(program) / peak)


def least_seconds(block: BlockGraph, splits: Mapping[str, int], device: Device) -> float:
    """A bound on what :mod:`cost_model.refined` expects of any schedule of a block in Triton that has so many parts of its
    ``splits``: each of its tensors once, at the bandwidth that memory reaches."""
    c, extents = constants_of(device), {**block.extents, **splits}
    sizes: dict[str, int] = {}
    for s in block.stmts:
        if s.access is not None:
            size = math.prod(extents[a] for a in s.access.axes) * DTYPE_BYTES[s.dtype]
            sizes[s.access.tensor] = max(sizes.get(s.access.tensor, 0), size)
    return device.launch_latency + c.base - c.overlap + sum(sizes.values()) / (device.memory_bandwidth * c.memory_rate)


def alone_seconds(block: BlockGraph, device: Device) -> float:
    """A bound on any schedule of a block by what its results do not share out: of a product that every thread block needs as a
    whole, no SM does a part. Axes of the results, and those that are split, are shared out among SMs; half of a product may be
    left out (below a diagonal)."""
    shared = {a for s in block.stmts if s.kind == "store" for a in s.axes} | {a for a, _ in block.splits}
    found = 0.0
    for s in block.stmts:
        whole, ways = 1.0, 1
        for a in s.related:
            whole *= max(block.extents[a], 1)
            ways *= max(block.extents[a], 1) if a in shared else 1
        ways = min(ways, device.sm_count)
        if s.contracts:
            operand = block.by_value[s.args[0]].dtype
            rate = device.matmul_flops(operand, "tf32") if operand in FLOATS else math.inf
            found = max(found, whole / ways * device.sm_count / rate)
        elif s.kind == "load":
            found = max(found, whole * DTYPE_BYTES[s.dtype] / ways * device.sm_count / device.l2_bandwidth)
    return found
