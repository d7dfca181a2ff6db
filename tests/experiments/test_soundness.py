"""The soundness run: hard inputs are what they claim, results become rows, and a wrong one sets the exit status."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from typing import ClassVar

import pytest

from experiments.soundness import inputs
from experiments.soundness import run as runner
from experiments.soundness.__main__ import main
from experiments.soundness.cases import case
from experiments.soundness.cases import odd_cases
from experiments.soundness.cases import select
from experiments.soundness.jobs import Row
from experiments.soundness.jobs import prepare
from experiments.soundness.jobs import read
from experiments.soundness.report import table
from experiments.soundness.run import Settings
from experiments.soundness.sanitize import Sanitizer
from fuser.errors import UsageError
from fuser.workloads import workload_names
from search.measure.measurement import Measurement


class Pretender:
    """A measuring process without a GPU: everything that compiled has the status ``says``."""

    says = Measurement("ok", error_fro=1e-4, error_max=1e-4)
    asked: ClassVar[list[tuple[str, str]]] = []
    restarts = 0
    info: ClassVar[dict[str, Any]] = {"device": "pretended", "arch": 90, "torch": "", "triton": ""}

    def __init__(self, device: str, patience: float) -> None:
        self.device = device

    def __enter__(self) -> Pretender:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self, program: Any, kernels: list[Any], options: Any) -> list[Measurement]:
        assert all(k.artifacts and all(a.arch == 90 for a in k.artifacts if a) for k in kernels)
        self.asked.extend([(program.name, options.inputs)] * len(kernels))
        return [self.says] * len(kernels)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    pytest.importorskip("triton")
    monkeypatch.setattr(runner, "Worker", Pretender)
    monkeypatch.setattr(Pretender, "asked", [])
    return Settings(budget=120.0, passes=1, search=0.0, workers=2, sanitize=0, out=tmp_path)


def test_every_workload_and_odd_program_is_a_case():
    names = [make().name for make in select(["*"])]
    assert set(workload_names()) < set(names)
    assert len(names) == len(set(names)) == len(workload_names()) + len(list(odd_cases()))
    with pytest.raises(UsageError, match="odd/nothing"):
        select(["odd/nothing"])


def test_jobs_are_the_same_each_time_and_reach_every_structure():
    first, again = (prepare("odd/chain", 0, 0.0, "h200", 2) for _ in range(2))
    assert first == again
    assert {j.number for j in first.jobs} == set(range(first.structures))
    assert first.jobs[0].kind == "model"
    assert len({j.kind for j in first.jobs}) > 4


def test_a_run_compiles_checks_on_all_inputs_and_resumes(pretended: Settings):
    start = runner.time.monotonic()
    assert runner.run(["odd/rmsnorm-4100"], pretended, start) == 0
    rows = list(read(pretended.out / "soundness.jsonl"))
    assert {r.inputs for r in rows} == set(case("odd/rmsnorm-4100").inputs)
    assert {r.status for r in rows} == {"ok"}
    text = (pretended.out / "soundness.txt").read_text()
    assert "0 candidates were not reached" in text
    checked = len(Pretender.asked)
    assert checked == len(rows)
    assert runner.run(["odd/rmsnorm-4100"], replace(pretended, resume=(pretended.out / "soundness.jsonl",)), start) == 0
    assert len(Pretender.asked) == checked
    assert len(list(read(pretended.out / "soundness.jsonl"))) == len(rows)


def test_a_wrong_result_is_an_exit_status_and_can_be_run_again(pretended: Settings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Pretender, "says", Measurement("wrong", "relative Frobenius error 0.3", error_fro=0.3))
    assert runner.run(["odd/bias-relu"], pretended, runner.time.monotonic()) == 1
    lines = [json.loads(x) for x in (pretended.out / "soundness.jsonl").read_text().splitlines()]
    assert lines[0]["environment"]["device"] == "pretended"
    kept = [x for x in lines if "graph" in x]
    assert {x["structure"] for x in kept} == {x["structure"] for x in lines if "case" in x}
    assert all("schedule" in x for x in kept)


def test_suspects_do_not_count_as_wrong():
    row = Row("odd/chain", 0, "s", 1, "wide", "", "normal", "", "wrong", suspect=True)
    assert not row.bad
    assert replace(row, suspect=False).bad
    text = table([row, replace(row, status="ok", error=1e-3, suspect=False)], {"odd/chain": 3})
    assert "1 of 3" in text
    assert "suspect odd/chain #0 wide on normal" in text


def test_the_sanitizer_says_why_it_has_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("experiments.soundness.sanitize.find_tool", lambda: None)
    verdicts = Sanitizer([], tmp_path).finish(1.0)
    assert [v.status for v in verdicts] == ["absent", "absent"]
    assert "compute-sanitizer" in verdicts[0].detail


def test_inputs_are_as_hard_as_they_say():
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)

    def drawn(name: str, of: str) -> dict[str, Any]:
        found = getattr(inputs, of)(case(name).program, generator, "cpu")
        assert all(tuple(x.shape) == case(name).program[n].shape for n, x in found.items())
        return found

    x = drawn("odd/attention-197", "logits")
    scores = (x["Q"].double() @ x["K"].double().mT) / 8.0
    assert 8e3 < float(scores.abs().max()) < 2e4
    x = drawn("odd/attention-197", "equal_logits")
    assert bool((x["K"] == x["K"][:, :1]).all())
    x = drawn("odd/mask-with-empty-rows", "masked")
    assert bool(torch.isneginf(x["mask"]).all(-1).any())
    x = drawn("odd/rmsnorm-4100", "large")
    assert bool(torch.isinf(x["X"] * x["X"]).any()) and bool(torch.isfinite(x["X"]).all())
    x = drawn("odd/rmsnorm-4100", "denormal")
    assert 0 < float(x["X"].abs().max()) < torch.finfo(torch.float16).tiny
    assert bool((drawn("odd/layernorm-1000", "zero_rows")["X"][::3] == 0).all())


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name", ["odd/attention-197", "odd/rmsnorm-4100", "odd/gated-mlp", "odd/causal-more-queries", "odd/lora"]
)
def test_structures_on_the_gpu(name: str, tmp_path: Path):
    options = ["--budget", "60", "--passes", "1", "--search", "0", "--sanitize", "0", "--out", str(tmp_path)]
    assert main([name, *options]) == 0
    rows = list(read(tmp_path / "soundness.jsonl"))
    assert any(r.status == "ok" for r in rows)
    assert {r.inputs for r in rows if r.status == "ok"} == set(case(name).inputs)
