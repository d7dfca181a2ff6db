"""Programs: shapes, errors that name the culprit, JSON, constants that keep their meaning."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuser.errors import ProgramError
from fuser.ir.builder import Builder
from fuser.ir.composites import expand
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar
from fuser.ir.subprogram import canonical
from fuser.ir.subprogram import convex
from fuser.ir.subprogram import subprogram
from tests.builders import attention


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", [(), (1, 1, 12)])
def test_expansion_of_composites_changes_nothing(causal, mask, rng):
    program = attention(8, 12, 4, 4, causal=causal, mask=mask)
    inputs = program.random_inputs(rng)
    whole, parts = program.evaluate(inputs)["O"], expand(program).evaluate(inputs)["O"]
    np.testing.assert_allclose(parts, whole, rtol=1e-12)


def test_fully_masked_rows_are_zero():
    b = Builder("masked")
    x = b.input("X", (2, 4), "float32")
    program = b.build(Y=b.softmax(x))
    y = program.evaluate({"X": np.array([[-np.inf] * 4, [0.0, 0.0, -np.inf, -np.inf]])})["Y"]
    np.testing.assert_array_equal(y, [[0, 0, 0, 0], [0.5, 0.5, 0, 0]])


def test_json_round_trip_keeps_hash_and_constants():
    program = attention(8, 12, 4, 4, causal=True)
    again = TensorProgram.from_json(program.to_json())
    assert again == program
    assert again.stable_hash() == program.stable_hash()


@pytest.mark.parametrize(
    ("make", "culprit"),
    [
        (lambda b: b.op("matmul", b.input("A", (4, 5)), b.input("B", (6, 7))), "contracted extents"),
        (lambda b: b.op("add", b.input("A", (4, 5)), b.input("B", (3, 5))), "do not broadcast"),
        (lambda b: b.input("A", (4, 0)), "'A'"),
        (lambda b: b.input("A", (4,), "complex64"), "complex64"),
        (lambda b: b.input("A", (4, 6)).reshape(5, 5), "numbers of elements"),
        (lambda b: b.op("max", b.input("A", (4, 6)), axis=(0, -2)), "names an axis twice: 0, -2"),
        (lambda b: b.op("softmax", b.input("A", (4, 6)), axis=()), "an axis is a whole number"),
        (lambda b: b.op("mean", b.input("A", (4, 6)), axis=None), "whole number, got None"),
    ],
)
def test_bad_programs_name_the_culprit(make, culprit):
    with pytest.raises(ProgramError, match=culprit):
        make(Builder("bad"))


def test_constants_follow_the_size_they_are_tied_to():
    scale = Scalar.power(Extent("Q", 1), Fraction(-1, 2))
    assert scale.value(lambda e: 80) == pytest.approx(80**-0.5)
    assert scale.value(lambda e: 64) == 0.125
    assert str(scale) == "|Q.1|^(-1/2)"


@given(st.fractions(max_denominator=50).filter(bool), st.integers(2, 200), st.integers(-3, 3))
def test_scalars_multiply_and_invert_exactly(coeff, base, half):
    x = Scalar.of(coeff) * Scalar.power(base, Fraction(half, 2))
    assert x * x.inverse() == Scalar()
    assert Scalar.from_json(x.to_json()) == x
    assert x.value() == pytest.approx(float(coeff) * base ** (half / 2))


def test_subprograms_are_cut_with_their_inputs_and_equal_regions_become_equal():
    b = Builder("two")
    x, w = b.input("x", (8, 8)), b.input("w", (8, 8))
    first = b.relu(x @ w)
    second = b.relu(first @ w)
    program = b.build(y=second)
    parts = [subprogram(program, nodes, "part") for nodes in (["matmul_0", "relu_1"], ["matmul_2", "y"])]
    assert parts[1].inputs == ("relu_1", "w")
    assert canonical(parts[0])[0] == canonical(parts[1])[0]


def test_convexity():
    b = Builder("diamond")
    x = b.input("x", (4, 4))
    a = b.relu(x)
    left, right = b.exp(a), b.silu(a)
    program = b.build(y=left * right)
    assert convex(program, ["relu_0", "exp_1", "silu_2", "y"])
    assert not convex(program, ["relu_0", "exp_1", "y"])


@pytest.mark.parametrize(
    "make",
    [
        lambda b, x: b.sum(x, 2),
        lambda b, x: b.sum(x, -3),
        lambda b, x: b.softmax(x, 7),
        lambda b, x: b.op("max", x, axis=(0, 5)),
        lambda b, x: b.op("repeat", x, axis=2, times=2),
        lambda b, x: b.op("slice", x, axis=2, start=0, stop=1),
        lambda b, x: b.op("concat", x, x, axis=-3),
        lambda b, _: b.op("concat", axis=0),
        lambda b, x: b.op("sum", x),
        lambda b, x: b.op("nothing", x),
        lambda b, x: x * float("nan"),
        lambda b, x: x + float("inf"),
        lambda b, x: x / 0,
        lambda b, x: x + "a",
    ],
)
def test_what_has_no_meaning_is_refused_where_it_is_written(make) -> None:
    b = Builder("p")
    with pytest.raises(ProgramError):
        make(b, b.input("X", (4, 8)))


def test_inputs_of_bfloat16_are_numbers_of_bfloat16() -> None:
    torch = pytest.importorskip("torch")
    b = Builder("wide", "bfloat16")
    program = b.build(Y=b.relu(b.input("X", (64, 64))))
    x = program.random_inputs(np.random.default_rng(0))["X"]
    drawn = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    assert x.dtype == np.float32
    np.testing.assert_array_equal(x, torch.from_numpy(drawn).bfloat16().float().numpy())
