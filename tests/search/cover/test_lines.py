"""Convolutions along lines, each channel by itself, as sums of shifted elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fuser.ir.builder import Builder
from fuser.ir.program import TensorProgram
from search.cover.lines import shifted


def lines(taps: int = 4, dtype: str = "float32", channels: int = 6, bias: bool = True, **attrs: Any) -> TensorProgram:
    b = Builder("lines", dtype)
    x, w = b.input("X", (2, 6, 11)), b.input("W", (channels, 6 // attrs.get("groups", 6), taps))
    more = (b.input("B", (channels,)),) if bias else ()
    return b.build(Y=b.op("conv1d", x, w, *more, **{"groups": 6, **attrs}))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "attrs", [{"padding": (3,)}, {"padding": (2,), "dilation": (2,)}, {"taps": 1}, {"taps": 8, "bias": False}]
)
def test_they_are_the_same(dtype: str, attrs: dict[str, Any]) -> None:
    program = lines(dtype=dtype, **attrs)
    made, params = shifted(program, {})
    assert not any(n.op == "conv1d" for n in made.nodes) and made[made.outputs[0]].dtype == dtype
    values = program.random_inputs(np.random.default_rng(0))
    np.testing.assert_allclose(made.evaluate(values | dict(params))["Y"], program.evaluate(values)["Y"], rtol=1e-6, atol=1e-6)


def test_what_is_around_lines_is_zero_where_a_line_is_infinite() -> None:
    program = lines(padding=(3,))
    made, params = shifted(program, {})
    values = program.random_inputs(np.random.default_rng(0)) | {"X": np.full((2, 6, 11), np.inf), "W": np.ones((6, 1, 4))}
    assert np.array_equal(made.evaluate(values | dict(params))["Y"], program.evaluate(values)["Y"])


@pytest.mark.parametrize("attrs", [{"taps": 33, "padding": (16,)}, {"stride": (2,)}, {"groups": 3}, {"channels": 12}])
def test_others_stay(attrs: dict[str, Any]) -> None:
    program = lines(**attrs)
    assert shifted(program, {})[0] is program
