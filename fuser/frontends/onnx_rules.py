"""ONNX's operators: by their names in the op table, or by a rule where one is several of the table's or depends on attributes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fuser.frontends.composed import cut
from fuser.frontends.composed import einsum
from fuser.frontends.onnx_call import Call
from fuser.frontends.onnx_places import PLACES
from fuser.frontends.onnx_views import VIEWS
from fuser.frontends.onnx_windows import WINDOWS
from fuser.ir.builder import Ref
from fuser.ir.program import FLOAT_DTYPES

MOST_TERMS = 1 << 24
"""Most terms of a product of whole numbers, which are in memory at once."""

BY_NAME: dict[str, str] = {
    "Abs": "abs", "Add": "add", "And": "logical_and", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Equal": "eq",
    "Erf": "erf", "Exp": "exp", "Floor": "floor", "Greater": "gt", "GreaterOrEqual": "ge", "HardSwish": "hardswish",
    "IsNaN": "isnan", "Less": "lt", "LessOrEqual": "le", "Log": "log", "Mish": "mish", "Mul": "mul", "Neg": "neg",
    "Not": "logical_not", "Or": "logical_or", "PRelu": "prelu", "Reciprocal": "reciprocal", "Relu": "relu", "Round": "round",
    "Sigmoid": "sigmoid", "Sign": "sign", "Sin": "sin", "Sinh": "sinh", "Softsign": "softsign", "Sqrt": "sqrt", "Sub": "sub",
    "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh", "Atan": "atan", "Atanh": "atanh",
    "Tan": "tan", "Tanh": "tanh", "Where": "where", "Xor": "logical_xor",
}  # fmt: skip
"""Operators that are one of the table's, with its operands in its order and no attributes."""


def by_name(c: Call) -> Ref:
    return c.b.op(BY_NAME[c.op], *c.refs)


def identity(c: Call) -> Any:
    if c.op == "Dropout" and bool(np.any(c.array(2, "training_mode"))):
        raise c.unsupported("is active", "export the model for inference")
    return c.ref(0) if c.results < 2 else (c.ref(0), c.constant(np.ones(c.ref(0).shape, bool)))


# Element by element


def _erf(c: Call) -> Ref:
    if c.dtype(0) not in FLOAT_DTYPES:
        raise c.unsupported(f"is of {c.dtype(0)}", "cast it to float32 in front")
    return by_name(c)


def _several(op: str) -> Callable[[Call], Ref]:
    """Of any number of operands."""

    def rule(c: Call) -> Ref:
        return functools.reduce(lambda x, y: c.b.op(op, x, y), c.refs)

    return rule


def _with(op: str, **attrs: tuple[str, float]) -> Callable[[Call], Ref]:
    """Attributes of the table's by ONNX's names, with ONNX's defaults."""

    def rule(c: Call) -> Ref:
        return c.b.op(op, *c.refs, **{ours: c.attrs.get(theirs, default) for ours, (theirs, default) in attrs.items()})

    return rule


def _thresholded(c: Call) -> Ref:
    x = c.ref(0)
    return c.b.op("where", c.b.op("gt", x, c.filled(c.attrs.get("alpha", 1.0), x)), x, c.filled(0.0, x))


def _shrink(c: Call) -> Ref:
    x, bound, bias = c.ref(0), c.attrs.get("lambd", 0.5), c.attrs.get("bias", 0.0)
    inner = c.b.op("where", c.b.op("lt", x, c.filled(-bound, x)), x + bias, c.filled(0.0, x))
    return c.b.op("where", c.b.op("gt", x, c.filled(bound, x)), x - bias, inner)


def _is_inf(c: Call) -> Ref:
    x = c.ref(0)
    signs = [s for s, n in ((1, "detect_positive"), (-1, "detect_negative")) if c.attrs.get(n, 1)]
    if not signs:
        raise c.unsupported("looks for no infinity")
    found = [c.b.op("eq", x, c.filled(s * math.inf, x)) for s in signs]
    return found[0] if len(found) == 1 else c.b.op("logical_or", *found)


def _selu(c: Call) -> Ref:
    c.only(alpha=1.67326319217681884765625, gamma=1.05070102214813232421875)
    return c.b.op("selu", c.ref(0))


def _hard_sigmoid(c: Call) -> Ref:
    x = c.ref(0) * float(c.attrs.get("alpha", 0.2)) + float(c.attrs.get("beta", 0.5))
    return c.b.op("clamp", x, min=0.0, max=1.0)


def _gelu(c: Call) -> Ref:
    form = c.attrs.get("approximate", b"none")
    return c.b.op("gelu_tanh", c.ref(0)) if form == b"tanh" else c.b.gelu(c.ref(0))


def _clip(c: Call) -> Ref:
    x = c.ref(0)
    for i, name, op in ((1, "min", "maximum"), (2, "max", "minimum")):
        if c.given(i) and isinstance(c.args[i], Ref):
            x = c.b.op(op, x, c.ref(i))
            continue
        bound, most = c.number(i, name), 1.7e308 if x.tensor.dtype == "float64" else 3.4e38
        if bound is None or (bound <= -most if name == "min" else bound >= most):
            continue
        attrs: dict[str, Any] = {name: bound}
        x = c.b.op(f"clamp_{name}", x, **attrs) if math.isfinite(bound) else c.b.op(op, x, c.filled(bound, x))
    return x


def _pow(c: Call) -> Ref:
    """Of the base's dtype; a whole base and an exponent that is none are taken to a power as float64."""
    x, dtype = c.ref(0), c.ref(0).tensor.dtype
    known = None if isinstance(c.args[1], Ref) or np.size(c.args[1]) != 1 else float(np.reshape(c.args[1], ())[()])
    fraction = c.dtype(1) in FLOAT_DTYPES if known is None else not known.is_integer() or known < 0
    if whole := dtype not in FLOAT_DTYPES:
        if known is not None and known < 0 and c.dtype(1) not in FLOAT_DTYPES:
            raise c.unsupported(f"takes whole numbers to the power {known:.0f}", "cast the base to a float")
        x = c.b.op("cast", x, dtype="float64") if fraction else x
    if known is None:
        y = c.b.op("power", x, c.b.op("cast", c.ref(1), dtype=x.tensor.dtype))
    elif known in (1, 2, 0.5):
        y = x if known == 1 else c.b.op("square" if known == 2 else "sqrt", x)
    else:
        y = c.b.op("pow", x, exponent=known)
    y = c.b.op("cast", y, dtype=dtype) if whole and fraction else y
    return y if known is None else c.reshape(y, np.broadcast_shapes(x.shape, c.args[1].shape))


def _div(c: Call) -> Ref:
    return c.b.op("div" if c.dtype(0) in FLOAT_DTYPES else "trunc_div", c.ref(0), c.ref(1))


def _cast(c: Call) -> Ref:
    import onnx

    name = onnx.TensorProto.DataType.Name(c.attrs["to"]).lower()
    return c.b.op("cast", c.ref(0), dtype={"float": "float32", "double": "float64"}.get(name, name))


def _trilu(c: Call) -> Ref:
    upper, k = c.attrs.get("upper", 1), int(c.number(1, "k") or 0)
    return c.b.op("triu" if upper else "tril", c.ref(0), offset=k - 1 if upper else k)


# Products


def _matmul(c: Call) -> Ref:
    x, y = c.ref(0), c.ref(1)
    left, right = len(x.shape) == 1, len(y.shape) == 1
    x, y = c.reshape(x, (1, *x.shape)) if left else x, c.reshape(y, (*y.shape, 1)) if right else y
    out = x @ y if x.tensor.dtype in FLOAT_DTYPES else _whole_product(c, x, y)
    shape = out.shape[:-2] + (() if left else out.shape[-2:-1]) + (() if right else out.shape[-1:])
    return c.reshape(out, shape)


def _whole_product(c: Call, x: Ref, y: Ref) -> Ref:
    """Of whole numbers, which no product of kernels or libraries takes: each of its terms, then their sum."""
    x, y = c.reshape(x, (*x.shape, 1)), c.reshape(y, (*y.shape[:-2], 1, *y.shape[-2:]))
    if math.prod(shape := np.broadcast_shapes(x.shape, y.shape)) > MOST_TERMS:
        raise c.unsupported(f"multiplies large matrices of {x.tensor.dtype}", "cast them to float32 in front")
    return c.b.op("sum", c.b.op("mul", x, y), axis=(len(shape) - 2,), keepdims=False)


def _gemm(c: Call) -> Ref:
    x, y = c.ref(0), c.ref(1)
    x, y = x.T if c.attrs.get("transA") else x, y.T if c.attrs.get("transB") else y
    alpha, beta = (c.attrs.get(name, 1.0) for name in ("alpha", "beta"))
    if whole := x.tensor.dtype not in FLOAT_DTYPES:
        c.only(alpha=1.0, beta=1.0)  # whole numbers times others: ONNX does not say how they are rounded
    out = _whole_product(c, x, y) if whole else x @ y
    out = out if alpha == 1 else out * alpha
    if not c.given(2):
        return out
    return out + (c.ref(2) if beta == 1 else c.ref(2) * beta)


def _einsum(c: Call) -> Ref:
    if len(c.args) > 1 and (dtype := c.dtype(0)) not in FLOAT_DTYPES:
        raise c.unsupported(f"multiplies tensors of {dtype}", "cast them to float32 in front")
    y = einsum(c.b, c.attrs["equation"].decode(), c.refs)
    if y is None:
        raise c.unsupported(f"is {c.attrs['equation'].decode()!r}: a diagonal, or ellipses of different ranks")
    return y


# Folds and composites


def _fold(op: str, before: str = "", after: str = "") -> Callable[[Call], Ref]:
    def rule(c: Call) -> Ref:
        x, axes = c.ref(0), c.ints(1, "axes")
        if not axes and c.attrs.get("noop_with_empty_axes"):
            return x
        over = tuple(sorted(c.axes(axes or range(len(x.shape)), len(x.shape))))
        keepdims = bool(c.attrs.get("keepdims", 1))
        if op == "mean" and x.tensor.dtype not in FLOAT_DTYPES:
            total = c.b.op("sum", x, axis=over, keepdims=keepdims)
            return c.b.op("trunc_div", total, c.filled(math.prod(x.shape[i] for i in over), x))
        dtype = x.tensor.dtype
        if fraction := dtype not in FLOAT_DTYPES and (after or op in ("vector_norm", "logsumexp")):
            x = c.b.op("cast", x, dtype="float64")
        x = c.b.op(before, x) if before else x
        y = c.b.op(op, x, axis=over, keepdims=keepdims)
        y = c.b.op(after, y) if after else y
        return c.b.op("cast", y, dtype=dtype) if fraction else y

    return rule


def _arg(op: str) -> Callable[[Call], Ref]:
    def rule(c: Call) -> Ref:
        x = c.ref(0)
        dim, last = c.axis(0, len(x.shape)), bool(c.attrs.get("select_last_index", 0))
        x = c.b.op("flip", x, dims=(dim,)) if last else x
        place = c.b.op(op, x, dim=dim, keepdim=bool(c.attrs.get("keepdims", 1)), dtype="int64")
        return c.reshape(c.constant(np.array([x.shape[dim] - 1])) - place, place.shape) if last else place

    return rule


def _cumsum(c: Call) -> Ref:
    x = c.ref(0)
    (dim,) = c.axes(c.ints(1, "axis") or (0,), len(x.shape))
    ordered = c.b.op("flip", x, dims=(dim,)) if c.attrs.get("reverse") else x
    if c.attrs.get("exclusive"):  # what is in front of each: all but the last, behind a zero
        zero = c.b.op("broadcast", c.filled(0, x), shape=tuple(1 if i == dim else n for i, n in enumerate(x.shape)))
        ordered = cut(c.b, c.b.op("concat", zero, ordered, axis=dim), dim, 0, x.shape[dim])
    y = c.b.op("cumsum", ordered, dim=dim)
    return c.b.op("flip", y, dims=(dim,)) if c.attrs.get("reverse") else y


def _prod(c: Call) -> Ref:
    """Along several axes one by one, the last first."""
    x, axes = c.ref(0), c.ints(1, "axes")
    if not axes and c.attrs.get("noop_with_empty_axes"):
        return x
    for a in sorted(c.axes(axes or range(len(x.shape)), len(x.shape)), reverse=True):
        x = c.b.op("prod", x, dim=a, keepdim=bool(c.attrs.get("keepdims", 1)))
    return x


def _softmax(op: str, **attrs: Any) -> Callable[[Call], Ref]:
    def rule(c: Call) -> Ref:
        x = c.ref(0)
        axis = c.axis(-1 if c.opset >= 13 else 1, len(x.shape))
        if c.opset >= 13 or axis == len(x.shape) - 1:
            return c.b.op(op, x, axis=axis, **attrs)
        flat = c.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
        return c.reshape(c.b.op(op, flat, axis=1, **attrs), x.shape)

    return rule


def _layer_norm(c: Call) -> Any:
    x, eps = c.ref(0), float(c.attrs.get("epsilon", 1e-5))
    axis = c.axis(-1, len(x.shape))
    size = math.prod(x.shape[axis:])
    vectors = [c.reshape(c.ref(i), (size,)) for i in (1, 2) if c.given(i)]
    y = c.reshape(c.b.op("layer_norm", c.reshape(x, (*x.shape[:axis], size)), *vectors, eps=eps), x.shape)
    if c.results < 2:
        return y
    over = tuple(range(axis, len(x.shape)))
    mean = c.b.op("mean", x, axis=over, keepdims=True)
    return y, mean, c.b.op("rsqrt", c.b.op("mean", c.b.op("square", x - mean), axis=over, keepdims=True) + eps)


def _lp_norm(c: Call) -> Ref:
    x, p = c.ref(0), c.attrs.get("p", 2)
    axis = c.axis(-1, len(x.shape))
    x1 = x if p == 2 else c.b.op("abs", x)
    return c.b.op("div", x, c.b.op("vector_norm" if p == 2 else "sum", x1, axis=(axis,), keepdims=True))


def _mean_variance(c: Call) -> Ref:
    x = c.ref(0)
    over = c.axes(c.attrs.get("axes", (0, 2, 3)), len(x.shape))
    centred = x - c.b.op("mean", x, axis=over, keepdims=True)
    deviation = c.b.op("sqrt", c.b.op("mean", c.b.op("square", centred), axis=over, keepdims=True))
    return c.b.op("div", centred, deviation + 1e-9)


def _hardmax(c: Call) -> Ref:
    x = c.ref(0)
    axis = c.axis(-1 if c.opset >= 13 else 1, len(x.shape))
    if c.opset < 13 and axis != len(x.shape) - 1:
        raise c.unsupported("flattens the axes behind its own", "export with opset 13 or later")
    best = c.b.op("argmax", x, dim=axis, keepdim=True, dtype="int64")
    places = np.arange(x.shape[axis]).reshape(-1, *(1,) * (len(x.shape) - axis - 1))
    return c.b.op("cast", c.b.op("eq", c.b.op("broadcast", best, shape=x.shape), c.constant(places)), dtype=x.tensor.dtype)


def _batch_norm(c: Call) -> Ref:
    c.only(training_mode=0)
    if c.results > 1:
        raise c.unsupported("has statistics of its batch read: it trains", "export the model for inference")
    x = c.ref(0)
    gain, bias, mean, variance = c.vectors(range(1, 5), x.shape[1])
    return c.b.op("batch_norm", x, mean, variance, gain, bias, eps=float(c.attrs.get("epsilon", 1e-5)))


def _instance_norm(c: Call) -> Ref:
    x = c.ref(0)
    return c.b.op("instance_norm", x, *c.vectors((1, 2), x.shape[1]), eps=float(c.attrs.get("epsilon", 1e-5)))


def _group_norm(c: Call) -> Ref:
    x, gain, bias, groups = c.ref(0), c.ref(1), c.ref(2), c.attrs["num_groups"]
    if gain.shape != (x.shape[1],):
        raise c.unsupported("has a gain for each group", "export with opset 21 or later")
    return c.b.op("group_norm", x, gain, bias, groups=groups, eps=float(c.attrs.get("epsilon", 1e-5)))


RULES: dict[str, Callable[[Call], Any]] = {
    **dict.fromkeys(BY_NAME, by_name), "Erf": _erf, **dict.fromkeys(("Identity", "Dropout"), identity),
    "Max": _several("maximum"), "Min": _several("minimum"), "Sum": _several("add"), "Clip": _clip, "Pow": _pow, "Div": _div,
    "Mod": lambda c: c.b.op("fmod" if c.attrs.get("fmod") else "remainder", *c.refs),
    "LeakyRelu": _with("leaky_relu", negative_slope=("alpha", 0.01)), "Celu": _with("celu", alpha=("alpha", 1.0)),
    "Elu": lambda c: c.b.op("elu", c.ref(0), alpha=c.attrs.get("alpha", 1.0), scale=1.0, input_scale=1.0),
    "Softplus": lambda c: c.b.op("softplus", c.ref(0), beta=1.0, threshold=20.0), "Selu": _selu, "HardSigmoid": _hard_sigmoid,
    "Gelu": _gelu, "Cast": _cast, "CastLike": lambda c: c.b.op("cast", c.ref(0), dtype=c.dtype(1)), "Trilu": _trilu,
    "MatMul": _matmul, "Gemm": _gemm, "Einsum": _einsum,
    "ReduceSum": _fold("sum"), "ReduceMean": _fold("mean"), "ReduceMax": _fold("max"),
    "ReduceMin": _fold("min"), "ReduceL1": _fold("sum", before="abs"), "ReduceL2": _fold("vector_norm"),
    "ReduceSumSquare": _fold("sum", before="square"), "ReduceLogSum": _fold("sum", after="log"),
    "ReduceLogSumExp": _fold("logsumexp"), "ArgMax": _arg("argmax"), "ArgMin": _arg("argmin"), "CumSum": _cumsum,
    "Softmax": _softmax("softmax", strict=True), "LogSoftmax": _softmax("log_softmax"), "LayerNormalization": _layer_norm,
    "BatchNormalization": _batch_norm, "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm, "LpNormalization": _lp_norm, "MeanVarianceNormalization": _mean_variance,
    "ReduceProd": _prod, "ThresholdedRelu": _thresholded, "Shrink": _shrink, "IsInf": _is_inf, "Hardmax": _hardmax,
    "Mean": lambda c: _several("add")(c) * (1 / len(c.args)), **WINDOWS, **PLACES, **VIEWS,
}  # fmt: skip
"""A rule for each operator; it returns a tensor, or a list of them for several results."""
