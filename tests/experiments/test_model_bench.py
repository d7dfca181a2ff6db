"""``mufuser bench models`` without a GPU: cases, plans, floors, and the documents of a run whose measurements are made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import fuser  # noqa: E402
from experiments import bench  # noqa: E402
from experiments import model_bench  # noqa: E402
from experiments import report  # noqa: E402
from experiments.ceilings import contraction_flops  # noqa: E402
from experiments.model_bench import Case  # noqa: E402
from experiments.model_bench import cases_of  # noqa: E402
from experiments.networks import NETWORKS  # noqa: E402
from fuser.cli import main  # noqa: E402
from fuser.device import load_device  # noqa: E402
from fuser.errors import UsageError  # noqa: E402
from fuser.ir.builder import Builder  # noqa: E402
from tests.experiments.rows import ENVIRONMENT  # noqa: E402


def test_names_globs_and_batches() -> None:
    assert len(cases_of([], (1, 8))) == 2 * len(NETWORKS)
    assert [c.name for c in cases_of(["gpt2", "bert-*"], (1,))] == [f"models/{n}" for n in (*list(NETWORKS)[:3], "gpt2")]
    assert [c.name for c in cases_of(["gpt2:4"], (1,))] == ["models/gpt2:4"]
    assert [c.name for c in cases_of(["gpt2:8", "models/vit-b"], (1, 8))] == ["models/vit-b", "models/gpt2:8", "models/vit-b:8"]
    for wrong in ("gpt3", "gpt2:", "gpt2:0", "gpt2:x"):
        with pytest.raises(UsageError, match=wrong):
            cases_of([wrong], (1,))


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["models", "alexnet"], "no network 'alexnet'"),
        (["models", "--batch", "0"], "'0' are no batch sizes"),
        (["models", "--batch", "one"], "no batch sizes"),
        (["models", "--peers", "flex"], "no peer 'flex' of a network"),
        (["mcfuser", "models"], "by themselves, not beside mcfuser"),
    ],
)
def test_wrong_arguments(args: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *args]) == 2
    assert reason in capsys.readouterr().err.replace("\n", " ")


def test_the_list_needs_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "models", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("BERT" in x for x in lines) == 6
    if not torch.cuda.is_available():
        assert main(["bench", "models", "gpt2"]) == 6
        assert "needs a GPU" in capsys.readouterr().err


def test_floors_count_what_no_kernel_can_leave_out() -> None:
    device = load_device("h200")

    def least(rows: int, columns: int) -> Any:
        b = Builder("product")
        return model_bench.floor(b.build(Y=b.input("X", (rows, columns)) @ b.input("W", (columns, columns))), device)

    small, large = least(1, 1024), least(1, 16384)
    assert small.memory == 0, "the weights may lie in L2 since the last call"
    assert large.memory == pytest.approx((2 * (16384**2 + 2 * 16384) - device.l2_bytes) / device.memory_bandwidth, rel=0.05)
    assert large.bound == "memory"

    def attention(causal: bool) -> int:
        b = Builder("attention")
        q, k, v = b.input("Q", (2, 4, 16)), b.input("K", (2, 6, 16)), b.input("V", (2, 6, 8))
        return contraction_flops(b.build(Y=b.attention(q, k, v, causal=causal)))

    assert attention(False) == 2 * 2 * 4 * 6 * 24
    assert attention(True) == 2 * 2 * (3 + 4 + 5 + 6) * 24


@pytest.fixture(scope="module")
def run() -> Any:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(16, 16) for _ in range(4))
    return fuser.compile(torch.nn.Sequential(*layers).eval().half(), (torch.randn(8, 16).half(),), device="cpu")


def case_of(run: Any, case: Case, ours: float | None = 10.0) -> dict[str, Any]:
    times = {"eager": [20.0, 22.0, 21.0], "cudnn": [15.0, 15.0, 16.0]} | ({"mufuser": [ours] * 3} if ours else {})
    errors = {"mufuser": 1e-3, "eager": 2e-3, "cudnn": 1e-3}
    least = model_bench.floor(run.program, run.target)
    return model_bench.document_of(case, run, times, errors, {"flash": "no kernel"}, least) | {"compile_seconds": 1.0, "plan": []}


def test_a_case_has_what_cases_of_other_suites_have(run: Any) -> None:
    (case,) = cases_of(["gpt2:8"], (1,))
    row = case_of(run, case)
    assert (row["workload"], row["us"], row["best_peer"], row["speedup"]) == ("models/gpt2:8", 10.0, "cudnn", 1.5)
    assert row["peers"]["flash"] == {"us": None, "status": "invalid", "detail": "no kernel", "error": None}
    assert row["floor_us"] < row["us"]
    wrong = case_of(run, case, None)
    assert (wrong["us"], wrong["speedup"], wrong["best_peer"]) == (None, None, "cudnn")


def test_a_run_is_written_case_by_case_and_goes_on(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []

    def measured(case: Case, peers: Any) -> dict[str, Any]:
        found = bench.earlier(tmp_path)
        assert found is not None
        written.append(len(found["cases"]))
        if case.network == "vit-b":
            raise RuntimeError("out of memory\nat length")
        if case.network == "mixer-b" and len(written) < 5:
            raise KeyboardInterrupt
        return case_of(run, case)

    monkeypatch.setattr(model_bench, "measured", measured)
    monkeypatch.setattr(model_bench, "device_info", lambda _: {})
    monkeypatch.setattr(model_bench, "environment", lambda _: ENVIRONMENT)
    monkeypatch.setattr(model_bench, "_released", lambda: None)
    monkeypatch.setattr(bench, "need_gpu", lambda: None)
    args = ["bench", "models", "gpt2", "vit-b", "mixer-b", "--batch", "1", "-o", str(tmp_path)]
    assert main(args) == 130
    assert written == [0, 1, 2]
    first = report.read(tmp_path / "bench.json")
    assert [c["workload"] for c in first["cases"]] == ["models/gpt2", "models/vit-b"]
    assert first["left"] == ["models/mixer-b"]
    assert "out of memory" in first["cases"][1]["failed"][0]
    assert main([*args, "--budget", "1000"]) == 0
    assert main(args) == 0
    found = report.read(tmp_path / "bench.json")
    assert {c["workload"]: c["us"] for c in found["cases"]} == {"models/gpt2": 10.0, "models/vit-b": None, "models/mixer-b": 10.0}
    assert found["left"] == []
    assert found["geometric_mean"] == pytest.approx(1.5)
    assert "| gpt2 |" in (tmp_path / "bench.md").read_text()
    assert json.loads((tmp_path / "bench.json").read_text())["cases"][0]["compile_seconds"] == 1.0


@pytest.mark.slow
def test_a_plan_needs_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "models", "bert-small", "--batch", "1", "--dry-run", "--json"]) == 0
    (case,) = json.loads(capsys.readouterr().out)["cases"]
    assert case["floor_us"] < case["predicted_us"] < 1000
    assert case["choice"]["gap"] <= 1e-4
