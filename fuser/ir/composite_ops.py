"""Composites of the op table: each entry beside what it expands into (bare exponentials; lowering makes them safe)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from fuser.ir import shapes
from fuser.ir.interval import Domain
from fuser.ir.opdef import Array
from fuser.ir.opdef import OpDef
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar

if TYPE_CHECKING:
    from fuser.frontends.builder import Builder
    from fuser.frontends.builder import Ref


def _mean(x: Array, *, axis: Sequence[int], keepdims: bool = False, **_: Any) -> Array:
    return np.mean(x, axis=tuple(axis), keepdims=keepdims)


def _softmax(x: Array, *, axis: int = -1, **_: Any) -> Array:
    """A row in which everything is masked (all -inf) is defined as zero; one with NaN or +inf is NaN, as in torch."""
    top = np.max(x, axis=axis, keepdims=True)
    with np.errstate(invalid="ignore"):
        e = np.exp(x - np.where(np.isneginf(top), 0, top))
    total = np.sum(e, axis=axis, keepdims=True)
    return np.where(total == 0, 0, e / np.where(total == 0, 1, total))


def _rms_norm(x: Array, *gain: Array, eps: Any = 1e-5, **_: Any) -> Array:
    y = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + float(Scalar.of(eps).value()))
    return y * gain[0] if gain else y


def _layer_norm(x: Array, *affine: Array, eps: Any = 1e-5, **_: Any) -> Array:
    mu = np.mean(x, axis=-1, keepdims=True)
    y = (x - mu) / np.sqrt(np.mean((x - mu) ** 2, axis=-1, keepdims=True) + float(Scalar.of(eps).value()))
    if affine:
        y = y * affine[0]
    return y + affine[1] if len(affine) > 1 else y


def _attention(q: Array, k: Array, v: Array, *mask: Array, scale: Any = 1, causal: bool = False, **_: Any) -> Array:
    s = np.matmul(q, np.swapaxes(k, -1, -2)) * Scalar.of(scale).value()
    if mask:
        s = s + mask[0]
    if causal:
        keep = np.arange(s.shape[-1])[None, :] <= np.arange(s.shape[-2])[:, None] + (s.shape[-1] - s.shape[-2])
        s = np.where(keep, s, -np.inf)
    return np.matmul(_softmax(s), v)


def _expand_mean(b: Builder, x: Ref, axis: tuple[int, ...], keepdims: bool) -> Ref:
    count = Scalar()
    for i in axis:
        count = count * Scalar.power(Extent(x.name, i % len(x.shape)), -1)
    return b.op("scale", b.op("sum", x, axis=axis, keepdims=keepdims), scalar=count)


def _expand_softmax(b: Builder, x: Ref, axis: int = -1) -> Ref:
    e = b.op("exp", x)
    return b.op("div", e, b.op("sum", e, axis=(axis,), keepdims=True))


def _expand_rms_norm(b: Builder, x: Ref, *gain: Ref, eps: Scalar) -> Ref:
    mean = _expand_mean(b, b.op("square", x), (-1,), True)
    y = b.op("div", x, b.op("sqrt", b.op("shift", mean, scalar=eps)))
    return b.op("mul", y, gain[0]) if gain else y


def _expand_layer_norm(b: Builder, x: Ref, *affine: Ref, eps: Scalar) -> Ref:
    d = b.op("sub", x, _expand_mean(b, x, (-1,), True))
    var = _expand_mean(b, b.op("square", d), (-1,), True)
    y = b.op("div", d, b.op("sqrt", b.op("shift", var, scalar=eps)))
    if affine:
        y = b.op("mul", y, affine[0])
    return b.op("add", y, affine[1]) if len(affine) > 1 else y


def _expand_attention(b: Builder, q: Ref, k: Ref, v: Ref, *mask: Ref, scale: Scalar, causal: bool = False) -> Ref:
    n = len(k.shape)
    s = b.op("matmul", q, b.op("transpose", k, perm=(*range(n - 2), n - 1, n - 2)))
    s = b.op("scale", s, scalar=scale) if scale != Scalar() else s
    s = b.op("add", s, mask[0]) if mask else s
    s = b.op("causal_mask", s, offset=k.shape[-2] - q.shape[-2]) if causal else s
    return b.op("matmul", _expand_softmax(b, s), v)


COMPOSITES = (
    OpDef("mean", "composite", 1, _mean, linear=(True,), attrs=("axis", "keepdims"), relay=("mean",), torch=("mean", "mean.dim"),
          shape=shapes.folded, expansion=lambda b, x, axis, keepdims=False: _expand_mean(b, x, axis, keepdims)),
    OpDef("softmax", "composite", 1, _softmax, attrs=("axis",), flops=5, sfu=1, relay=("nn.softmax", "nn.fast_softmax"),
          torch=("softmax.int", "_softmax"), image=Domain(0.0, 1.0), shape=shapes.first, expansion=_expand_softmax),
    OpDef("rms_norm", "composite", -1, _rms_norm, attrs=("eps",), flops=4, torch=("rms_norm",), shape=shapes.first,
          expansion=_expand_rms_norm),
    OpDef("layer_norm", "composite", -1, _layer_norm, attrs=("eps",), flops=8, relay=("nn.layer_norm",),
          torch=("layer_norm", "native_layer_norm"), shape=shapes.first, expansion=_expand_layer_norm),
    OpDef("attention", "composite", -1, _attention, attrs=("scale", "causal"), flops=4, sfu=1,
          torch=("scaled_dot_product_attention",), shape=shapes.attention, expansion=_expand_attention),
)  # fmt: skip
