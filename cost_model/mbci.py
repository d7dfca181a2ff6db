"""Memory-bound compute-intensive operators (MCFuser, section II-A): what is worth one fused kernel at all.

A contraction is memory-bound where φ < P/W: its FLOP for each byte that moves to or from device memory, with the tiles that the
model would choose for it alone, are fewer than the device does in that time. The paper's φ is that of one block, whose tiles come
from device memory each time; on a large product this never reaches P/W of newer devices, because there the blocks that run at the
same time find each other's tiles in L2. So φ is taken here for a wave of blocks, which for a product of one wave is the product
itself.

A product may have φ ≥ P/W and still not be bound by arithmetic alone: with few blocks, or at about P/W, launches and memory are
a good part of its time. So a pair of contractions is compute-bound if φ ≥ P/W for one of them *and* fusing the two could take
away only a small part of the time that they take apart: the launches, and the way of what is between them to memory and back.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from cost_model.constants import constants_of
from cost_model.program_time import operator_times
from cost_model.refined import Product
from cost_model.refined import attention_products
from cost_model.refined import matmul_choice
from cost_model.refined import matmul_product
from fuser.device import Device
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram

WORTH = 0.125
"""Part of the time apart that fusing has to be able to save where a contraction has φ ≥ P/W. The chains of the paper's tables
have 0.147 and more on any device, two products of 4096³ at most 0.067; attention of such products is at the border (0.034 to
0.1252, on an H100), of 6144³ it has at most 0.083."""


def products(program: TensorProgram, node: Node) -> tuple[Product, ...]:
    """The products of a contraction: one of a matmul, two of attention."""
    shapes = [program[i].shape for i in node.inputs]
    dtype = program[node.inputs[0]].dtype
    if node.products > 1:
        q, k, v = shapes[:3]
        return attention_products(q, k, v, dtype)
    a, b = shapes
    return (matmul_product(a, b, program[node.output].shape, dtype),)


def intensity(p: Product, device: Device) -> float:
    """φ in FLOP per byte: over the bytes of the output and of the rows and columns that each wave of blocks reads, with the tiles
    that the model chooses."""
    choice = matmul_choice(p, device)
    down, across = -(-p.m // choice.rows), -(-p.n // choice.columns)
    tm, tn = min(choice.rows, p.m), min(choice.columns, p.n)
    # blocks of one wave in the product of one batch, as the rectangle that reads least
    wave = max(device.sm_count // choice.split, 1)
    read = math.inf
    for r in range(1, min(down, wave) + 1):
        c = min(wave // r, across)
        rectangles = max(down / r, 1.0) * max(across / c, 1.0)
        read = min(read, rectangles * (min(r * tm, p.m) + min(c * tn, p.n)) * p.k)
    return p.flops / (DTYPE_BYTES[p.dtype] * p.batch * (p.m * p.n + read))


def saving(program: TensorProgram, nodes: Collection[str], device: Device) -> float:
    """The most that one kernel for these operators could save, as a part of their time apart: all launches but one, and the way
    of every tensor between two of their kernels to memory and back."""
    inside = frozenset(nodes)
    groups = operator_times(program, device, frozenset(n.output for n in program.nodes) - inside)
    kernels, moved = 0, 0
    for g in groups:
        first = program.producers[g.nodes[0]]
        kernels += max(1, 2 * first.products - 1)
        if first.products > 1:
            scores, _ = products(program, first)
            moved += 4 * scores.batch * scores.m * scores.n * DTYPE_BYTES[scores.dtype]
        read_later = [t for t in g.nodes if any(u.output in inside - set(g.nodes) for u in program.consumers[t])]
        moved += sum(2 * program[t].nbytes for t in read_later)
    c = constants_of(device)
    gone = (kernels - 1) * (device.launch_latency + c.base) + moved / (device.memory_bandwidth * c.memory_rate)
    return gone / math.fsum(g.seconds for g in groups)


def compute_bound(program: TensorProgram, node: Node, device: Device) -> str:
    """Why a contraction alone is no MBCI operator, if so."""
    for p in products(program, node):
        phi, ridge = intensity(p, device), device.balance(p.dtype)
        if phi >= ridge:
            return f"compute-bound: φ = {phi:.0f} FLOP/B ≥ P/W = {ridge:.0f} FLOP/B"
    return ""


def not_worth(program: TensorProgram, pair: Collection[Node], nodes: Collection[str], device: Device) -> str:
    """Why the contractions of ``pair`` with what stands between them (all of it ``nodes``) are no MBCI chain, if so."""
    bound = next((why for n in pair if (why := compute_bound(program, n, device))), "")
    if not bound:
        return ""
    most = saving(program, nodes, device)
    if most >= WORTH:
        return ""
    return f"{bound}, and one kernel for {' and '.join(n.output for n in pair)} could save {most:.0%} of the time at most"
