"""The Relay operators that move, make or select data; entered into the table of :mod:`tvm_bridge.read.relay_ops`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from fuser.errors import UnsupportedError
from tvm_bridge.read.relay_graph import MAX_RANK
from tvm_bridge.read.relay_graph import TensorType
from tvm_bridge.read.relay_ops import Array
from tvm_bridge.read.relay_ops import Attrs
from tvm_bridge.read.relay_ops import Operands
from tvm_bridge.read.relay_ops import TypeRuleError
from tvm_bridge.read.relay_ops import Types
from tvm_bridge.read.relay_ops import axis_of
from tvm_bridge.read.relay_ops import broadcast
from tvm_bridge.read.relay_ops import define
from tvm_bridge.read.relay_ops import few
from tvm_bridge.read.relay_ops import numpy_dtype
from tvm_bridge.read.relay_ops import same

Outs = tuple[TensorType, ...]


def reshape_shape(x: tuple[int, ...], codes: Sequence[int], allowzero: bool = False) -> tuple[int, ...]:
    """Relay's reshape codes: 0 copies, -1 infers, -2 copies the rest, -3 merges two, -4 splits one into the next two codes."""
    out: list[int] = []
    source, wild, i = 0, -1, 0

    def take() -> int:
        nonlocal source
        if source >= len(x):
            raise TypeRuleError(f"reshape of {x} to {tuple(codes)}: a code refers to a dimension that is not there")
        source += 1
        return x[source - 1]

    while i < len(codes):
        code = codes[i]
        if code == 0 and not allowzero:
            out.append(take())
        elif code == -1:
            if wild >= 0:
                raise TypeRuleError(f"reshape of {x} to {tuple(codes)}: more than one extent to infer")
            wild = len(out)
            out.append(1)
            source += 1
        elif code == -2:
            out.extend(x[source:])
            source = len(x)
        elif code == -3:
            out.append(take() * take())
        elif code == -4:
            if i + 2 >= len(codes):
                raise TypeRuleError(f"reshape of {x} to {tuple(codes)}: -4 needs two extents after it")
            whole, (first, second) = take(), codes[i + 1 : i + 3]
            first = whole // second if first == -1 else first
            second = whole // first if second == -1 else second
            if first * second != whole:
                raise TypeRuleError(f"reshape of {x} to {tuple(codes)}: {whole} is not {first} × {second}")
            out += [first, second]
            i += 2
        elif code >= 0:
            out.append(code)
            source += 1
        else:
            raise TypeRuleError(f"reshape of {x} to {tuple(codes)}: unknown code {code}")
        i += 1
    if wild >= 0:
        out[wild] = math.prod(x) // max(math.prod(out), 1)
    if math.prod(out) != math.prod(x):
        raise TypeRuleError(f"reshape of {x} to {tuple(codes)}: the numbers of elements differ")
    return tuple(out)


def _to_shape(a: Sequence[Array], at: Attrs, out: Outs) -> Array:
    return a[0].reshape(out[0].dims)


def _reshape_type(o: Operands) -> TensorType:
    codes = o.attrs["newshape"] if o.attrs.get("newshape") is not None else o.ints(1)
    return TensorType(reshape_shape(o[0], codes, bool(o.attrs.get("allowzero"))), o.dtype)


def _reshape_like_type(o: Operands) -> TensorType:
    x, like, at = o[0], o[1], o.attrs

    def end(value: int | None, rank: int) -> int:
        return rank if value is None else value % rank if value < 0 else value

    l0, r0 = at.get("lhs_begin") or 0, at.get("rhs_begin") or 0
    l1, r1 = end(at.get("lhs_end"), len(x)), end(at.get("rhs_end"), len(like))
    return TensorType((*x[:l0], *like[r0:r1], *x[l1:]), o.dtype)


def permutation(attrs: Attrs, rank: int) -> tuple[int, ...]:
    axes = attrs.get("axes")
    perm = tuple(range(rank))[::-1] if axes is None else tuple(axis_of(a, rank) for a in axes)
    if sorted(perm) != list(range(rank)):
        raise TypeRuleError(f"the axes {axes} are not a permutation of {rank} dimensions")
    return perm


def _squeeze_type(o: Operands) -> TensorType:
    axes = o.attrs.get("axis")
    # an empty list squeezes nothing, a missing one all extents of 1
    drop = {i for i, e in enumerate(o[0]) if e == 1} if axes is None else {axis_of(a, len(o[0])) for a in axes}
    if any(o[0][i] != 1 for i in drop):
        raise TypeRuleError(f"squeeze of {o[0]} along {axes}: an extent is not 1")
    return TensorType(tuple(e for i, e in enumerate(o[0]) if i not in drop), o.dtype)


def _expand_type(o: Operands) -> TensorType:
    rank, count = len(o[0]), few(o.attrs.get("num_newaxis", 1), MAX_RANK, "new axes")
    axis = o.attrs["axis"] + (rank + 1 if o.attrs["axis"] < 0 else 0)
    if not 0 <= axis <= rank:
        raise TypeRuleError(f"axis {o.attrs['axis']} of a tensor of rank {rank}")
    return TensorType((*o[0][:axis], *(1,) * count, *o[0][axis:]), o.dtype)


def _given_shape(o: Operands, operand: int) -> tuple[int, ...]:
    return tuple(o.attrs["shape"]) if o.attrs.get("shape") is not None else o.ints(operand)


def _broadcast_type(o: Operands) -> TensorType:
    shape = _given_shape(o, 1)
    if broadcast(o[0], shape) != shape:
        raise TypeRuleError(f"{o[0]} does not broadcast to {shape}")
    return TensorType(shape, o.dtype)


def _full_type(o: Operands) -> TensorType:
    return TensorType(_given_shape(o, 1), o.attrs.get("dtype") or o.dtype)


def _blank_type(o: Operands) -> TensorType:
    return TensorType(_given_shape(o, 0), o.attrs["dtype"])


def _filled(a: Sequence[Array], at: Attrs, out: Outs) -> Array:
    return np.broadcast_to(np.asarray(a[0]).astype(numpy_dtype(out[0].dtype)), out[0].dims)


def _blank(value: int) -> Any:
    return lambda a, at, out: np.broadcast_to(np.asarray(value, numpy_dtype(out[0].dtype)), out[0].dims)


def _arange_type(o: Operands) -> TensorType:
    values = [v for v in o.values if v is not None]
    if len(values) != 3:
        raise TypeRuleError("its length depends on values that are only known when the model runs")
    start, stop, step = (float(v) for v in values)
    return TensorType((max(0, math.ceil((stop - start) / step)),), o.attrs["dtype"])


def _arange(a: Sequence[Array], at: Attrs, out: Outs) -> Array:
    return (a[0] + a[2] * np.arange(out[0].dims[0])).astype(numpy_dtype(out[0].dtype))


def _concat_type(o: Operands) -> TensorType:
    axis = axis_of(o.attrs.get("axis", 0), len(o[0]))
    if any(t.dims[:axis] + t.dims[axis + 1 :] != o[0][:axis] + o[0][axis + 1 :] for t in o.types):
        raise TypeRuleError(f"the shapes {', '.join(str(t.dims) for t in o.types)} differ outside of axis {axis}")
    return TensorType((*o[0][:axis], sum(t.dims[axis] for t in o.types), *o[0][axis + 1 :]), o.dtype)


def _stack_type(o: Operands) -> TensorType:
    axis = axis_of(o.attrs.get("axis", 0), len(o[0]) + 1)
    return TensorType((*o[0][:axis], len(o.types), *o[0][axis:]), o.dtype)


_MAX_SECTIONS = 65_536


def sections(attrs: Attrs, extent: int) -> list[tuple[int, int]]:
    """The [start, stop) pairs of a split along an axis."""
    cut = attrs["indices_or_sections"]
    if isinstance(cut, int):
        if cut < 1 or extent % cut:
            raise TypeRuleError(f"an extent of {extent} does not divide into {cut} sections")
        few(cut, _MAX_SECTIONS, "sections")
        marks = [extent // cut * i for i in range(cut + 1)]
    else:
        marks = [0, *cut, extent]
    return list(pairwise(marks))


def _split_type(o: Operands) -> Types:
    axis = axis_of(o.attrs["axis"], len(o[0]))
    return tuple(TensorType((*o[0][:axis], b - a, *o[0][axis + 1 :]), o.dtype) for a, b in sections(o.attrs, o[0][axis]))


def _split(a: Sequence[Array], at: Attrs, out: Outs) -> tuple[Array, ...]:
    parts = sections(at, a[0].shape[at["axis"]])
    return tuple(a[0].take(range(i, j), at["axis"]) for i, j in parts)


def slices(attrs: Attrs, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """The numpy slices of a ``strided_slice``, one per dimension, with explicit bounds."""
    begin, end = attrs["begin"], attrs["end"]
    if begin is None or end is None:
        raise TypeRuleError("its bounds are only known when the model runs")
    strides = attrs.get("strides") or (1,) * len(begin)
    axes = attrs.get("axes") or tuple(range(len(begin)))
    found = [slice(0, e, 1) for e in shape]
    for i, axis in enumerate(axes):
        axis, step = axis_of(axis, len(shape)), strides[i] if i < len(strides) else 1
        extent, first, last = shape[axis], begin[i] or 0, end[i]
        last = extent if last is None else last
        if attrs.get("slice_mode") == "size":
            step, last = 1, extent if last < 0 else first + last
        found[axis] = slice(*slice(first, last, step).indices(extent)) if step > 0 else slice(first, last, step)
    return tuple(found)


def _slice_type(o: Operands) -> TensorType:
    lengths = tuple(len(range(*s.indices(e))) for s, e in zip(slices(o.attrs, o[0]), o[0], strict=True))
    return TensorType(lengths, o.dtype)


def _slice_like(o: Operands) -> Attrs:
    """A ``slice_like`` as the slice that it is."""
    axes = o.attrs.get("axes")
    axes = tuple(range(min(len(o[0]), len(o[1])))) if not axes else tuple(axis_of(a, len(o[0])) for a in axes)
    if wrong := [a for a in axes if a >= len(o[1]) or o[1][a] > o[0][a]]:
        raise TypeRuleError(f"{o[0]} has less than {o[1]} along axis {wrong[0]}")
    return {"axes": axes, "begin": (0,) * len(axes), "end": tuple(o[1][a] for a in axes)}


def slice_like(attrs: Attrs, x: tuple[int, ...], like: tuple[int, ...]) -> Attrs:
    return _slice_like(Operands((TensorType(x, ""), TensorType(like, "")), attrs, (None, None)))


def _take_type(o: Operands) -> TensorType:
    if o.attrs.get("batch_dims"):
        raise TypeRuleError("take with batch dimensions has no type rule")
    if o.attrs.get("axis") is None:
        return TensorType(o[1], o.dtype)
    axis = axis_of(o.attrs["axis"], len(o[0]))
    return TensorType((*o[0][:axis], *o[1], *o[0][axis + 1 :]), o.dtype)


def _take(a: Sequence[Array], at: Attrs, out: Outs) -> Array:
    if at.get("batch_dims"):
        raise UnsupportedError("take with batch dimensions is not evaluated")
    axis = at.get("axis")
    extent = a[0].size if axis is None else a[0].shape[axis]
    index = a[1].astype(np.int64)
    if at.get("mode", "clip") == "wrap":
        index = index % extent
    else:
        index = np.clip(np.where((index < 0) & (at.get("mode") != "clip"), index + extent, index), 0, extent - 1)
    return np.take(a[0], index, axis=axis)


def _advanced_type(o: Operands) -> TensorType:
    """Indexing of the leading dimensions by tensors that broadcast against each other, as numpy does it."""
    return TensorType((*broadcast(*(t.dims for t in o.types[1:])), *o[0][len(o.types) - 1 :]), o.dtype)


def _gather_nd_type(o: Operands) -> TensorType:
    if o.attrs.get("batch_dims"):
        raise TypeRuleError("gather_nd with batch dimensions has no type rule")
    return TensorType((*o[1][1:], *o[0][o[1][0] :]), o.dtype)


def _repeat_type(o: Operands) -> TensorType:
    axis, times = o.attrs.get("axis"), o.attrs["repeats"]
    if axis is None:
        return TensorType((math.prod(o[0]) * times,), o.dtype)
    axis = axis_of(axis, len(o[0]))
    return TensorType((*o[0][:axis], o[0][axis] * times, *o[0][axis + 1 :]), o.dtype)


def _tile_type(o: Operands) -> TensorType:
    reps = tuple(o.attrs["reps"])
    rank = max(len(reps), len(o[0]))
    reps, shape = (1,) * (rank - len(reps)) + reps, (1,) * (rank - len(o[0])) + o[0]
    return TensorType(tuple(r * e for r, e in zip(reps, shape, strict=True)), o.dtype)


def _cumsum(a: Sequence[Array], at: Attrs, out: Outs) -> Array:
    if at.get("exclusive"):
        raise UnsupportedError("an exclusive cumsum is not evaluated")
    return np.cumsum(a[0], axis=at.get("axis"), dtype=numpy_dtype(out[0].dtype))


def _cumsum_type(o: Operands) -> TensorType:
    return TensorType(o[0] if o.attrs.get("axis") is not None else (math.prod(o[0]),), o.attrs.get("dtype") or o.dtype)


def _one_hot_type(o: Operands) -> TensorType:
    axis = o.attrs["axis"]
    axis = len(o[0]) if axis == -1 else axis
    return TensorType((*o[0][:axis], o.attrs["depth"], *o[0][axis:]), o.attrs["dtype"])


def _one_hot(a: Sequence[Array], at: Attrs, out: Outs) -> Array:
    axis = out[0].dims.__len__() - 1 if at["axis"] == -1 else at["axis"]
    hot = np.expand_dims(a[0], axis) == np.arange(at["depth"]).reshape([-1 if i == axis else 1 for i in range(a[0].ndim + 1)])
    return np.where(hot, a[1], a[2]).astype(numpy_dtype(out[0].dtype))


def _trilu(a: Sequence[Array], at: Attrs, out: Outs) -> Array:
    return np.triu(a[0], int(a[1])) if at["upper"] else np.tril(a[0], int(a[1]))


def _pad_type(o: Operands) -> TensorType:
    return TensorType(tuple(e + sum(p) for e, p in zip(o[0], o.attrs["pad_width"], strict=True)), o.dtype)


def _pad(a: Sequence[Array], at: Attrs, out: Outs) -> Array:
    if at.get("pad_mode", "constant") != "constant":
        return np.pad(a[0], at["pad_width"], mode=at["pad_mode"])
    value = a[1] if len(a) > 1 else at.get("pad_value", 0.0)
    return np.pad(a[0], at["pad_width"], constant_values=np.asarray(value, a[0].dtype))


def layout_permutation(source: str, target: str) -> tuple[int, ...]:
    """Permutation between two plain layouts such as NCHW and NHWC; TypeRuleError for split ones such as NCHW4c."""
    if sorted(source) != sorted(target) or len(set(source)) != len(source) or not (source + target).isupper():
        raise TypeRuleError(f"the layout change {source} to {target} splits dimensions")
    return tuple(source.index(c) for c in target)


def _layout_type(o: Operands) -> TensorType:
    perm = layout_permutation(o.attrs["src_layout"], o.attrs["dst_layout"])
    return TensorType(tuple(o[0][i] for i in perm), o.dtype)


def _flat_type(o: Operands) -> TensorType:
    return TensorType((o[0][0], math.prod(o[0][1:])), o.dtype)


def _meshgrid_type(o: Operands) -> Types:
    shape = tuple(math.prod(t.dims) for t in o.types)
    if o.attrs.get("indexing", "ij") != "ij":
        shape = (*shape[1::-1], *shape[2:])
    return tuple(TensorType(shape, t.dtype) for t in o.types)


define("reshape contrib_reshape", "newshape:ref allowzero:bool", _reshape_type, _to_shape)
define("reshape_like", "lhs_begin:int lhs_end:ref rhs_begin:int rhs_end:ref", _reshape_like_type, _to_shape)
define("squeeze", "axis:ref", _squeeze_type, _to_shape)
define("expand_dims", "axis:int num_newaxis:int", _expand_type, _to_shape)
define("nn.batch_flatten", "", _flat_type, _to_shape)
define("transpose", "axes:ref", lambda o: TensorType(tuple(o[0][i] for i in permutation(o.attrs, len(o[0]))), o.dtype),
       lambda a, at, out: a[0].transpose(permutation(at, a[0].ndim)))  # fmt: skip
define("layout_transform", "src_layout:text dst_layout:text", _layout_type,
       lambda a, at, out: a[0].transpose(layout_permutation(at["src_layout"], at["dst_layout"])))  # fmt: skip
define(
    "broadcast_to",
    "shape:ref dtype:text",
    _broadcast_type,
    lambda a, at, out: np.broadcast_to(a[0], out[0].dims),
)
define("broadcast_to_like", "", lambda o: TensorType(o[1], o.dtype), lambda a, at, out: np.broadcast_to(a[0], out[0].dims))
define("full", "shape:ref dtype:text", _full_type, _filled)
define("zeros", "shape:ref dtype:text", _blank_type, _blank(0))
define("ones", "shape:ref dtype:text", _blank_type, _blank(1))
define("arange", "dtype:text", _arange_type, _arange)
define("concatenate", "axis:int", _concat_type, lambda a, at, out: np.concatenate(a, at.get("axis", 0)))
define("stack", "axis:ref", _stack_type, lambda a, at, out: np.stack(a, at.get("axis", 0)))
define("split", "axis:int indices_or_sections:ref", _split_type, _split)
define(
    "strided_slice",
    "begin:ref end:ref strides:ref slice_mode:text axes:ref",
    _slice_type,
    lambda a, at, out: a[0][slices(at, a[0].shape)],
)
define("slice_like", "axes:ref", lambda o: _slice_type(replace(o, attrs=_slice_like(o))),
       lambda a, at, out: a[0][slices(slice_like(at, a[0].shape, a[1].shape), a[0].shape)])  # fmt: skip
define("take", "axis:ref batch_dims:ref mode:text", _take_type, _take)
define("gather", "axis:ref", lambda o: TensorType(o[1], o.dtype),
       lambda a, at, out: np.take_along_axis(a[0], _bounded(a[1], a[0], at["axis"]), at["axis"]))  # fmt: skip
define("gather_nd", "batch_dims:ref index_rank:ref", _gather_nd_type, lambda a, at, out: a[0][tuple(a[1].astype(np.int64))])
define("adv_index", "", _advanced_type, lambda a, at, out: a[0][tuple(i.astype(np.int64) for i in a[1:])])
define("repeat", "repeats:ref axis:ref", _repeat_type, lambda a, at, out: np.repeat(a[0], at["repeats"], at.get("axis")))
define("tile", "reps:ref", _tile_type, lambda a, at, out: np.tile(a[0], at["reps"]))
define("reverse", "axis:ref", same, lambda a, at, out: np.flip(a[0], at["axis"]))
define("cumsum", "axis:ref dtype:text exclusive:ref", _cumsum_type, _cumsum)
define("shape_of", "dtype:text", lambda o: TensorType((len(o[0]),), o.attrs.get("dtype") or "int32"),
       lambda a, at, out: np.asarray(a[0].shape, out[0].dtype))  # fmt: skip
define("one_hot", "axis:int depth:int dtype:text", _one_hot_type, _one_hot)
define("trilu", "upper:bool", same, _trilu)
define("nn.pad", "pad_width:ref pad_mode:text pad_value:float", _pad_type, _pad)
define("meshgrid", "indexing:text", _meshgrid_type, lambda a, at, out: tuple(np.meshgrid(*a, indexing=at.get("indexing", "ij"))))


def _bounded(index: Array, x: Array, axis: int) -> Array:
    return np.where(index < 0, index + x.shape[axis], index).astype(np.int64)
