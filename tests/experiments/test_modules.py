"""The suite of modules, small, in Triton's interpreter; its table, and its rows."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from experiments import modules  # noqa: E402
from experiments.environment import commit  # noqa: E402
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


def test_a_table_says_where_it_comes_from(tmp_path: Path) -> None:
    (tmp_path / "rows_0.jsonl").write_text(json.dumps({"name": "fold", "eager_graph": 1.0}) + "\n{")
    text = modules.told(argparse.Namespace(folder=str(tmp_path), output=str(tmp_path / "t.txt")))
    assert (tmp_path / "t.txt").read_text() == text + "\n"
    first = text.splitlines()[0]
    assert all(f"{n} " in first for n in ("torch", "triton", "mufuser")), first
    assert "fold" in text


def test_an_archive_knows_its_commit(tmp_path: Path) -> None:
    (tmp_path / "experiments").mkdir()
    assert commit(tmp_path) is None
    for text, said in (("$Format:%H$\n", None), ("0123456789abcdef\n", "0123456789ab")):
        (tmp_path / "experiments" / "commit.txt").write_text(text)
        assert commit(tmp_path) == said


MODULE = """
import torch

class Scaled(torch.nn.Module):
    def forward(self, x, by):
        return x.double().cos().to(x.dtype) * by

class Model(torch.nn.Module):
    def __init__(self, times):
        super().__init__()
        self.inner, self.times = Scaled(), times

    def forward(self, x, by=1.0):
        return self.inner(x, by) * self.times

def get_init_inputs():
    return [3]

def get_inputs():
    return {"x": torch.randn(4, 8, dtype=torch.float16), "by": torch.tensor(2.0, dtype=torch.float16)}
"""


@pytest.mark.filterwarnings("ignore")
def test_a_file_from_outside_is_a_module_of_its_own_dtypes(tmp_path: Path) -> None:
    (file := tmp_path / "angles.py").write_text(MODULE)
    assert "0 kernels, 1 calls" in checked(str(file), None)
    module, inputs = modules.made(str(file), False, None)
    given, named = modules.apart(inputs)
    assert not given and named["x"].dtype is torch.float16
    assert modules.in_float64(module, inputs).dtype is torch.float64
    torch.testing.assert_close(torch.compile(module, backend="eager")(**named), module(**named))
