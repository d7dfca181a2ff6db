"""The host-time benchmark over a driver that does nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.host_time import main
from experiments.host_time import program_of
from experiments.host_time import report
from experiments.host_time import timed
from fuser.runtime import launch


def test_a_run_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(launch, "driver", launch.driver)  # puts back what the run replaces
    path = tmp_path / "deep" / "host.json"
    assert main(["--on", "fake", "--seconds", "0.001", "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    rows = {(r["kernels"], r["call"]): r for r in found["rows"]}
    assert {k for k, _ in rows} == {1, 3}
    assert all(0 < r["low"] <= r["us"] <= r["high"] for r in rows.values())
    # launching alone is cheaper than a call with its checks, and that than torch's operators
    for k in (1, 3):
        assert rows[k, "bound call"]["us"] < rows[k, "call with out="]["us"] < rows[k, "torch eager"]["us"]
    assert found["within_limit"] is None
    assert found["environment"]["torch"]
    assert "torch eager" in capsys.readouterr().out


def test_the_limit_is_judged_by_replays_of_the_same_kernels() -> None:
    from experiments.host_time import Row

    names = ("torch: replay of a graph of the same kernels", "captured: call")

    def rows(over: float) -> list[Row]:
        return [Row(k, n, us, us, us) for k in (1, 3) for n, us in zip(names, (5.0, 5.0 + over), strict=True)]

    assert report(rows(1.0), "fake")["within_limit"] is True
    assert report(rows(11.0), "fake")["captured_over_torch_us"] == {"1": 11.0, "3": 11.0}
    assert report(rows(11.0), "fake")["within_limit"] is False


def test_bursts_are_apart() -> None:
    done: list[str] = []
    timed(lambda: done.append("call"), lambda: done.append("wait"), 0.0)
    assert done.count("wait") == 6
    assert done.count("call") == 600
    assert len(program_of(3).nodes) == 3
