"""``mufuser records``: what was measured is listed, explained, brought to other machines and forgotten."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuser.cli import main
from search.measure.records import Records
from search.measure.store import VERSION
from search.measure.winners import WINNERS
from search.ranked import QUICK
from search.tuner import efforts
from search.tuner import measured
from tests.work import Calls

TUNE = ["tune", "mcfuser/G1", "--effort", "quick", "--simulate", "1"]
Command = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder in which one workload was searched."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command; its exit code and what it printed, a document where ``--json`` is asked for."""
    monkeypatch.setenv("MUFUSER_CACHE", str(folder))
    monkeypatch.setitem(efforts.EFFORTS, "quick", replace(QUICK, population=16, top=8, generations=2))

    def call(*args: str) -> tuple[int, Any, str]:
        code = main(list(args))
        out, err = capsys.readouterr()
        return code, json.loads(out) if "--json" in args else out, err

    return call


def test_a_search_is_listed_and_taken_again(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    code, found, _ = run(*TUNE, "--json")
    assert code == 0
    (first,) = found["workloads"]
    assert first["search"]["origin"] == "measured"
    assert first["measured_us"] > 0
    assert sum(g["measured"] for g in first["search"]["generations"]) == first["search"]["measured"]
    calls = Calls(monkeypatch)
    calls.of("Campaign", lambda *_: "", measured)
    code, again, _ = run(*TUNE, "--json")
    (second,) = again["workloads"]
    assert (second["schedule"], second["structure"]) == (first["schedule"], first["structure"])
    assert second["search"]["origin"].endswith("records.sqlite")
    assert not calls.seen  # nothing was searched
    _, listed, _ = run("records", "list", "--json")
    assert [w["workload"] for w in listed["winners"]] == ["mcfuser/G1"]
    _, text, _ = run("records")
    assert "quick" in text
    assert max(map(len, text.splitlines())) <= 80
    _, without, _ = run(*TUNE, "--json", "--no-records")
    assert without["workloads"][0]["search"]["origin"] == "measured"


def test_why_says_hit_or_miss(run: Command) -> None:
    _, text, _ = run("records", "why", "mcfuser/G1")
    assert "instant: hit" in text
    assert "the package" in text
    assert "quick: miss" in text
    assert "it is of simulated NVIDIA H200 1" in text
    _, text, _ = run("records", "why", "mcfuser/G1", "--target", "a100")
    assert "nothing is known" in text or "it is of simulated" in text


def test_records_go_to_another_machine_and_back(run: Command, tmp_path: Path, folder: Path) -> None:
    lines = str(tmp_path / "best.jsonl.xz")
    assert run("records", "export", lines)[0] == 0
    for number, source in enumerate((lines, str(folder / "records" / "records.sqlite"))):
        other = str(tmp_path / f"other{number}.sqlite")
        code, found, _ = run("records", "merge", source, "--records", other, "--json")
        assert (code, list(found["new"].values())) == (0, [1])
        assert list(run("records", "import", source, "--records", other, "--json")[1]["new"].values()) == [0]
        with Records(other) as records, Records(folder / "records" / "records.sqlite") as ours:
            assert list(records.winners()) == list(ours.winners())
            assert all(records.structure(w.structure) for w in records.winners())
        code, found, _ = run(*TUNE, "--records", other, "--json")
        assert found["workloads"][0]["search"]["origin"] == other


def test_what_nobody_can_use_is_forgotten(run: Command, tmp_path: Path, folder: Path) -> None:
    store = tmp_path / "old.sqlite"
    run("records", "merge", str(folder / "records" / "records.sqlite"), "--records", str(store))
    assert run("records", "prune", "--records", str(store), "--json")[1]["winners"] == 0
    assert run("records", "prune", "--records", str(store), "--older", "0", "--json")[1]["winners"] == 1
    with Records(store) as records:
        assert list(records.winners()) == []
        assert records.db.execute("SELECT COUNT(*) FROM structures").fetchone() == (0,)


def test_a_file_of_the_second_version_gets_winners(run: Command, tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    Records(path).close()
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE winners")
        db.execute("DROP INDEX records_asked")
        db.execute("PRAGMA user_version = 2")
    assert run(*TUNE, "--records", str(path))[0] == 0
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (VERSION,)
        assert db.execute(f"SELECT COUNT(*) FROM {WINNERS.name}").fetchone() == (1,)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["delete"], "no action 'delete'"),
        (["show"], "needs a workload"),
        (["export"], "needs a file"),
        (["export", "best.txt"], "JSON lines"),
        (["merge", "/nowhere.jsonl"], "no file /nowhere.jsonl"),
        (["list", "mcfuser/G1"], "takes no 'mcfuser/G1'"),
        (["list", "--records", "/nowhere.sqlite"], "no records /nowhere.sqlite"),
        (["why", "mcfuser/G1", "--records", "/nowhere.sqlite"], "no records /nowhere.sqlite"),
        (["list", "--records", "/"], "/ is a folder"),
        (["merge", "/dev/null"], "/dev/null is no regular file"),
        (["import", "x.jsonl", "--records", "/nowhere/r.sqlite"], "no folder /nowhere"),
        (["list", "--records", ""], "the value of --records is empty"),
        (["list", "--records", "/nowhere.jsonl"], "records import /nowhere.jsonl"),
        (["list", "--older", "3"], "takes no --older"),
        (["export", "x.jsonl", "--target", "h200"], "takes no --target"),
        (["why", "mcfuser/G99"], "G99"),
    ],
)
def test_what_cannot_be_done_is_said(run: Command, args: list[str], says: str) -> None:
    code, _, err = run("records", *args)
    assert code == 2
    assert says in err


@pytest.mark.parametrize(
    ("effort", "says"),
    [
        ("quick", "instant"),
        ("full:5", "mufuser records"),
        ("full:-1", "no time"),
        ("quick:5", "takes no seconds"),
        ("slow", "no effort"),
    ],
)
def test_measuring_needs_a_gpu(run: Command, monkeypatch: pytest.MonkeyPatch, effort: str, says: str) -> None:
    from search.tuner import judges

    monkeypatch.setattr(judges, "gpu_at_hand", lambda: None)
    code, _, err = run("tune", "mcfuser/G2", "--effort", effort)
    assert code in (2, 6)
    assert says in err
