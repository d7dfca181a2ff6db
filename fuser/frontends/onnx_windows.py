"""ONNX's convolutions, poolings, borders and sizes: rules from a node to operators of a program."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fuser.frontends.composed import bordered
from fuser.frontends.composed import cut
from fuser.frontends.onnx_call import Call
from fuser.ir.builder import Ref
from fuser.ir.program import FLOAT_DTYPES

Pairs = list[tuple[int, int]]


def _moves(c: Call, window: tuple[int, ...]) -> tuple[dict[str, Any], Pairs]:
    """Stride and dilation, as torch has them, and what stands before and behind each axis."""
    rank = len(window)
    strides, dilations = (tuple(c.attrs.get(n, (1,) * rank)) for n in ("strides", "dilations"))
    pads = tuple(c.attrs.get("pads", (0,) * 2 * rank))
    sizes = [*zip(c.ref(0).shape[2:], window, strides, dilations, strict=True)]
    auto = c.attrs.get("auto_pad", b"NOTSET")
    borders = [*zip(pads[:rank], pads[rank:], strict=True)]
    if auto in (b"SAME_UPPER", b"SAME_LOWER"):
        lacking = [max((-(-n // s) - 1) * s + d * (w - 1) + 1 - n, 0) for n, w, s, d in sizes]
        borders = [(a // 2, a - a // 2) if auto == b"SAME_UPPER" else (a - a // 2, a // 2) for a in lacking]
    elif auto == b"VALID":
        borders = [(0, 0)] * rank
    elif auto != b"NOTSET":
        raise c.unsupported(f"has auto_pad={auto.decode(errors='replace')!r}", "it is NOTSET, SAME_UPPER, SAME_LOWER or VALID")
    if c.attrs.get("ceil_mode"):  # the last window may begin where the axis, or its border in front, still is
        for i, ((n, w, s, d), (a, z)) in enumerate(zip(sizes, borders, strict=True)):
            span = n + a + z - d * (w - 1) - 1
            places = -(-span // s) + 1
            places -= (places - 1) * s >= n + a
            borders[i] = (a, z + max((places - 1) * s - span, 0))
    return {"stride": strides, "dilation": dilations}, borders


def _padded(c: Call, x: Ref, borders: Pairs, number: float) -> tuple[Ref, tuple[int, ...]]:
    """The tensor, and what a library operator is to add at both ends: borders that differ are added before."""
    if all(a == z for a, z in borders):
        return x, tuple(a for a, _ in borders)
    whole = [*[(0, 0)] * (len(x.shape) - len(borders)), *borders]
    return bordered(c.b, x, whole, lambda: c.filled(number, x)), (0,) * len(borders)


def _conv(c: Call) -> Ref:
    weight = c.ref(1)
    moves, borders = _moves(c, weight.shape[2:])
    x, padding = _padded(c, c.ref(0), borders, 0.0)
    operands = [x, weight, *([c.ref(2)] if c.given(2) else [])]
    return c.b.op(f"conv{len(borders)}d", *operands, groups=c.attrs.get("group", 1), padding=padding, **moves)


def _conv_transpose(c: Call) -> Ref:
    auto = c.attrs.get("auto_pad", b"NOTSET")
    rank = len(c.ref(0).shape) - 2
    each = {
        n: tuple(c.attrs.get(n, (default,) * rank)) for n, default in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    }
    pads = tuple(c.attrs.get("pads", (0,) * 2 * rank)) if auto != b"VALID" else (0,) * 2 * rank
    operands = [c.ref(i) for i in range(3) if c.given(i)]
    moves: dict[str, Any] = {"stride": each["strides"], "dilation": each["dilations"], "groups": c.attrs.get("group", 1)}
    further, wanted = each["output_padding"], c.attrs.get("output_shape")
    if not wanted and auto in (b"SAME_UPPER", b"SAME_LOWER"):
        wanted = [n * s for n, s in zip(c.ref(0).shape[2:], each["strides"], strict=True)]
    if wanted:
        whole = zip(c.ref(0).shape[2:], operands[1].shape[2:], *each.values(), wanted[-rank:], strict=True)
        total = [(n - 1) * s + d * (w - 1) + 1 + more - out for n, w, s, d, more, out in whole]
        if any(t < 0 for t in total):
            raise c.unsupported(f"has the output shape {wanted}")
        less, rest = [t // 2 for t in total], [t - t // 2 for t in total]
        pads = (*less, *rest) if auto == b"SAME_UPPER" else (*rest, *less)
    same = pads[:rank] == pads[rank:]
    y = c.b.op(f"conv_transpose{rank}d", *operands, output_padding=further, padding=pads[:rank] if same else (0,) * rank, **moves)
    for i in () if same else range(rank):
        y = cut(c.b, y, i + 2, pads[i], y.shape[i + 2] - pads[rank + i])
    return y


def _pool(kind: str) -> Callable[[Call], Ref]:
    def rule(c: Call) -> Ref:
        if c.results > 1:
            raise c.unsupported("has its indices read")
        x, window = c.ref(0), tuple(c.attrs["kernel_shape"])
        moves, borders = _moves(c, window)
        if kind == "max":
            whole = x.tensor.dtype not in FLOAT_DTYPES
            x, padding = _padded(c, x, borders, int(np.iinfo(x.tensor.dtype).min) if whole else -math.inf)
            return c.b.op(f"max_pool{len(window)}d", x, kernel_size=window, padding=padding, **moves)
        if set(moves.pop("dilation")) != {1}:
            raise c.unsupported("is dilated")
        return _mean(c, x, window, moves, borders)

    return rule


def _mean(c: Call, x: Ref, window: tuple[int, ...], moves: dict[str, Any], borders: Pairs) -> Ref:
    """The mean of a window; where its border does not count, the sum over the number of elements that do."""
    x, padding = _padded(c, x, borders, 0.0)
    y = c.b.op(f"avg_pool{len(window)}d", x, kernel_size=window, padding=padding, **moves)
    given = tuple(c.attrs.get("pads", (0,) * 2 * len(window)))
    counted = c.attrs.get("count_include_pad")
    if not any(map(any, borders)) or (counted and not c.attrs.get("ceil_mode")):
        return y
    edge = [*zip(given[: len(window)], given[len(window) :], strict=True)] if counted else [(0, 0)] * len(window)
    ones = np.ones([n + sum(e) for n, e in zip(c.ref(0).shape[2:], edge, strict=True)])
    ones = np.pad(ones, [(a - p, z - q) for (a, z), (p, q) in zip(borders, edge, strict=True)])
    share = np.lib.stride_tricks.sliding_window_view(ones, window)[tuple(slice(None, None, s) for s in moves["stride"])]
    share = share.mean(tuple(range(-len(window), 0)))
    return c.b.op("div", y, c.constant(share.astype(x.tensor.dtype)))


def _global(op: str) -> Callable[[Call], Ref]:
    def rule(c: Call) -> Ref:
        x = c.ref(0)
        return c.b.op(op, x, axis=tuple(range(2, len(x.shape))), keepdims=True)

    return rule


def _pad(c: Call) -> Ref:
    x, pads = c.ref(0), c.ints(1, "pads") or ()
    rank = len(x.shape)
    axes = c.axes(c.ints(3, "axes") or range(rank), rank)
    borders: Pairs = [(0, 0)] * rank
    for i, a in enumerate(axes):
        borders[a] = (pads[i], pads[len(axes) + i])
    mode = c.attrs.get("mode", b"constant")
    if mode == b"constant":
        value = c.number(2, "constant_value") if c.given(2) else c.attrs.get("value")
        return bordered(c.b, x, borders, lambda: c.filled(value or 0.0, x))
    for axis, (before, behind) in enumerate(borders):
        x = cut(c.b, x, axis, max(-before, 0), x.shape[axis] - max(-behind, 0))
        if before > 0 or behind > 0:
            places = np.pad(np.arange(x.shape[axis]), (max(before, 0), max(behind, 0)), mode.decode())  # type: ignore[call-overload]
            x = c.b.op("index_select", x, c.constant(places), dim=axis)
    return x


# Sizes


def _resize(c: Call) -> Ref:
    """Along each axis that changes: to the nearest element, or between the two or four nearest."""
    x = c.ref(0)
    scales, sizes = (2, 3) if c.op == "Resize" and c.opset > 10 else (1, 3)
    c.only(antialias=0, keep_aspect_ratio_policy="stretch", exclude_outside=0)
    axes = c.axes(c.attrs.get("axes", range(len(x.shape))), len(x.shape))
    wanted = c.array(sizes, "sizes")
    factors = c.array(scales, "scales") if wanted is None or not wanted.size else None
    mode = c.attrs.get("mode", b"nearest").decode()
    for i, axis in enumerate(axes):
        n = x.shape[axis]
        factor = float(factors[i]) if factors is not None else float(np.asarray(wanted)[i]) / n
        m = math.floor(n * factor) if factors is not None else int(np.asarray(wanted)[i])
        if (m, factor) != (n, 1.0):
            at = _origins(c, n, m, factor)
            x = _nearest(c, x, axis, at) if mode == "nearest" else _between(c, x, axis, at, mode)
    return x


def _origins(c: Call, n: int, m: int, factor: float) -> np.ndarray[Any, Any]:
    """Where each element of the result lies in the original."""
    out = np.arange(m, dtype=np.float64)
    default = b"half_pixel" if c.opset > 10 and c.op == "Resize" else b"asymmetric"
    match c.attrs.get("coordinate_transformation_mode", default).decode():
        case "half_pixel":
            return (out + 0.5) / factor - 0.5
        case "asymmetric":
            return out / factor
        case "align_corners":
            return out * ((n - 1) / (n * factor - 1) if m > 1 else 0)
        case "pytorch_half_pixel":
            return (out + 0.5) / factor - 0.5 if m > 1 else out * 0
        case mode:
            raise c.unsupported(f"has the coordinate transformation {mode}")


def _nearest(c: Call, x: Ref, axis: int, at: np.ndarray[Any, Any]) -> Ref:
    default = b"round_prefer_floor" if c.opset > 10 and c.op == "Resize" else b"floor"
    rounding: dict[str, Callable[[Any], Any]] = {
        "round_prefer_floor": lambda v: np.ceil(v - 0.5), "round_prefer_ceil": lambda v: np.floor(v + 0.5),
        "floor": np.floor, "ceil": np.ceil,
    }  # fmt: skip
    n = x.shape[axis]
    places = np.clip(rounding[c.attrs.get("nearest_mode", default).decode()](at), 0, n - 1).astype(np.int64)
    if len(places) % n == 0 and np.array_equal(places, np.repeat(np.arange(n), len(places) // n)):
        return c.b.op("repeat", x, axis=axis, times=len(places) // n)
    return c.b.op("index_select", x, c.constant(places), dim=axis)


def _between(c: Call, x: Ref, axis: int, at: np.ndarray[Any, Any], mode: str) -> Ref:
    """A product with a matrix of two entries a row, or four; elements beyond the border are those at it."""
    n, m = x.shape[axis], len(at)
    low = np.floor(at).astype(int)
    part = at - low
    a = float(c.attrs.get("cubic_coeff_a", -0.75))
    share = {0: 1 - part, 1: part}
    if mode == "cubic":
        share = {k: _cubic(abs(part - k), a) for k in (-1, 0, 1, 2)}
    matrix = np.zeros((n, m))
    for k, weight in share.items():
        np.add.at(matrix, (np.clip(low + k, 0, n - 1), np.arange(m)), weight)
    rank = len(x.shape)
    perm = [*(i for i in range(rank) if i != axis), axis]
    y = (x if axis == rank - 1 else x.transpose(*perm)) @ c.constant(matrix.astype(x.tensor.dtype))
    return y if axis == rank - 1 else y.transpose(*np.argsort(perm).tolist())


def _cubic(d: np.ndarray[Any, Any], a: float) -> np.ndarray[Any, Any]:
    """Keys' convolution kernel at a distance."""
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    return np.where(d <= 1, near, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a)


def _local_response(c: Call) -> Ref:
    """LRN: over the sum of squares of neighbouring channels."""
    x, size = c.ref(0), c.attrs["size"]
    n = x.shape[1]
    at = np.arange(n)
    near = (at[:, None] >= at - (size - 1) // 2) & (at[:, None] <= at + size // 2)
    flat = c.reshape(c.b.op("square", x), (x.shape[0], n, math.prod(x.shape[2:])))
    total = c.reshape(c.constant(near.T.astype(x.tensor.dtype)) @ flat, x.shape)
    scale = total * (c.attrs.get("alpha", 1e-4) / size) + float(c.attrs.get("bias", 1.0))
    return c.b.op("div", x, c.b.op("pow", scale, exponent=float(c.attrs.get("beta", 0.75))))


def _depth_to_space(c: Call) -> Ref:
    x, size = c.ref(0), c.attrs["blocksize"]
    n, channels, rows, columns = x.shape
    columns_first = c.attrs.get("mode", b"DCR") == b"DCR"
    depth = channels // size**2
    shape = (n, size, size, depth, rows, columns) if columns_first else (n, depth, size, size, rows, columns)
    y = c.reshape(x, shape).transpose(*((0, 3, 4, 1, 5, 2) if columns_first else (0, 1, 4, 2, 5, 3)))
    return c.reshape(y, (n, depth, rows * size, columns * size))


def _space_to_depth(c: Call) -> Ref:
    x, size = c.ref(0), c.attrs["blocksize"]
    n, channels, rows, columns = x.shape
    y = c.reshape(x, (n, channels, rows // size, size, columns // size, size)).transpose(0, 3, 5, 1, 2, 4)
    return c.reshape(y, (n, channels * size**2, rows // size, columns // size))


WINDOWS: dict[str, Callable[[Call], Any]] = {
    "Conv": _conv, "ConvTranspose": _conv_transpose, "MaxPool": _pool("max"), "AveragePool": _pool("avg"),
    "GlobalAveragePool": _global("mean"), "GlobalMaxPool": _global("max"), "Pad": _pad, "Resize": _resize, "Upsample": _resize,
    "DepthToSpace": _depth_to_space, "SpaceToDepth": _space_to_depth, "LRN": _local_response,
}  # fmt: skip
