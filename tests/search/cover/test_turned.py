"""Weights of float32 that lie along their sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fuser
from fuser.device import load_device
from search.cover.turned import turned


def program(dtype: str, again: bool = False) -> Any:
    b = fuser.Builder("two")
    x, w, v = b.input("x", (8, 16), dtype), b.input("w", (16, 24), dtype), b.input("v", (24, 16), dtype)
    y = b.relu(x @ w) @ v
    return b.build(y=y + b.op("slice", v, axis=0, start=0, stop=8) if again else y)


def test_weights_of_float32_are_turned_where_nothing_else_reads_them(rng: np.random.Generator) -> None:
    before = program("float32", again=True)
    params = {n: rng.standard_normal(before[n].shape).astype(np.float32) for n in "wv"}
    after, values = turned(before, params, load_device("h200"))
    assert set(values) == {"w along the sum", "v"}
    x = {"x": rng.standard_normal((8, 16))}
    (got,), (wanted,) = after.evaluate(x | values).values(), before.evaluate(x | params).values()
    np.testing.assert_allclose(got, wanted)


@pytest.mark.parametrize(("dtype", "device"), [("float16", "h200"), ("float32", "a100")])
def test_others_stay(dtype: str, device: str) -> None:
    before = program(dtype)
    assert turned(before, {"w": np.zeros((16, 24)), "v": np.zeros((24, 16))}, load_device(device))[0] is before
