"""The pruning question as Mirage asks it: axioms with quantifiers for Z3, and a closure by naive rewriting. Slow; for tests.

Expressions here are plain terms, nested tuples, and know no normal form: ``("var", name)``, ``("add" | "mul" | "div", x, y)``,
``("exp", x)``, ``("sum", extents, x)`` with a sorted tuple of prime extents, ``("fn", name, x)``. One table of axioms serves
both references.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any

import z3

from fuser.superopt.expressions import normal_form as nf

Expr = tuple[Any, ...]
Pattern = Any
Env = dict[str, Any]

AXIOMS: dict[str, tuple[Pattern, Pattern]] = {
    "add commutes": (("add", "x", "y"), ("add", "y", "x")),
    "mul commutes": (("mul", "x", "y"), ("mul", "y", "x")),
    "add associates": (("add", "x", ("add", "y", "z")), ("add", ("add", "x", "y"), "z")),
    "mul associates": (("mul", "x", ("mul", "y", "z")), ("mul", ("mul", "x", "y"), "z")),
    "mul over add": (("mul", "x", ("add", "y", "z")), ("add", ("mul", "x", "y"), ("mul", "x", "z"))),
    "div of add": (("add", ("div", "x", "z"), ("div", "y", "z")), ("div", ("add", "x", "y"), "z")),
    "mul of div": (("mul", "x", ("div", "y", "z")), ("div", ("mul", "x", "y"), "z")),
    "div of div": (("div", ("div", "x", "y"), "z"), ("div", "x", ("mul", "y", "z"))),
    "sum of one": (("sum", (), "x"), "x"),
    "sum of sum": (("sum", "i", ("sum", "j", "x")), ("sum", ("times", "i", "j"), "x")),
    "sum of add": (("sum", "i", ("add", "x", "y")), ("add", ("sum", "i", "x"), ("sum", "i", "y"))),
    "sum of mul": (("sum", "i", ("mul", "x", "y")), ("mul", ("sum", "i", "x"), "y")),
    "sum of div": (("sum", "i", ("div", "x", "y")), ("div", ("sum", "i", "x"), "y")),
}
"""Equivalence axioms of Mirage's table 2; x, y, z are expressions, i and j extents, () the extent 1."""


def normal_form(e: Expr) -> nf.NF:
    """The normal form of a plain term."""
    match e:
        case ("var", name):
            return nf.var(name)
        case ("sum", extents, x):
            return nf.reduce_sum(extents, normal_form(x))
        case ("fn", name, x):
            return nf.fn(name, normal_form(x))
        case ("exp", x):
            return nf.exp(normal_form(x))
        case (op, x, y):
            return {"add": nf.add, "mul": nf.mul, "div": nf.div}[op](normal_form(x), normal_form(y))
    raise ValueError(f"{e} is no expression")


def children(e: Expr) -> tuple[Expr, ...]:
    if e[0] == "var":
        return ()
    return e[2:] if e[0] in ("sum", "fn") else e[1:]


def subterms(e: Expr) -> Iterator[Expr]:
    yield e
    for child in children(e):
        yield from subterms(child)


def size(e: Expr) -> int:
    return sum(1 for _ in subterms(e))


# Closure by naive rewriting


def _match(pattern: Pattern, e: Any, env: Env) -> Iterator[Env]:
    if isinstance(pattern, str):
        if pattern not in env:
            yield {**env, pattern: e}
        elif env[pattern] == e:
            yield env
    elif pattern and pattern[0] == "times":
        # every way to split the extents in two parts that are not 1
        for take in itertools.product((False, True), repeat=len(e)):
            if any(take) and not all(take):
                first = tuple(x for x, t in zip(e, take, strict=True) if t)
                rest = tuple(x for x, t in zip(e, take, strict=True) if not t)
                yield from (new for env1 in _match(pattern[1], first, env) for new in _match(pattern[2], rest, env1))
    elif pattern == ():
        if e == ():
            yield env
    elif e and e[0] == pattern[0] and len(e) == len(pattern):
        envs = [env]
        for p, part in zip(pattern[1:], e[1:], strict=True):
            envs = [new for env1 in envs for new in _match(p, part, env1)]
        yield from envs


def _fill(pattern: Pattern, env: Env) -> Any:
    if isinstance(pattern, str):
        return env[pattern]
    if pattern == ():
        return ()
    if pattern[0] == "times":
        return tuple(sorted(env[pattern[1]] + env[pattern[2]], key=str))
    return (pattern[0], *(_fill(p, env) for p in pattern[1:]))


def rewrites(e: Expr) -> Iterator[Expr]:
    """Every term that one axiom, used once at one place in one direction, makes of ``e``."""
    for left, right in AXIOMS.values():
        for source, goal in ((left, right), (right, left)):
            for env in _match(source, e, {}):
                yield _fill(goal, env)
    first = len(e) - len(children(e))
    for i, child in enumerate(children(e)):
        for new in rewrites(child):
            yield (*e[: first + i], new, *e[first + i + 1 :])


def closure(e: Expr, limit: int, max_size: int) -> set[Expr]:
    """At most ``limit`` terms equal to ``e`` and no larger than ``max_size``, nearest first."""
    found, queue = {e}, deque([e])
    while queue and len(found) < limit:
        for new in rewrites(queue.popleft()):
            if new not in found and size(new) <= max_size:
                found.add(new)
                queue.append(new)
                if len(found) >= limit:
                    break
    return found


# Z3

_E = z3.DeclareSort("Expression")
_BINARY = {op: z3.Function(op, _E, _E, _E) for op in ("add", "mul", "div")}
_EXP = z3.Function("exp", _E, _E)
_SUM = z3.Function("sum", z3.IntSort(), _E, _E)
_SUB = z3.Function("subexpression", _E, _E, z3.BoolSort())


def _z3_term(e: Any, leaf: Any) -> Any:
    """Encode a term or a pattern; ``leaf`` encodes variables."""
    if isinstance(e, str) or e[0] == "var":
        return leaf(e)
    if e[0] == "sum":
        return _SUM(_z3_extent(e[1]), _z3_term(e[2], leaf))
    if e[0] == "fn":
        return z3.Function(f"fn_{e[1]}", _E, _E)(_z3_term(e[2], leaf))
    if e[0] == "exp":
        return _EXP(_z3_term(e[1], leaf))
    return _BINARY[e[0]](*(_z3_term(x, leaf) for x in e[1:]))


def _z3_extent(extent: Any) -> Any:
    if isinstance(extent, str):
        return z3.Int(f"?{extent}")
    if extent and extent[0] == "times":
        return z3.Int(f"?{extent[1]}") * z3.Int(f"?{extent[2]}")
    product = z3.IntVal(1)
    for part in extent:
        product = product * (z3.IntVal(part) if isinstance(part, int) else z3.Int(f"extent_{part}"))
    return z3.simplify(product)


def _axioms(functions: set[str]) -> list[Any]:
    def variable(name: str) -> Any:
        return z3.Int(f"?{name}") if name in "ij" else z3.Const(f"?{name}", _E)

    def names(p: Pattern) -> set[str]:
        return {p} if isinstance(p, str) else set().union(*(names(q) for q in p[1:])) if p else set()

    found = []
    for left, right in AXIOMS.values():
        equal = _z3_term(left, variable) == _z3_term(right, variable)
        found.append(z3.ForAll([variable(n) for n in sorted(names(left) | names(right))], equal))
    x, y, z, i = variable("x"), variable("y"), variable("z"), variable("i")
    found.append(z3.ForAll([x], _SUB(x, x)))
    found.append(z3.ForAll([x, y, z], z3.Implies(z3.And(_SUB(x, y), _SUB(y, z)), _SUB(x, z))))
    for f in _BINARY.values():
        found += [z3.ForAll([x, y], _SUB(x, f(x, y))), z3.ForAll([x, y], _SUB(y, f(x, y)))]
    found += [z3.ForAll([x], _SUB(x, _EXP(x))), z3.ForAll([i, x], _SUB(x, _SUM(i, x)))]
    for name in sorted(functions):
        found.append(z3.ForAll([x], _SUB(x, z3.Function(f"fn_{name}", _E, _E)(x))))
    return found


def keeps(e: Expr, target: Expr, timeout_ms: int = 1000) -> bool | None:
    """True if Z3 proves ``e`` an abstract subexpression of ``target``, False if it refutes that, None if it gives up.

    Mirage prunes only what is refuted or unknown after its own limits; here unknown means keep.
    """
    solver = z3.Solver()
    solver.set("timeout", timeout_ms)
    solver.set("random_seed", 0)
    solver.add(*_axioms({t[1] for t in (*subterms(e), *subterms(target)) if t[0] == "fn"}))

    def leaf(v: Expr) -> Any:
        return z3.Const(f"in_{v[1]}", _E)

    solver.add(z3.Not(_SUB(_z3_term(e, leaf), _z3_term(target, leaf))))
    answer = solver.check()
    return None if answer == z3.unknown else answer == z3.unsat
