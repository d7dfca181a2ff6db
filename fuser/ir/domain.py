"""Where a program is defined, brought back to its inputs: what a check draws them from.

An operator of the table says what its operands have to be, and in which interval its result lies. A demand on a value that its
interval does not meet becomes one on its operands, by the rule of the operator that makes it, down to the inputs. The rules are
sufficient, not necessary; where there is none, the inputs stay free, and whoever draws them looks at what comes out
(:mod:`fuser.drawing`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from fuser.ir.interval import ANY
from fuser.ir.interval import MARGIN
from fuser.ir.interval import NONZERO
from fuser.ir.interval import POSITIVE
from fuser.ir.interval import Domain
from fuser.ir.ops import OpDef
from fuser.ir.ops import op as op_def
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Scalar

REACH = 40.0
"""Operands between which the bound of an increasing function is looked for."""


def input_domains(program: TensorProgram) -> dict[str, Domain]:
    """The inputs that are not free, and what they are drawn from."""
    known: dict[str, Domain] = {}
    for node in program.nodes:
        for name, demand in zip(node.inputs, _demanded(node.entry, program.bound(node)), strict=False):
            if demand.choice:
                if name in program.inputs and program.consumers[name] == (node,) and node.inputs.count(name) == 1:
                    known[name] = demand
            elif demand != ANY:
                _Demands(program, known).require(name, demand)
    return known


def _demanded(entry: OpDef, attrs: Mapping[str, Any]) -> list[Domain]:
    """What an operator demands of its operands; with a formula, what those steps do that read one."""
    if entry.domain or entry.formula is None:
        return list(entry.domain)
    found = [ANY] * entry.arity
    for op, args, own in entry.steps(attrs):
        for i, demand in zip(args, _demanded(op_def(op), own), strict=False):
            if i < entry.arity and not demand.choice:
                found[i] = found[i].within(demand)
    return found


class _Demands:
    """The intervals of all tensors where inputs are as ``known`` says, which :meth:`require` narrows."""

    def __init__(self, program: TensorProgram, known: dict[str, Domain]) -> None:
        self.program, self.known = program, known
        self.ranges: dict[str, Domain] = {n: known.get(n, ANY) for n in program.inputs}
        for node in program.nodes:
            self.ranges[node.output] = self.image(node)

    def image(self, node: Node) -> Domain:
        """The interval of a result."""
        entry, xs = node.entry, [self.ranges[n] for n in node.inputs]
        if node.multiplies and node.inputs[0] == node.inputs[1]:
            return Domain(0.0, math.inf, xs[0].nonzero)
        rule = _IMAGES.get(node.op)
        with np.errstate(all="ignore"):
            if rule is not None:
                found = rule(self.program, node, xs)
            elif _of_elements(entry):
                found = Domain(min(x.lo for x in xs), max(x.hi for x in xs), all(x.nonzero for x in xs))
            elif entry.increasing:
                found = _increased(entry, self.program.bound(node), xs[0])
            else:
                found = entry.image
        return ANY if math.isnan(found.lo) or math.isnan(found.hi) else found

    def require(self, name: str, demand: Domain) -> None:
        """Narrow the inputs until the tensor meets the demand, as far as there are rules."""
        if demand == ANY or demand.holds(self.ranges[name]):
            return
        node = self.program.producers.get(name)
        if node is None:
            both = self.known.get(name, ANY).within(demand)
            if both.lo < both.hi:
                self.known[name] = self.ranges[name] = both
            return
        for operand, wanted in self.demands(node, demand):
            self.require(operand, wanted)

    def demands(self, node: Node, d: Domain) -> list[tuple[str, Domain]]:
        """Demands on the operands under which the result meets ``d``."""
        entry = node.entry
        rule = _DEMANDS.get(node.op)
        if rule is not None:
            return rule(self, node, d)
        if _of_elements(entry):
            return [(n, d) for n in node.inputs]
        if entry.increasing:
            f = partial(entry.numpy, **self.program.bound(node))
            d, hi = _one_sided(d), _inverse(f, d.hi)
            if d.nonzero and float(f(np.float64(0.0))) == d.lo == 0:
                return [(node.inputs[0], Domain(0.0, hi, nonzero=True))]
            return [(node.inputs[0], Domain(_inverse(f, d.lo), hi))]
        return []


def _increased(entry: OpDef, attrs: Mapping[str, Any], x: Domain) -> Domain:
    """The interval of an increasing function's values; those at the ends of what it is not defined on are those of its image."""
    lo, hi = (float(entry.numpy(np.float64(v), **attrs)) for v in (x.lo, x.hi))
    lo = entry.image.lo if math.isnan(lo) else max(lo, entry.image.lo)
    hi = entry.image.hi if math.isnan(hi) else min(hi, entry.image.hi)
    return Domain(lo, hi, entry.image.nonzero or lo > 0 or hi < 0 or (x.nonzero and x.lo >= 0))


def _inverse(f: Callable[..., Any], bound: float) -> float:
    """The operand at which an increasing function has a value; infinite where it has it nowhere."""
    if math.isinf(bound):
        return bound
    lo, hi = -REACH, REACH
    with np.errstate(all="ignore"):
        # what is not a number lies below the domain (a root)
        if float(f(np.float64(hi))) < bound:
            return math.inf
        if float(f(np.float64(lo))) >= bound:
            return -math.inf
        for _ in range(80):
            middle = (lo + hi) / 2
            if float(f(np.float64(middle))) >= bound:
                hi = middle
            else:
                lo = middle
    return hi


def _scalar(program: TensorProgram, node: Node) -> float:
    return Scalar.of(program.bound(node)["scalar"]).value()


def _times(x: float, y: float) -> float:
    return 0.0 if x == 0 or y == 0 else x * y


def _product(a: Domain, b: Domain) -> Domain:
    ends = [_times(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    return Domain(min(ends), max(ends), a.nonzero and b.nonzero)


def _quotient(a: Domain, b: Domain) -> Domain:
    if b.lo >= 0:
        return Domain(0.0 if a.lo >= 0 else -math.inf, 0.0 if a.hi <= 0 else math.inf, a.nonzero)
    return Domain(nonzero=a.nonzero)


def _sum(a: Domain, b: Domain) -> Domain:
    lo, hi = a.lo + b.lo, a.hi + b.hi
    away = lo > 0 or hi < 0 or ((lo == 0 or hi == 0) and (a.nonzero or b.nonzero))
    return Domain(lo, hi, away)


def _scaled(a: Domain, c: float) -> Domain:
    ends = _times(a.lo, c), _times(a.hi, c)
    return Domain(min(ends), max(ends), a.nonzero and c != 0)


def _folded(program: TensorProgram, node: Node, xs: list[Domain]) -> Domain:
    n = _count(program, node)
    (x,) = xs
    return Domain(_times(n, x.lo), _times(n, x.hi), x.nonzero and (x.lo >= 0 or x.hi <= 0))


def _count(program: TensorProgram, node: Node) -> float:
    return program[node.inputs[0]].elements / program[node.output].elements


def _of_elements(entry: OpDef) -> bool:
    """Every element of the result is one of an operand's."""
    return entry.kind in ("view", "data") or entry.relabels or (entry.kind == "reduce" and not entry.adds)


def _contracted(program: TensorProgram, node: Node, xs: list[Domain]) -> Domain:
    p, n = _product(*xs), program[node.inputs[0]].shape[-1]
    return Domain(_times(n, p.lo), _times(n, p.hi), p.nonzero and (p.lo >= 0 or p.hi <= 0))


_IMAGES: dict[str, Callable[[TensorProgram, Node, list[Domain]], Domain]] = {
    "add": lambda p, n, x: _sum(*x),
    "sub": lambda p, n, x: _sum(x[0], _scaled(x[1], -1.0)),
    "mul": lambda p, n, x: _product(*x),
    "div": lambda p, n, x: _quotient(*x),
    "neg": lambda p, n, x: _scaled(x[0], -1.0),
    "scale": lambda p, n, x: _scaled(x[0], _scalar(p, n)),
    "shift": lambda p, n, x: _sum(x[0], Domain(c := _scalar(p, n), c, c != 0)),
    "square": lambda p, n, x: Domain(0.0, max(x[0].lo ** 2, x[0].hi ** 2), x[0].nonzero),
    "maximum": lambda p, n, x: Domain(
        max(x[0].lo, x[1].lo), max(x[0].hi, x[1].hi), any(d.lo > 0 or (d.lo == 0 and d.nonzero) for d in x)
    ),
    "where": lambda p, n, x: Domain(min(x[1].lo, x[2].lo), max(x[1].hi, x[2].hi), x[1].nonzero and x[2].nonzero),
    "sum": _folded,
    "mean": lambda p, n, x: Domain(x[0].lo, x[0].hi, x[0].nonzero and (x[0].lo >= 0 or x[0].hi <= 0)),
    "matmul": _contracted,
}

Rule = Callable[[_Demands, Node, Domain], list[tuple[str, Domain]]]


def _one_sided(d: Domain) -> Domain:
    """A demand of one sign: what only must not be 0 is to be positive."""
    return POSITIVE if d == NONZERO else d


def _flipped(d: Domain) -> Domain:
    return Domain(-d.hi, -d.lo, d.nonzero)


def _shifted(d: Domain, c: float) -> Domain:
    """The domain of x where x - c lies in ``d``; an end that must not be reached is kept away from."""
    lo, hi = d.lo + c, d.hi + c
    if c and d.nonzero:
        lo, hi = lo + MARGIN * (d.lo == 0), hi - MARGIN * (d.hi == 0)
    return Domain(lo, hi, d.nonzero and c == 0)


def _demand_add(s: _Demands, node: Node, d: Domain, sign: float = 1.0) -> list[tuple[str, Domain]]:
    """One operand is known to lie on the right side, and the other has to; or both share what is wanted."""
    d = _one_sided(d)
    a, b = node.inputs
    ra, rb = s.ranges[a], _scaled(s.ranges[b], sign)

    def back(x: Domain) -> Domain:
        return x if sign > 0 else _flipped(x)

    half = Domain(d.lo / 2, d.hi / 2, d.nonzero)
    if d.lo > -math.inf and math.isfinite(rb.lo) and d.hi == math.inf:
        return [(a, _shifted(d, -rb.lo))]
    if d.lo > -math.inf and math.isfinite(ra.lo) and d.hi == math.inf:
        return [(b, back(_shifted(d, -ra.lo)))]
    if a == b:
        return [(a, half)] if sign > 0 else []
    return [(a, half), (b, back(half))]


def _demand_mul(s: _Demands, node: Node, d: Domain) -> list[tuple[str, Domain]]:
    a, b = node.inputs
    if a == b:
        return _demand_square(s, node, d)
    if d == NONZERO:
        return [(a, NONZERO), (b, NONZERO)]
    if d.hi <= 0:
        return [(a, Domain(0.0, math.inf, d.nonzero)), (b, Domain(-math.inf, 0.0, d.nonzero))]
    lo = math.sqrt(d.lo) if d.lo > 0 else 0.0 if d.lo == 0 else -math.sqrt(min(-d.lo, d.hi))
    each = Domain(lo, math.sqrt(d.hi), d.nonzero)
    if d.lo == 0 and d.hi == math.inf:
        for x, y in ((a, b), (b, a)):
            if each.holds(s.ranges[x]):
                return [(y, each)]
    return [(a, each), (b, each)]


def _demand_square(s: _Demands, node: Node, d: Domain) -> list[tuple[str, Domain]]:
    x, root = node.inputs[0], math.sqrt(max(d.hi, 0.0))
    if d.lo > 0:
        return [(x, Domain(math.sqrt(d.lo), root))]
    return [(x, Domain(-root, root, d.nonzero))]


def _demand_div(s: _Demands, node: Node, d: Domain) -> list[tuple[str, Domain]]:
    a, b = node.inputs
    if d == NONZERO:
        return [(a, NONZERO)]
    if d.lo >= 0 or d.hi <= 0:
        sign = Domain(0.0, math.inf, d.nonzero) if d.lo >= 0 else Domain(-math.inf, 0.0, d.nonzero)
        return [(a, sign), (b, POSITIVE)]
    return []


def _demand_fold(s: _Demands, node: Node, d: Domain) -> list[tuple[str, Domain]]:
    """Every element does its share."""
    n, d = (_count(s.program, node) if node.adds else 1.0), _one_sided(d)
    return [(node.inputs[0], Domain(d.lo / n, d.hi / n, d.nonzero))]


def _demand_matmul(s: _Demands, node: Node, d: Domain) -> list[tuple[str, Domain]]:
    n, d = s.program[node.inputs[0]].shape[-1], _one_sided(d)
    return _demand_mul(s, node, Domain(d.lo / n, d.hi / n, d.nonzero))


def _demand_scale(s: _Demands, node: Node, d: Domain) -> list[tuple[str, Domain]]:
    c = _scalar(s.program, node)
    return [(node.inputs[0], _scaled(d, 1 / c))] if c else []


_DEMANDS: Mapping[str, Rule] = {
    "add": _demand_add,
    "sub": lambda s, n, d: _demand_add(s, n, d, -1.0),
    "mul": _demand_mul,
    "matmul": _demand_matmul,
    "div": _demand_div,
    "neg": lambda s, n, d: [(n.inputs[0], _flipped(d))],
    "scale": _demand_scale,
    "shift": lambda s, n, d: [(n.inputs[0], _shifted(_one_sided(d), -_scalar(s.program, n)))],
    "square": _demand_square,
    "maximum": lambda s, n, d: [(n.inputs[0], d), *([] if d.hi == math.inf and d != NONZERO else [(n.inputs[1], d)])],
    "where": lambda s, n, d: [(x, d) for x in n.inputs[1:]],
    "sum": _demand_fold,
    "mean": _demand_fold,
}
