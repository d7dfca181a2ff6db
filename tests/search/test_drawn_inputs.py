"""What models are compared on."""

from __future__ import annotations

import numpy as np

from fuser.ir.builder import Builder
from search.drawn_inputs import drawn_input
from search.drawn_inputs import zero_divisors


def test_small_integers_take_all_their_values_but_as_indices(rng: np.random.Generator) -> None:
    b = Builder("model", "float32")
    x, y = b.input("x", (4096,), "uint8"), b.input("y", (4096,), "int8")
    table, at = b.input("table", (50, 3)), b.input("at", (4096,), "uint8")
    program = b.build(
        a=b.op("cast", x - x, dtype="float32"), b=b.op("neg", y), c=b.op("embedding", table, b.op("cast", at, dtype="int64"))
    )
    assert set(drawn_input(program, "x", rng)) == set(range(256))
    assert set(drawn_input(program, "y", rng)) == set(range(-128, 128))
    places = drawn_input(program, "at", rng)
    assert places.dtype == np.uint8
    assert places.max() < 50


def test_divisors_of_whole_numbers_are_not_zero(rng: np.random.Generator) -> None:
    b = Builder("model")
    x, y, z = b.input("x", (999,), "int64"), b.input("y", (999,), "int64"), b.input("z", (3, 333), "uint8")
    whole = b.op("cast", z.reshape(999), dtype="int64")
    program = b.build(a=b.op("trunc_div", x, y), b=b.op("remainder", y, whole))
    for name, least in (("y", -9), ("z", 1)):
        values = drawn_input(program, name, rng)
        assert values.min() == least
        assert 0 not in values
    assert drawn_input(program, "x", rng).max() > 50


def test_wide_integers_that_may_be_masks_stay_few(rng: np.random.Generator) -> None:
    b = Builder("model", "float32")
    program = b.build(y=b.op("cast", b.input("mask", (64,), "int64"), dtype="float32"))
    assert set(drawn_input(program, "mask", rng)) == {0, 1}


def test_divisors_that_are_computed_are_looked_at() -> None:
    b = Builder("model")
    x, y = b.input("x", (3,), "uint8"), b.input("y", (3,), "uint8")
    program = b.build(z=b.op("trunc_div", x, y + 1))
    x_values = np.ones(3, np.uint8)
    assert zero_divisors(program, {"x": x_values, "y": np.array([1, 2, 254], np.uint8)}) == []
    (name,) = zero_divisors(program, {"x": x_values, "y": np.array([1, 2, 255], np.uint8)})
    assert program.producers[name].op == "shift"
