"""Bounds of random tests: never too small, and nothing where nothing is proven."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest

from fuser.errors import UnsupportedError
from fuser.interpret.field_rules import RULES
from fuser.interpret.field_values import Value
from fuser.interpret.fields import Field
from fuser.ir import ops
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.ops import OPS
from fuser.ir.program import TensorProgram
from fuser.superopt.structures import structures
from fuser.superopt.verify.bounds import _RULES
from fuser.superopt.verify.bounds import _Count
from fuser.superopt.verify.bounds import round_bound
from fuser.superopt.verify.verdict import Agrees
from fuser.superopt.verify.verdict import Verified
from fuser.superopt.verify.verdicts import verdict_document
from fuser.superopt.verify.verifier import verify
from tests.operators import NUMBERS
from tests.operators import elementwise


def unary(op: str) -> TensorProgram:
    b = Builder(op)
    return b.build(Y=b.op(op, b.input("X", (32, 64)) @ b.input("W", (64, 32))))


def bound(program: TensorProgram, graph: KernelGraph | None = None) -> float:
    return round_bound(program, graph or fuse(program), Field(np.random.default_rng(0)))[0]


def test_every_operator_says_what_it_does_to_fractions() -> None:
    for name, entry in OPS.items():
        own = name in RULES or entry.kind == "reduce" or (entry.kind in ("view", "data") and entry.arity == 1)
        follows = name == "exp" or entry.formula is not None or (entry.kind == "map" and name not in RULES)
        assert bool(entry.fraction) == (own and name != "exp") or follows, name
        assert not entry.fraction or entry.fraction in _RULES


def test_functions_are_counted_where_the_field_draws_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the table says of an operator is what its evaluation does."""
    drawn: Counter[str] = Counter()
    own = Field.function

    def counted(self: Field, name: str, *xs: Value) -> Value:
        drawn[name.split(maxsplit=1)[0]] += xs[0].p.size
        return own(self, name, *xs)

    monkeypatch.setattr(Field, "function", counted)
    for name in elementwise():
        entry = OPS[name]
        drawn.clear()
        field = Field(np.random.default_rng(0))
        xs = [field.random((3, 5), np.random.default_rng(i)) for i in range(entry.arity)]
        field.apply(name, xs, NUMBERS.get(name, {}))
        count = _Count()
        count.apply(name, [(1, 0)] * entry.arity, NUMBERS.get(name, {}), 15, 1)
        assert dict(drawn) == count.elements, name


def add_operator(monkeypatch: pytest.MonkeyPatch, **more: object) -> None:
    entry = dataclasses.replace(OPS["tanh"], name="softer", **more)  # type: ignore[arg-type]
    monkeypatch.setitem(ops.OPS, "softer", entry)


def test_an_operator_without_a_rule_is_not_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    add_operator(monkeypatch, indexed=True)
    with pytest.raises(UnsupportedError, match="softer"):
        bound(unary("softer"))


def test_a_function_added_by_hand_has_the_bound_of_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    add_operator(monkeypatch)
    assert bound(unary("softer")) == bound(unary("tanh")) > 100 * bound(unary("neg"))
    assert isinstance(verify(unary("softer"), fuse(unary("softer"))), Verified)


def library(program: TensorProgram) -> KernelGraph:
    kernels = tuple(LibraryKernel(f"k{i}", n.op, n.inputs, n.output, n.attrs) for i, n in enumerate(program.nodes))
    tensors = tuple(program[n] for n in (*program.inputs, *program.outputs))
    return KernelGraph("library", program.inputs, kernels, program.outputs, tensors)


def test_library_kernels_count_as_what_they_compute() -> None:
    b = Builder("deep")
    x = b.input("X", (32, 32))
    for i in range(6):
        x = b.op("tanh", x @ b.input(f"W{i}", (32, 32)))
    program = b.build(Y=x)
    assert bound(program, library(program)) == bound(program)
    b = Builder("squares")
    y = b.input("X", (4, 4))
    for _ in range(25):
        y = b.op("square", y)
    program = b.build(Y=y)
    assert bound(program) >= 2 * 2**25 / 2**31
    assert bound(program, library(program)) == bound(program)


@pytest.mark.parametrize("what", ["maximum", "max", "where", "bits"])
def test_what_is_tested_by_chance_agrees_and_is_not_proven(what: str) -> None:
    b = Builder(what)
    x, y, c = b.input("X", (32, 64)), b.input("Y", (32, 64)), b.input("C", (32, 64), "bool")
    forms: dict[str, Ref] = {
        "maximum": b.op("maximum", x, y),
        "max": b.op("max", x, axis=(1,)),
        "where": b.op("where", c, x, y),
        "bits": b.op("mul", x, c),
    }
    program = b.build(Z=forms[what] * 2)
    verdict = verify(program, fuse(program))
    assert isinstance(verdict, Agrees)
    assert verdict.accepted
    assert verdict.bound == 1
    assert str(verdict).startswith("agrees, not proven")
    assert "verified" not in str(verdict)
    assert verdict_document(verdict)["verdict"] == "agrees, not proven"


def test_what_is_proven_says_so() -> None:
    verdict = verify(unary("tanh"), fuse(unary("tanh")))
    assert isinstance(verdict, Verified)
    assert str(verdict).startswith("verified")
    assert verdict_document(verdict)["verdict"] == "verified"


def test_the_law_of_exp_proves_nothing_of_many_terms() -> None:
    b, c = Builder("sum"), Builder("product")
    total = b.build(Z=b.exp(b.input("X", (8, 16)) + b.input("Y", (8, 16))))
    product = c.build(Z=c.exp(c.input("X", (8, 16))) * c.exp(c.input("Y", (8, 16))))
    assert isinstance(verify(total, fuse(product)), Agrees)


def test_softmax_is_proven_but_for_maxima_that_cross_kernels() -> None:
    b = Builder("attention")
    q, k, v = (b.input(n, (64, 64)) for n in "QKV")
    program = b.build(O=b.attention(q, k, v))
    verdicts = [verify(program, g) for g in structures(program)]
    assert all(v.accepted for v in verdicts)
    assert isinstance(verdicts[0], Verified)
    assert {type(v) for v in verdicts} == {Verified, Agrees}
