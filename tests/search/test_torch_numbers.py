"""Floats that dynamo hands to a graph as tensors do not leave the graph to torch."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fuser  # noqa: E402

nn = torch.nn


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def behind(module: Any, **kwargs: Any) -> Any:
    return torch.compile(module, backend=fuser.torch_backend, options={"device": "cpu"}, **kwargs)


def test_norms_have_kernels_where_all_sizes_are_open() -> None:
    module = nn.LayerNorm(8, eps=0.5)
    run = behind(module, dynamic=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")  # that torch runs it would be said
        for rows in (3, 5):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(run(x), module(x))


def test_each_value_of_a_float_has_kernels() -> None:
    def scaled(x: Any, by: float) -> Any:
        return x.softmax(-1) * by + math.sqrt(by) * by

    run = behind(scaled)
    x = torch.randn(3, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for by in (2.5, 3.5, 4.5, 3.5):
            torch.testing.assert_close(run(x, by), scaled(x, by))
