"""Operators that torch computes as kernels of their own, beside generated kernels in one graph."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser.errors import ProgramError
from fuser.ir import element_rules
from fuser.ir import element_windows
from fuser.ir.element_windows import each
from fuser.ir.elements import by_rule
from fuser.ir.opdef import Array
from fuser.ir.opdef import Attrs
from fuser.ir.opdef import OpDef
from fuser.ir.opdef import Shape
from fuser.ir.shapes import first


def _along(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    """A fold over one axis, or over all."""
    x, dim, keep = shapes[0], attrs.get("dim"), attrs.get("keepdim")
    axes = range(len(x)) if dim is None else (dim % len(x),)
    return tuple(1 if i in axes else n for i, n in enumerate(x) if keep or i not in axes)


def _fold(name: str, numpy: Any, dtype: str = "", torch: tuple[str, ...] = (), identity: float | None = None) -> OpDef:
    def call(x: Array, *, dim: int | None = None, keepdim: bool = False, **_: Any) -> Array:
        return np.asarray(numpy(x, axis=dim, keepdims=keepdim))

    attrs = ("dim", "keepdim", "dtype") if dtype else ("dim", "keepdim")
    rule = element_windows.along({"any": "or", "all": "and"}.get(name, name))
    return OpDef(name, "library", 1, call, attrs=attrs, optional=attrs, torch=torch or (name,), shape=_along, element=rule,
                 identity=identity)  # fmt: skip


def _rows(shapes: Sequence[Shape], _attrs: Attrs) -> Shape:
    return (*shapes[1], *shapes[0][1:])


def _embedding(weight: Array, index: Array, **_: Any) -> Array:
    return weight[np.asarray(index).astype(np.int64)]


def _so_far(combine: np.ufunc) -> Callable[..., Array]:
    """Of what has been seen along an axis, at each place of it."""

    def call(x: Array, *, dim: int, **_: Any) -> Array:
        x = np.asarray(x)
        with np.errstate(all="ignore"):
            return np.asarray(combine.accumulate(x, dim))

    return call


def _flip(x: Array, *, dims: Sequence[int], **_: Any) -> Array:
    return np.flip(x, tuple(dims))


# Windows that move over the trailing axes


def _moves(window: Sequence[int], attrs: Attrs, stride: int | None = None) -> list[tuple[int, ...]]:
    """Stride, padding and dilation along each axis; the stride of a pooling is its window."""
    n = len(window)
    strides = each(attrs.get("stride"), n, 1) if attrs.get("stride") or stride else tuple(window)
    return [strides, each(attrs.get("padding"), n, 0), each(attrs.get("dilation"), n, 1)]


def moves(attrs: Attrs, rank: int, window: Sequence[int] | None = None) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The window of a pooling, or the one given of a convolution; stride, padding and dilation along each axis."""
    if window is not None:
        return tuple(window), _moves(window, attrs, 1)
    mine = each(attrs["kernel_size"], rank, 1)
    return mine, _moves(mine, attrs)


def _places(x: Shape, window: Sequence[int], moves: Sequence[Sequence[int]], ceil: bool = False) -> Shape:
    """How often the window fits along each axis; ``ceil``: once more where that begins inside of the tensor, or of what is in
    front of it."""
    found = tuple((n + 2 * p - d * (w - 1) - 1) // s + 1 for n, w, s, p, d in zip(x, window, *moves, strict=True))
    if ceil:
        ends = zip(found, x, window, *moves, strict=True)
        found = tuple(m + ((m * s - p) < n and (m - 1) * s + d * (w - 1) + 1 < n + 2 * p) for m, n, w, s, p, d in ends)
    if min(found) < 1:
        raise ProgramError(f"a window of {tuple(window)} does not fit into {x}")
    return found


def _windows(x: Array, window: Sequence[int], moves: Sequence[Sequence[int]], fill: float) -> Array:
    """(…, places, elements of the window)"""
    strides, padding, dilation = moves
    n = len(window)
    out = _places(x.shape[-n:], window, moves)
    padded = np.pad(x, [(0, 0)] * (x.ndim - n) + [(p, p) for p in padding], constant_values=fill)
    parts = []
    for at in itertools.product(*map(range, window)):
        cuts = (slice(i * d, i * d + (k - 1) * s + 1, s) for i, d, k, s in zip(at, dilation, out, strides, strict=True))
        parts.append(padded[(..., *cuts)])
    return np.stack(parts, -1)


def _conv(x: Array, weight: Array, *bias: Array, **attrs: Any) -> Array:
    window, groups = weight.shape[2:], attrs.get("groups", 1)
    parts = _windows(x, window, _moves(window, attrs, 1), 0.0)
    kernels = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    pieces = parts.reshape(x.shape[0], groups, weight.shape[1], *parts.shape[2:])
    y = np.einsum("ngc...k,gock->ngo...", pieces, kernels)
    y = y.reshape(x.shape[0], weight.shape[0], *parts.shape[2:-1])
    return y + bias[0].reshape(-1, *(1,) * len(window)) if bias else y


def _conv_transpose(x: Array, weight: Array, *bias: Array, **attrs: Any) -> Array:
    """The convolution of x with zeros between its elements and around it, by the weights from last to first."""
    rank, groups = weight.ndim - 2, attrs.get("groups", 1)
    strides, padding, dilation = _moves(weight.shape[2:], attrs, 1)
    spread = np.zeros((*x.shape[:2], *((n - 1) * s + 1 for n, s in zip(x.shape[2:], strides, strict=True))), x.dtype)
    spread[(..., *(slice(None, None, s) for s in strides))] = x
    edge = [d * (w - 1) - p for d, w, p in zip(dilation, weight.shape[2:], padding, strict=True)]
    further = each(attrs.get("output_padding"), rank, 0)
    around = [(max(e, 0), max(e + o, 0)) for e, o in zip(edge, further, strict=True)]
    spread = np.pad(spread, [(0, 0), (0, 0), *around])
    inner = [(max(-e, 0), n - max(-e - o, 0)) for e, o, n in zip(edge, further, spread.shape[2:], strict=True)]
    spread = spread[(..., *(slice(a, b) for a, b in inner))]
    return _conv(spread, from_last_to_first(weight, groups), *bias, groups=groups, dilation=dilation)


def from_last_to_first(weight: Array, groups: int) -> Array:
    """The weights of a transposed convolution as those of a plain one: both channels change places within each group."""
    many = weight.shape[0] // groups
    apart = np.flip(weight, tuple(range(2, weight.ndim))).reshape(groups, many, *weight.shape[1:])
    return np.swapaxes(apart, 1, 2).reshape(-1, many, *weight.shape[2:])


def _conv_transpose_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    x, weight = shapes[:2]
    if len(x) != len(weight) or x[1] != weight[0]:
        raise ProgramError(f"transposed convolution of {x} with {weight}: the channels differ")
    moves = zip(*_moves(weight[2:], attrs, 1), each(attrs.get("output_padding"), len(x) - 2, 0), strict=True)
    sizes = ((n - 1) * s - 2 * p + d * (w - 1) + o + 1 for n, w, (s, p, d, o) in zip(x[2:], weight[2:], moves, strict=True))
    return (x[0], weight[1] * attrs.get("groups", 1), *sizes)


def _conv_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    x, weight = shapes[:2]
    if len(x) != len(weight) or x[1] != weight[1] * attrs.get("groups", 1):
        raise ProgramError(f"convolution of {x} with {weight} in {attrs.get('groups', 1)} groups: the channels differ")
    return (x[0], weight[0], *_places(x[2:], weight[2:], _moves(weight[2:], attrs, 1)))


def _pool_shape(shapes: Sequence[Shape], attrs: Attrs, rank: int) -> Shape:
    window = each(attrs["kernel_size"], rank, 1)
    size, moves = shapes[0][-rank:], _moves(window, attrs)
    found = _places(size, window, moves, bool(attrs.get("ceil_mode")))
    return (*shapes[0][:-rank], *found)


def _counts(x: Array, *, bins: int, so_far: bool = False, dtype: str = "int64", **_: Any) -> Array:
    """How often each whole number below ``bins`` is there, or ``so_far``: how many are no larger."""
    found = np.bincount(x[(x >= 0) & (x < bins)].astype(int).ravel(), minlength=bins)
    return (np.cumsum(found) if so_far else found).astype(dtype)


def _grouped(x: Array, weights: Array, ends: Array, *, transposed: bool = False, **_: Any) -> Array:
    """Rows from where one group ends to where the next one does, in ascending order, times the matrix of that; behind the last,
    zeros."""
    y = np.zeros((len(x), weights.shape[1 if transposed else 2]), np.result_type(x, weights))
    begin = 0
    for weight, end in zip(weights, ends.astype(int), strict=True):
        y[begin:end] = x[begin:end] @ (weight.T if transposed else weight)
        begin = end
    return y


def _grouped_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    x, weights, ends = shapes
    inner, columns = weights[:0:-1] if attrs.get("transposed") else weights[1:]
    if len(x) != 2 or len(weights) != 3 or ends != weights[:1] or x[1] != inner:
        raise ProgramError(f"rows of {x} in groups that end at {ends} with matrices of {weights}: the shapes differ")
    return x[0], columns


def _transposed(rank: int) -> OpDef:
    attrs = ("stride", "padding", "output_padding", "groups", "dilation")
    return OpDef(f"conv_transpose{rank}d", "library", -1, _conv_transpose, attrs=attrs, optional=attrs, flops=2,
                 torch=(f"conv_transpose{rank}d" + ".input" * (rank > 1),), shape=_conv_transpose_shape,
                 eager=f"nn.functional.conv_transpose{rank}d")  # fmt: skip


CONVOLUTIONS = {f"conv{t}{n}d": t for t in ("", "_transpose") for n in (1, 2, 3)}
"""Names of convolutions, and what those that are transposed have in them."""


def is_convolution(op: str) -> bool:
    """Whether an operator is a convolution, with its channels last or not."""
    return op.removesuffix("_last") in CONVOLUTIONS


def _convolution(rank: int) -> OpDef:
    attrs = ("stride", "padding", "dilation", "groups")
    return OpDef(f"conv{rank}d", "library", -1, _conv, attrs=attrs, optional=attrs, flops=2, torch=(f"conv{rank}d",),
                 shape=_conv_shape, eager=f".conv{rank}d")  # fmt: skip


def _pooling(kind: str, rank: int) -> OpDef:
    own = ("dilation",) if kind == "max" else ("count_include_pad", *(("divisor_override",) if rank > 1 else ()))
    attrs = ("kernel_size", "stride", "padding", "ceil_mode", *own)

    def call(x: Array, **at: Any) -> Array:
        window = each(at["kernel_size"], rank, 1)
        if at.get("ceil_mode") or not at.get("count_include_pad", True) or at.get("divisor_override"):
            return by_rule(f"{kind}_pool{rank}d")(x, **at)
        least = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -math.inf
        parts = _windows(x, window, _moves(window, at), least if kind == "max" else 0)
        return parts.max(-1) if kind == "max" else parts.mean(-1)

    return OpDef(f"{kind}_pool{rank}d", "library", 1, call, attrs=attrs, optional=attrs[1:], torch=(f"{kind}_pool{rank}d",),
                 shape=lambda s, a: _pool_shape(s, a, rank), element=element_windows.pooling(kind, rank),
                 eager=f"nn.functional.{kind}_pool{rank}d")  # fmt: skip


def _adaptive(kind: str, rank: int, places: bool = False) -> OpDef:
    name = f"adaptive_{kind}_pool{rank}d" + "_places" * places
    attrs = ("output_size", "dtype") if places else ("output_size",)
    return OpDef(name, "library", 1, by_rule(name), attrs=attrs, optional=attrs[1:],
                 shape=lambda s, a: (*s[0][:-rank], *a["output_size"]), element=element_windows.adaptive(kind, places),
                 eager=f".{name}" if places else f"nn.functional.{name}")  # fmt: skip


def _pooled_from(rank: int) -> OpDef:
    """The places that a pooling takes its elements from, counted over all of the trailing axes."""
    attrs, name = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "dtype"), f"max_pool{rank}d_places"
    return OpDef(name, "library", 1, by_rule(name), attrs=attrs, optional=attrs[1:], shape=lambda s, a: _pool_shape(s, a, rank),
                 element=element_windows.pooling("max", rank, places=True), eager=f".{name}")  # fmt: skip


def _last(entry: OpDef) -> OpDef:
    """A convolution, or a pooling, whose channels are the last dimension, of all operands and the result."""

    def first(shapes: Sequence[Shape]) -> list[Shape]:
        return [(s[0], s[-1], *s[1:-1]) for s in shapes]

    def call(*xs: Array, **attrs: Any) -> Array:
        return np.moveaxis(entry.numpy(*(np.moveaxis(x, -1, 1) for x in xs), **attrs), 1, -1)

    def shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
        assert entry.shape is not None, "windows have a rule for their shape"
        found = entry.shape(first(shapes), attrs)
        return (found[0], *found[2:], found[1])

    rule = element_windows.pooling(entry.name[:3], int(entry.name[-2]), last=True) if "pool" in entry.name else None
    return OpDef(f"{entry.name}_last", "library", abs(entry.arity) + (entry.arity < 0), call, attrs=entry.attrs,
                 optional=entry.optional, flops=entry.flops, shape=shape, eager=f".{entry.name}_last",
                 element=rule)  # fmt: skip


LIBRARY: tuple[OpDef, ...] = (
    _fold("prod", np.prod, torch=("prod", "prod.dim_int"), identity=1.0),
    _fold("argmax", np.argmax, "int64"),
    _fold("argmin", np.argmin, "int64"),
    _fold("any", np.any, "bool", torch=("any", "any.dim")),
    _fold("all", np.all, "bool", torch=("all", "all.dim")),
    OpDef("cumsum", "library", 1, _so_far(np.add), attrs=("dim",), torch=("cumsum",), shape=first),
    OpDef("cumprod", "library", 1, _so_far(np.multiply), attrs=("dim",), torch=("cumprod",), shape=first),
    OpDef("logcumsumexp", "library", 1, _so_far(np.logaddexp), attrs=("dim",), torch=("logcumsumexp",), shape=first),
    OpDef("flip", "library", 1, _flip, attrs=("dims",), torch=("flip",), shape=first, flops=0,
          element=element_rules.flip),
    OpDef("embedding", "library", 2, _embedding, attrs=("padding_idx",), optional=("padding_idx",), torch=("embedding",),
          shape=_rows, flops=0, element=element_rules.embedding),
    OpDef("counts", "library", 1, _counts, attrs=("bins", "so_far", "dtype"), optional=("so_far", "dtype"),
          shape=lambda s, a: (a["bins"],), eager=".counts dtype:dtype"),
    OpDef("grouped_matmul", "library", 3, _grouped, attrs=("transposed",), optional=("transposed",), flops=2,
          shape=_grouped_shape, eager=".grouped_matmul"),
    *(_convolution(rank) for rank in (1, 2, 3)),
    *(_transposed(rank) for rank in (1, 2, 3)),
    *(_last(make(rank)) for rank in (1, 2, 3) for make in (_convolution, _transposed)),
    *(_last(_pooling(kind, rank)) for kind in ("max", "avg") for rank in (1, 2, 3)),
    *(_pooled_from(rank) for rank in (1, 2, 3)),
    *(_adaptive(kind, rank) for kind in ("max", "avg") for rank in (1, 2, 3)),
    *(_adaptive("max", rank, True) for rank in (1, 2, 3)),
    *(_pooling(kind, rank) for kind in ("max", "avg") for rank in (1, 2, 3)),
)  # fmt: skip
