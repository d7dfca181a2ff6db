"""The suite of modules, small, in Triton's interpreter; its table, and its rows."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from experiments.modules import checked  # noqa: E402
from experiments.modules import table  # noqa: E402
from experiments.suite import SUITE  # noqa: E402

FAST = ("linear_gelu_softmax", "bmm_transposed", "loss_mse", "group_norm", "diagonal_matrix")
"""Modules that stand for the rest in a quick run."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in SUITE])
def test_a_module_runs_and_agrees(name: str) -> None:
    print(name, checked(name, torch.float32))


def test_the_table_has_the_slowest_beside_torch_first() -> None:
    rows = [
        {"name": "a", "eager_graph": 3.0, "inductor_graph": 2.0, "ours_graph": 1.0, "eager_calls": 9.0},
        {"name": "b", "inductor_graph": 1.0, "ours_graph": 2.0, "ours_failed": "out of memory"},
    ]
    _, first, second = table(rows).splitlines()
    assert first.split()[0] == "b"
    assert "0.50" in first
    assert "ours_failed: out of memory" in first
    assert second.split()[0] == "a"
    assert "2.00" in second
