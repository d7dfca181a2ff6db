"""The folder of a bench: runs that share it, full disks, damage and interrupts cost nothing that was finished."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments import bench as benches
from experiments.bench import earlier
from experiments.bench import keep
from experiments.script import script
from fuser.cli import main
from fuser.errors import EnvironmentError_
from fuser.outputs import replacing
from fuser.workloads import workload
from tests.experiments.rows import committed

WRITER = """
import sys; from pathlib import Path; from experiments.bench import keep; from tests.experiments.rows import committed
whole, first = committed('mcfuser'), int(sys.argv[2])
print('ready', flush=True); sys.stdin.readline()
for n in range(1, 8):
    keep(Path(sys.argv[1]), whole | {'cases': whole['cases'][first:first + n], 'left': []})
"""


def part(first: int, last: int, **fields: Any) -> dict[str, Any]:
    whole = committed("mcfuser")
    return whole | {"cases": whole["cases"][first:last], "left": []} | fields


def names(found: Any) -> set[str]:
    return {c["workload"] for c in found["cases"]}


def test_two_runs_in_one_folder_lose_no_case(tmp_path: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    both = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), n], **pipes) for n in ("0", "7")]
    for p in both:
        assert p.stdout is not None
        assert p.stdout.readline() == "ready\n"
    for p in both:
        p.communicate("go\n")
        assert p.returncode == 0
    found = earlier(tmp_path)
    assert found is not None
    assert names(found) == names(part(0, 14))
    assert {p.name for p in tmp_path.iterdir()} == {"bench.json", "bench.md"}


def test_what_another_run_left_is_put_aside(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    keep(tmp_path, part(0, 3))
    keep(tmp_path, part(3, 5, run="other"))
    assert names(json.loads((tmp_path / "bench.json").read_text())) == names(part(3, 5))
    assert names(json.loads((tmp_path / "bench.json.other1").read_text())) == names(part(0, 3))
    (tmp_path / "bench.json").write_text('{"schema": 2, "cases": [')
    keep(tmp_path, part(0, 1))
    assert (tmp_path / "bench.json.damaged1").exists()
    assert "it is now" in capsys.readouterr().err.replace("\n", " ")
    assert names(earlier(tmp_path)) == names(part(0, 1))


def test_a_full_disk_keeps_the_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path, part(0, 3))
    before = (tmp_path / "bench.json").read_bytes()
    with monkeypatch.context() as patch, pytest.raises(EnvironmentError_, match="No space left"):
        patch.setattr("fuser.outputs.replacing", lambda *_: replacing("/dev/full"))
        keep(tmp_path, part(3, 5))
    assert (tmp_path / "bench.json").read_bytes() == before


def arguments(folder: Path) -> list[str]:
    return ["bench", "mcfuser", "--on", "cpu", "--top", "0", "--random", "0", "--peers", "none", "-o", str(folder)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.candidates.workload", lambda name: workload(name, M=32, N=32, K=16, H=16))


@pytest.mark.usefixtures("small")
def test_an_interrupted_run_says_so_and_keeps_its_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = benches.run

    def interrupted(*args: Any) -> Iterator[Any]:
        yield next(run(*args))
        raise KeyboardInterrupt

    monkeypatch.setattr(benches, "run", interrupted)
    assert main([*arguments(tmp_path), "--case", "G1", "--schedules", "model"]) == 130
    assert names(earlier(tmp_path)) == {"mcfuser/G1"}
    assert (tmp_path / "rows.jsonl").exists()


def test_folders_that_are_none_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        assert main(arguments(folder)) == 2
        assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "code"), [(EnvironmentError_("full", "free"), 6), (KeyboardInterrupt(), 130)])
def test_scripts_end_without_a_traceback(error: BaseException, code: int, capsys: pytest.CaptureFixture) -> None:
    def fails() -> int:
        raise error

    with pytest.raises(SystemExit) as found:
        script(fails)
    assert found.value.code == code
    assert "Traceback" not in capsys.readouterr().err
