"""The output folder: a run's files take the place of the run before, and of nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tvm_bridge.output import MANIFEST
from tvm_bridge.output import publish


def run(**files: str) -> Callable[[Path], int]:
    def write(folder: Path) -> int:
        for name, text in files.items():
            path = folder / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return len(files)

    return write


def names(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() or p.is_symlink()} - {MANIFEST}


def test_a_second_run_leaves_nothing_of_the_first(tmp_path: Path) -> None:
    assert publish(tmp_path, run(report="1", kernels__a="1", kernels__b="1", library="1")) == 4
    assert names(tmp_path) == {"report", "kernels/a", "kernels/b", "library"}
    publish(tmp_path, run(report="2", kernels__b="2"))
    assert names(tmp_path) == {"report", "kernels/b"}
    assert (tmp_path / "report").read_text() == (tmp_path / "kernels" / "b").read_text() == "2"
    publish(tmp_path, run(report="3"))
    assert not (tmp_path / "kernels").exists()


def test_files_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "mine").write_text("mine")
    (tmp_path / "notes").write_text("mine")
    publish(tmp_path, run(kernels__a="1", kernels__b="1"))
    (tmp_path / "kernels" / "a").write_text("changed by its user")
    publish(tmp_path, run(report="2"))
    assert names(tmp_path) == {"kernels/mine", "notes", "kernels/a", "report"}


def test_a_run_that_fails_changes_nothing(tmp_path: Path) -> None:
    publish(tmp_path, run(report="1", kernels__a="1"))
    before = (tmp_path / MANIFEST).read_text()

    def fail(folder: Path) -> None:
        run(report="2")(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish(tmp_path, fail)
    assert names(tmp_path) == {"report", "kernels/a"}
    assert (tmp_path / "report").read_text() == "1"
    assert (tmp_path / MANIFEST).read_text() == before


def test_a_manifest_of_others_deletes_nothing(tmp_path: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    publish(out, run(report="1", kernels__a="1"))
    other.write_text("1")  # the content, and so the hash, of a listed file
    (out / "link").symlink_to(other)
    digest = json.loads((out / MANIFEST).read_text())["files"]["report"]
    listed = dict.fromkeys(("../other", str(other), "link", "a/../../other", "", ".", "none", MANIFEST), digest)
    (out / MANIFEST).write_text(json.dumps({"files": listed}))
    publish(out, run(report="2"))
    assert other.read_text() == "1"
    assert (out / "link").is_symlink()
    for damaged in ("", "[]", '{"files": 3}', '{"files": {"a": [1]}}', "[" * 100_000):
        (out / MANIFEST).write_text(damaged)
        publish(out, run(report="3"))
        assert (out / "report").read_text() == "3"
