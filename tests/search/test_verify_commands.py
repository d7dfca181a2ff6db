"""Reports whose kernels are verified once more, and damaged ones."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fuser.cli import main

Report = dict[str, Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    assert main(["tune", "mirage/lora", "mirage/mlp", "-o", str(folder), "--no-check", "--no-records"]) == 0
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "out")
    return tmp_path / "out"


def run(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["verify", str(folder / "report.json"), *more])
    out, err = capsys.readouterr()
    return code, out, err


def test_every_kernel_of_a_report_holds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(folder, capsys)
    assert code == 0, err
    assert max(map(len, out.splitlines())) <= 80
    assert "primes: " in out
    assert "not proven of" in out
    code, out, _ = run(folder, capsys, "--json")
    assert code == 0
    kernels = json.loads(out)["kernels"]
    assert {k["kernel"] for k in kernels} == set(json.loads((folder / "report.json").read_text())["kernels"])
    for kernel in kernels:
        assert kernel["verdict"] == "verified"
        assert 0 < kernel["evidence"]["bound"] < 1e-3
        assert kernel["predicted_us"] > 0
        assert not kernel["wrong"]


def entry(report: Report) -> Report:
    return next(iter(report["kernels"].values()))


def structure(report: Report) -> Report:
    return next(iter(report["structures"].values()))


def other_mugraph(report: Report) -> None:
    """The µGraph of another program in the place of the one that was verified."""
    first, second = report["structures"].values()
    first["program"], first["mugraph"], first["verdict"] = second["program"], second["mugraph"], second["verdict"]


def wrong_mugraph(report: Report) -> None:
    """Its inputs in another order, so that it computes something else."""
    first, second = report["structures"].values()
    first["mugraph"] = second["mugraph"]


DAMAGES: dict[str, tuple[Callable[[Report], object], int, str]] = {
    "no verdict": (lambda r: structure(r).pop("verdict"), 5, "it has no verdict"),
    "a better bound": (lambda r: structure(r)["verdict"]["evidence"].update(bound=1e-40), 5, "bound in the report differ"),
    "more rounds": (lambda r: structure(r)["verdict"]["evidence"].update(rounds=9), 5, "rounds in the report differ"),
    "another kind": (lambda r: structure(r)["verdict"].update(verdict="agrees, not proven"), 5, "found again: verified"),
    "another structure": (other_mugraph, 5, "no kernel of the µGraph that was verified"),
    "a structure that is wrong": (wrong_mugraph, 5, "do not hold"),
    "no structure": (lambda r: r["structures"].clear(), 5, "it has no verdict"),
    "a kernel in no graph": (lambda r: r["kernels"].update(more={}), 5, "more: it has no verdict"),
    "no prediction": (lambda r: entry(r).pop("predicted_us"), 5, "no predicted time"),
    "no file": (lambda r: entry(r).pop("files"), 5, "names no .py file"),
    "a file elsewhere": (lambda r: entry(r).update(files=["../../x.py"]), 5, "names no .py file"),
    "another launch": (lambda r: entry(r).update(num_stages=7), 5, "its launch is not what its µGraph and schedule generate"),
    "another architecture": (lambda r: entry(r).update(arch=80), 5, "its entry says 'sm_80', its PTX sm_90"),
    "another form": (lambda r: r.update(schema=99), 3, "has the form 99, not 1"),
    "another shape": (lambda r: entry(r)["args"][0].update(shape=[7]), 5, "its launch is not what"),
    "another schedule": (lambda r: next(iter(r["graphs"].values())).pop("schedule"), 3, "is damaged"),
    "a schedule of another type": (lambda r: next(iter(r["graphs"].values())).update(schedule=5), 3, "entries hint: optimize"),
    "no report": (lambda r: r.pop("kernels"), 3, "is no report of mufuser"),
    "an old report": (lambda r: r.pop("made_by"), 3, "an older mufuser wrote it"),
    "another version": (lambda r: r["made_by"].update(mufuser="9.0"), 3, "written by mufuser '9.0'"),
    "another source": (lambda r: r["made_by"].update(source="0"), 3, "another state of mufuser"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_report_is_an_error_that_says_what(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage, wanted, says = DAMAGES[name]
    report = json.loads((folder / "report.json").read_text())
    damage(report)
    (folder / "report.json").write_text(json.dumps(report))
    code, _, err = run(folder, capsys)
    assert code == wanted
    assert says in " ".join(err.split())


def test_another_source_is_found_by_its_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, (source, *_) = json.loads((folder / "report.json").read_text()), folder.glob("*.py")
    text = source.read_text().replace("tl.", "tl. ", 1)
    source.write_text(text)
    of = next(k for k in report["kernels"].values() if source.name in k["files"])
    of["sha256"][".py"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "report.json").write_text(json.dumps(report))
    code, _, err = run(folder, capsys)
    assert code == 5
    assert "its source is not what its µGraph and schedule generate" in " ".join(err.split())


def test_files_that_changed_or_are_gone_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = next(folder.glob("*.py"))
    text = source.read_text()
    source.write_text(text.replace("tl.", "tl. ", 1))
    code, _, err = run(folder, capsys)
    assert code == 5
    assert f"{source.name} was changed" in " ".join(err.split())
    source.unlink()
    assert f"{source.name} is missing" in " ".join(run(folder, capsys)[2].split())
    source.write_text(text)
    next(folder.glob("*.cubin")).write_bytes(b"\x7fELF")
    assert ".cubin was changed" in " ".join(run(folder, capsys)[2].split())


def test_kernels_that_do_not_hold_are_one_document(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = next(folder.glob("*.py"))
    source.write_text(source.read_text().replace("tl.", "tl. ", 1))
    code, out, err = run(folder, capsys, "--json")
    assert code == 5
    found = json.loads(out)
    assert any(k["wrong"] for k in found["kernels"])
    assert "do not hold" in found["error"]["message"]
    assert "do not hold" in " ".join(err.split())


def test_what_is_no_report_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "mirage/lora"]) == 2
    assert "no µGraph is given" in capsys.readouterr().err
    (tmp_path / "report.json").write_text("[1]")
    assert run(tmp_path, capsys)[0] == 3


def test_a_folder_stands_for_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path)]) == 2
    assert f"there is no file '{tmp_path}/report.json'" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "report.json").write_text("[]")
    assert main(["verify", str(tmp_path)]) == 3
    assert "is no report of mufuser" in capsys.readouterr().err


def test_a_schedule_that_somebody_names_is_compiled_checked_and_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule = "n.k [h=64 k=64 m=64 n=64] warps=4 stages=2 backend=gluon"
    args = ["tune", "mcfuser/G1", "--schedule", schedule, "-o", str(tmp_path / "out"), "--json"]
    assert main(args) == 0
    (said,) = json.loads(capsys.readouterr().out)["workloads"]
    assert said["schedule"] == schedule.replace("n.k", "nk")
    assert "warpgroup_mma" in next((tmp_path / "out").glob("*.py")).read_text()
    assert run(tmp_path / "out", capsys)[0] == 0
    for odd in (["tune", "mcfuser/*", *args[2:4]], [*args[:2], "--effort", "quick", *args[2:4]]):
        assert main(odd) == 2
    assert main([*args[:3], schedule.replace("m=64", "m=96")]) == 5
