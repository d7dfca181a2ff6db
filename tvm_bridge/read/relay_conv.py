"""Convolution and pooling of Relay: type rules and numpy semantics, entered into the table of :mod:`tvm_bridge.read.relay_ops`.

Plain layouts only (NCHW, NHWC, OIHW, HWIO and other orders of them); a split layout such as NCHW4c needs the type of the file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tvm_bridge.read.relay_graph import TensorType
from tvm_bridge.read.relay_ops import Array
from tvm_bridge.read.relay_ops import Attrs
from tvm_bridge.read.relay_ops import Numpy
from tvm_bridge.read.relay_ops import Operands
from tvm_bridge.read.relay_ops import TypeRuleError
from tvm_bridge.read.relay_ops import define
from tvm_bridge.read.relay_ops import numpy_dtype
from tvm_bridge.read.relay_shapes import layout_permutation

Outs = tuple[TensorType, ...]


def pair(value: object, default: int) -> tuple[int, int]:
    if value is None:
        return (default, default)
    if isinstance(value, int):
        return (value, value)
    if isinstance(value, tuple) and len(value) in (1, 2):
        return (int(value[0]), int(value[-1]))
    raise TypeRuleError(f"{value} is not a pair of sizes")


def sides(value: object) -> tuple[int, int, int, int]:
    """top, left, bottom, right."""
    if isinstance(value, tuple) and len(value) == 4:
        return (int(value[0]), int(value[1]), int(value[2]), int(value[3]))
    y, x = pair(value, 0)
    return (y, x, y, x)


def _data_layout(attrs: Attrs) -> str:
    layout = attrs.get("data_layout") or attrs.get("layout") or "NCHW"
    out = attrs.get("out_layout")
    if out and out != layout:
        raise TypeRuleError(f"the output layout {out} differs from {layout}")
    return layout


def _extent(size: int, window: int, stride: int, dilation: int, pad: int, ceil: bool = False) -> int:
    span = size + pad - dilation * (window - 1) - 1
    if span < 0:
        raise TypeRuleError(f"a window of {window} does not fit an extent of {size}")
    return (span + (stride - 1 if ceil else 0)) // stride + 1


def _permuted(shape: tuple[int, ...], source: str, target: str) -> tuple[int, ...]:
    if len(shape) != 4:
        raise TypeRuleError(f"the shape {shape} has not four dimensions")
    return tuple(shape[i] for i in layout_permutation(source, target))


def _conv_type(o: Operands) -> TensorType:
    layout = _data_layout(o.attrs)
    n, c, h, w = _permuted(o[0], layout, "NCHW")
    k, per_group, kh, kw = _permuted(o[1], o.attrs.get("kernel_layout") or "OIHW", "OIHW")
    if per_group * o.attrs.get("groups", 1) != c:
        raise TypeRuleError(f"{c} channels but a kernel of {per_group} in {o.attrs.get('groups', 1)} groups")
    (sy, sx), (dy, dx) = pair(o.attrs.get("strides"), 1), pair(o.attrs.get("dilation"), 1)
    top, left, bottom, right = sides(o.attrs.get("padding"))
    found = (n, k, _extent(h, kh, sy, dy, top + bottom), _extent(w, kw, sx, dx, left + right))
    return TensorType(_permuted(found, "NCHW", layout), o.attrs.get("out_dtype") or o.dtype)


def _windows(x: Array, window: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]) -> Array:
    """[N, C, OH, OW, KH, KW] view of the sliding windows of a padded NCHW array."""
    span = tuple(d * (k - 1) + 1 for k, d in zip(window, dilation, strict=True))
    view = np.lib.stride_tricks.sliding_window_view(x, span, axis=(2, 3))
    return view[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]


def _conv(a: Sequence[Array], at: Attrs, out: Outs) -> Array:
    layout, groups = _data_layout(at), at.get("groups", 1)
    x = a[0].transpose(layout_permutation(layout, "NCHW")).astype(numpy_dtype(out[0].dtype), copy=False)
    w = a[1].transpose(layout_permutation(at.get("kernel_layout") or "OIHW", "OIHW"))
    top, left, bottom, right = sides(at.get("padding"))
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    view = _windows(x, (w.shape[2], w.shape[3]), pair(at.get("strides"), 1), pair(at.get("dilation"), 1))
    n, c, oh, ow = view.shape[:4]
    cols = view.reshape(n, groups, c // groups, oh, ow, -1).transpose(0, 1, 3, 4, 2, 5).reshape(n, groups, oh * ow, -1)
    kernel = w.reshape(groups, w.shape[0] // groups, -1).transpose(0, 2, 1)
    y = np.matmul(cols, kernel).transpose(0, 1, 3, 2).reshape(n, w.shape[0], oh, ow)
    return y.transpose(layout_permutation("NCHW", layout))


def _pool_type(o: Operands) -> TensorType:
    layout = _data_layout(o.attrs)
    n, c, h, w = _permuted(o[0], layout, "NCHW")
    (ky, kx), (sy, sx) = pair(o.attrs["pool_size"], 1), pair(o.attrs.get("strides"), 1)
    (dy, dx), ceil = pair(o.attrs.get("dilation"), 1), bool(o.attrs.get("ceil_mode"))
    top, left, bottom, right = sides(o.attrs.get("padding"))
    found = (n, c, _extent(h, ky, sy, dy, top + bottom, ceil), _extent(w, kx, sx, dx, left + right, ceil))
    return TensorType(_permuted(found, "NCHW", layout), o.dtype)


def _pooled(x: Array, at: Attrs, out: TensorType, fill: float) -> Array:
    """Windows of an NCHW array; the tail is padded so that ceil mode fits."""
    _, _, oh, ow = _permuted(out.dims, _data_layout(at), "NCHW")
    window, stride, dilation = pair(at["pool_size"], 1), pair(at.get("strides"), 1), pair(at.get("dilation"), 1)
    top, left, bottom, right = sides(at.get("padding"))
    need_y = (oh - 1) * stride[0] + dilation[0] * (window[0] - 1) + 1
    need_x = (ow - 1) * stride[1] + dilation[1] * (window[1] - 1) + 1
    tail_y, tail_x = max(bottom, need_y - x.shape[2] - top), max(right, need_x - x.shape[3] - left)
    padded = np.pad(x, ((0, 0), (0, 0), (top, tail_y), (left, tail_x)), constant_values=fill)
    return _windows(padded, window, stride, dilation)[:, :, :oh, :ow]


def _pool(maximum: bool) -> Numpy:
    def call(a: Sequence[Array], at: Attrs, out: Outs) -> Array:
        layout = _data_layout(at)
        x = a[0].transpose(layout_permutation(layout, "NCHW"))
        if maximum:
            y = _pooled(x, at, out[0], -math.inf).max(axis=(4, 5))
        else:
            total = _pooled(x, at, out[0], 0.0).sum(axis=(4, 5))
            inside = _counted(x, at, out[0])
            y = total / np.maximum(inside, 1)
        return y.astype(a[0].dtype).transpose(layout_permutation("NCHW", layout))

    return call


def _counted(x: Array, at: Attrs, out: TensorType) -> Array:
    """Elements that an average divides by: those of the image, with ``count_include_pad`` those of the declared padding too."""
    ones = np.ones((1, 1, *x.shape[2:]), x.dtype)
    if at.get("count_include_pad"):
        top, left, bottom, right = sides(at.get("padding"))
        ones = np.ones((1, 1, x.shape[2] + top + bottom, x.shape[3] + left + right), x.dtype)
        at = {**at, "padding": (0, 0, 0, 0)}
    return _pooled(ones, at, out, 0.0).sum(axis=(4, 5))


def _global_type(o: Operands) -> TensorType:
    layout = _data_layout(o.attrs)
    n, c, _, _ = _permuted(o[0], layout, "NCHW")
    size = pair(o.attrs.get("output_size") or (1, 1), 1)
    return TensorType(_permuted((n, c, *size), "NCHW", layout), o.dtype)


def _adaptive(maximum: bool) -> Numpy:
    def call(a: Sequence[Array], at: Attrs, out: Outs) -> Array:
        layout = _data_layout(at)
        x = a[0].transpose(layout_permutation(layout, "NCHW"))
        n, c, oh, ow = _permuted(out[0].dims, layout, "NCHW")
        y = np.empty((n, c, oh, ow), x.dtype)
        fold = np.max if maximum else np.mean
        h, w = x.shape[2:]
        for i in range(oh):
            for j in range(ow):
                part = x[:, :, i * h // oh : -(-(i + 1) * h // oh), j * w // ow : -(-(j + 1) * w // ow)]
                y[:, :, i, j] = fold(part, axis=(2, 3))
        return y.transpose(layout_permutation("NCHW", layout))

    return call


_CONV = "strides:ref padding:ref dilation:ref groups:int channels:ref kernel_size:ref data_layout:text kernel_layout:text"
_POOL = "pool_size:ref strides:ref padding:ref dilation:ref layout:text out_layout:text ceil_mode:bool"

define("nn.conv2d", f"{_CONV} out_layout:text out_dtype:text", _conv_type, _conv)
define("nn.max_pool2d", _POOL, _pool_type, _pool(True))
define("nn.avg_pool2d", f"{_POOL} count_include_pad:bool", _pool_type, _pool(False))
_GLOBAL = "output_size:ref layout:text out_layout:text"
define("nn.global_avg_pool2d nn.adaptive_avg_pool2d", _GLOBAL, _global_type, _adaptive(False))
define("nn.global_max_pool2d nn.adaptive_max_pool2d", _GLOBAL, _global_type, _adaptive(True))
