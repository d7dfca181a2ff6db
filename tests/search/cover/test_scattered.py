"""Writes into parts of a tensor, one after the other: the same numbers, put together once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Scalar
from search.cover.scattered import gathered

SHAPE = (5, 6)


def written(b: Builder, x: Ref, y: Ref, axis: int, start: int) -> Ref:
    """``x`` with ``y`` from ``start`` on along an axis, as a trace without writes has it."""
    stop, end = start + y.shape[axis], x.shape[axis]
    ends = [(0, start), (stop, end)]
    front, back = ([b.op("slice", x, axis=axis, start=i, stop=j)] if i < j else [] for i, j in ends)
    return b.op("concat", *front, y, *back, axis=axis)


def same(before: TensorProgram, after: TensorProgram) -> None:
    rng = np.random.default_rng(0)
    values = {n: rng.standard_normal(before[n].shape) for n in before.inputs}
    found = after.evaluate({n: values[n] for n in after.inputs})
    for name, want in before.evaluate(values).items():
        np.testing.assert_array_equal(found[name], want)
        assert after[name] == before[name]


def test_rows_that_are_written_one_by_one_are_put_together_once() -> None:
    b = Builder("steps")
    out, h = b.input("out", SHAPE), b.input("h", (1, 6))
    for t in range(5):
        h = b.op("tanh", h)
        out = written(b, out, h, 0, t)
    before = b.build(Z=out)
    after = gathered(before)
    assert [n.op for n in after.nodes] == ["tanh"] * 5 + ["concat"] and "out" not in after.inputs
    same(before, after)


STEPS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5), st.integers(1, 4), st.booleans()), min_size=1, max_size=6)


@given(steps=STEPS)
def test_writes_anywhere_give_the_same(steps: list[tuple[int, int, int, bool]]) -> None:
    b = Builder("writes")
    x = b.input("X", SHAPE)
    results: dict[str, Any] = {}
    for i, (axis, start, size, seen) in enumerate(steps):
        start = min(start, SHAPE[axis] - 1)
        size = min(size, SHAPE[axis] - start)
        piece = b.op("slice", x, axis=axis, start=start, stop=start + size)
        if seen:
            results[f"R{i}"] = piece * 1.0
        x = written(b, x, piece * 2.0 + 1.0, axis, start)
    before = b.build(Z=x, **results)
    same(before, gathered(before))


def test_pieces_of_another_dtype_and_what_is_a_result_stay() -> None:
    b = Builder("mixed")
    x, y = b.input("X", (4, 4), "float32"), b.input("Y", (2, 4), "float16")
    one = b.op("concat", x, y, axis=0, dtype="float32")
    two = b.op("concat", b.op("slice", one, axis=0, start=3, stop=6), x, axis=0)
    before = b.build(Z=two, W=one)
    after = gathered(before)
    assert [n.op for n in after.nodes] == [n.op for n in before.nodes]
    same(before, after)


def test_constants_of_the_extents_of_what_is_gone_take_its_sizes() -> None:
    b = Builder("scaled")
    x, y = b.input("X", (4, 4)), b.input("Y", (1, 4))
    whole = b.op("concat", b.op("slice", x, axis=0, start=0, stop=2), y, axis=0)
    part = b.op("slice", whole, axis=0, start=0, stop=2)
    before = b.build(Z=b.op("concat", part, y, axis=0), W=b.op("scale", y, scalar=Scalar.power(b.extent(part, 1), -1)))
    after = gathered(before)
    assert part.name not in after.table
    same(before, after)


@pytest.mark.parametrize("axis", [0, 1])
def test_programs_without_such_a_chain_are_left_alone(axis: int) -> None:
    b = Builder("joined")
    x = b.input("X", (4, 4))
    z = b.op("concat", b.op("slice", x, axis=axis, start=1, stop=3), b.op("concat", x, x, axis=axis), axis=axis)
    program = b.build(Z=z)
    assert gathered(program) is program
