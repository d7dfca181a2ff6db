"""Predicted time of a program whose operators run apart: one library kernel for each contraction (element-wise operators that
follow are its epilogue, as TVM and cuBLAS fuse them), one memory-bound kernel for each softmax, normalization, copy, call of a
library, or group of element-wise operators."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cost_model.refined import attention_products
from cost_model.refined import matmul_product
from cost_model.refined import matmul_seconds
from cost_model.refined import memory_kernel_seconds
from fuser.device import Device
from fuser.ir.library_ops import CONVOLUTIONS
from fuser.ir.library_ops import is_convolution
from fuser.ir.library_ops import moves
from fuser.ir.ops import OPS
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.program import FLOATS
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram

EXACT = "ieee"
"""How the products of float32 are multiplied: as exactly as ours (``tf32x3``), which is what torch, cuBLAS and TVM do unless they
are told otherwise."""


PATCH = 4
"""Extent of windows side by side from which convolutions are faster with channels outside."""


@dataclass(frozen=True)
class OperatorTime:
    """One kernel of the program as it stands: the operators that it does and its time in seconds."""

    nodes: tuple[str, ...]
    op: str
    seconds: float


def operator_times(
    program: TensorProgram, device: Device, skip: frozenset[str] = frozenset(), calls: bool = False
) -> tuple[OperatorTime, ...]:
    """Kernels of every operator not in ``skip``, in program order; views that move no data have none. ``calls``: convolutions,
    pools and other operators of a library are its calls, as in our own runtime, and do nothing of what follows; TVM has kernels
    of its own for them, with epilogues."""
    groups: dict[str, list[Node]] = {}
    leader: dict[str, str] = {}
    for node in program.nodes:
        if node.output in skip:
            continue
        kind = OPS[node.op].kind
        if kind == "view" and not _copies(program, node):
            if node.inputs and node.inputs[0] in leader:
                leader[node.output] = leader[node.inputs[0]]
            continue
        host = next((leader[i] for i in node.inputs if i in leader and len(program.consumers[i]) == 1), "")
        if kind in ("map", "view") and host:
            groups[host].append(node)
            leader[node.output] = host
        else:
            groups[node.output] = [node]
            if not (calls and kind in ("library", "opaque")):
                leader[node.output] = node.output
    more = {n: _passes(program, g[0], device) if calls else 0.0 for n, g in groups.items()}
    return tuple(
        OperatorTime(tuple(x.output for x in g), g[0].op, _seconds(program, g, device) + more[n]) for n, g in groups.items()
    )


def _passes(program: TensorProgram, node: Node, device: Device) -> float:
    """What a library's call takes besides its kernel: for a bias, and to turn an image and its result where channels are to be
    last."""
    if node.op not in CONVOLUTIONS:
        return 0.0
    sizes = [program[t].nbytes for t in (node.inputs[0], node.output)] if faster_last(program, node) else []
    turning = math.fsum(memory_kernel_seconds(2 * n, device) for n in sizes)
    return turning + bias_seconds(node.op, len(node.inputs), program[node.output].nbytes, device)


def _copies(program: TensorProgram, node: Node) -> bool:
    """A transpose that moves an extent larger than one needs a kernel, and so does a repeat; reshapes and broadcasts do not."""
    if node.op == "repeat":
        return True
    if node.op != "transpose":
        return False
    kept = [i for i in node.attr["perm"] if program[node.inputs[0]].shape[i] > 1]
    return kept != sorted(kept)


def _seconds(program: TensorProgram, group: list[Node], device: Device) -> float:
    inside = {n.output for n in group}
    reads = {i for n in group for i in n.inputs} - inside
    written = {
        n.output for n in group if n.output in program.outputs or any(u.output not in inside for u in program.consumers[n.output])
    }
    nbytes = float(sum(program[t].nbytes for t in reads | written))
    first = group[0]
    dtype = program[first.output].dtype
    if first.contracts and dtype in DTYPE_BYTES:
        a, b = (program[i].shape for i in first.inputs)
        product = matmul_product(a, b, program[first.output].shape, dtype)
        extra = sum(program[i].nbytes for n in group[1:] for i in n.inputs if i not in inside)
        return matmul_seconds(product, device, precision=EXACT) + extra / device.memory_bandwidth
    if first.op == "attention":
        q, k, v = (program[i].shape for i in first.inputs[:3])
        inner, outer = attention_products(q, k, v, dtype)
        scores = inner.batch * inner.m * inner.n * DTYPE_BYTES[dtype]
        return sum(matmul_seconds(p, device, precision=EXACT) for p in (inner, outer)) + memory_kernel_seconds(2 * scores, device)
    # a normalization reads its input once for its statistics and once for its result; the second read comes from L2 where it fits
    return memory_kernel_seconds(nbytes, device)


def faster_last(program: TensorProgram, node: Node) -> bool:
    """Whether a convolution by a library is faster with channels last, where nothing in front of it or behind it is so: windows
    of one element are as fast either way (but of images in half precision whose channels begin at odd addresses: 27 µs, not 9,
    for 1024 channels to 256 of 32 images of 14 × 14 pixels on an H100), those side by side are one product with channels outside,
    lines of each channel apart take several times as long (19 µs, not 4.4, on an H200), and transposed ones of volumes in groups
    a library turns back (2555, not 2345 µs), as others in half precision of groups that have more channels behind them than in
    front (8 of 32 and 40 channels, 32 images of 56 × 56 pixels: 824 µs on an H100, not 347; of 32 and 32 74, not 175), and of
    any dtype where each channel becomes several (96 become 192 in 8 images of 56 × 56 pixels: 266 µs on an H200, not 59; 841,
    not 47, in half precision)."""
    x, weight = (program[n] for n in node.inputs[:2])
    window = weight.shape[2:]
    if node.op not in CONVOLUTIONS or len(x.shape) != len(window) + 2 or x.shape[1] == 1:
        return False
    apart = tuple(node.attr.get("stride", ())) == window and min(window) >= PATCH
    groups = node.attr.get("groups", 1)
    lines = len(window) == 1 and groups == x.shape[1]
    volumes = len(window) == 3 and groups > 1 and CONVOLUTIONS[node.op]
    uneven = DTYPE_BYTES[x.dtype] == 2 and x.shape[1] > groups > 1 and program[node.output].shape[1] > x.shape[1]
    several = groups == x.shape[1] < program[node.output].shape[1]
    pixels = math.prod(x.shape[2:])
    odd = DTYPE_BYTES[x.dtype] == 2 and groups == 1 and max(window) == 1 < pixels and pixels % 8 > 0
    return x.dtype in FLOATS and (odd or max(window) > 1) and not (apart or lines or volumes or uneven or several)


def side_by_side(program: TensorProgram, node: Node) -> bool:
    """Whether a convolution is one product of large windows that stand side by side, which libraries take up to thirty times as
    long for (363 µs for 384 windows of 16 × 8 × 8 elements in 16 images of float16 on an H200)."""
    if CONVOLUTIONS.get(node.op, "no") or node.attr.get("groups", 1) != 1:
        return False
    x, weight = (program[n] for n in node.inputs[:2])
    window = weight.shape[2:]
    if len(x.shape) != len(window) + 2 or x.dtype not in FLOATS or min(window) < PATCH:
        return False
    if x.dtype == "float32" and x.shape[1] * DTYPE_BYTES[x.dtype] % 16 == 0:
        return False  # a library has tensor cores for them
    _, (strides, padding, dilation) = moves(program.bound(node), len(window), window)
    return strides == window and not any(padding) and set(dilation) == {1}


def bias_seconds(op: str, operands: int, nbytes: int, device: Device) -> float:
    """What the bias of a convolution takes: libraries add it to the result, of ``nbytes``, by a kernel of its own. Nothing of
    what has none."""
    biased = operands == 3 and is_convolution(op)
    return memory_kernel_seconds(2 * nbytes, device) if biased else 0.0


def program_seconds(program: TensorProgram, device: Device, skip: frozenset[str] = frozenset(), calls: bool = False) -> float:
    """Sum of all kernels: they run one after the other."""
    return math.fsum(t.seconds for t in operator_times(program, device, skip, calls))
