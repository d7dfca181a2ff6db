"""Poolings of windows side by side as reductions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fuser.ir.builder import Builder
from fuser.ir.program import TensorProgram
from search.cover.pools import reduced


def pooled(op: str, **attrs: Any) -> TensorProgram:
    b = Builder("pooled", "float32")
    return b.build(Y=b.sum(b.op(op, b.input("X", (3, 2, 23)), **attrs), 2))


@pytest.mark.parametrize("op", ["max_pool1d", "avg_pool1d"])
@pytest.mark.parametrize("attrs", [{"kernel_size": (4,)}, {"kernel_size": (5,), "stride": (5,)}, {"kernel_size": (23,)}])
def test_they_are_the_same(op: str, attrs: dict[str, Any]) -> None:
    program = pooled(op, **attrs)
    made, x = reduced(program), np.random.default_rng(0).standard_normal((3, 2, 23))
    assert not any(n.op == op for n in made.nodes)
    np.testing.assert_allclose(made.evaluate({"X": x})["Y"], program.evaluate({"X": x})["Y"], rtol=1e-12)


@pytest.mark.parametrize(
    "attrs",
    [{"kernel_size": (4,), "stride": (2,)}, {"kernel_size": (4,), "padding": (1,)}, {"kernel_size": (4,), "ceil_mode": True}],
)
def test_other_windows_stay(attrs: dict[str, Any]) -> None:
    program = pooled("max_pool1d", **attrs)
    assert reduced(program) is program
