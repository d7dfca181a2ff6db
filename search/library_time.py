"""Estimates of a library's calls: products, and what moves as many bytes as it reads and writes."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

from cost_model import refined
from cost_model.element_time import element_seconds
from cost_model.names import CHAINED
from cost_model.names import REFINED
from cost_model.program_time import bias_seconds
from fuser.device import Device
from fuser.errors import UnsupportedError
from fuser.ir.library_ops import is_convolution
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.program import NARROW
from fuser.ir.program import Tensor
from fuser.ir.rows import pitch_of
from fuser.lower.element_tiles import recipe_of
from fuser.lower.order_code import Order
from fuser.lower.written import ORDERS
from fuser.runtime.library import behind
from fuser.runtime.library import constants
from fuser.runtime.library import matmul_parts
from fuser.runtime.library import value_of
from fuser.runtime.library import views_of
from search.order_time import order_seconds
from search.order_time import torch_seconds

TURNING = 3.0
"""Times the bytes of an image that a library moves at the same rate to bring channels where it wants them: an H200 took 40, 4.5
and 2.5 µs for 26, 3.2 and 1.1 MB."""
UNLIKE = 1.2
"""Times the estimate of groups that are alike, for tiles that a group does not fill: 22 cases on an H200 took 0.5 to 1.7."""


def library_seconds(
    graph: KernelGraph, kernel: LibraryKernel, device: Device, model: str = REFINED, copied: bool = False
) -> float:
    """Estimate of a library kernel on tensors of the program; nothing for a view that needs no launch. ``copied``: operands of
    which a product would need several calls may be copied for one."""
    if kernel.output in views_of(graph):
        return 0.0
    tensors = graph.device_tensors
    if any(name not in tensors for name in (*kernel.args, kernel.output)):
        raise UnsupportedError(f"library kernel {kernel.name!r} reads a tensor whose shape a schedule chooses")
    if kernel.op == "elements" or kernel.entry.element is not None:
        with suppress(UnsupportedError):
            attrs = constants(kernel, graph, tensors)
            found = element_seconds(recipe_of(kernel.op, kernel.args, kernel.output, attrs, tensors), device)
            return found + _turning(graph, kernel, device)
    if kernel.op == "attention":
        return _attention_seconds(graph, kernel, device, model == CHAINED)
    if kernel.op == "grouped_matmul":
        return _grouped_seconds(tensors[kernel.args[0]], tensors[kernel.args[1]], tensors[kernel.output], device)
    if kernel.op in ORDERS:
        ours = tensors[kernel.output].dtype == "int64" and not _strided(graph, kernel.args[0])
        return (order_seconds if ours else torch_seconds)(order_of(graph, kernel), device)
    if not kernel.contracts:
        moved = refined.memory_kernel_seconds(sum(tensors[a].nbytes for a in (*kernel.args, kernel.output)), device)
        more = bias_seconds(kernel.op, len(kernel.args), tensors[kernel.output].nbytes, device)
        return moved + more + _turning(graph, kernel, device)
    a, b = (tensors[x].shape for x in kernel.args)
    product = refined.matmul_product(a, b, tensors[kernel.output].shape, tensors[kernel.args[0]].dtype)
    calls, chained = _calls(graph, kernel), model == CHAINED
    part = replace(product, batch=math.ceil(product.batch / calls))
    multiplied = calls * refined.matmul_seconds(part, device, precision="ieee", chained=chained)
    if copied and calls > 1:
        once = refined.matmul_seconds(product, device, precision="ieee", chained=chained)
        multiplied = min(multiplied, once + _spread_out(graph, kernel, device))
    return multiplied + _aligning(graph, kernel, device)


def order_of(graph: KernelGraph, kernel: LibraryKernel) -> Order:
    """What a kernel orders."""
    tensors = graph.device_tensors
    return Order.of(kernel.op, constants(kernel, graph, tensors), tensors[kernel.args[0]])


def _grouped_seconds(x: Tensor, weights: Tensor, out: Tensor, device: Device) -> float:
    """Of rows in groups as large as they are on average, which they are not; of fewer rows than groups, of as many groups."""
    groups = min(weights.shape[0], x.shape[0])
    product = refined.Product(groups, math.ceil(x.shape[0] / groups), out.shape[1], x.shape[1], x.dtype)
    return UNLIKE * refined.matmul_seconds(product, device)


def _spread_out(graph: KernelGraph, kernel: LibraryKernel, device: Device) -> float:
    """What it takes to copy the operands of a batched product that are views as large as its batch asks for."""
    tensors = graph.device_tensors
    batch = math.prod(tensors[kernel.output].shape[:-2])
    sizes = (math.prod(tensors[a].shape[-2:]) * DTYPE_BYTES[tensors[a].dtype] for a in kernel.args if _strided(graph, a))
    return math.fsum(refined.memory_kernel_seconds(2 * batch * n, device) for n in sizes)


def _aligning(graph: KernelGraph, kernel: LibraryKernel, device: Device) -> float:
    """What a product in half precision takes besides for rows that begin at odd addresses: torch's compiler copies operands into
    longer rows, and the result out of them (8205 × 2949 by 2949 × 5921 took an H100 388 µs, and 61 and 119 for that; with
    operands as they are it takes 2140)."""
    given = dict.fromkeys(kernel.args)
    tensors = [graph.device_tensors[n] for n in (*given, kernel.output, kernel.output)]
    odd = (t.nbytes for t in tensors if t.dtype in NARROW and pitch_of(t))
    return math.fsum(refined.memory_kernel_seconds(2 * n, device) for n in odd)


def _attention_seconds(graph: KernelGraph, kernel: LibraryKernel, device: Device, chained: bool) -> float:
    """Of attention step by step (:func:`fuser.runtime.forms.explicit_attention`): scores go through memory at each."""
    tensors, out = graph.device_tensors, graph.device_tensors[kernel.output]
    q, k, v = (tensors[a].shape for a in kernel.args[:3])
    scores = (*out.shape[:-1], k[-2])
    masked = len(kernel.args) > 3, bool(dict(kernel.attrs).get("causal"))
    steps = 1 + (out.dtype != "float32") + sum(masked) + any(masked)
    products = (q, (*k[:-2], k[-1], k[-2]), scores), (scores, v, out.shape)
    multiplied = [refined.matmul_product(a, b, y, out.dtype) for a, b, y in products]
    size = math.prod(scores) * DTYPE_BYTES[out.dtype]
    return steps * refined.memory_kernel_seconds(2 * size, device) + math.fsum(
        refined.matmul_seconds(p, device, precision="ieee", chained=chained) for p in multiplied
    )


def _turning(graph: KernelGraph, kernel: LibraryKernel, device: Device) -> float:
    """What a convolution, or an operator whose elements only move, takes besides for operands that do not lie row after row: they
    are copied, or torch goes through them one by one (to join 6.5 MB that lie turned with others took an H100 24 µs)."""
    if not is_convolution(kernel.op) and kernel.entry.element is None:
        return 0.0
    sizes = (graph.device_tensors[a].nbytes for a in dict.fromkeys(kernel.args) if _strided(graph, a))
    return math.fsum(refined.memory_kernel_seconds(2 * TURNING * n, device) for n in sizes)


def _strided(graph: KernelGraph, name: str) -> bool:
    return name in views_of(graph) and name not in behind(graph)


def _calls(graph: KernelGraph, kernel: LibraryKernel) -> int:
    """How many products of matrices, or of batches of one stride, a product is for a library."""
    if not any(_strided(graph, a) for a in kernel.args) or len(graph.device_tensors[kernel.output].shape) < 4:
        return 1
    import torch

    table = {n: torch.empty(t.shape, device="meta") for n, t in graph.device_tensors.items()}
    views = views_of(graph)
    return len(matmul_parts(*(value_of(n, views, table) for n in (*kernel.args, kernel.output))))
