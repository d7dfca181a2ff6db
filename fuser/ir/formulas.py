"""Element-wise operators beyond the ones that networks are mostly made of: functions of their own first, then what is made of
others by a formula. What is not said follows (:class:`fuser.ir.opdef.OpDef`)."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import log
from math import pi
from typing import Any

import numpy as np

from fuser.errors import UnsupportedError
from fuser.ir.interval import ANY
from fuser.ir.interval import NONZERO
from fuser.ir.interval import NOT_NEGATIVE
from fuser.ir.interval import POSITIVE
from fuser.ir.interval import Domain
from fuser.ir.opdef import Array
from fuser.ir.opdef import OpDef
from fuser.ir.opdef import Term
from fuser.ir.scalar import Scalar
from fuser.ir.turns import COSINE
from fuser.ir.turns import SINE


def _function(name: str, numpy: Callable[..., Array], triton: str, **more: Any) -> OpDef:
    """A function of one operand that torch and Relay call by the same name."""

    def quiet(x: Array, **attrs: Any) -> Array:
        with np.errstate(all="ignore"):
            return numpy(x, **{k: np.asarray(Scalar.of(v).value(), x.dtype) for k, v in attrs.items()})

    return OpDef(name, "map", 1, quiet, triton=triton, **{"torch": (name,), **more})


def _condition(name: str, numpy: Callable[..., Any], triton: str, relay: str, *torch: str, arity: int = 2, **more: Any) -> OpDef:
    """1 where a condition on the operands holds, else 0."""

    def number(*xs: Array, **_: Any) -> Array:
        return np.asarray(numpy(*xs)).astype(np.result_type(*xs))

    return OpDef(name, "map", arity, number, triton=f"({triton}).to(tl.float32)", typed="truth", image=Domain(0.0, 1.0),
                 relay=(relay,), torch=torch, **more)  # fmt: skip


def _compared(name: str, numpy: Callable[..., Any], sign: str, relay: str, **more: Any) -> OpDef:
    return _condition(name, numpy, f"{{0}} {sign} {{1}}", relay, f"{name}.Tensor", f"{name}.Scalar", **more)


def _made(name: str, arity: int, formula: Callable[..., Term], **more: Any) -> OpDef:
    return OpDef(name, "map", arity, formula=formula, **{"torch": (name,), **more})


def _powf(x: Array, exponent: Array) -> Array:
    return np.power(x, exponent)


def _power_of(x: Array, y: Array, **_: Any) -> Array:
    with np.errstate(all="ignore"):
        return np.power(x, y)


def _at_least(x: Array, min: Array) -> Array:
    return np.maximum(x, min)


def _at_most(x: Array, max: Array) -> Array:
    return np.minimum(x, max)


def _sign(x: Array) -> Array:
    return 1.0 * (x > 0) - 1.0 * (x < 0)  # 0 of NaN, as in torch


def _limited(x: Term, low: Scalar | None = None, high: Scalar | None = None) -> Term:
    x = x if low is None else x.then("clamp_min", min=low)
    return x if high is None else x.then("clamp_max", max=high)


def _clamp(x: Term, min: Scalar | None = None, max: Scalar | None = None) -> Term:
    return _limited(x, min, max) if min is not None or max is not None else x + 0


def _elu(x: Term, alpha: Scalar | int = 1, scale: Scalar | int = 1, input_scale: Scalar | int = 1) -> Term:
    below = (-(-x).then("relu") * input_scale).then("expm1") * alpha
    return (x.then("relu") + below) * scale


def _selu(x: Term) -> Term:
    return _elu(x, Scalar.of(1.6732632423543772), Scalar.of(1.0507009873554805))


def _softplus(x: Term, beta: Scalar | None = None, threshold: Scalar | None = None) -> Term:
    """log(1 + exp(βx))/β, where no exponential overflows. The threshold of torch is where the result is βx anyhow."""
    if threshold is not None and threshold.value() < 15:
        raise UnsupportedError(f"softplus is not what it is called with the threshold {threshold.value()}", "leave it at 20")
    y = x * beta if beta is not None else x
    y = y.then("relu") + (-y.then("abs")).then("exp").then("log1p_unit")
    return y * beta.inverse() if beta is not None else y


def _mish(x: Term) -> Term:
    """x tanh(log(1 + e)) = x n/(n + 2) with e = exp(x) and n = e(e + 2): no logarithm. The quotient is 1 where x is large."""
    e = x.then("clamp_max", max=Scalar.of(20)).then("exp")
    n = e * (e + 2)
    return x * (n / (n + 2))


def _hardsigmoid(x: Term) -> Term:
    return _limited(x * Fraction(1, 6) + Fraction(1, 2), Scalar.of(0), Scalar.of(1))


def _gelu_tanh(x: Term) -> Term:
    """x·σ(2u) = x (1 + tanh u)/2 with u = √(2/π) (x + 0.044715 x³)"""
    return x * (x * (x.then("square") * 0.044715 + 1) * (2 * (2 / np.pi) ** 0.5)).then("sigmoid")


def _power(x: Term, exponent: Scalar) -> Term:
    """x to a number: by products where it is whole and small, by roots where it is a half of one, else as a function."""
    n = exponent.coeff
    if exponent.powers or 2 * n not in range(-8, 9):
        whole = not exponent.powers and n.denominator == 1
        if whole and n % 2 and n < 0:  # the sign of 0 times infinity would be no number
            return _power(x, Scalar(-n)).then("reciprocal")
        found = (x.then("abs") if whole else x).then("powf", exponent=exponent)
        return x.then("sign") * found if whole and n % 2 else found
    if n < 0:
        return _power(x, Scalar(-n)).then("reciprocal")
    if n == 0:
        return x * 0 + 1
    whole, root = divmod(n, 1)
    result = x.then("sqrt") if root else None
    square = x.then("square") if whole >= 2 else x
    for factor in {0: (), 1: (x,), 2: (square,), 3: (square, x), 4: (square, square)}[int(whole)]:
        result = factor if result is None else result.then("square") if result == factor else result * factor
    assert result is not None
    return result


def _asinh(x: Term) -> Term:
    """sign(x) log(1 + a + a²/(1 + √(a² + 1))) with a = |x|, whose square nothing takes"""
    a = x.then("abs")
    over = a.then("reciprocal")
    return x.then("sign") * (a + a * (over + (over.then("square") + 1).then("sqrt")).then("reciprocal")).then("log1p")


def _acosh(x: Term) -> Term:
    t = x + -1
    return (t + t.then("sqrt") * (t + 2).then("sqrt")).then("log1p")


def _atanh(x: Term) -> Term:
    a = x.then("abs")
    return x.then("sign") * (a * 2 / (-a + 1)).then("log1p") * Fraction(1, 2)


def _atan2(y: Term, x: Term) -> Term:
    """The angle of a point, also on the axes and for zeros of either sign."""

    def below(v: Term) -> Term:
        """1 where the sign is negative, else 0"""
        return (-(v.then("where", v, v.then("reciprocal")).then("sign"))).then("relu")

    height, width = y.then("abs"), x.then("abs")
    angle = height.then("where", height / width, height).then("atan")
    angle = below(x).then("where", -angle + pi, angle)
    return below(y).then("where", -angle, angle)


def _fmod(x: Term, y: Term) -> Term:
    """What whole multiples of y leave of x, with the sign of x: a long division by three digits of 12 bits each, so that
    quotients below 2³⁶ are exact."""
    left, b = x.then("abs"), y.then("abs")
    for unit in (2**24, 2**12, 1):
        left = _rest(left, b * unit if unit > 1 else b)
    return x.then("sign") * left


def _rest(a: Term, b: Term) -> Term:
    """What whole multiples of b leave of a, neither negative, if these are at most 2¹². The quotient, which is rounded, may be
    one off; its products with 12 digits each of b (Veltkamp's split, of what does not overflow) are exact where multiplying is
    not fused. Of what is infinite nothing is left, and all by it."""
    wide, quotient = b * 4097, (a / b).then("floor")
    high = (b + -1e30).then("relu").then("where", b, wide - (wide - b))
    left = a - quotient * high - quotient * (b - high)
    left = (-left).then("relu").then("where", left + b, left)
    left = left.then("ge", b).then("where", left - b, left)
    return b.then("isinf").then("where", a + (a - a), left)


def _crossed(left: Term, y: Term) -> Term:
    """Not zero where signs differ."""
    return (-(left.then("sign") * y.then("sign"))).then("relu")


def _remainder(x: Term, y: Term) -> Term:
    left = _fmod(x, y)
    return _crossed(left, y).then("where", left + y, left)


def _floor_div(x: Term, y: Term) -> Term:
    """The whole number of which :func:`_remainder` is the rest, which a rounded quotient may have passed."""
    left = _fmod(x, y)
    quotient = (x - left) / y
    whole = _crossed(left, y).then("where", quotient + -1, quotient).then("round")
    return y.then("where", whole, x / y)


def _horner(x: str, *coefficients: float) -> str:
    """A polynomial, the highest power first."""
    text, *rest = map(str, coefficients)
    for c in rest:
        text = f"({c} + {x} * {text})"
    return text


def _unit_log() -> str:
    """log(1 + x) for x from 0 to 1: a polynomial through Chebyshev's points, 1.3e-7 off at most. It has ten instructions, a
    logarithm 25."""
    c = (-0.003176057, 0.019542526, -0.05637361, 0.105436236, -0.15269667, 0.19663274, -0.24951616, 0.3332971, -0.49999893, 1.0)
    return f"{{0}} * {_horner('{0}', *c)}"


def _arctan_series() -> str:
    """Horner's scheme in u = min(x², 1/x²), with the coefficients of Abramowitz and Stegun 4.4.49: 2e-8 off between 0 and 1."""
    u = "tl.minimum({0} * {0}, 1.0 / ({0} * {0}))"
    c = (0.0028662257, -0.0161657367, 0.0429096138, -0.07528964, 0.1065626393, -0.1420889944, 0.1999355085, -0.3333314528, 1.0)
    text = _horner(u, *c)
    folded = f"tl.where({{0}} > 0.0, 1.5707963267948966, -1.5707963267948966) - {text} / {{0}}"
    return f"tl.where(tl.abs({{0}}) > 1.0, {folded}, {{0}} * {text})"


# near zero a few terms of a series are better than what is rounded at 1
_SERIES_LOG = (
    "tl.where(tl.abs({0}) < 0.03, {0} * (1.0 - {0} * (0.5 - {0} * (0.3333333333333333 - {0} * 0.25))), tl.log(1.0 + {0}))"
)
_SERIES_EXP = (
    "tl.where(tl.abs({0}) < 0.03, {0} * (1.0 + {0} * (0.5 + {0} * (0.16666666666666666 + {0} * 0.041666666666666664))), "
    "tl.exp({0}) - 1.0)"
)
_SIGN = "({0} > 0.0).to(tl.float32) - ({0} < 0.0).to(tl.float32)"
# what is raised to 0 is 1, and so are 1 to anything and -1 to what is infinite; of what is negative and finite only whole powers
# are numbers
_POWER = (
    "tl.where(({1} == 0.0) | ({0} == 1.0) | (({0} == -1.0) & (tl.abs({1}) == float('inf'))), 1.0, "
    "tl.where(({0} < 0.0) & ({0} > float('-inf')) & (tl.floor({1}) != {1}), float('nan'), "
    "tl.where(({0} < 0.0) & (tl.floor({1}) == {1}) & (tl.floor({1} * 0.5) * 2.0 != {1}), -1.0, 1.0) * "
    "tl.exp2({1} * tl.log2(tl.abs({0})))))"
)
# above 2²³ the numbers of fp32 are whole
_ROUND = (
    "tl.where(tl.abs({0}) < 8388608.0, tl.where({0} < 0.0, ({0} - 8388608.0) + 8388608.0, ({0} + 8388608.0) - 8388608.0), {0})"
)

FORMULAS: tuple[OpDef, ...] = (
    # functions
    _function("log", np.log, "tl.log({0})", flops=11, relay=("log",), domain=(POSITIVE,), increasing=True),
    _function("log2", np.log2, "tl.log2({0})", flops=11, relay=("log2",), domain=(POSITIVE,), increasing=True),
    _function("log1p", np.log1p, _SERIES_LOG, flops=15, domain=(Domain(lo=-0.999),), increasing=True),
    _function("log1p_unit", np.log1p, _unit_log(), flops=5, domain=(Domain(0.0, 1.0),), image=NOT_NEGATIVE, increasing=True,
              torch=(), eager="log1p"),
    _function("expm1", np.expm1, _SERIES_EXP, flops=8, sfu=1.0, image=Domain(lo=-1.0), increasing=True),
    _function("sin", np.sin, "tl.sin({0})", helper=SINE, sfu=1.0, flops=4, relay=("sin",), image=Domain(-1.0, 1.0)),
    _function("cos", np.cos, "tl.cos({0})", helper=COSINE, sfu=1.0, flops=4, relay=("cos",), image=Domain(-1.0, 1.0)),
    _function("abs", np.abs, "tl.abs({0})", relay=("abs",), image=NOT_NEGATIVE),
    _function("sign", _sign, _SIGN, flops=4, relay=("sign",), image=Domain(-1.0, 1.0), increasing=True),
    _function("floor", np.floor, "tl.floor({0})", relay=("floor",), increasing=True),
    _function("ceil", np.ceil, "tl.ceil({0})", relay=("ceil",), increasing=True),
    _function("round", np.round, _ROUND, relay=("round",), flops=4, increasing=True),
    _function("atan", np.arctan, _arctan_series(), sfu=2.0, flops=30, relay=("atan",), image=Domain(-pi / 2, pi / 2),
              increasing=True),
    # -inf to what is not whole is what inf is, a logarithm of what is negative is no number
    _function("powf", _powf, "tl.exp2(tl.log2(tl.where({0} == float('-inf'), float('inf'), {0})) * {exponent})", sfu=2.0, flops=3,
              attrs=("exponent",), torch=(), domain=(POSITIVE,), eager="pow"),
    _function("clamp_min", _at_least, "tl.maximum({0}, {min}, propagate_nan=tl.PropagateNan.ALL)",
              attrs=("min",), increasing=True),
    _function("clamp_max", _at_most, "tl.minimum({0}, {max}, propagate_nan=tl.PropagateNan.ALL)",
              attrs=("max",), increasing=True),
    OpDef("power", "map", 2, _power_of, triton=_POWER, sfu=2.0, flops=10, torch=("pow.Tensor_Tensor", "pow.Scalar"),
          domain=(POSITIVE,), eager="pow"),
    # conditions
    _compared("gt", np.greater, ">", "greater"),
    _compared("ge", np.greater_equal, ">=", "greater_equal"),
    _compared("lt", np.less, "<", "less"),
    _compared("le", np.less_equal, "<=", "less_equal"),
    _compared("eq", np.equal, "==", "equal", commutative=True),
    _compared("ne", np.not_equal, "!=", "not_equal", commutative=True),
    _condition("logical_and", np.logical_and, "({0} != 0) & ({1} != 0)", "logical_and", "logical_and",
               "bitwise_and.Tensor", "bitwise_and.Scalar", "__and__.Tensor", commutative=True),
    _condition("logical_or", np.logical_or, "({0} != 0) | ({1} != 0)", "logical_or", "logical_or",
               "bitwise_or.Tensor", "bitwise_or.Scalar", "__or__.Tensor", commutative=True),
    _condition("logical_xor", np.logical_xor, "({0} != 0) != ({1} != 0)", "logical_xor", "logical_xor",
               "bitwise_xor.Tensor", "bitwise_xor.Scalar", "__xor__.Tensor", commutative=True),
    _condition("logical_not", np.logical_not, "{0} == 0", "logical_not", "logical_not", "bitwise_not", arity=1),
    # formulas
    _made("minimum", 2, lambda x, y: -(-x).then("maximum", -y), numpy=lambda x, y, **_: np.minimum(x, y), commutative=True,
          relay=("minimum",),
          torch=("minimum", "min.other", "clamp_max.Tensor"), flops=2),
    _made("trunc", 1, lambda x: x.then("sign") * x.then("abs").then("floor"), relay=("trunc",), flops=3, increasing=True),
    _made("clamp", 1, _clamp, attrs=("min", "max"), optional=("min", "max"), relay=("clip min:a_min max:a_max",), flops=2,
          increasing=True),
    _made("hardtanh", 1, _clamp, attrs=("min", "max"), relay=(), torch=("hardtanh min:min_val max:max_val",), flops=2,
          increasing=True, eager="clamp"),
    _made("relu6", 1, lambda x: _limited(x, Scalar.of(0), Scalar.of(6)), image=Domain(0.0, 6.0), flops=2, increasing=True),
    _made("hardsigmoid", 1, _hardsigmoid, image=Domain(0.0, 1.0), flops=4, increasing=True),
    _made("hardswish", 1, lambda x: x * _hardsigmoid(x), image=Domain(lo=-0.376), flops=5),
    _made("leaky_relu", 1, lambda x, negative_slope: x.then("relu") - (-x).then("relu") * negative_slope,
          attrs=("negative_slope",), relay=("nn.leaky_relu negative_slope:alpha",), flops=4),
    _made("elu", 1, _elu, attrs=("alpha", "scale", "input_scale"), optional=("alpha", "scale", "input_scale"),
          sfu=1.0, flops=12, eager="ops.aten.elu"),
    _made("selu", 1, _selu, image=Domain(lo=-1.7581), sfu=1.0, flops=13, increasing=True),
    _made("celu", 1, lambda x, alpha: _elu(x, alpha, 1, alpha.inverse()), attrs=("alpha",), sfu=1.0, flops=13),
    _made("softplus", 1, _softplus, attrs=("beta", "threshold"), optional=("beta", "threshold"), image=NOT_NEGATIVE, sfu=1.0,
          flops=9, increasing=True),
    _made("mish", 1, _mish, image=Domain(lo=-0.3089), sfu=2.0, flops=6),
    _made("softsign", 1, lambda x: x / (x.then("abs") + 1), torch=(), image=Domain(-1.0, 1.0), sfu=1.0, flops=3, increasing=True),
    _made("log_sigmoid", 1, lambda x: -_softplus(-x), torch=("log_sigmoid",), image=Domain(hi=0.0), sfu=1.0, flops=10,
          increasing=True, eager="nn.functional.logsigmoid"),
    _made("gelu_tanh", 1, _gelu_tanh, torch=(), image=Domain(lo=-0.1701), sfu=2.0, flops=9),
    _made("sinh", 1, lambda x: (x.then("expm1") - (-x).then("expm1")) * Fraction(1, 2), sfu=2.0, flops=18, increasing=True),
    _made("cosh", 1, lambda x: (x.then("exp") + (-x).then("exp")) * Fraction(1, 2), image=Domain(lo=1.0), sfu=2.0, flops=4),
    _made("tan", 1, lambda x: x.then("sin") / x.then("cos"), relay=("tan",), sfu=3.0, flops=9),
    _made("asinh", 1, _asinh, relay=("asinh",), sfu=5.0, flops=16, increasing=True),
    _made("acosh", 1, _acosh, relay=("acosh",), domain=(Domain(lo=1.0),), image=NOT_NEGATIVE, sfu=3.0, flops=14, increasing=True),
    _made("atanh", 1, _atanh, relay=("atanh",), domain=(Domain(-0.999, 0.999),), sfu=2.0, flops=15, increasing=True),
    _made("asin", 1, lambda x: (x / ((-x + 1) * (x + 1)).then("sqrt")).then("atan"), relay=("asin",),
          domain=(Domain(-1.0, 1.0),), image=Domain(-pi / 2, pi / 2), sfu=4.0, flops=35, increasing=True),
    _made("acos", 1, lambda x: ((-x + 1) / (x + 1)).then("sqrt").then("atan") * 2, relay=("acos",),
          domain=(Domain(-1.0, 1.0),), image=Domain(0.0, pi), sfu=4.0, flops=35),
    _made("atan2", 2, _atan2, relay=(), image=Domain(-pi, pi), sfu=5.0, flops=45),
    _made("exp2", 1, lambda x: (x * log(2)).then("exp"), image=POSITIVE, sfu=1.0, flops=2, increasing=True),
    _made("log10", 1, lambda x: x.then("log") * (1 / log(10)), relay=("log10",), domain=(POSITIVE,), sfu=1.0, flops=2,
          increasing=True),
    _made("fmod", 2, _fmod, torch=("fmod.Tensor", "fmod.Scalar"), relay=("mod",), domain=(ANY, NONZERO), sfu=3.0, flops=76),
    _made("remainder", 2, _remainder, torch=("remainder.Tensor", "remainder.Scalar"), relay=("floor_mod",),
          domain=(ANY, NONZERO), sfu=3.0, flops=84),
    _made("floor_div", 2, _floor_div, torch=(), relay=(), domain=(ANY, NONZERO), sfu=5.0, flops=92,
          eager="div rounding_mode='floor'"),
    _made("trunc_div", 2, lambda x, y: (x / y).then("trunc"), torch=(), relay=(), domain=(ANY, NONZERO), sfu=1.0, flops=4,
          eager="div rounding_mode='trunc'"),
    _made("addcmul", 3, lambda x, a, b, value=1: x + a * b * value, attrs=("value",), optional=("value",), flops=3),
    _made("addcdiv", 3, lambda x, a, b, value=1: x + a / b * value, attrs=("value",), optional=("value",), flops=3, sfu=1.0,
          domain=(ANY, ANY, NONZERO)),
    _made("lerp", 3, lambda x, y, weight: x + (y - x) * weight, torch=("lerp.Tensor", "lerp.Scalar"), flops=3),
    _made("prelu", 2, lambda x, slope: x.then("relu") - (-x).then("relu") * slope, torch=(), relay=(), flops=4, eager=None),
    _made("isnan", 1, lambda x: x.then("ne", x), typed="truth", relay=("isnan",)),
    _made("isfinite", 1, lambda x: (x - x).then("eq", x - x), typed="truth", relay=("isfinite",)),
    _made("isinf", 1, lambda x: x.then("eq", x).then("logical_and", (x - x).then("isnan")), typed="truth", relay=("isinf",)),
    _made("pow", 1, _power, attrs=("exponent",), torch=("pow.Tensor_Scalar",), relay=("power",), flops=3),
)  # fmt: skip
