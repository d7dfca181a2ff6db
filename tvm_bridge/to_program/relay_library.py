"""Relay calls that a library computes, as operators of the op table: lookups, convolutions, pooling, whole numbers. What the
table cannot say (other layouts, averages over counted borders) stays ``opaque``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from tvm_bridge.read.relay_conv import pair
from tvm_bridge.read.relay_conv import sides

if TYPE_CHECKING:
    from tvm_bridge.read.relay_graph import RelayNode
    from tvm_bridge.to_program.relay_lower import Lowering

INDICES = ("int32", "int64")
WHOLE = ("bool", *INDICES)

Result = str | tuple[str, ...] | None
Lower = Callable[["Lowering", "RelayNode", tuple[str, ...]], Result]


def take(lo: Lowering, call: RelayNode, a: tuple[str, ...]) -> Result:
    """Rows of a table, or slices along an axis, by indices within its extent (of those that are no constants, Relay would clip
    others)."""
    x, index = a
    axis, rank, known = call.attr.get("axis"), len(lo.tensors[x].shape), lo.literals.get(index)
    if lo.tensors[index].dtype not in INDICES or call.attr.get("batch_dims") or not rank:
        return None
    if axis is None:
        x, axis, rank = _flat(lo, call, x, "flat"), 0, 1
    if known is not None:
        dtype = lo.tensors[index].dtype
        index = lo.literal(within(call, known, lo.tensors[x].shape[axis % rank]).astype(dtype), dtype, f"{index}_of_{x}")
    elif call.attr.get("mode") == "wrap":
        return None
    if axis % rank == 0 and rank == 2:
        return lo.emit(call, "embedding", x, index)
    found = lo.emit(call, "index_select", x, _flat(lo, call, index, "indices"), step="rows", dim=axis % rank)
    return lo.emit(call, "reshape", found, shape=call.types[0].dims)


def within(call: RelayNode, index: Any, extent: int) -> Any:
    """Constant indices as a take means them: clipped to the extent, or counted around it."""
    return index % extent if call.attr.get("mode") == "wrap" else np.clip(index, 0, extent - 1)


def _flat(lo: Lowering, call: RelayNode, x: str, step: str) -> str:
    size = math.prod(lo.tensors[x].shape)
    return x if lo.tensors[x].shape == (size,) else lo.emit(call, "reshape", x, step=step, shape=(size,))


def gather(lo: Lowering, call: RelayNode, a: tuple[str, ...]) -> Result:
    """Elements along an axis. Constants may count from its end, as in what frontends read; TVM's code reads beside the tensor."""
    x, index = a
    dim = call.attr["axis"] % len(lo.tensors[x].shape)
    if lo.tensors[index].dtype not in INDICES:
        return None
    if (known := lo.literals.get(index)) is not None and (known < 0).any():
        counted = np.where(known < 0, known + lo.tensors[x].shape[dim], known)
        index = lo.literal(counted.astype(np.int64), "int64", f"{index}_of_{x}")
    if lo.tensors[index].dtype != "int64":
        index = lo.emit(call, "cast", index, dtype="int64", step="indices")
    return lo.emit(call, "gather", x, index, dtype=lo.tensors[x].dtype, dim=dim)


def _indexed(lo: Lowering, call: RelayNode, a: tuple[str, ...]) -> Result:
    """Elements of the first operand by indices of its first dimensions."""
    if any(lo.tensors[i].dtype not in INDICES for i in a[1:]):
        return None
    return lo.emit(call, "index", *a, dims=tuple(range(len(a) - 1)))


def _plain(call: RelayNode) -> bool:
    """Whether tensors lie as torch has them."""
    layouts = (call.attr.get(k) or own for k, own in (("data_layout", "NCHW"), ("layout", "NCHW"), ("kernel_layout", "OIHW")))
    return all(have in ("NCHW", "OIHW") for have in layouts) and call.attr.get("out_layout") in ("", "NCHW", None)


def _border(call: RelayNode) -> tuple[int, int] | None:
    top, left, bottom, right = sides(call.attr.get("padding"))
    return (top, left) if (top, left) == (bottom, right) else None


def convolution(lo: Lowering, call: RelayNode, a: tuple[str, ...]) -> Result:
    at, padding = call.attr, _border(call)
    if not _plain(call) or padding is None or call.types[0].dtype != lo.tensors[a[0]].dtype:
        return None
    moves: dict[str, Any] = {"stride": pair(at.get("strides"), 1), "padding": padding, "dilation": pair(at.get("dilation"), 1)}
    return lo.emit(call, "conv2d", *a, groups=at.get("groups", 1), **moves)


def pooling(kind: str) -> Lower:
    def lower(lo: Lowering, call: RelayNode, a: tuple[str, ...]) -> Result:
        at, padding = call.attr, _border(call)
        if not _plain(call) or padding is None or at.get("ceil_mode"):
            return None
        dilation = pair(at.get("dilation"), 1)
        if kind == "avg" and (dilation != (1, 1) or (any(padding) and not at.get("count_include_pad"))):
            return None
        moves: dict[str, Any] = {"stride": pair(at.get("strides"), 1), "padding": padding}
        moves |= {"dilation": dilation} if kind == "max" else {}
        return lo.emit(call, f"{kind}_pool2d", a[0], kernel_size=pair(at["pool_size"], 1), **moves)

    return lower


def whole_image(kind: str) -> Lower:
    """Pooling of all of an image to one number."""

    def lower(lo: Lowering, call: RelayNode, a: tuple[str, ...]) -> Result:
        if not _plain(call) or call.types[0].dims[2:] != (1, 1):
            return None
        return lo.emit(call, kind, a[0], axis=(2, 3), keepdims=True)

    return lower


def _named(op: str) -> Lower:
    return lambda lo, call, a: lo.emit(call, op, *a, dtype=call.types[0].dtype)


def _signed(op: str) -> Lower:
    """Of whole numbers alone: TVM takes truths for numbers of one bit."""
    return lambda lo, call, a: None if call.types[0].dtype == "bool" else lo.emit(call, op, *a, dtype=call.types[0].dtype)


def _cumulated(lo: Lowering, call: RelayNode, a: tuple[str, ...]) -> Result:
    axis, kind = call.attr.get("axis"), call.types[0].dtype
    if axis is None or call.attr.get("exclusive") or kind != lo.tensors[a[0]].dtype:
        return None
    return lo.emit(call, "cumsum", a[0], dim=axis % len(lo.tensors[a[0]].shape))


def _cast(lo: Lowering, call: RelayNode, a: tuple[str, ...]) -> Result:
    return lo.emit(call, "cast", a[0], dtype=call.types[0].dtype) if call.types[0].dtype != lo.tensors[a[0]].dtype else a[0]


LIBRARY: dict[str, Lower] = {
    "gather": gather, "adv_index": _indexed, "nn.conv2d": convolution,
    "nn.max_pool2d": pooling("max"), "nn.avg_pool2d": pooling("avg"),
    **dict.fromkeys(("nn.adaptive_avg_pool2d", "nn.global_avg_pool2d"), whole_image("mean")),
    **dict.fromkeys(("nn.adaptive_max_pool2d", "nn.global_max_pool2d"), whole_image("max")),
}  # fmt: skip
"""What a library has for any dtype."""

EXACT: dict[str, Lower] = {
    "add": _named("add"), "subtract": _signed("sub"), "multiply": _named("mul"), "maximum": _named("maximum"),
    "minimum": _named("minimum"), "negative": _signed("neg"), "cast": _cast, "cast_like": _cast, "where": _named("where"),
    "cumsum": _cumulated,
}  # fmt: skip
"""What means the same of whole numbers and of truths: torch computes it exactly."""
