"""Composites of the op table: each entry beside what it expands into (bare exponentials; lowering makes them safe)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from fuser.ir import shapes
from fuser.ir.interval import NOT_NEGATIVE
from fuser.ir.interval import Domain
from fuser.ir.opdef import Array
from fuser.ir.opdef import OpDef
from fuser.ir.scalar import Scalar

if TYPE_CHECKING:
    from fuser.ir.builder import Builder
    from fuser.ir.builder import Ref


def _mean(x: Array, *, axis: Sequence[int], keepdims: bool = False, **_: Any) -> Array:
    return np.mean(x, axis=tuple(axis), keepdims=keepdims)


def _softmax(x: Array, *, axis: int = -1, strict: bool = False, **_: Any) -> Array:
    """A row in which everything is masked (all -inf) is defined as zero, ``strict`` as NaN; one with NaN or +inf is NaN, as in
    torch."""
    top = np.max(x, axis=axis, keepdims=True)
    with np.errstate(invalid="ignore"):
        e = np.exp(x - np.where(np.isneginf(top), 0, top))
    total = np.sum(e, axis=axis, keepdims=True)
    return np.where(total == 0, np.nan if strict else 0, e / np.where(total == 0, 1, total))


def _attention(q: Array, k: Array, v: Array, *mask: Array, scale: Any = 1, causal: bool = False, **_: Any) -> Array:
    s = np.matmul(q, np.swapaxes(k, -1, -2)) * Scalar.of(scale).value()
    if mask:
        s = s + mask[0]
    if causal:
        keep = np.arange(s.shape[-1])[None, :] <= np.arange(s.shape[-2])[:, None] + (s.shape[-1] - s.shape[-2])
        s = np.where(keep, s, -np.inf)
    return np.matmul(_softmax(s), v)


def _expand_mean(b: Builder, x: Ref, axis: tuple[int, ...], keepdims: bool = False) -> Ref:
    count = Scalar()
    for i in axis:
        count = count * Scalar.power(b.extent(x, i), -1)
    return b.op("scale", b.op("sum", x, axis=axis, keepdims=keepdims), scalar=count)


def _expand_softmax(b: Builder, x: Ref, axis: int = -1, **strict: Any) -> Ref:
    e = b.op("exp", x)
    return b.op("div", e, b.op("sum", e, axis=(axis,), keepdims=True), **strict)


def _expand_rms_norm(b: Builder, x: Ref, *gain: Ref, eps: Any = 1e-5) -> Ref:
    mean = _expand_mean(b, b.op("square", x), (-1,), True)
    y = b.op("div", x, b.op("sqrt", b.op("shift", mean, scalar=eps)))
    return b.op("mul", y, gain[0]) if gain else y


def _expand_layer_norm(b: Builder, x: Ref, *affine: Ref, eps: Any = 1e-5) -> Ref:
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


def _expand_min(b: Builder, x: Ref, axis: tuple[int, ...], keepdims: bool = False) -> Ref:
    return -b.op("max", -x, axis=axis, keepdims=keepdims)


def _expand_var(b: Builder, x: Ref, axis: tuple[int, ...], keepdims: bool = False, correction: Any = 0) -> Ref:
    square = b.op("square", b.op("sub", x, _expand_mean(b, x, axis, True)))
    correction = Scalar.of(correction)
    if correction.coeff == 0:
        return _expand_mean(b, square, axis, keepdims)
    count = math.prod(x.shape[i] for i in axis)
    total = b.op("sum", square, axis=axis, keepdims=keepdims)
    return b.op("scale", total, scalar=Scalar.of(1 / (count - correction.coeff)))


def _logsumexp(x: Array, *, axis: Sequence[int], keepdims: bool = False, **_: Any) -> Array:
    top = np.max(x, axis=tuple(axis), keepdims=True)
    total = np.sum(np.exp(x - np.where(np.isfinite(top), top, 0)), axis=tuple(axis), keepdims=True)
    found = np.where(np.isinf(top), top, top + np.log(total))
    return found if keepdims else np.squeeze(found, tuple(axis))


def _expand_logsumexp(b: Builder, x: Ref, axis: tuple[int, ...], keepdims: bool = False) -> Ref:
    top, rest = _expand_normalizer(b, x, axis)
    y = b.op("add", top, rest)
    y = b.op("where", b.op("isinf", top), top, y)  # of plus infinity the shifted one is NaN
    return y if keepdims else b.op("reshape", y, shape=shapes.folded([x.shape], {"axis": axis}))


def _expand_normalizer(b: Builder, x: Ref, axis: tuple[int, ...]) -> tuple[Ref, Ref]:
    """The largest elements, and the logarithm of the sum of the exponentials of what is below them, over axes that are kept."""
    top = b.op("max", x, axis=axis, keepdims=True)
    total = b.op("sum", b.op("exp", b.op("sub", x, top)), axis=axis, keepdims=True)
    return top, b.op("log", total)


def _log_softmax(x: Array, *, axis: int = -1, **_: Any) -> Array:
    return x - _logsumexp(x, axis=(axis,), keepdims=True)


def _expand_log_softmax(b: Builder, x: Ref, axis: int = -1) -> Ref:
    top, rest = _expand_normalizer(b, x, (axis,))
    return b.op("sub", b.op("sub", x, top), rest)  # the sum of both has the logarithm no more where the elements are large


def _expand_vector_norm(b: Builder, x: Ref, axis: tuple[int, ...], keepdims: bool = False) -> Ref:
    return b.op("sqrt", b.op("sum", b.op("square", x), axis=axis, keepdims=keepdims))


def _over_channels(b: Builder, v: Ref, rank: int) -> Ref:
    return b.op("reshape", v, shape=(*v.shape, *(1,) * (rank - 2))) if rank > 2 else v


def _expand_affine(b: Builder, y: Ref, affine: Sequence[Ref]) -> Ref:
    for op, v in zip(("mul", "add"), affine, strict=False):
        y = b.op(op, y, _over_channels(b, v, len(y.shape)))
    return y


def _expand_normalized(b: Builder, x: Ref, axes: tuple[int, ...], eps: Any = 1e-5) -> Ref:
    d = b.op("sub", x, _expand_mean(b, x, axes, True))
    var = _expand_mean(b, b.op("square", d), axes, True)
    return b.op("div", d, b.op("sqrt", b.op("shift", var, scalar=eps)))


def _expand_group_norm(b: Builder, x: Ref, *affine: Ref, groups: int, eps: Any = 1e-5) -> Ref:
    inner = (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    y = _expand_normalized(b, b.op("reshape", x, shape=inner), tuple(range(2, len(inner))), eps)
    return _expand_affine(b, b.op("reshape", y, shape=x.shape), affine)


def _expand_instance_norm(b: Builder, x: Ref, *affine: Ref, eps: Any = 1e-5) -> Ref:
    return _expand_affine(b, _expand_normalized(b, x, tuple(range(2, len(x.shape))), eps), affine)


def _expand_batch_norm(b: Builder, x: Ref, mean: Ref, var: Ref, *affine: Ref, eps: Any = 1e-5) -> Ref:
    rank = len(x.shape)
    root = b.op("sqrt", b.op("shift", var, scalar=eps))
    y = b.op("div", b.op("sub", x, _over_channels(b, mean, rank)), _over_channels(b, root, rank))
    return _expand_affine(b, y, affine)


COMPOSITES = (
    OpDef("mean", "composite", 1, _mean, linear=(True,), attrs=("axis", "keepdims"), relay=("mean",), torch=("mean", "mean.dim"),
          shape=shapes.folded, expansion=_expand_mean, eager="mean axis:dim keepdims:keepdim"),
    OpDef("softmax", "composite", 1, _softmax, degree="exp", attrs=("axis", "strict"), optional=("strict",), flops=5, sfu=1,
          relay=("nn.softmax", "nn.fast_softmax"), torch=("softmax.int", "_softmax"),
          image=Domain(0.0, 1.0), shape=shapes.first, expansion=_expand_softmax, eager="softmax axis:dim strict: dim=-1"),
    OpDef("rms_norm", "composite", -1, attrs=("eps",), flops=4, torch=("rms_norm",), shape=shapes.first,
          expansion=_expand_rms_norm, eager=".rms_norm"),
    OpDef("layer_norm", "composite", -1, attrs=("eps",), flops=8, relay=("nn.layer_norm",),
          torch=("layer_norm", "native_layer_norm"), shape=shapes.first, expansion=_expand_layer_norm, eager=".layer_norm"),
    OpDef("attention", "composite", -1, _attention, degree="exp", attrs=("scale", "causal"), flops=4, sfu=1, products=2,
          torch=("scaled_dot_product_attention",), shape=shapes.attention, expansion=_expand_attention),
    OpDef("min", "composite", 1, attrs=("axis", "keepdims"), relay=("min",), torch=("amin", "min"), shape=shapes.folded,
          expansion=_expand_min, eager="amin axis:dim keepdims:keepdim"),
    OpDef("var", "composite", 1, attrs=("axis", "keepdims", "correction"), optional=("correction",), flops=3,
          torch=("var", "var.dim", "var.correction"), image=NOT_NEGATIVE, shape=shapes.folded, expansion=_expand_var,
          eager="var axis:dim keepdims:keepdim correction=0"),
    OpDef("std", "composite", 1, attrs=("axis", "keepdims", "correction"), optional=("correction",), flops=3, sfu=1,
          torch=("std", "std.dim", "std.correction"), image=NOT_NEGATIVE, shape=shapes.folded,
          eager="std axis:dim keepdims:keepdim correction=0", expansion=lambda b, x, **at: b.op("sqrt", _expand_var(b, x, **at))),
    OpDef("logsumexp", "composite", 1, _logsumexp, degree="exp", attrs=("axis", "keepdims"), flops=4, sfu=1, torch=("logsumexp",),
          shape=shapes.folded, expansion=_expand_logsumexp, eager="logsumexp axis:dim keepdims:keepdim"),
    OpDef("log_softmax", "composite", 1, _log_softmax, degree="exp", attrs=("axis",), flops=5, sfu=1, relay=("nn.log_softmax",),
          torch=("log_softmax.int", "_log_softmax"), image=Domain(hi=0.0), shape=shapes.first, expansion=_expand_log_softmax,
          eager="log_softmax axis:dim"),
    OpDef("vector_norm", "composite", 1, attrs=("axis", "keepdims"), flops=2, torch=("linalg_vector_norm",),
          image=NOT_NEGATIVE, shape=shapes.folded, expansion=_expand_vector_norm,
          eager="linalg.vector_norm axis:dim keepdims:keepdim"),
    OpDef("group_norm", "composite", -1, attrs=("groups", "eps"), flops=8, relay=("nn.group_norm",),
          torch=("group_norm", "native_group_norm"), shape=shapes.first, expansion=_expand_group_norm,
          eager=".group_norm"),
    OpDef("instance_norm", "composite", -1, attrs=("eps",), flops=8, relay=("nn.instance_norm",),
          torch=("instance_norm",), shape=shapes.first, expansion=_expand_instance_norm, eager=".instance_norm"),
    OpDef("batch_norm", "composite", -1, attrs=("eps",), flops=5, relay=("nn.batch_norm",),
          torch=("batch_norm", "_native_batch_norm_legit",
                  "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training"),
          shape=shapes.first, expansion=_expand_batch_norm,
          eager=".batch_norm"),
)  # fmt: skip
