"""The table of covers: what is refused, and how a result is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from experiments import covers
from fuser.errors import UsageError
from fuser.ir.rows import row_step

CASE = {
    "network": "gpt2",
    "errors": {"eager": 1e-3, "ilp": 9e-4, "greedy": 9e-4, "row-major": 2e-2},
    "us": {"ilp": 100.0, "greedy": 104.0},
    "predicted_us": {"ilp": 120.0, "greedy": 121.0, "row-major": 130.0},
    "kernels": {"ilp": 9, "greedy": 10, "row-major": 9},
    "solving": {"ilp": 0.1, "greedy": 0.1, "row-major": 0.1},
}


def test_a_result_is_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "covers.json"
    path.write_text(json.dumps({"environment": {"device": "NVIDIA H200"}, "cases": [CASE]}))
    assert covers.main(["--table", str(path)]) == 0
    out = capsys.readouterr().out
    assert "NVIDIA H200" in out
    rows = [line.split() for line in out.splitlines() if line.split()[:1] == ["gpt2"]]
    assert rows == [
        ["gpt2", "ilp", "9", "120", "100", "1.000"],
        ["gpt2", "greedy", "10", "121", "104", "1.040"],
        ["gpt2", "row-major", "9", "130", "wrong", "-"],
    ]
    assert max(map(len, out.splitlines())) <= 80


def test_what_cannot_be_done_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a folder is needed"):
        covers.main([])
    with pytest.raises(UsageError, match="no network 'bert'"):
        covers.main(["--made", str(tmp_path), "--jobs", "1", "bert"])


def test_the_narrow_network_is_unaligned() -> None:
    module, ((_, width),) = covers.network(covers.NARROW)
    shapes = {tuple(p.shape) for p in module.parameters()}
    assert {shape[-1] % row_step("float16") for shape in shapes} == {0, 389 % 8}
    assert width % row_step("float16") == 0
