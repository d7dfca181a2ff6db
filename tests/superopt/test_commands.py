"""The verbs superoptimize, show and verify."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fuser.cli import main
from fuser.interrupts import Terminated
from fuser.ir import axes
from fuser.superopt import commands
from fuser.superopt import search
from fuser.superopt.generate.partition import partition
from fuser.superopt.verify.verdict import Verdict
from fuser.workloads import workload
from tests.work import Calls


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    code = main(args)
    return code, capsys.readouterr().out


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


@pytest.fixture
def saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    code, out = run(capsys, "superoptimize", "mirage/mlp", "--processes", "1", "--save", str(tmp_path), "--json")
    assert code == 0
    (search,) = json.loads(out)["searches"]
    assert search["stopped"] == "exhausted"
    assert not search["rejected"]
    assert len(search["structures"]) == len(list(tmp_path.glob("mirage_mlp.*.json"))) > 3
    assert all(s["verdict"] == "verified" and "verified" in s["says"] for s in search["structures"])
    return tmp_path


def test_saved_structures_are_shown_in_every_form(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(saved / "mirage_mlp.0.json")
    code, text = run(capsys, "show", path)
    assert code == 0
    assert "matmul(X, A) over k" in text
    assert "relu" in run(capsys, "show", path, "--as", "threads")[1]
    assert run(capsys, "show", path, "--as", "mermaid")[1].startswith("flowchart")
    shown = run(capsys, "show", path, "--json")[1]
    assert json.loads(shown)["graph"]["mugraph"] == 1
    again = saved / "shown.json"
    again.write_text(shown)
    assert run(capsys, "show", str(again)) == (0, text)
    assert run(capsys, "verify", "mirage/mlp", str(again), "--rounds", "1")[0] == 0
    assert run(capsys, "show", path, "--as", "poem")[0] == 2


def test_verify_tells_programs_apart(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = sorted(saved.glob("*.json"))
    for path in paths:
        code, text = run(capsys, "verify", "mirage/mlp", str(path), "--rounds", "1")
        assert code == 0, text
    code, out = run(capsys, "verify", "mirage/lora", str(paths[-1]), "--json")
    assert code == 5
    assert json.loads(out)["verdict"] == "rejected"


def test_a_program_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "chain.json"
    path.write_text(json.dumps(workload("mcfuser/G1").to_json()), encoding="utf-8")
    code, out = run(capsys, "superoptimize", str(path), "--processes", "1", "--most", "2")
    assert code == 0
    assert "the first 2 structures" in out
    path.write_text("{}", encoding="utf-8")
    assert run(capsys, "superoptimize", str(path))[0] == 3
    assert run(capsys, "superoptimize", "no/such")[0] == 2


def test_what_a_search_does_once_it_does_once(calls: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    axes._solved.cache_clear()
    partition.cache_clear()
    calls.of("_Solver", lambda *args: args, axes)
    calls.of("stabilize_graph", lambda graph: graph, search)
    calls.of("verify", lambda program, graph: (program, graph), search)
    calls.of("signature", lambda graph: graph, commands)
    assert run(capsys, "superoptimize", "mirage/lora", "--processes", "1", "--most", "3", "--json")[0] == 0
    assert {name for name, _ in calls.seen} == {"_Solver", "stabilize_graph", "verify", "signature"}
    assert [k for k, n in calls.seen.items() if n > 1] == []


@pytest.mark.parametrize(("stop", "why", "code"), [(KeyboardInterrupt, "interrupted", 130), (Terminated, "terminated", 143)])
def test_what_was_found_before_an_interruption_is_kept(
    stop: type[KeyboardInterrupt],
    why: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    verify, seen = search.verify, list[object]()

    def until_the_third(*args: Any, **options: Any) -> Verdict:
        seen.append(args)
        if len(seen) == 3:
            raise stop
        return verify(*args, **options)

    monkeypatch.setattr(search, "verify", until_the_third)
    ended, out = run(capsys, "superoptimize", "mirage/mlp", "--processes", "1", "--save", str(tmp_path), "--json")
    assert ended == code
    (document,) = json.loads(out)["searches"]
    assert document["stopped"] == why
    assert len(document["structures"]) == len(list(tmp_path.glob("*.json"))) == 2
    seen.clear()
    assert search.superoptimize(workload("mirage/mlp")).stopped == why
    seen[:] = [None, None]
    with pytest.raises(stop):  # there is nothing to give
        search.superoptimize(workload("mirage/mlp"))
