"""Softmaxes in forms of which no running maximum is licensed: rows of one element, slices along the row, and what is made of
these."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fuser.interpret.algebra import FloatAlgebra
from fuser.interpret.flat import evaluate_flat
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.fuse import fuse
from fuser.ir.program import TensorProgram
from fuser.superopt.rewrite.maxima import as_written
from fuser.superopt.rewrite.maxima import softmaxes
from fuser.superopt.rewrite.maxima import with_maxima
from fuser.superopt.rewrite.maxima import without_maximum
from fuser.superopt.rewrite.stabilize import stabilize_graph
from fuser.superopt.rewrite.stabilize import unstable
from fuser.superopt.structures import structures
from fuser.superopt.verify.verifier import verify


def part(b: Builder, x: Ref, start: int, stop: int, axis: int = 1) -> Ref:
    return b.op("slice", x, axis=axis, start=start, stop=stop)


def one_column(b: Builder) -> Ref:
    return b.softmax(b.input("X", (6, 1)))


def one_key(b: Builder) -> Ref:
    return b.attention(b.input("X", (2, 8, 16)), b.input("K", (2, 1, 16)), b.input("V", (2, 1, 12)))


def of_a_projection(b: Builder) -> Ref:
    return b.softmax(b.input("X", (6, 16)) @ b.input("W", (16, 1)))


def half(b: Builder) -> Ref:
    return part(b, b.softmax(b.input("X", (6, 16))), 0, 8)


def a_column(b: Builder) -> Ref:
    return part(b, b.softmax(b.input("X", (6, 16))), 3, 4)


def two_halves(b: Builder) -> Ref:
    s = b.softmax(b.input("X", (6, 16)))
    return part(b, s, 0, 8) * part(b, s, 8, 16)


def without_the_first_key(b: Builder) -> Ref:
    q, k, v = b.input("X", (9, 16)), b.input("K", (9, 16)), b.input("V", (9, 12))
    return part(b, b.softmax(q @ k.T), 1, 9) @ part(b, v, 1, 9, axis=0)


def normalized_again(b: Builder) -> Ref:
    h = part(b, b.softmax(b.input("X", (6, 16))), 0, 8)
    return h / (b.sum(h, 1, keepdims=True) + 1e-3)


FORMS = (one_column, one_key, of_a_projection, half, a_column, two_halves, without_the_first_key, normalized_again)


def made(make: Callable[[Builder], Ref]) -> TensorProgram:
    b = Builder(make.__name__, dtype="float32")
    return b.build(Y=make(b))


@pytest.mark.parametrize("make", FORMS)
def test_every_structure_subtracts_the_maximum_and_stays_finite(make: Callable[[Builder], Ref]):
    program = made(make)
    assert without_maximum(program, stabilize_graph(fuse(program))), "the composite alone leaves it bare"
    rng = np.random.default_rng(0)
    inputs = {n: rng.standard_normal(program[n].shape) * (200.0 if n == "X" else 1.0) for n in program.inputs}
    inputs["X"][0] = -np.abs(inputs["X"][0])
    wanted = program.evaluate(inputs)["Y"]
    assert np.isfinite(wanted).all()
    for graph in structures(program):
        assert not unstable(graph)
        assert not without_maximum(program, graph)
        if any(b.splits for b in graph.blocks):
            continue
        got = evaluate_flat(FloatAlgebra(np.float32), graph, {n: np.asarray(x, np.float32) for n, x in inputs.items()})
        np.testing.assert_allclose(got.tensors["Y"].reshape(wanted.shape), wanted, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("make", FORMS)
def test_these_structures_are_verified_with_large_exponents(make: Callable[[Builder], Ref]):
    program = made(make)
    assert verify(program, structures(program)[0], rounds=1, large=True).accepted


def test_rows_with_infinities_are_as_the_program_has_them():
    program = made(half)
    x = np.random.default_rng(0).standard_normal((6, 16))
    x[0, :4], x[1, 3], x[2, 12] = -np.inf, np.inf, np.inf
    with np.errstate(invalid="ignore"):
        got = evaluate_flat(FloatAlgebra(), structures(program)[0], {"X": x}).tensors["Y"]
        wanted = program.evaluate({"X": x})["Y"]
    np.testing.assert_allclose(got, wanted, atol=1e-12)
    assert np.isnan(wanted[1]).all()


def test_only_softmaxes_get_a_maximum():
    b = Builder("mixed", dtype="float32")
    x, y = b.input("X", (6, 16)), b.input("Y", (6, 16))
    e = b.exp(y)
    program = b.build(A=part(b, b.softmax(x), 0, 8), B=e / (b.sum(e, 1, keepdims=True) + 1.0))
    assert set(softmaxes(program).values()) == {(-1,)}
    assert [n.op for n in with_maxima(program).nodes].count("max") == 1
    for graph in structures(program):
        assert unstable(graph), "the exponential of the program itself stays bare"
        assert not without_maximum(program, graph)


def test_what_has_a_running_maximum_is_not_written_otherwise():
    b = Builder("two", dtype="float32")
    x, y = b.input("X", (6, 16)), b.input("Y", (6, 16))
    program = b.build(A=part(b, b.softmax(x), 0, 8), B=b.softmax(y))
    first = structures(program)[0]
    running = [s for block in first.blocks for s in block.computes if s.running]
    assert len(running) == 1
    assert [n.op for n in as_written(program, first).nodes].count("max") == 1


def test_an_exponential_by_another_name_counts_as_one_of_the_softmax():
    program = made(half)
    b = Builder("other", dtype="float32")
    e = b.op("exp", b.input("X", (6, 16)), name="another")
    graph = fuse(b.build(Y=part(b, e, 0, 8) / b.sum(e, 1, keepdims=True)))
    assert without_maximum(program, graph).keys() == {"another"}
