"""``mufuser calibrate``: a GPU that nobody has seen is measured, and its constants are found. Here it is pretended."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cost_model.constants import constants_of
from fuser.cli import main
from fuser.device import load_device
from fuser.errors import UsageError
from fuser.ir import hashing
from fuser.ir import schedule
from fuser.lower import triton_source
from search import calibrate_commands
from search.calibrate import choose
from search.calibrate import programs
from search.calibrate import run
from search.calibrate import samples
from search.calibrate.pretended import Idle
from search.calibrate.pretended import errors
from search.calibrate.pretended import truth
from search.measure import records
from search.measure import rows
from search.measure.records import Records
from search.measure.turns import take_turns
from tests.work import Calls

KINDS = ("product", "chain", "rows", "decode")
SEED = 3
Command = Callable[..., tuple[int, Any, str]]


@pytest.fixture(scope="module")
def small() -> Any:
    """Few programs and schedules, and no processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "DRAWS", {k: programs.DRAWS[k] for k in KINDS})
        patch.setattr(choose, "RANDOM", 16)
        patch.setattr(choose, "STRUCTURES", 2)
        patch.setattr(run, "EACH", 1)
        patch.setattr(Idle, "each", lambda self, work, jobs: map(work, jobs))
        known: dict[str, Any] = {}
        patch.setattr(run, "offers", lambda job: known.get(job[0].name) or known.setdefault(job[0].name, choose.offers(job)))
        yield


@pytest.fixture(scope="module")
def walk() -> Counter[Any]:
    """How often the calibration did the same."""
    return Counter()


@pytest.fixture(scope="module")
def done(small: Any, walk: Counter[Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a calibration."""
    folder = tmp_path_factory.mktemp("calibrate")
    with pytest.MonkeyPatch.context() as patch:
        calls = Calls(patch)
        calls.of("hashed", str, hashing, schedule, triton_source)
        triton_source._generated.cache_clear()
        calls.of("generate", lambda block, plan, _, *about: (block, plan, *about), triton_source)
        calls.of("graph_from_json", hashing.canonical, records, rows)
        calls.of("rank_graph", lambda graph, *_, **__: graph, choose)
        calls.of("_of_the_model", lambda candidate: candidate, samples)
        assert main(["calibrate", "--simulate", str(SEED), "-o", str(folder / "mine.json"), "--json"]) == 0
    walk.update(calls.seen)
    return folder


def test_nothing_is_done_twice_on_the_way(done: Path, walk: Counter[Any]) -> None:
    assert {"hashed", "generate", "rank_graph", "_of_the_model"} == {k[0] for k in walk}  # no graph is read again
    assert [k for k, n in walk.items() if n > 1] == []


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*args: object) -> tuple[int, Any, str]:
        code = main([str(a) for a in args])
        out, err = capsys.readouterr()
        return code, json.loads(out) if "--json" in args else out, err

    return call


def test_constants_of_an_unseen_gpu_are_found(done: Path) -> None:
    """With noise, outliers and failures: within what is said of their errors, half of those that rows tell of within 8 %."""
    true, found = truth(load_device("h200"), SEED), load_device(str(done / "mine.json"))
    away = errors(found, true)
    with Records(done / "mine.rows.sqlite") as records:
        made = run.fitted_to(records, true.title, "h200", {})
    assert made.device.constants == found.constants, "a fit to the same rows is the same"
    doubt = made.fitted.doubt
    assert sum(abs(away[n]) < 3 * doubt[n] for n in doubt) >= len(doubt) - 1, "one may hang on an odd row"
    sure = [n for n, x in doubt.items() if x < 0.25]
    assert len(sure) >= 11
    before = errors(load_device("h200"), true)
    assert np.median([abs(away[n]) for n in sure]) < 0.1 < 0.15 < np.median([abs(before[n]) for n in sure])
    assert made.fitted.bounded == ()
    assert made.overall.regret < made.overall.regret_before + 0.02, "four programs"


def test_its_limits_and_rates_are_measured(done: Path) -> None:
    true, found = truth(load_device("h200"), SEED), load_device(str(done / "mine.json"))
    assert (found.title, found.sm_count, found.l2_bytes) == (true.title, true.sm_count, true.l2_bytes)
    assert found.memory_bandwidth == pytest.approx(true.memory_bandwidth, rel=1e-3)
    assert found.tensor_fp16 == pytest.approx(true.tensor_fp16, rel=0.02)
    assert found.launch_latency == pytest.approx(true.launch_latency, rel=0.02)
    assert constants_of(found).memory_rate == pytest.approx(constants_of(true).memory_rate, rel=0.02)
    assert all(source for _, source in found.sources)
    assert {"gpu", "rows", "seed", "on a bound", "held out, all", "held out, calibrate/rows"} <= dict(found.fit).keys()


def test_every_target_takes_the_file(done: Path, command: Command) -> None:
    code, first, _ = command("explain", "mirage/rmsnorm", "--target", done / "mine.json", "--json")
    assert code == 0
    _, second, _ = command("explain", "mirage/rmsnorm", "--target", "h200", "--json")
    times = [x["workloads"][0]["candidates"][0]["estimate_us"] for x in (first, second)]
    assert times[0] != pytest.approx(times[1], rel=1e-3)
    code, shown, _ = command("devices", done / "mine.json")
    assert code == 0
    assert "held out" in shown


def test_it_goes_on_where_it_ended(done: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was interrupted keeps its rows; nothing is measured twice; the result is the same."""

    def interrupted(todo: Any, bench: Any, seconds: float, tell: Any) -> int:
        take_turns(todo[:2], bench, seconds, tell)
        raise KeyboardInterrupt

    out = tmp_path / "mine.json"
    args = ("calibrate", "--simulate", SEED, "-o", out)
    with monkeypatch.context() as patch:
        patch.setattr(run, "take_turns", interrupted)
        code, _, err = command(*args)
    assert code == 130
    assert "rows are kept in" in err
    assert not out.exists()
    with Records(tmp_path / "mine.rows.sqlite") as records:
        kept = len(records)
    assert kept >= 16
    code, _, err = command("calibrate", "--from", tmp_path / "mine.rows.sqlite", "-o", out, "--base", "h200")
    assert code == 2
    assert "too few" in err
    code, text, _ = command(*args)
    assert code == 0
    assert max(map(len, text.splitlines())) <= 80
    assert f"--target {out}" in text.replace("\n", "")
    with Records(tmp_path / "mine.rows.sqlite") as records, Records(done / "mine.rows.sqlite") as whole:
        assert len(records) == len(whole) > kept
    assert load_device(str(out)).constants == load_device(str(done / "mine.json")).constants


def test_rows_alone_are_enough(done: Path, command: Command, tmp_path: Path) -> None:
    """Of a store, and of the lines that it exports; as TOML."""
    lines, out = tmp_path / "rows.jsonl.xz", tmp_path / "again.toml"
    assert command("records", "export", lines, "--records", done / "mine.rows.sqlite")[0] == 0
    code, found, _ = command("calibrate", "--from", lines, "-o", out, "--base", "h200", "--json")
    assert code == 0
    assert load_device(str(out)).constants == load_device(str(done / "mine.json")).constants
    assert found["on_bound"] == []
    assert {r["name"] for r in found["constants"]} == vars(constants_of(load_device("h200"))).keys()


def test_what_cannot_be_is_said(
    done: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: Any
) -> None:
    rows = done / "mine.rows.sqlite"
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "file").write_text("")
    shutil.copy(rows, tmp_path / "two.sqlite")
    with Records(tmp_path / "two.sqlite") as records:
        row = next(records.rows(kind="kernel", status="ok"))
        records.add(type(row)(**{**vars(row), "device": "NVIDIA A100-SXM4-40GB"}))
    cases = (
        (2, "is no name of a device file", ["-o", tmp_path / "x.txt", "--simulate", 1]),
        (2, "it is a folder", ["-o", tmp_path / "folder.toml", "--simulate", 1]),
        (2, "cannot write", ["-o", tmp_path / "file" / "x.toml", "--simulate", 1]),
        (2, "cannot write", ["-o", "/proc/x/y.toml", "--from", rows]),
        (2, "exclude each other", ["--from", rows, "--simulate", 1]),
        (2, "there are no rows", ["--from", tmp_path / "none.sqlite"]),
        (2, "is sm_80, and", ["--from", rows, "--base", "a100", "-o", tmp_path / "x.toml"]),
        (2, "several GPUs", ["--from", tmp_path / "two.sqlite"]),
        (2, "no device specification", ["--simulate", 1, "--base", "none"]),
        (4, "no kernels can be generated", ["--simulate", 1, "--base", "v100"]),
        (2, "--budget", ["--budget", "nan"]),
    )
    for code, why, args in cases:
        found, _, err = command("calibrate", *args)
        assert (found, why in err) == (code, True), (args, found, err)
    monkeypatch.setattr(calibrate_commands, "gpu_at_hand", lambda: None)
    code, _, err = command("calibrate", "-o", tmp_path / "x.toml")
    assert code == 6
    assert "there is none here" in err
    assert "--from" in err
    assert not (tmp_path / "x.toml").exists()


def test_a_base_is_of_the_same_architecture() -> None:
    assert run.base_for("NVIDIA H100 80GB HBM3", 90).name == "h100"
    assert run.base_for("NVIDIA H800", 90).name == "h200", "of which there are most rows"
    assert run.base_for("NVIDIA RTX A5000", 86).arch == 86
    with pytest.raises(UsageError, match="sm_80, and NVIDIA H800 is sm_90") as error:
        run.base_for("NVIDIA H800", 90, "a100")
    assert "h100, h200" in error.value.hint
    with pytest.raises(Exception, match="no device of the architecture sm_89"):
        run.base_for("NVIDIA GeForce RTX 4090", 89)
