"""What finite fields cannot see: overflow, NaN and cancellation in floating point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fuser.ir.builder import Builder
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.superopt.structures import structures
from fuser.superopt.verify.float_check import float_error
from fuser.superopt.verify.float_check import relative_error
from fuser.superopt.verify.reduced import reduction
from fuser.superopt.verify.verdict import Accepted
from fuser.superopt.verify.verdict import Rejected
from fuser.superopt.verify.verdicts import kept_verdict
from fuser.superopt.verify.verifier import verify
from fuser.workloads import workload
from tests.builders import edit


def _error(program: TensorProgram, graph: KernelGraph) -> float:
    return float_error(reduction(program, graph), None, np.random.default_rng(0))


def test_float_check_alone() -> None:
    program = workload("graphene/layernorm", rows=64, D=64)
    assert _error(program, fuse(program)) < 1e-12
    wrong = edit(fuse(program), next(s for s in fuse(program).blocks[0].computes if s.op == "shift").value, op="neg", attrs=())
    assert not _error(program, wrong) < 1e-3


@pytest.mark.parametrize("what", ["entropy", "no number", "large", "zero"])
def test_what_follows_a_softmax_is_compared_where_the_program_has_numbers(what: str) -> None:
    """The logarithm of a probability that underflows is infinite, and a comparison makes a number of what overflowed."""
    b = Builder(what, "float32")
    p = b.softmax(b.input("X", (64, 256)))
    one = b.input("one", (1,))
    chosen = {"no number": lambda: b.op("isnan", p), "large": lambda: b.op("gt", p, one), "zero": lambda: b.op("eq", p, one)}
    y = p * b.op("log", p) if what == "entropy" else b.op("where", chosen[what](), one, p * p)
    program = b.build(Y=b.sum(y, 1))
    for graph in structures(program):
        assert isinstance(verify(program, graph), Accepted), str(verify(program, graph))


def _shifted_softmax(program: TensorProgram, by: str) -> TensorProgram:
    """The same softmax of a program's first input, as quotients of exponentials that are shifted."""
    b = Builder("shifted")
    t = program[program.inputs[0]]
    x = b.input(t.name, t.shape) * (1000 if "steep" in program.name else 1)
    top = b.op("max", x, axis=(1,), keepdims=True)
    e = b.exp({"bare": x, "minus": x - top, "plus": x + top, "twice": x - 2 * top, "half": x - 0.5 * top}[by])
    return b.build(Y=e / b.sum(e, 1, keepdims=True))


def shifted_softmax(shift) -> tuple[TensorProgram, KernelGraph]:
    def make(name: str, y) -> TensorProgram:
        b = Builder(name, "float32")
        return b.build(O=y(b, b.input("X", (64, 256))))

    def by_hand(b: Builder, x):
        e = b.exp(shift(b, x))
        return e / b.sum(e, 1, keepdims=True)

    return make("softmax", lambda b, x: b.softmax(x)), fuse(make("by_hand", by_hand))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_softmax_shifted_by_a_sum_is_refused_whatever_is_drawn(sign: float, seed: int) -> None:
    program, graph = shifted_softmax(lambda b, x: x + b.sum(x, 1, keepdims=True) * sign)
    assert not verify(program, graph, rng=np.random.default_rng(seed)).accepted


def test_what_overflows_in_float32_alone_is_refused() -> None:
    program, graph = shifted_softmax(lambda b, x: x + 100)
    assert isinstance(verify(program, graph), Rejected)
    assert verify(*shifted_softmax(lambda b, x: x + 1)).accepted


def test_what_overflows_where_the_program_does_not_is_refused() -> None:
    """In exact arithmetic all of these are equal."""
    b = Builder("softmax")
    plain = b.build(Y=b.softmax(b.input("X", (16, 64))))
    b = Builder("steep softmax")
    steep = b.build(Y=b.softmax(b.input("X", (16, 64)) * 1000))
    for program, right, wrong in ((plain, ("bare", "minus", "half"), ("plus",)), (steep, ("minus",), ("bare", "plus", "twice"))):
        for by in right:
            assert isinstance(verdict := verify(program, fuse(_shifted_softmax(program, by)), rounds=1), Accepted), (by, verdict)
        for by in wrong:
            verdict = verify(program, fuse(_shifted_softmax(program, by)), rounds=1)
            assert isinstance(verdict, Rejected), by
            assert "float64" in verdict.why, by


@pytest.mark.parametrize("factor", [1000, 90, -300, 1e-6])
def test_steep_exponentials(factor: float) -> None:
    """Where the program overflows, so may the µGraph, and only there."""
    b = Builder("steep")
    x = b.input("X", (16, 24))
    program = b.build(Y=b.exp(x * factor))
    b = Builder("square")
    x = b.input("X", (16, 24))
    e = b.exp(x * (factor / 2))
    assert isinstance(verify(program, fuse(program), rounds=1), Accepted)
    assert isinstance(verify(program, fuse(b.build(Y=e * e)), rounds=1), Accepted)
    b = Builder("wrong")
    assert not verify(program, fuse(b.build(Y=b.exp(b.input("X", (16, 24)) * (factor * 1.001)))), rounds=1).accepted


@pytest.mark.parametrize("number", [-1e4, -3.3895313892515355e38])
def test_a_mask_that_is_scaled_in_a_softmax_is_told_from_others(number: float) -> None:
    """Exponentials as the program has them overflow even in extended precision for numbers like 1; those of the µGraph do not."""

    def masked(number: float, by: str = "softmax") -> TensorProgram:
        b = Builder("masked")
        s = b.input("X", (64, 48)) + b.op("scale", b.input("M", (1, 48)), scalar=number)
        e = b.exp(s) if by == "bare" else s
        p = b.softmax(s) if by == "softmax" else e / b.sum(e, 1, keepdims=True)
        return b.build(Y=p @ b.input("V", (48, 16)))

    program = masked(number)
    assert verify(program, structures(program)[0]).accepted
    assert not verify(program, structures(masked(number / 2))[0]).accepted
    assert number < -1e5 or isinstance(verify(program, fuse(masked(number, "bare"))), Rejected)


def test_not_a_number_stands_where_it_should() -> None:
    nan, inf = np.nan, np.inf
    wanted = np.array([1.0, nan, inf, -inf])
    assert relative_error(wanted, wanted) == 0
    for got in (
        [1.0, 2.0, inf, -inf],
        [nan, nan, inf, -inf],
        [1.0, nan, inf, inf],
        [1.0, nan, 1e300, -inf],
        [1.0, 0.0, inf, -inf],
    ):
        assert relative_error(np.array(got), wanted) == inf
    assert relative_error(np.array([1.0, 0.0, inf, -inf]), wanted, masked=True) == 0


def test_what_cancels_may_differ_by_its_rounding() -> None:
    """A sum of tanh over the parts of a concatenation: at large factors little is left of it but rounding."""
    b = Builder("cancels")
    x, y, z = b.input("x", (2, 5)), b.input("y", (2, 5)), b.input("z", (4, 2))
    both = b.op("concat", b.op("concat", x, y, axis=0), z, axis=1)
    program = b.build(Y=b.op("sum", b.op("tanh", both), axis=(0, 1), keepdims=False))
    for seed in range(8):
        for graph in structures(program):
            assert isinstance(verify(program, graph, rng=np.random.default_rng(seed), rounds=1), Accepted)


def test_what_divides_by_what_may_be_zero_is_refused() -> None:
    """Over fields x/x is 1. Where the program divides by it too, both are no number."""

    def made(y: Callable[[Any, Any, Any], Any]) -> TensorProgram:
        b = Builder("quotient")
        return b.build(O=y(b, b.input("X", (64, 32)), b.input("Y", (64, 32))))

    def whole(b: Any, x: Any) -> Any:
        return b.sum(x, 1, keepdims=True)

    wrong = {
        "itself": (lambda b, x, y: x * y, lambda b, x, y: x / x * x * y),
        "the other": (lambda b, x, y: x + y, lambda b, x, y: x + y * y / y),
        "rows": (lambda b, x, y: x * y, lambda b, x, y: x * y / whole(b, y) * whole(b, y)),
        "differences": (lambda b, x, y: x * y, lambda b, x, y: x * y * (x - y) / (x - y)),
    }
    for name, (program, graph) in wrong.items():
        verdict = verify(made(program), fuse(made(graph)), rounds=1)
        assert isinstance(verdict, Rejected) and "float64" in str(verdict), name
    right = {
        "quotients": (lambda b, x, y: x / y / y, lambda b, x, y: x / (y * y)),
        "rows": (lambda b, x, y: x * (y / whole(b, y)), lambda b, x, y: x * y / whole(b, y)),
        "norms": (lambda b, x, y: x / b.op("sqrt", whole(b, y * y)), lambda b, x, y: x * b.op("rsqrt", whole(b, y * y))),
    }
    for name, (program, graph) in right.items():
        assert verify(made(program), fuse(made(graph)), rounds=1).accepted, name


@pytest.mark.parametrize("tail", ["isnan", "gt"])
def test_a_maximum_of_more_than_a_row_is_refused(tail: str) -> None:
    """What follows hides that a row of small numbers is zero by zero."""

    def made(top: tuple[int, ...]) -> TensorProgram:
        b = Builder("hidden", "float32")
        x, one = b.input("X", (64, 256)), b.input("one", (1,))
        if not top:
            p = b.softmax(x)
        else:
            e = b.exp(x - b.op("max", x, axis=top, keepdims=True))
            p = e / b.sum(e, 1, keepdims=True)
        return b.build(Y=b.op("where", b.op("isnan", p) if tail == "isnan" else b.op("gt", p, one), one, x))

    program = made(())
    assert kept_verdict(program, fuse(made((1,)))).accepted
    found = kept_verdict(program, fuse(made((0, 1))))
    assert isinstance(found, Rejected) and "no maximum of its own" in str(found)


@pytest.mark.parametrize(("op", "correction"), [("std", 1), ("std", 0), ("var", 1)])
def test_rows_over_their_deviation_are_one_kernel(op: str, correction: int) -> None:
    """Of equal elements the program has rounding errors by themselves, which says nothing of a µGraph."""
    b = Builder("standard", "float32")
    x = b.input("X", (64, 240))
    mean = b.op("mean", x, axis=(1,), keepdims=True)
    program = b.build(Y=(x - mean) / b.op(op, x, axis=(1,), keepdims=True, correction=correction))
    assert all(isinstance(verify(program, g), Accepted) for g in structures(program))


def test_a_quotient_of_what_is_equal_is_refused_where_the_program_has_none() -> None:
    """Logarithms of equal numbers: (x - y)² / (x - y) is x - y but there."""

    def made(quotient: bool) -> TensorProgram:
        b = Builder("difference", "float32")
        d = b.op("log", b.input("X", (64, 240))) - b.op("log", b.input("Y", (64, 240)))
        return b.build(Z=b.sum(b.op("square", d) / d if quotient else d, 1))

    program = made(False)
    assert isinstance(verify(program, fuse(program)), Accepted)
    assert not isinstance(verify(program, fuse(made(True))), Accepted)
