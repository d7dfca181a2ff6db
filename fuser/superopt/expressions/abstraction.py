"""The abstract expression of every operator (Mirage, table 1) and of every tensor of a program.

Reshape, transpose, broadcast, repeat, slice and cast leave an expression alone. Operators are written with few atoms (silu is
``x·sigmoid(x)``, rsqrt is ``1/sqrt``, a subtraction adds ``-1·y``), so that forms written differently meet. ``where`` is linear
in both branches: ``mask(c)·a + mask'(c)·b``. Softmax and attention use the bare exponential; running maxima belong to lowering.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from fuser.errors import UnsupportedError
from fuser.ir.opdef import evaluate
from fuser.ir.opdef import own_attributes
from fuser.ir.ops import OPS
from fuser.superopt.expressions.normal_form import NF
from fuser.superopt.expressions.normal_form import ONE
from fuser.superopt.expressions.normal_form import TOP
from fuser.superopt.expressions.normal_form import Extent
from fuser.superopt.expressions.normal_form import add
from fuser.superopt.expressions.normal_form import const
from fuser.superopt.expressions.normal_form import div
from fuser.superopt.expressions.normal_form import exp
from fuser.superopt.expressions.normal_form import fn
from fuser.superopt.expressions.normal_form import fold
from fuser.superopt.expressions.normal_form import mul
from fuser.superopt.expressions.normal_form import reduce_sum

Attrs = Mapping[str, Any]
Extents = Sequence[Extent]
Rule = Callable[[Sequence[NF], Extents, Attrs], NF]


def _elementwise(rule: Callable[..., NF]) -> Rule:
    return lambda x, _extents, _attrs: rule(*x)


def _function(name: str) -> Rule:
    return lambda x, _extents, _attrs: fn(name, *x)


def _negative(x: NF) -> NF:
    return mul(const(-1), x)


def _maximum(a: NF, b: NF) -> NF:
    return fn("maximum", *sorted((a, b), key=lambda e: e.number))


def _where(c: NF, a: NF, b: NF) -> NF:
    return add(mul(fn("mask", c), a), mul(fn("unmask", c), b))


def _concat_matmul(x: Sequence[NF], extents: Extents, _attrs: Attrs) -> NF:
    """(W ‖ X)(Y ‖ Z) of the operands W, X, Y, Z; ``extents`` are those of the two reductions, each a tuple of extents or one."""
    w, left, y, right = x
    k1, k2 = (tuple(k) if isinstance(k, tuple) else (k,) for k in extents)
    return add(reduce_sum(k1, mul(w, y)), reduce_sum(k2, mul(left, right)))


RULES: dict[str, Rule] = {
    "add": _elementwise(add),
    "sub": _elementwise(lambda a, b: add(a, _negative(b))),
    "mul": _elementwise(mul),
    "div": _elementwise(div),
    "maximum": _elementwise(_maximum),
    "where": _elementwise(_where),
    "scale": lambda x, _extents, attrs: mul(const(attrs["scalar"]), x[0]),
    "shift": lambda x, _extents, attrs: add(const(attrs["scalar"]), x[0]),
    "neg": _elementwise(_negative),
    "exp": _elementwise(exp),
    "reciprocal": _elementwise(lambda x: div(ONE, x)),
    "square": _elementwise(lambda x: mul(x, x)),
    "matmul": lambda x, extents, _attrs: reduce_sum(extents, mul(x[0], x[1])),
    "concat_matmul": _concat_matmul,
    "sum": lambda x, extents, _attrs: reduce_sum(extents, x[0]),
    "concat": _function("concat"),
}
"""From operator to the expression of its output, given its operands' expressions, the extents it reduces, and its attributes.
Those of other element-wise operators follow from the op table: its formula, or an uninterpreted function."""


def abstract(op: str, operands: Sequence[NF], extents: Extents = (), attrs: Attrs | None = None) -> NF:
    """The abstract expression of ``op``; an accumulator over a loop or a grid part is ``sum`` with that part as its extent."""
    attrs = attrs or {}
    rule = RULES.get(op)
    if rule is not None:
        return rule(operands, extents, attrs)
    entry = OPS.get(op)
    if entry is not None and entry.fraction == "same" and (entry.kind in ("view", "data") or entry.relabels):
        return operands[0]
    if entry is not None and entry.formula is not None:
        made = evaluate(entry.steps(attrs), operands, lambda name, xs, at: abstract(name, xs, (), at))
        if made is not TOP:  # else it is too long to say anything: a function of its own
            return made
    if entry is not None and entry.kind == "reduce":
        return fold(op, extents, operands[0])
    if entry is None or entry.kind != "map":
        raise UnsupportedError(
            f"operator {op!r} has no abstract expression",
            "expand composites first, or add a rule to fuser.superopt.expressions.abstraction",
        )
    if entry.indexed:
        return fn(op, operands[0], params=(attrs.get("offset", 0),))
    args = sorted(operands, key=lambda e: e.number) if entry.commutative else operands
    return fn(op, *args, params=own_attributes(entry, attrs))
