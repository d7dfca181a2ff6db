"""``mufuser bench`` as a command: plans, lists, tables and figures without a GPU, and one real run in the interpreter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.bench import merged
from experiments.bench import peer_names
from experiments.bench import sources
from experiments.peers import PEERS
from fuser.cli import main
from fuser.errors import UsageError
from fuser.workloads import workload
from search.measure.known import PACKAGED
from tests.experiments.rows import RESULTS
from tests.experiments.rows import committed

RESULT = str(RESULTS / "h200-mcfuser" / "bench.json")


def document(capsys: pytest.CaptureFixture, *args: str) -> dict:
    assert main(["bench", *args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_list_has_shapes_and_work(capsys: pytest.CaptureFixture) -> None:
    found = document(capsys, "graphene", "--list", "--peers", "all")
    gemm = found["cases"][0]
    assert gemm["workload"] == "graphene/gemm"
    assert gemm["shapes"] == {"A": [5376, 2048], "C": [2048, 5376], "Y": [5376, 5376]}
    assert gemm["flops"] == 2 * 5376 * 5376 * 2048
    assert gemm["formula"].startswith("Y = A C")
    assert len(document(capsys, "--list")["cases"]) > 50, "all suites without a name"


def test_a_plan_needs_no_gpu(capsys: pytest.CaptureFixture) -> None:
    found = document(capsys, "mcfuser", "--case", "S4", "--dry-run", "--peers", "all")
    (case,) = found["cases"]
    assert (len(case["model"]), len(case["records"]), case["random"]) == (3, 3, 0)
    assert all(c["predicted_us"] > case["floor_us"] for c in case["model"])
    assert case["peers"] == ["eager", "inductor", "flash", "cudnn", "flex"]
    assert main(["bench", "mcfuser", "--case", "S4", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("3+3+0" in line and "eager, flash, cudnn" in line for line in lines)


def test_without_a_gpu_the_way_out_is_named(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert main(["bench", "mcfuser", "-o", str(tmp_path / "out")]) == 6
    text = capsys.readouterr().err
    assert "needs a GPU" in text
    assert "--dry-run" in text
    assert not (tmp_path / "out").exists()


def test_tables_and_figures_again(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    assert main(["bench", "--table", RESULT]) == 0
    text = capsys.readouterr().out
    assert "mcfuser on NVIDIA H200" in text
    assert "G10" in text
    assert document(capsys, "--table", RESULT) == committed("mcfuser")
    pytest.importorskip("matplotlib")
    (tmp_path / "bench.json").write_text(Path(RESULT).read_text())
    assert main(["bench", "--plot-only", str(tmp_path / "bench.json")]) == 0
    assert (tmp_path / "bench.svg").read_text().startswith("<?xml")
    assert main(["bench", "--table", str(tmp_path / "none.json")]) == 3


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["mcfuser", "--peers", "eager,trt", "--dry-run"], "no peer 'trt'"),
        (["mcfuser", "--case", "Q1", "--dry-run"], "is called Q1"),
        (["mlperf", "--dry-run"], "no suite 'mlperf' hint: suites are mcfuser, mirage, graphene, models"),
        (["mlperf/*", "--dry-run"], "no workload fits"),
        ([], "no suite"),
        (["mcfuser", "--schedules", "nowhere.jsonl", "--dry-run"], "no file of schedules nowhere.jsonl"),
        (["mcfuser", "--on", "tpu"], "no device 'tpu'"),
        (["mcfuser", "--target", "h999", "--dry-run"], "h999"),
        (["mcfuser", "--effort", "quik", "--dry-run"], "no effort 'quik'"),
        (["mcfuser", "--effort", "quick", "--on", "cpu"], "measures on a GPU"),
    ],
)
def test_wrong_arguments(args: list[str], reason: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["bench", *args]) == 2
    assert reason in capsys.readouterr().err.replace("\n", " ")


def test_names_of_peers_and_sources(tmp_path: Path) -> None:
    assert peer_names("all") == tuple(PEERS)
    assert peer_names("none") == ()
    assert peer_names("eager, flash,eager") == ("eager", "flash")
    file = tmp_path / "mine.jsonl"
    file.write_text("")
    assert sources(["model"]) == []
    assert sources(["model", str(file)]) == [file]
    assert sources(["records", str(tmp_path)]) == [PACKAGED, tmp_path]
    with pytest.raises(UsageError):
        sources(["other"])


def test_cases_of_two_calls_stand_in_one_document() -> None:
    both = committed("mcfuser")
    old = both | {"cases": both["cases"][:3], "left": ["mcfuser/G4", "mcfuser/G5"]}
    changed = both["cases"][1] | {"us": 1.0, "speedup": 2.0}
    new = both | {"cases": [changed, *both["cases"][3:4]], "left": []}
    found = merged(old, new)
    assert [c["workload"] for c in found["cases"]] == [f"mcfuser/G{i}" for i in (1, 2, 3, 4)]
    assert found["cases"][1] == changed
    assert found["left"] == ["mcfuser/G5"]
    ratios = [c["speedup"] for c in found["cases"]]
    assert found["geometric_mean"] ** 4 == pytest.approx(ratios[0] * ratios[1] * ratios[2] * ratios[3])
    other = new | {"environment": new["environment"] | {"driver": "1"}}
    assert merged(old, other) == other, "another driver is another table"


def test_a_run_in_the_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """Chosen, checked, timed and written; a second call has nothing to measure."""
    pytest.importorskip("torch")
    monkeypatch.setattr("experiments.candidates.workload", lambda name: workload(name, M=32, N=32, K=16, H=16))
    args = ["mcfuser", "--case", "G1", "--on", "cpu", "--top", "1", "--best", "0", "--peers", "eager", "-o", str(tmp_path)]
    found = document(capsys, *args)
    (case,) = found["cases"]
    assert case["us"] > 0
    assert case["error"] < 1e-2
    assert case["peers"]["eager"]["status"] == "ok"
    assert found["environment"]["device"] == "cpu-interpreter"
    assert found["environment"]["python"]
    assert {p.name for p in tmp_path.iterdir()} >= {"bench.json", "bench.md", "rows.jsonl", "bench.sqlite"}
    assert main(["bench", *args, "--json"]) == 0
    again = capsys.readouterr()
    assert "(measured before)" in again.err
    assert json.loads(again.out)["cases"] == found["cases"]
