"""Operators over Z_p × Z_q: the evaluation of each (:mod:`fuser.interpret.fields` says what is random)."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from fuser.errors import UnsupportedError
from fuser.interpret.field_values import Value
from fuser.interpret.field_values import hidden
from fuser.interpret.field_values import lift
from fuser.interpret.modular import modular_matmul
from fuser.ir.dtypes import ROUNDS
from fuser.ir.opdef import evaluate
from fuser.ir.opdef import own_attributes
from fuser.ir.ops import op as op_def
from fuser.ir.scalar import Scalar

if TYPE_CHECKING:
    from fuser.interpret.fields import Field

Rule = Callable[["Field", Sequence[Value], Mapping[str, Any]], Value]


def _visible(op: str, xs: Sequence[Value]) -> None:
    if any(x.minus_inf is not None for x in xs):
        raise UnsupportedError(f"{op} of a masked value", "apply exp or max to it first")


def _add(field: Field, xs: Sequence[Value], _attrs: Mapping[str, Any]) -> Value:
    a, b = xs
    result = field.ring(lambda x, y, m: (x + y) % m, a, b)
    if a.minus_inf is None and b.minus_inf is None:
        return result
    return Value(result.p, result.q, hidden(a) | hidden(b))


def _scale(field: Field, xs: Sequence[Value], attrs: Mapping[str, Any]) -> Value:
    """A masked element stays masked, if the constant is positive."""
    value, x = Scalar.of(attrs["scalar"]), xs[0]
    if x.minus_inf is not None and value.coeff <= 0:
        raise UnsupportedError(f"a masked value times {value}", "scale before masking")
    cp, cq = field.scalar(value)
    return Value(x.p * cp % field.p, None if x.q is None else x.q * cq % field.q, x.minus_inf)


def _shift(field: Field, xs: Sequence[Value], attrs: Mapping[str, Any]) -> Value:
    x = xs[0]
    cp, cq = field.scalar(Scalar.of(attrs["scalar"]))
    return Value((x.p + cp) % field.p, None if x.q is None else (x.q + cq) % field.q, x.minus_inf)


def _sum(field: Field, xs: Sequence[Value], attrs: Mapping[str, Any]) -> Value:
    _visible("sum", xs)
    axis, keepdims = tuple(attrs["axis"]), bool(attrs.get("keepdims", False))
    return field.ring(lambda x, m: np.sum(x, axis=axis, keepdims=keepdims) % m, xs[0])


def _folded(field: Field, combine: str, x: Value, attrs: Mapping[str, Any]) -> Value:
    """Halves combined, again and again."""
    rank = len(x.shape)
    axes = sorted({int(a) % rank for a in attrs["axis"]})
    for axis in axes:
        while (n := x.shape[axis]) > 1:
            lead = (slice(None),) * axis
            half = n // 2
            best = field.apply(combine, [x[(*lead, slice(0, half))], x[(*lead, slice(half, 2 * half))]])
            x = best if n % 2 == 0 else _join([best, x[(*lead, slice(2 * half, n))]], axis)
    return x if attrs.get("keepdims") else x.map(lambda y: np.squeeze(y, tuple(axes)))


def _join(xs: Sequence[Value], axis: int) -> Value:
    return lift(lambda *ys: np.concatenate(ys, axis), *xs)


def _where(field: Field, xs: Sequence[Value], _attrs: Mapping[str, Any]) -> Value:
    c, a, b = xs
    holds = field.truth(Value(c.p, c.q)) | hidden(c)  # minus infinity is not zero
    chosen = field.ring(lambda x, y, _m: np.where(holds, x, y), a, b)
    if a.minus_inf is None and b.minus_inf is None:
        return chosen
    return Value(chosen.p, chosen.q, np.where(holds, hidden(a), hidden(b)))


def _cast(field: Field, xs: Sequence[Value], attrs: Mapping[str, Any]) -> Value:
    """A cast that may change values stays visible: to whole numbers a random function, to a condition its truth, and to a
    narrower float, whose rounding commutes with all that is linear, a random factor."""
    x, dtype = xs[0], str(attrs.get("dtype"))
    if not attrs.get(ROUNDS):
        return x
    if dtype == "bool":
        _visible("a cast to bool", xs)
        return field.integers(field.truth(x))
    if "int" in dtype:
        return field.function(f"cast to {dtype}", x)
    p, q = field.unit(f"rounding to {dtype}")
    return Value(x.p * p % field.p, None if x.q is None else x.q * q % field.q, x.minus_inf)


def _triangle(name: str) -> Rule:
    """Zero where the operator ``name`` does not keep an element, also of one that is absent."""

    def apply(_: Field, xs: Sequence[Value], attrs: Mapping[str, Any]) -> Value:
        x = xs[0]
        kept = op_def(name).numpy(np.ones(x.shape, np.int64), **attrs)
        absent = None if x.minus_inf is None else x.minus_inf & (kept != 0)
        return Value(x.p * kept, None if x.q is None else x.q * kept, absent)

    return apply


def _causal_mask(field: Field, xs: Sequence[Value], attrs: Mapping[str, Any]) -> Value:
    x = xs[0]
    hidden = np.isneginf(op_def("causal_mask").numpy(np.zeros(x.shape), **attrs))
    field.masked = True
    return Value(x.p, x.q, hidden if x.minus_inf is None else hidden | x.minus_inf)


def _matmul(field: Field, xs: Sequence[Value], _attrs: Mapping[str, Any]) -> Value:
    _visible("matmul", xs)
    return field.ring(modular_matmul, *xs)


def _quotient(field: Field, xs: Sequence[Value], _attrs: Mapping[str, Any]) -> Value:
    _visible("div", xs)
    return field.quotient(xs[0], xs[1])


def _reciprocal(field: Field, xs: Sequence[Value], _attrs: Mapping[str, Any]) -> Value:
    _visible("reciprocal", xs)
    return field.quotient(field.integers(np.ones((1,) * len(xs[0].shape))), xs[0])


def by_default(field: Field, op: str, xs: Sequence[Value], attrs: Mapping[str, Any]) -> Value | None:
    """The evaluation that follows from an operator's entry: its formula; arithmetic of residues; of another element-wise
    operator a random function, or predicate, of its name and attributes; a fold combines parts; views and copies of one operand
    move residues. None where none follows."""
    entry = op_def(op)
    if entry.formula is not None:
        return evaluate(entry.steps(attrs), xs, field.apply)
    if entry.exact:
        _visible(op, xs)
        return field.ring(lambda *given: entry.numpy(*given[:-1]) % given[-1], *xs)
    if entry.kind == "reduce" and entry.combine:
        return _folded(field, entry.combine, xs[0], attrs)
    if entry.kind in ("view", "data") and len(xs) == 1:
        return xs[0].map(lambda x: entry.numpy(x, **attrs))
    if entry.kind != "map" or entry.indexed:
        return None
    name = op + "".join(f" {k}={v}" for k, v in own_attributes(entry, attrs))
    return field.predicate(name, *xs) if entry.typed == "truth" else field.function(name, *xs)


RULES: dict[str, Rule] = {
    "add": _add,
    "div": _quotient,
    "maximum": lambda field, xs, _attrs: field.larger(xs[0], xs[1]),
    "where": _where,
    "scale": _scale,
    "shift": _shift,
    "reciprocal": _reciprocal,
    "causal_mask": _causal_mask,
    **{name: _triangle(name) for name in ("tril", "triu")},
    "exp": lambda field, xs, _attrs: field.exp(xs[0]),
    "cast": _cast,
    "matmul": _matmul,
    "sum": _sum,
    "concat": lambda _field, xs, attrs: _join(xs, attrs["axis"]),
}
"""Evaluations that do not follow from the op table (:func:`by_default`)."""
