"""ATen's reductions, normalizations and products over named axes: rules from a call to operators of a program."""

from __future__ import annotations

import math
from math import prod
from typing import Any

from fuser.frontends import composed
from fuser.frontends.torch_call import Call
from fuser.frontends.torch_call import dtype_name
from fuser.frontends.torch_call import number_of
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.program import Node


def axes_of(c: Call, x: Ref) -> tuple[int, ...]:
    """The axes that a reduction folds: all, where it names none."""
    dims = c["dim"] if isinstance(c["dim"], (list, tuple)) else [] if c["dim"] is None else [c["dim"]]
    return tuple(sorted(c.axis(d, x) for d in dims)) or tuple(range(len(x.shape)))


def fold(c: Call) -> Ref:
    x = c.ref(c["self"], c.dtype)
    return c.b.op(c.table, x, axis=axes_of(c, x), keepdims=bool(c["keepdim"]))


def extreme(c: Call) -> Any:
    """max and min along an axis, with the place of each unless nobody reads it: then the element is taken from there."""
    x, op = c.tensor("self"), c.aten.split(".")[0]
    if all(u.args[1] == 0 or not u.users for u in c.node.users):
        return c.b.op(op, x, axis=axes_of(c, x), keepdims=bool(c["keepdim"])), None
    dim = c.axis(c["dim"], x)
    # torch has no place of the largest of booleans
    ranked = c.b.op("cast", x, dtype="float32") if x.tensor.dtype == "bool" else x
    places = c.b.op(f"arg{op}", ranked, dim=dim, keepdim=bool(c["keepdim"]), dtype="int64")
    index = c.reshape(places, (*x.shape[:dim], 1, *x.shape[dim + 1 :]))
    return c.reshape(c.b.op("gather", x, index, dim=dim), places.shape), places


def variance(c: Call) -> Ref | None:
    x = c.ref(c["self"], c.dtype)
    correction = c["correction"] if "correction" in c.args else int(bool(c["unbiased"]))
    correction, axis = 1 if correction is None else correction, axes_of(c, x)
    if correction >= prod(x.shape[i] for i in axis):  # torch divides by zero: infinity, or NaN
        return None
    return c.b.op(c.table, x, axis=axis, keepdims=bool(c["keepdim"]), correction=correction)


def vector_norm(c: Call) -> Ref | None:
    """The Euclidean norm; others are left."""
    return fold(c) if number_of(c["ord"]) == 2 else None


def clamp(c: Call) -> Ref:
    """Between tensors."""
    x = c.ref(c["self"], c.dtype)
    for bound, op in (("min", "maximum"), ("max", "minimum")):
        x = x if c[bound] is None else c.b.op(op, x, c.ref(c[bound], c.dtype))
    return x


def lerp(c: Call) -> Ref:
    """From the nearer end, as torch takes it: a weight of 1 gives ``end`` exactly, one of half an infinite ``self``."""
    x, y = (c.ref(c[name], c.dtype) for name in ("self", "end"))
    n = number_of(c["weight"])
    if n is None or not 0.5 <= abs(n) < math.inf:
        return c.b.op("lerp", x, y, c.operand(c["weight"], c.dtype), dtype=c.dtype)
    return c.b.op("add", y, c.b.op("scale", c.b.op("sub", x, y, dtype=c.dtype), scalar=1.0 - n), dtype=c.dtype)


def along(c: Call) -> Ref:
    """A softmax or its logarithm, for which a maximum that was subtracted before is none: both subtract it themselves."""
    x = c.tensor("self")
    axis = c.axis(c["dim"], x)
    more: dict[str, Any] = {"strict": True} if c.table == "softmax" else {}
    return c.b.op(c.table, c.ref(_unshifted(c.b, x, axis), c.dtype), axis=axis, **more)


def exponential(c: Call) -> Ref:
    """What is left of a row by the logarithm of its sum of exponentials is a softmax, which one pass over the row makes."""
    x = c.tensor("self")
    taken = _taken_from(c.b, x)
    if taken is not None and taken[1].op == "logsumexp" and x.tensor.dtype == c.dtype and len(axes := _axes(taken[1], x)) == 1:
        return c.b.op("softmax", taken[0], axis=axes[0], strict=True)
    return c.b.op("exp", c.ref(x, c.dtype))


def _unshifted(b: Builder, x: Ref, axis: int) -> Ref:
    """The tensor from which its own maxima along an axis were subtracted, else ``x``."""
    taken = _taken_from(b, x)
    return taken[0] if taken is not None and taken[1].maximizes and _axes(taken[1], x) == [axis] else x


def _taken_from(b: Builder, x: Ref) -> tuple[Ref, Node] | None:
    """The tensor of which ``x`` is what is left where something along its rows was subtracted, and the operator that made this of
    it; None of what is otherwise."""
    shifted = b.maker(x)
    if shifted is None or not shifted[0].subtracts:
        return None
    whole, part = shifted[1]
    found = b.maker(part)
    if found is not None and found[0].op == "reshape":
        found = b.maker(found[1][0])
    if found is None or not found[1] or found[1][0].name != whole.name or whole.shape != x.shape or "axis" not in found[0].attr:
        return None
    axes = _axes(found[0], x)
    return (whole, found[0]) if part.shape == tuple(1 if i in axes else n for i, n in enumerate(x.shape)) else None


def _axes(fold: Node, x: Ref) -> list[int]:
    """The axes of a tensor that a fold of it has folded."""
    axis = fold.attr["axis"]
    return [a % len(x.shape) for a in (axis if isinstance(axis, tuple) else (axis,))]


def by_channels(c: Call) -> Any:
    """Group, instance and batch normalization in evaluation: statistics, then a gain and a bias for each channel."""
    if c["training"] or c["use_input_stats"] is False:
        raise c.unsupported("normalizes a batch by its own statistics", "call module.eval() before importing")
    several = isinstance(c.result, (list, tuple))
    dtype = dtype_name((c.result[0] if several else c.result).dtype, c.where)
    x = c.ref(c["input"], dtype)
    gain, bias = c["weight"], c["bias"]
    if bias is not None and gain is None:
        return None
    affine = [c.ref(v, dtype) for v in (gain, bias) if v is not None]
    attrs: dict[str, Any] = {"eps": c["eps"]}
    if c.table == "group_norm":
        attrs["groups"] = c["num_groups"] if "num_groups" in c.args else c["group"]
    if c.table == "batch_norm":
        affine = [c.ref(c["running_mean"], dtype), c.ref(c["running_var"], dtype), *affine]
    y = c.b.op(c.table, x, *affine, **attrs)
    return (y, None, None) if several else y


# Einstein's sums


def einsum(c: Call) -> Ref | None:
    """Products pair by pair; diagonals are left."""
    y = composed.einsum(c.b, c["equation"], [c.ref(x, c.dtype) for x in c["tensors"]])
    return y and c.reshape(y, c.shape)
