"""The op table: one entry per operator says everything that the system knows of it.

Kinds of operator:

``map``        element-wise with broadcasting: output axes are the union of the operands' axes.
``contract``   a product summed over axes: matmul.
``reduce``     a fold over axes: sum, max.
``view``       moves no data once accesses are axes: reshape, transpose, broadcast, repeat.
``data``       copies data: concat, slice.
``composite``  expands into other operators (:mod:`fuser.ir.composites`); one operator in size limits.
``library``    computed by torch as a kernel of its own; inside of no generated kernel.
``opaque``     an operator of the imported model that the table lacks; it has a shape and a name, and nothing is known of its
value.

Adding an operator is adding one entry: here for what others are made of, in :mod:`fuser.ir.formulas` for what is made of them
element by element, in :mod:`fuser.ir.composites` for what becomes several, in :mod:`fuser.ir.library_ops` and
:mod:`fuser.ir.library_places` for what torch does.
:class:`fuser.ir.opdef.OpDef` says what the columns are, and what follows where they are not given.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from fuser.errors import UnsupportedError
from fuser.ir import dimensions
from fuser.ir import element_rules
from fuser.ir import shapes
from fuser.ir.composite_ops import COMPOSITES
from fuser.ir.formulas import FORMULAS
from fuser.ir.interval import ANY
from fuser.ir.interval import CHOICE
from fuser.ir.interval import NONZERO
from fuser.ir.interval import NOT_NEGATIVE
from fuser.ir.interval import POSITIVE
from fuser.ir.interval import Domain
from fuser.ir.library_ops import LIBRARY
from fuser.ir.library_places import PLACES
from fuser.ir.opdef import OPS
from fuser.ir.opdef import Array
from fuser.ir.opdef import Attrs
from fuser.ir.opdef import OpDef
from fuser.ir.opdef import Term
from fuser.ir.opdef import missing
from fuser.ir.scalar import Scalar


def _sigmoid(x: Array, **_: Any) -> Array:
    # exp of a non-positive number only, so that no input overflows
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _erf(x: Array, **_: Any) -> Array:
    from math import erf

    return np.vectorize(erf, otypes=[np.float64])(np.asarray(x, np.float64)).astype(np.asarray(x).dtype)


def _scalar(attrs: Attrs) -> float:
    return Scalar.of(attrs["scalar"]).value()


def _div(a: Array, b: Array, **_: Any) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return a / b


def _quiet(f: Callable[..., Array]) -> Callable[..., Array]:
    def call(*args: Array, **attrs: Any) -> Array:
        with np.errstate(all="ignore"):
            return f(*args)

    return call


def _map(name: str, arity: int, numpy: Callable[..., Array], triton: str, **more: Any) -> OpDef:
    return OpDef(name, "map", arity, numpy, triton=triton, **more)


def _gelu(x: Term) -> Term:
    root = Scalar.power(2, Fraction(-1, 2))
    return x * Fraction(1, 2) * ((x * root).then("erf") + 1)


_TAIL = "tl.exp2(-1.0 - {t} * (1.14995 + {t} * (0.46285 + {t} * (0.0490482 + {t} * (-0.00604691 + {t} * 0.000341676)))))"
NARROW_GELU = f"{{0}} * tl.where({{0}} > 0.0, 1.0 - {_TAIL}, {_TAIL})".replace("{t}", "tl.abs({0})")
"""x·Φ(x) with Φ(−|x|) as a power of two, its exponent a polynomial: off by 8e-5 of the result, or 3e-8 where that is more."""

_ODD = "(-0.333333116 + {u} * (0.133305137 + {u} * (-0.0533910545 + {u} * 0.0179992192)))".replace("{u}", "({0} * {0})")
TANH = f"tl.where(tl.abs({{0}}) < 0.5, {{0}} + {{0}} * ({{0}} * {{0}}) * {_ODD}, 2.0 * tl.sigmoid(2.0 * {{0}}) - 1.0)"
"""Near zero what is left of 1 has few digits, and a polynomial through Chebyshev's points 9e-8 of the result: 4e-7 at most."""
NARROW_TANH = "tl.where(tl.abs({0}) < 0.1, {0} - 0.3333 * {0} * ({0} * {0}), 2.0 * tl.sigmoid(2.0 * {0}) - 1.0)"
"""Two terms of the series: 1.5e-5 of the result."""


def _matmul(a: Array, b: Array, **_: Any) -> Array:
    return np.matmul(a, b)


def _sum(x: Array, *, axis: Sequence[int], keepdims: bool = False, **_: Any) -> Array:
    return np.sum(x, axis=tuple(axis), keepdims=keepdims)


def _max(x: Array, *, axis: Sequence[int], keepdims: bool = False, **_: Any) -> Array:
    return np.max(x, axis=tuple(axis), keepdims=keepdims)


def _triangle(hidden: float, above: bool = False) -> Callable[..., Array]:
    """``hidden`` where column > row + offset, or (``above``) where it is not. ``rows`` and ``cols`` are the element indices of a
    tile, shaped to broadcast against ``x``.
    """

    def call(x: Array, *, offset: Any = 0, rows: Array | None = None, cols: Array | None = None, **_: Any) -> Array:
        rows = np.arange(x.shape[-2])[:, None] if rows is None else rows
        cols = np.arange(x.shape[-1])[None, :] if cols is None else cols
        return np.where((cols <= rows + offset) != above, x, hidden if hidden else np.zeros((), x.dtype))

    return call


def _opaque(*xs: Array, callee: str = "", detail: str = "", field: int = -1, **_: Any) -> Array:
    if callee.count(".") == 2:  # torch's: namespace, name, overload
        from fuser.aten import evaluate

        return evaluate(callee, detail, xs, field)
    raise UnsupportedError(
        f"the imported operator {callee} is opaque: it has no numpy semantics", "evaluate the model where it was imported"
    )


def _cast(x: Array, *, dtype: str = "", **_: Any) -> Array:
    """Whole numbers and conditions change a value; rounding to a narrower float is left to the dtype of the evaluation."""
    if dtype == "bool":
        return (x != 0).astype(x.dtype)
    return np.trunc(x) if "int" in dtype else x


def _where(c: Array, a: Array, b: Array, **_: Any) -> Array:
    return np.where(c != 0, a, b)


_ALL = (
    # element-wise, two operands
    _map("add", 2, lambda a, b, **_: a + b, "{0} + {1}", linear=(False, False), degree="equal", commutative=True,
         relay=("add", "nn.bias_add"), torch=("add.Tensor", "add.Scalar"), fraction="sum"),
    _map("sub", 2, lambda a, b, **_: a - b, "{0} - {1}", linear=(False, False), degree="equal", attrs=("strict",),
         optional=("strict",), relay=("subtract",), torch=("sub.Tensor", "sub.Scalar"), fraction="sum", eager="sub strict:"),
    _map("mul", 2, lambda a, b, **_: a * b, "{0} * {1}", linear=(True, True), degree="add", commutative=True,
         relay=("multiply",), torch=("mul.Tensor", "mul.Scalar"), fraction="product"),
    _map("div", 2, _div, "{0} / {1}", linear=(True, False), degree="sub", sfu=1.0, domain=(ANY, NONZERO), attrs=("strict",),
         optional=("strict",), relay=("divide",), torch=("div.Tensor", "div.Scalar"), fraction="quotient", eager="div strict:"),
    _map("maximum", 2, lambda a, b, **_: np.maximum(a, b), "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
         commutative=True,
         relay=("maximum",), torch=("maximum", "max.other", "clamp_min.Tensor"), fraction="chosen"),
    _map("where", 3, _where, "tl.where({0} != 0, {1}, {2})", typed="choices", relay=("where",),
         torch=("where.self", "where.ScalarOther", "where.ScalarSelf"), domain=(CHOICE,), fraction="chosen", eager=".where"),
    # element-wise, one operand
    _map("scale", 1, lambda x, **a: x * np.asarray(_scalar(a), x.dtype), "{0} * {scalar}", linear=(True,), degree="same",
         attrs=("scalar",), fraction="same", eager="mul scalar:other"),
    _map("shift", 1, lambda x, **a: x + np.asarray(_scalar(a), x.dtype), "{0} + {scalar}", attrs=("scalar",), fraction="shift",
         eager="add scalar:other"),
    _map("neg", 1, lambda x, **_: -x, "-{0}", linear=(True,), degree="same", relay=("negative",), torch=("neg",),
         fraction="same"),
    _map("exp", 1, _quiet(np.exp), "tl.exp2({0} * 1.4426950408889634)", sfu=1.0, degree="exp", relay=("exp", "fast_exp"),
         torch=("exp",), image=POSITIVE, increasing=True),
    _map("sqrt", 1, _quiet(np.sqrt), "tl.sqrt({0})", sfu=1.0, relay=("sqrt",), torch=("sqrt",),
         domain=(NOT_NEGATIVE,), image=NOT_NEGATIVE, increasing=True),
    _map("rsqrt", 1, _quiet(lambda x: 1 / np.sqrt(x)), "1.0 / tl.sqrt({0})", sfu=2.0, relay=("rsqrt",), torch=("rsqrt",),
         domain=(POSITIVE,), image=POSITIVE, formula=lambda x: x.then("sqrt").then("reciprocal")),
    _map("reciprocal", 1, _quiet(lambda x: 1 / x), "1.0 / {0}", sfu=1.0, torch=("reciprocal",), domain=(NONZERO,),
         image=NONZERO, fraction="inverse"),
    _map("square", 1, lambda x, **_: x * x, "{0} * {0}", torch=("square",), image=NOT_NEGATIVE, fraction="square"),
    _map("relu", 1, lambda x, **_: np.maximum(x, 0), "tl.maximum({0}, 0.0, propagate_nan=tl.PropagateNan.ALL)",
         relay=("nn.relu",), torch=("relu",), image=NOT_NEGATIVE, increasing=True),
    _map("sigmoid", 1, _sigmoid, "tl.sigmoid({0})", sfu=2.0, flops=3, relay=("sigmoid",), torch=("sigmoid",),
         image=Domain(0.0, 1.0, nonzero=True), increasing=True),
    _map("silu", 1, lambda x, **_: x * _sigmoid(x), "{0} * tl.sigmoid({0})", sfu=2.0, flops=4, torch=("silu",),
         image=Domain(lo=-0.2785), formula=lambda x: x * x.then("sigmoid")),
    _map("tanh", 1, lambda x, **_: np.tanh(x), TANH, sfu=2.0, flops=13, relay=("tanh", "fast_tanh"),
         torch=("tanh",), image=Domain(-1.0, 1.0), increasing=True, narrow=NARROW_TANH),
    _map("erf", 1, _erf, "tl.erf({0})", sfu=2.0, flops=10, relay=("erf", "fast_erf"), torch=("erf",),
         image=Domain(-1.0, 1.0), increasing=True),
    _map("gelu", 1, missing, "0.5 * {0} * (1.0 + tl.erf({0} * 0.7071067811865476))", sfu=2.0, flops=13, torch=("gelu",),
         image=Domain(lo=-0.17), formula=_gelu, narrow=NARROW_GELU),
    _map("cast", 1, _cast, "{0}", linear=(True,), degree="same", attrs=("dtype",), typed="named", relay=("cast",),
         torch=("to.dtype", "to.dtype_layout", "to.device", "to.other", "type_as", "_to_copy"), fraction="same",
         eager=".cast dtype:dtype"),
    _map("causal_mask", 1, _triangle(-np.inf), 'tl.where({1} <= {2}{3}, {0}, float("-inf"))', degree="same", attrs=("offset",),
         indexed=True, hidden=-np.inf, fraction="same", element=element_rules.triangle(-np.inf), eager=".causal_mask"),
    # torch's, whose diagonal is the offset of the first, and one more than that of the second: they share out a tensor
    _map("tril", 1, _triangle(0.0), "tl.where({1} <= {2}{3}, {0}, 0.0)", degree="same", attrs=("offset",), indexed=True,
         fraction="same", torch=("tril",), element=element_rules.triangle(0.0), eager="tril offset:diagonal"),
    _map("triu", 1, _triangle(0.0, True), "tl.where({1} > {2}{3}, {0}, 0.0)", degree="same", attrs=("offset",), indexed=True,
         fraction="same", torch=("triu",), element=element_rules.triangle(0.0, True), eager=".triu"),
    # contraction and folds
    OpDef("matmul", "contract", 2, _matmul, shape=shapes.matmul, linear=(True, True), degree="add", flops=2, identity=0.0,
          combine="add", relay=("nn.dense", "nn.batch_matmul", "nn.matmul"), torch=("matmul", "mm", "bmm"), fraction="product"),
    OpDef("sum", "reduce", 1, _sum, linear=(True,), degree="same", identity=0.0, combine="add", attrs=("axis", "keepdims"),
          relay=("sum",), torch=("sum", "sum.dim_IntList"), fraction="same", eager="sum axis:dim keepdims:keepdim"),
    OpDef("max", "reduce", 1, _max, degree="same", identity=float("-inf"), combine="maximum", attrs=("axis", "keepdims"),
          triton="nan_max", relay=("max",), torch=("amax", "max"), fraction="chosen", eager="amax axis:dim keepdims:keepdim"),
    # views and copies
    OpDef("reshape", "view", 1, lambda x, *, shape, **_: np.reshape(x, shape), linear=(True,), degree="same", attrs=("shape",),
          shape=shapes.reshape, dims=dimensions.regroup, strided=True, flops=0,
          relay=("reshape", "squeeze", "expand_dims", "nn.batch_flatten"),
          torch=("view", "reshape", "_unsafe_view", "view_as", "flatten.using_ints", "unflatten.int", "unsqueeze",
                 "squeeze", "squeeze.dim", "squeeze.dims"), element=element_rules.reshape, fraction="same"),
    OpDef("transpose", "view", 1, lambda x, *, perm, **_: np.transpose(x, perm), linear=(True,), degree="same", attrs=("perm",),
          shape=shapes.transpose, dims=dimensions.permute, strided=True, flops=0, relay=("transpose",),
          torch=("permute", "transpose.int", "t", "mT", "numpy_T"), fraction="same",
          element=element_rules.transpose, eager="permute perm:dims"),
    OpDef("broadcast", "view", 1, lambda x, *, shape, **_: np.broadcast_to(x, shape), linear=(True,), degree="same",
          attrs=("shape",), shape=shapes.broadcast, dims=dimensions.stretch, strided=True, flops=0, relay=("broadcast_to",),
          torch=("expand", "expand_as", "broadcast_to"), fraction="same",
          element=element_rules.broadcast, eager="broadcast_to shape:size"),
    OpDef("repeat", "view", 1, lambda x, *, axis, times, **_: np.repeat(x, times, axis), linear=(True,), degree="same",
          attrs=("axis", "times"), shape=shapes.repeat, dims=dimensions.repeat, flops=0, relay=("repeat",),
          torch=("repeat_interleave.self_int",), element=element_rules.repeat,
          fraction="same", eager="repeat_interleave times:repeats axis:dim"),
    OpDef("concat", "data", -1, lambda *xs, axis, **_: np.concatenate(xs, axis), degree="equal", attrs=("axis",),
          shape=shapes.concat, dims=dimensions.join, flops=0, relay=("concatenate", "stack"),
          torch=("cat", "concatenate", "concat", "stack"), fraction="part", element=element_rules.concat, eager=".concat"),
    OpDef("slice", "data", 1, lambda x, *, axis, start, stop, **_: np.take(x, range(start, stop), axis), linear=(True,),
          degree="same", attrs=("axis", "start", "stop"), shape=shapes.slice_of, dims=dimensions.take, strided=True, flops=0,
          relay=("strided_slice",), torch=("slice.Tensor", "narrow"), element=element_rules.sliced, fraction="same",
          eager=".slice"),
    # what the importer keeps as it is: ``shape`` is the output's, ``callee`` the model's operator, ``detail`` its attributes
    # (JSON)
    OpDef("opaque", "opaque", -1, _opaque, attrs=("callee", "shape", "detail", "dtype", "field"), flops=0),
)  # fmt: skip

BUILT_IN = {op.name: op for op in (*_ALL, *FORMULAS, *COMPOSITES, *LIBRARY, *PLACES)}
"""The table as every process begins with it; others are added to ``OPS`` (:mod:`fuser.ir.added`)."""
OPS.update(BUILT_IN)


def op(name: str) -> OpDef:
    """The entry of an operator; KeyError names the operator and what exists."""
    try:
        return OPS[name]
    except KeyError:
        raise KeyError(f"unknown operator {name!r}; the table has {', '.join(sorted(OPS))}") from None
