"""ATen operators that the op table's names alone do not map: rules from a call to operators of a program."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from fuser.frontends.composed import bordered
from fuser.frontends.composed import cut
from fuser.frontends.composed import strided
from fuser.frontends.composed import tiled
from fuser.frontends.torch_call import Call
from fuser.frontends.torch_call import dtype_name
from fuser.frontends.torch_call import is_tensor
from fuser.frontends.torch_call import number_of
from fuser.frontends.torch_masks import attention
from fuser.frontends.torch_masks import masked
from fuser.frontends.torch_masks import masked_fill
from fuser.frontends.torch_masks import triangle
from fuser.frontends.torch_masks import where
from fuser.frontends.torch_norms import along
from fuser.frontends.torch_norms import by_channels
from fuser.frontends.torch_norms import clamp
from fuser.frontends.torch_norms import einsum
from fuser.frontends.torch_norms import exponential
from fuser.frontends.torch_norms import extreme
from fuser.frontends.torch_norms import lerp
from fuser.frontends.torch_norms import variance
from fuser.frontends.torch_norms import vector_norm
from fuser.frontends.torch_places import RULES as PLACES
from fuser.ir.builder import Ref
from fuser.ir.elements import EXACT
from fuser.ir.program import FLOAT_DTYPES
from fuser.ir.scalar import Scalar

IDENTITY = frozenset({"clone", "contiguous", "detach", "detach_", "alias", "lift_fresh", "lift_fresh_copy"})
"""Operators that return their first argument."""


# Arithmetic


def _add(c: Call) -> Ref:
    x, y, alpha = c["self"], c["other"], 1 if c["alpha"] is None else c["alpha"]
    if c.aten.startswith("rsub"):
        x, y = y, x
    negative = c.table == "sub" or c.aten.startswith("rsub")
    n, m = number_of(y), number_of(x)
    if n is not None and math.isfinite(n):
        return c.b.op("shift", c.ref(x, c.dtype), scalar=Scalar(Fraction(n) * Fraction(alpha) * (-1 if negative else 1)))
    if alpha != 1:
        y = c.b.op("scale", c.ref(y, c.dtype), scalar=alpha)
    if m is not None and math.isfinite(m):
        y = c.ref(y, c.dtype)
        return c.b.op("shift", c.b.op("neg", y) if negative else y, scalar=m)
    if not negative:
        for mask, other in ((y, x), (x, y)):
            causal = masked(c, c.ref(other, c.dtype), mask) if not isinstance(mask, Ref) and is_tensor(mask) else None
            if causal is not None:
                return causal
    x, y = (c.filled(v) if isinstance(v, (int, float)) else c.ref(v, c.dtype) for v in (x, y))
    return c.b.op("sub" if negative else "add", x, y, dtype=c.dtype)


def _mul(c: Call) -> Ref:
    x, y = c["self"], c["other"]
    if number_of(x) is not None:
        x, y = y, x
    n = number_of(y)
    if n is not None and math.isfinite(n):
        return c.ref(x, c.dtype) if n == 1 else c.b.op("scale", c.ref(x, c.dtype), scalar=n)
    x, y = c.ref(x, c.dtype), c.filled(n) if n is not None else c.ref(y, c.dtype)
    if c.dtype == "bool":
        return c.b.op("logical_and", x, y)
    return c.b.op("square", x) if x.name == y.name else c.b.op("mul", x, y)


def _quotient(c: Call) -> Ref | None:
    """A quotient rounded down: of whole numbers by one that is known."""
    if c.dtype in FLOAT_DTYPES:
        return c.b.op("floor_div", *(c.operand(c[n], c.dtype) for n in ("self", "other")))
    return _parts(c)[0] if _by_whole(c) else None


def _remainder(c: Call) -> Ref | None:
    return _parts(c)[1] if _by_whole(c) else c.by_entry()


def _by_whole(c: Call) -> bool:
    import torch

    n = number_of(c["other"])
    if c.dtype in (*FLOAT_DTYPES, "bool") or not isinstance(n, int) or not is_tensor(c["self"]):
        return False
    return 0 < n <= min(torch.iinfo(getattr(torch, c.dtype)).max, EXACT - 1)


def _parts(c: Call) -> tuple[Ref, Ref]:
    """Quotient and remainder of whole numbers by one above 0, rounded down."""
    x, n, zero = c.ref(c["self"], c.dtype), number_of(c["other"]), c.operand(0, c.dtype)
    quotient = c.b.op("trunc_div", x, c.operand(n, c.dtype))
    rest = x - c.b.op("scale", quotient, scalar=n)
    below = c.b.op("lt", rest, zero, dtype="bool")
    lower = c.b.op("shift", quotient, scalar=-1), c.b.op("shift", rest, scalar=n)
    return c.b.op("where", below, lower[0], quotient), c.b.op("where", below, lower[1], rest)


def _div(c: Call) -> Ref | None:
    if c["rounding_mode"] == "floor" and c.dtype not in FLOAT_DTYPES:
        return _quotient(c)
    if c["rounding_mode"]:
        x, y = (c.operand(c[n], c.dtype) for n in ("self", "other"))
        return c.b.op("floor_div", x, y) if c["rounding_mode"] == "floor" else c.b.op("trunc", c.b.op("div", x, y))
    x, y = c["self"], c["other"]
    n, m = number_of(y), number_of(x)
    if n and math.isfinite(n):
        return c.b.op("scale", c.ref(x, c.dtype), scalar=Scalar.of(n).inverse())
    if m is not None and math.isfinite(m):
        return _over(c, m, c.ref(y, c.dtype))
    return c.b.op("div", c.ref(x, c.dtype), c.filled(n) if n is not None else c.ref(y, c.dtype))


def _over(c: Call, number: float, x: Ref) -> Ref:
    """number / x"""
    return c.b.op("div", c.filled(number), x)


def _pow(c: Call) -> Any:
    import torch

    x, n = c.ref(c["self"], c.dtype), number_of(c["exponent"])
    if n in (0.5, -0.5):
        return c.b.op("sqrt" if n == 0.5 else "rsqrt", x)
    if n == -1:
        return _over(c, 1.0, x)
    if n is None or not math.isfinite(n):
        raise c.unsupported(f"has the exponent {c['exponent']}", "give it a finite number")
    if n == 0:  # 1 of NaN and of what is infinite, too
        return torch.ones(c.shape, dtype=c.result.dtype)
    if n not in (1, 2, 3, 4):
        return c.b.op("pow", x, exponent=n)
    square = x if n == 1 else c.b.op("square", x)
    return c.b.op("mul", square, x) if n == 3 else c.b.op("square", square) if n == 4 else square


def _gelu(c: Call) -> Ref:
    return c.b.op("gelu_tanh" if c["approximate"] == "tanh" else "gelu", c.tensor("self"))


# Products


def _matmul(c: Call) -> Ref:
    second = next(n for n in ("other", "mat2", "vec", "tensor") if n in c.args)
    x, y = (c.ref(c[n], c.dtype) for n in ("self", second))
    x = c.reshape(x, (1, *x.shape)) if len(x.shape) == 1 else x
    y = c.reshape(y, (*y.shape, 1)) if len(y.shape) == 1 else y
    return c.reshape(x @ y, c.shape)


def _outer(c: Call) -> Ref:
    x, y = (c.ref(c[n], c.dtype) for n in ("self", "vec2"))
    return c.b.op("mul", c.reshape(x, (*x.shape, 1)), y)


def _linear(c: Call) -> Ref:
    x, w, bias = c.tensor("input"), c.tensor("weight"), c["bias"]
    x = c.reshape(x, (1, *x.shape)) if len(x.shape) == 1 else x
    y = x @ w.T
    return c.reshape(y if bias is None else y + c.ref(bias), c.shape)


def _addmm(c: Call) -> Ref:
    first, second = ("mat1", "mat2") if "mat1" in c.args else ("batch1", "batch2")
    y = c.tensor(first) @ c.tensor(second)
    y = y if c["alpha"] == 1 else c.b.op("scale", y, scalar=c["alpha"])
    if c["beta"] == 0:  # what is in the first is not read then, be it NaN
        return y
    x = c.tensor("self")
    return y + (x if c["beta"] == 1 else c.b.op("scale", x, scalar=c["beta"]))


# Views and copies


def _cast(c: Call) -> Ref:
    x = c.ref(c["self"])
    if c.dtype == "bool" and x.tensor.dtype not in ("bool", *FLOAT_DTYPES):  # whole numbers are compared, not computed with
        return c.b.op("ne", x, c.operand(0, x.tensor.dtype), dtype="bool")
    return c.ref(x, c.dtype)


def _transpose(c: Call) -> Ref:
    x = c.ref(c["self"])
    n = len(x.shape)
    if not n:
        return x
    if c.aten == "permute":
        perm = [d % n for d in c["dims"]]
    elif c.aten == "transpose.int":
        perm = list(range(n))
        i, j = c["dim0"] % n, c["dim1"] % n
        perm[i], perm[j] = j, i
    elif c.aten == "numpy_T":  # of more than two dimensions all change places
        perm = list(reversed(range(n)))
    else:
        perm = [*range(n - 2), n - 1, n - 2] if n > 1 else list(range(n))
    return x if perm == list(range(n)) else x.transpose(*perm)


def _broadcast(c: Call) -> Ref:
    x = c.ref(c["self"])
    return x if x.shape == c.shape else c.b.op("broadcast", x, shape=c.shape)


def _dropout(c: Call) -> Any:
    if c["p"] and (c["train"] or (c["train"] is None and "native" in c.aten)):
        raise c.unsupported("is active", "call module.eval() before importing")
    x = c.tensor("input")
    return (x, None) if "native" in c.aten else x


def _copy(c: Call) -> Ref:
    x = c.ref(c["src"], c.dtype)
    return x if x.shape == c.shape else c.b.op("broadcast", x, shape=c.shape)


def _repeat(c: Call) -> Ref:
    x, axis, times = c.tensor("self"), c["dim"], c["repeats"]
    if axis is None:
        x, axis = c.reshape(x, (math.prod(x.shape),)), 0
    return x if times == 1 else c.b.op("repeat", x, axis=c.axis(axis, x), times=times)


def _slice(c: Call) -> Ref:
    x = c.tensor("self")
    axis = c.axis(c["dim"], x)
    if c.aten == "narrow":
        return cut(c.b, x, axis, c["start"] % x.shape[axis], c["start"] % x.shape[axis] + c["length"])
    start, _, step = slice(c["start"], c["end"], c["step"]).indices(x.shape[axis])
    return strided(c.b, x, axis, start, c.shape[axis], step)


def _select(c: Call) -> Ref:
    x = c.tensor("self")
    axis = c.axis(c["dim"], x)
    i = c["index"] % x.shape[axis]
    return c.reshape(cut(c.b, x, axis, i, i + 1), c.shape)


def _split(c: Call) -> list[Ref]:
    """split, chunk, unbind: the extents of the results say where."""
    x = c.tensor("self")
    axis = c.axis(c["dim"] or 0, x)
    parts: list[Any] = []
    start = 0
    for part in c.result:
        stop = start + (1 if len(part.shape) < len(x.shape) else part.shape[axis])
        parts.append(c.reshape(cut(c.b, x, axis, start, stop), tuple(part.shape)) if stop > start else empty(part))
        start = stop
    return parts


def empty(like: Any) -> Any:
    """A part of no elements, which is no tensor of a program."""
    import torch

    return torch.empty(tuple(like.shape), dtype=like.dtype)


def _concat(c: Call) -> Ref:
    parts = [c.ref(t, c.dtype) for t in c["tensors"] if 0 not in t.shape]
    axis = (c["dim"] or 0) % len(c.shape)
    if c.aten == "stack":
        parts = [c.reshape(p, (*p.shape[:axis], 1, *p.shape[axis:])) for p in parts]
    return parts[0] if len(parts) == 1 else c.b.op("concat", *parts, axis=axis)


def _roll(c: Call) -> Ref | None:
    """Along each axis the last elements come first."""
    x = c.tensor("self")
    if not c["dims"]:
        return None
    for shift, dim in zip(c["shifts"], c["dims"], strict=True):
        axis, n = c.axis(dim, x), x.shape[dim]
        if at := -shift % n:
            x = c.b.op("concat", cut(c.b, x, axis, at, n), cut(c.b, x, axis, 0, at), axis=axis)
    return x


def _scattered(c: Call) -> Ref:
    """A slice, or one element along an axis, in the place of what was there."""
    x, src = c.tensor("self"), c.ref(c["src"], c.dtype)
    axis = c.axis(c["dim"], x)
    n = x.shape[axis]
    start, stop, step = slice(c["start"], c["end"], c["step"]).indices(n) if c["index"] is None else (c["index"] % n, 0, 1)
    if step != 1:
        raise c.unsupported(f"has the step {step}", "slices with a step of 1 are supported")
    stop = stop if c["index"] is None else start + 1
    src = c.reshape(src, (*x.shape[:axis], stop - start, *x.shape[axis + 1 :]))
    parts = [cut(c.b, x, axis, a, b) for a, b in ((0, start), (stop, n)) if a < b]
    parts.insert(1 if start else 0, src)
    return src if len(parts) == 1 else c.b.op("concat", *parts, axis=axis)


def _constant_pad(c: Call) -> Ref:
    """A border of one number; torch names the last axis first."""
    x, pad = c.tensor("self"), c["pad"]
    pairs = [*zip(pad[::2], pad[1::2], strict=True)][::-1]
    return bordered(c.b, x, [*[(0, 0)] * (len(x.shape) - len(pairs)), *pairs], lambda: c.filled(c["value"] or 0))


def _circular_pad(c: Call) -> Ref | None:
    """Borders that go on at the other end, the last axis first; torch itself makes others of more."""
    if c["mode"] != "circular":
        return None
    x, pad = c.tensor("self"), c["pad"]
    for i, (before, behind) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        axis = len(x.shape) - 1 - i
        n = x.shape[axis]
        if min(before, behind) < 0 or max(before, behind) > n:
            return None
        parts = [cut(c.b, x, axis, a, b) for a, b in ((n - before, n), (0, n), (0, behind)) if a < b]
        x = x if len(parts) == 1 else c.b.op("concat", *parts, axis=axis)
    return x


def _glu(c: Call) -> Ref:
    x = c.tensor("self")
    axis = c.axis(c["dim"], x)
    half = x.shape[axis] // 2
    return c.b.op("mul", cut(c.b, x, axis, 0, half), c.b.op("sigmoid", cut(c.b, x, axis, half, 2 * half)))


def _prelu(c: Call) -> Ref:
    x, slope = c.tensor("self"), c.tensor("weight")
    trailing = (1,) * (len(x.shape) - 2) if len(slope.shape) == 1 and slope.shape != (1,) else ()
    return c.b.op("prelu", x, c.reshape(slope, (*slope.shape, *trailing)))


def _filled_like(c: Call) -> Any:
    """A constant of which a tensor gives only the shape."""
    import torch

    number = next((c[n] for n in ("fill_value", "value") if n in c.args), int("ones" in c.aten))
    return torch.full(c.shape, number, dtype=c.result.dtype)


# Folds and composites


def _special(c: Call) -> Ref | None:
    """Whether numbers are infinite, finite or NaN: whole numbers and bits are finite."""
    x = c.tensor("self")
    return c.by_entry() if x.tensor.dtype in FLOAT_DTYPES else c.b.op("eq" if c.table == "isfinite" else "ne", x, x)


def _distances(c: Call) -> Ref | None:
    """Euclidean distances of rows; others are left."""
    if number_of(c["p"]) != 2:
        return None
    x, y = (c.ref(c[n], c.dtype) for n in ("x1", "x2"))
    x, y = (c.reshape(v, (*v.shape[:-2], *pair, v.shape[-1])) for v, pair in ((x, (x.shape[-2], 1)), (y, (1, y.shape[-2]))))
    return c.b.op("vector_norm", x - y, axis=(len(c.shape),), keepdims=False)


def _norm(c: Call) -> Any:
    x, gain, bias = c.tensor("input"), c["weight"], c["bias"]
    result = c.result[0] if isinstance(c.result, (list, tuple)) else c.result
    dtype = dtype_name(result.dtype, c.where)
    size = math.prod(c["normalized_shape"])
    lead = x.shape[: len(x.shape) - len(c["normalized_shape"])]
    vectors = [c.reshape(c.ref(v, dtype), (size,)) for v in (gain, bias if gain is not None else None) if v is not None]
    # torch computes narrow types in float32, and its default is the epsilon of that
    eps = c["eps"] if c["eps"] is not None else 2.0 ** -(52 if dtype == "float64" else 23)
    name = "rms_norm" if "rms_norm" in c.aten else "layer_norm"
    y = c.b.op(name, c.reshape(c.ref(x, dtype), (*lead, size)), *vectors, eps=eps)
    y = y if gain is not None or bias is None else y + c.reshape(c.ref(bias, dtype), (size,))
    y = c.reshape(y, x.shape)
    return y if result is c.result else (y, None, None)


BY_TABLE: dict[str, Callable[[Call], Any]] = {
    "add": _add, "sub": _add, "mul": _mul, "div": _div, "where": where, "gelu": _gelu, "matmul": _matmul,
    "var": variance, "std": variance, **dict.fromkeys(("isnan", "isfinite", "isinf"), _special),
    "vector_norm": vector_norm, **dict.fromkeys(("softmax", "log_softmax"), along), "exp": exponential,
    "rms_norm": _norm, "layer_norm": _norm,
    **dict.fromkeys(("group_norm", "instance_norm", "batch_norm"), by_channels), "attention": attention,
    "tril": triangle, "triu": triangle,
    "reshape": lambda c: c.reshape(c.tensor("self"), c.shape), "transpose": _transpose, "broadcast": _broadcast,
    "repeat": _repeat, "concat": _concat, "slice": _slice, "cast": _cast,
}  # fmt: skip
"""Rules by the name in the op table, for the ATen operators of its ``torch`` column."""

BY_ATEN: dict[str, Callable[[Call], Any]] = {
    **dict.fromkeys(("floor_divide", "floor_divide.Scalar"), _quotient),
    **dict.fromkeys(("remainder.Tensor", "remainder.Scalar"), _remainder),
    "rsub.Tensor": _add, "rsub.Scalar": _add, "reciprocal": lambda c: _over(c, 1.0, c.tensor("self")),
    "div.Tensor_mode": _div, "div.Scalar_mode": _div, "pow.Tensor_Scalar": _pow, "max.dim": extreme, "min.dim": extreme,
    "linear": _linear, "addmm": _addmm, "baddbmm": _addmm, "dot": _matmul, "mv": _matmul, "outer": _outer, "einsum": einsum,
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout", "native_dropout"), _dropout),
    "copy": _copy, "glu": _glu, "prelu": _prelu, "lerp.Scalar": lerp, "lerp.Tensor": lerp,
    "log_sigmoid_forward": lambda c: (c.b.op("log_sigmoid", c.tensor("self")), None),  # the other result is for gradients
    "select.int": _select, "split.Tensor": _split, "split_with_sizes": _split, "chunk": _split, "unbind.int": _split,
    "constant_pad_nd": _constant_pad, "pad": _circular_pad, "_cdist_forward": _distances, "clamp.Tensor": clamp,
    "slice_scatter": _scattered, "select_scatter": _scattered, "fill.Scalar": _filled_like, **PLACES,
    "repeat": lambda c: tiled(c.b, c.tensor("self"), c["repeats"]), "roll": _roll,
    "masked_fill.Scalar": masked_fill, "masked_fill.Tensor": masked_fill,
    **dict.fromkeys(("ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full"), _filled_like),
}  # fmt: skip
"""Rules by ATen's name, for operators that are several of the table's."""
