"""Modules that are no one graph."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fuser  # noqa: E402
from fuser.errors import LeftToTorch  # noqa: E402
from fuser.errors import UntraceableError  # noqa: E402


class Choosing(torch.nn.Module):
    """Its control flow depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        y = torch.relu(self.first(x))
        if y.sum() > 100:
            return {"y": y, "n": 1}
        return {"y": self.second(y).softmax(-1) * scale, "n": 2}


def test_control_flow_on_values_runs_graph_by_graph() -> None:
    module, x = Choosing().eval(), torch.randn(4, 8)
    with pytest.warns(LeftToTorch, match=r"torch\.export cannot trace Choosing.*one by one"):
        run = fuser.compile(module, (x,), device="cpu")
    for given, named in (((x,), {}), ((1000 * x,), {}), ((x,), {"scale": 2.0})):
        with torch.no_grad():
            got, want = run(*given, **named), module(*given, **named)
        assert got["n"] == want["n"]
        torch.testing.assert_close(got["y"], want["y"])


def test_nothing_is_compiled_of_it_for_another_machine() -> None:
    with pytest.raises(UntraceableError, match="cannot trace Choosing"):
        fuser.compile(Choosing().eval(), (torch.randn(4, 8),), target="h200")
