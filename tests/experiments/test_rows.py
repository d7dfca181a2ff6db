"""The raw rows: all of them can be read, a damaged file is named, and the package's best schedules come from them."""

from __future__ import annotations

import json
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments import rows
from fuser.cli import main
from fuser.errors import ModelFileError
from fuser.errors import UsageError
from search.measure.known import MANIFEST
from search.measure.known import PACKAGED
from search.measure.known import files_of
from search.measure.known import load
from search.measure.known import sha256
from search.measure.lines import read_lines
from search.measure.records import Records

H200 = PACKAGED / "h200.jsonl.xz"
SMALL = "h200-mlp20.jsonl.xz"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of rows with their manifest."""
    listed = json.loads((rows.RAW / MANIFEST).read_text())
    names = (SMALL, "h200-bench-graphene-4.jsonl.xz")
    for name in names:
        shutil.copy(rows.RAW / name, tmp_path)
    (tmp_path / MANIFEST).write_text(json.dumps({n: listed[n] for n in names}))
    return tmp_path


@pytest.fixture(scope="module")
def raw():
    with Records(":memory:") as records:
        load(records, rows.KNOWN)
        yield records


@pytest.mark.slow
def test_every_file_can_be_read(raw: Records) -> None:
    assert len(raw) > 20_000
    kernel = next(raw.rows(kind="kernel", status="ok"))
    graph = raw.structure(kernel.structure)
    assert graph is not None
    assert len(graph.blocks) == len(kernel.schedule_value().kernels)


@pytest.mark.slow
def test_the_best_schedules_of_the_package_are_those_of_the_rows(raw: Records, tmp_path: Path) -> None:
    with rows.best(raw, "NVIDIA H200") as found:
        found.export_lines(tmp_path / "again.jsonl")
    about, *lines = read_lines(H200)
    assert lines == list(read_lines(tmp_path / "again.jsonl")), "python -m experiments.rows --best h200"
    assert about["about"]["device"] == "NVIDIA H200"
    assert sum(about["about"]["compilers"].values()) == sum("workload" in line for line in lines)
    assert {"commit", "command"} <= set(about["about"])


def test_they_come_from_the_files_as_they_are() -> None:
    about = next(iter(read_lines(H200)))
    assert about["about"]["rows"] == {f.name: sha256(f) for folder in rows.KNOWN for f in files_of(folder)}


def test_they_are_small() -> None:
    assert sum(f.stat().st_size for f in PACKAGED.iterdir()) < 500_000


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "a bit": lambda data: data[:900] + bytes([data[900] ^ 1]) + data[901:],
    "cut": lambda data: data[:-100],
    "no check at the end": lambda data: data[:-40],
    "empty": lambda data: b"",
    "other rows": lambda data: lzma.compress(b"".join(lzma.decompress(data).splitlines(keepends=True)[:-1])),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_named(folder: Path, damage: str) -> None:
    file = folder / SMALL
    file.write_bytes(DAMAGE[damage](file.read_bytes()))
    for path in (folder, file):
        with Records(":memory:") as records, pytest.raises(ModelFileError, match=f"{SMALL} is damaged"):
            load(records, [path])
    if damage in ("a bit", "cut", "no check at the end"):  # of what else may be wrong, the manifest alone knows
        (folder / MANIFEST).unlink()
        with Records(":memory:") as records:
            with pytest.raises(ModelFileError, match=f"{SMALL} is damaged"):
                load(records, [file])
            assert len(records) == 0, "all of a file or nothing"


def test_files_that_are_missing_or_new_are_named(folder: Path) -> None:
    with Records(":memory:") as records:
        assert load(records, [folder]) == 71
    shutil.copy(folder / SMALL, folder / "new.jsonl.xz")
    with pytest.raises(ModelFileError, match=r"new\.jsonl\.xz is not in the manifest"):
        files_of(folder)
    (folder / "new.jsonl.xz").unlink()
    (folder / SMALL).unlink()
    with pytest.raises(ModelFileError, match=SMALL):
        files_of(folder)
    (folder / MANIFEST).write_text('{"a": 1}')
    with pytest.raises(ModelFileError, match=MANIFEST):
        files_of(folder)
    (folder / "none").mkdir()
    with pytest.raises(ModelFileError, match="has no files of rows"):
        files_of(folder / "none")


def test_rows_are_packed_by_their_name(tmp_path: Path) -> None:
    with Records(":memory:") as records, Records(":memory:") as again:
        load(records, [rows.RAW / SMALL])
        records.export_lines(tmp_path / "a.jsonl.xz", {"device": "x"})
        assert load(again, [tmp_path]) == len(records) == 16
    assert next(iter(read_lines(tmp_path / "a.jsonl.xz"))) == {"about": {"device": "x"}}


def test_an_application_makes_a_file_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "best.jsonl.xz"
    assert rows.main(["--best", "h200", "--from", str(rows.RAW / SMALL), "-o", str(path)]) == 0
    assert main(["bench", "graphene", "--case", "mlp20", "--schedules", str(path), "--top", "0", "--dry-run", "--json"]) == 0
    (case,) = json.loads(capsys.readouterr().out.partition("\n")[2])["cases"]
    assert len(case["records"]) == 3
    with pytest.raises(UsageError, match="no correct kernel of NVIDIA A100"):
        rows.main(["--best", "a100", "--from", str(rows.RAW / SMALL), "-o", str(path)])


def test_the_command_checks_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert rows.main([]) == 0
    listed = json.loads((rows.RAW / MANIFEST).read_text())
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [[n, str(e["rows"])] for n, e in listed.items()]
