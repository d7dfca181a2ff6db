"""Convolutions along lines with more channels than are asked for."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.ir.builder import Builder
from fuser.ir.program import TensorProgram
from search.cover import wider
from search.cover.wider import widened


def lines(channels: int, length: int = 40, dtype: str = "float32", groups: int = 1) -> TensorProgram:
    b = Builder("lines", dtype)
    x, w = b.input("X", (2, length, 8)), b.input("W", (channels, 3, 8 // groups))
    y = b.op("conv1d_last", x, w, padding=(1,), stride=(2,), groups=groups)
    return b.build(Y=b.relu(y))


def test_they_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wider, "LEAST", 0)
    program, rng = lines(100), np.random.default_rng(0)
    values = program.random_inputs(rng)
    made, params = widened(program, {"W": values["W"]})
    (node,) = [n for n in made.nodes if n.op == "conv1d_last"]
    assert made[node.output].shape[-1] == wider.WIDE
    assert set(params) == set(made.inputs) - {"X"}
    np.testing.assert_array_equal(made.evaluate({"X": values["X"], **params})["Y"], program.evaluate(values)["Y"])


@pytest.mark.parametrize(("channels", "dtype", "groups"), [(64, "float32", 1), (129, "float32", 1), (100, "float16", 1),
                                                           (100, "float32", 2)])  # fmt: skip
def test_others_stay(monkeypatch: pytest.MonkeyPatch, channels: int, dtype: str, groups: int) -> None:
    monkeypatch.setattr(wider, "LEAST", 0)
    program = lines(channels, dtype=dtype, groups=groups)
    weights = {"W": program.random_inputs(np.random.default_rng(0))["W"]}
    assert widened(program, weights)[0] is program


def test_small_ones_and_those_by_weights_of_a_call_stay() -> None:
    program = lines(100)
    assert widened(program, {"W": program.random_inputs(np.random.default_rng(0))["W"]})[0] is program
    large = lines(100, 500_000)
    assert widened(large, {})[0] is large
    assert widened(large, {"W": np.zeros((100, 3, 8), np.float32)})[0] is not large
