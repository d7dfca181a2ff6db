"""The file under the tuning records: several processes at once, damage anywhere, older versions, a full disk, sudden ends."""

from __future__ import annotations

import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuser.errors import EnvironmentError_
from fuser.errors import FuserError
from fuser.errors import ModelFileError
from fuser.errors import UsageError
from fuser.superopt.structures import one_kernel
from search.measure import store
from search.measure.records import RECORDS
from search.measure.records import STRUCTURES
from search.measure.records import Records
from search.measure.rows import record_of
from tests.search.measure.row import ROW
from tests.search.measure.test_measure import PROGRAM

ROWS = tuple(
    record_of(ROW.cells | {"schedule": f"[{i}]", "time_us": 3.5 + i, "detail": "é" * (i % 40), "kind": "peer"})
    for i in range(120)
)


def processes(folder: Path, code: str, count: int) -> list[subprocess.Popen[bytes]]:
    """That many processes that begin ``code`` (with ``folder``, ``number`` and ``ROWS``) at the same moment."""
    begin = (
        "import sys, time, os; from pathlib import Path; from search.measure.records import *\n"
        "from tests.search.measure.test_store import ROWS\n"
        "folder, number = Path(sys.argv[1]), int(sys.argv[2]); (folder / f'ready{number}').touch()\n"
        "while not (folder / 'go').exists(): time.sleep(0.001)\n"
    )
    args = [[sys.executable, "-c", begin + code, str(folder), str(i)] for i in range(count)]
    found = [subprocess.Popen(a, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for a in args]
    while not all((folder / f"ready{i}").exists() for i in range(count)):
        assert all(p.poll() is None for p in found), found[0].communicate()
        time.sleep(0.01)
    (folder / "go").touch()
    return found


def filled(path: Path) -> Path:
    with Records(path) as records:
        for r in ROWS:
            records.add(r)
        records.add_structure(one_kernel(PROGRAM))
    return path


@pytest.fixture
def limited() -> Iterator[None]:
    """No file of this process grows beyond 256 KB: a full disk."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 10, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_new_file_is_opened_by_four_processes_at_once(tmp_path: Path) -> None:
    code = "for i in range(50):\n    with Records(folder / f'{i}.sqlite') as r: r.add(ROWS[number])"
    for p in processes(tmp_path, code, 4):
        _, errors = p.communicate(timeout=100)
        assert p.returncode == 0, errors.decode()
    for i in range(50):
        with Records(tmp_path / f"{i}.sqlite") as records:
            assert len(records) == 4


@pytest.mark.parametrize("count", [50, pytest.param(400, marks=pytest.mark.slow)])
def test_damage_anywhere_changes_no_value(tmp_path: Path, count: int) -> None:
    """What comes back after any damage is a part of what was written; the next run has nearly all of it."""
    whole = filled(tmp_path / "whole.sqlite").read_bytes()
    graph = one_kernel(PROGRAM)
    rng = random.Random(count)
    kept = []
    for n in range(count):
        path = tmp_path / f"{n}.sqlite"
        data = bytearray(whole)
        for _ in range(1 + n % 3):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
        for _ in range(2):
            try:
                with Records(path) as records:
                    found = list(records.rows())
                    assert set(found) <= set(ROWS), n
                    assert records.structure(graph.stable_hash()) in (graph, None)
                    kept.append(len(found))
                    best = records.best(ROW.workload, ROW.device, "peer")
                    assert best is None or best in ROWS
                    for r in set(ROWS) - set(found):
                        assert records.find(r.key) is None
                        records.add(r)
                    assert set(records.rows()) == set(ROWS), "what was damaged can be measured again"
                break
            except FuserError as error:
                assert str(path) in error.message
        for file in tmp_path.glob(f"{n}.sqlite*"):
            file.unlink()
    assert sum(kept) > 0.9 * len(kept) * len(ROWS)
    assert len(kept) > 0.95 * count


def test_rows_with_damage_are_named_and_replaced(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = filled(tmp_path / "r.sqlite")
    with sqlite3.connect(path) as db:
        db.execute("UPDATE records SET time_us = 0.1 WHERE schedule = '[7]'")
    with Records(path) as records:
        assert set(records.rows()) == set(ROWS) - {ROWS[7]}
        assert len(records.damaged) == 1
        assert "damaged rows are left out" in capsys.readouterr().err
        assert records.best(ROW.workload, ROW.device, "peer") == ROWS[0]
        assert records.find(ROWS[7].key) is None
        assert records.add(ROWS[7])
        assert set(records.rows()) == set(ROWS)


def test_what_is_whole_in_a_damaged_file_is_saved(tmp_path: Path) -> None:
    path = filled(tmp_path / "r.sqlite")
    data = bytearray(path.read_bytes())
    data[8 * 4096 : 9 * 4096] = bytes(4096)
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match="damaged") as found:
        Records(path)
    assert "damaged1" in found.value.hint
    assert "are whole" in found.value.hint
    with Records(path) as records:
        assert set(records.rows()) <= set(ROWS)
        assert len(records) > 60


def test_a_description_that_is_no_text_is_damage(tmp_path: Path) -> None:
    """SQLite's own message quotes it, and cannot be read then."""
    path = filled(tmp_path / "r.sqlite")
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE records", b"CREATE T\xd8BLE records"))
    with pytest.raises(ModelFileError, match="damaged") as found:
        Records(path)
    assert "damaged1" in found.value.hint
    with Records(path) as records:
        assert set(records.rows()) <= set(ROWS)


def test_a_file_that_never_held_records_stays_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("schema = 1\n" * 200)
    with pytest.raises(ModelFileError, match="holds no tuning records"):
        Records(path)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("mine")] == ["mine.toml"]
    assert path.read_text() == "schema = 1\n" * 200


def test_a_file_of_the_first_version_gets_checksums(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    filled(tmp_path / "new.sqlite")
    with sqlite3.connect(path) as db:
        db.execute("ATTACH ? AS new", (str(tmp_path / "new.sqlite"),))
        for t in (RECORDS, STRUCTURES):
            columns = ", ".join(f"{n} {k}" for n, k in t.columns.items())
            db.execute(f"CREATE TABLE {t.name} ({columns}, UNIQUE ({', '.join(t.key)}))")
            db.execute(f"INSERT INTO {t.name} SELECT {', '.join(t.columns)} FROM new.{t.name} ORDER BY rowid")
        db.execute("UPDATE records SET status = 'oddity' WHERE schedule = '[3]'")
        db.execute("PRAGMA user_version = 1")
    old = sqlite3.connect(path)
    with Records(path) as records:
        assert list(records.rows()) == [r for r in ROWS if r is not ROWS[3]]
        assert records.structure(one_kernel(PROGRAM).stable_hash()) == one_kernel(PROGRAM)
    with pytest.raises(sqlite3.IntegrityError, match="newer mufuser"):
        old.execute(f"INSERT OR IGNORE INTO records ({', '.join(RECORDS.columns)}) VALUES ({','.join('?' * 30)})", ROW.values())
    old.close()


def test_a_file_of_the_third_version_gets_an_index(tmp_path: Path) -> None:
    """Rows of a program are looked up without reading all others."""
    path = filled(tmp_path / "r.sqlite")
    with sqlite3.connect(path) as db:
        db.execute("DROP INDEX records_asked")
        db.execute("PRAGMA user_version = 3")
    with Records(path) as records:
        assert set(records.rows()) == set(ROWS)
        (plan,) = records.db.execute("EXPLAIN QUERY PLAN SELECT * FROM records WHERE program = '' AND device = '' ORDER BY rowid")
        assert "USING INDEX records_asked" in plan[-1]
    assert not list(tmp_path.glob("*.damaged*"))


def test_several_processes_find_a_file_damaged(tmp_path: Path) -> None:
    path = filled(tmp_path / "r.sqlite")
    data = bytearray(path.read_bytes())
    data[0:16] = b"nothing of SQLite"[:16]
    path.write_bytes(data)
    code = (
        "from fuser.errors import ModelFileError\n"
        "try: Records(folder / 'r.sqlite')\n"
        "except ModelFileError: print('damaged')\n"
        "with Records(folder / 'r.sqlite') as r: r.add(ROWS[number])"
    )
    found = [p.communicate(timeout=60) for p in processes(tmp_path, code, 3)]
    assert sum(b"damaged" in out for out, _ in found) == 1, found
    assert not any(b"Traceback" in errors for _, errors in found)
    with Records(path) as records:
        assert set(records.rows()) == set(ROWS[:3])


@pytest.mark.usefixtures("limited")
def test_a_full_disk_is_an_error_of_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    done = []
    with Records(path) as records:
        with pytest.raises(EnvironmentError_, match=r"r\.sqlite") as found:
            for i in range(10_000):
                records.add(record_of(ROW.cells | {"schedule": str(i), "detail": "x" * 500}))
                done.append(str(i))
        assert found.value.exit_code == 6
        assert len(done) > 10
        assert [r.schedule for r in records.rows()] == done
        with pytest.raises(EnvironmentError_):
            records.export_lines(Path("/dev/full"))
    with Records(path) as records:
        assert [r.schedule for r in records.rows()] == done


@pytest.mark.parametrize("trouble", ["busy", "full", "readonly"])
def test_trouble_of_the_machine_is_no_damage(trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What SQLite itself says of a lock, of no room and of no right to write: no row is lost, and the file stays where it is."""
    monkeypatch.setattr(store, "PATIENCE", 0.05)
    path = filled(tmp_path / "r.sqlite")
    with Records(path) as records, closing(sqlite3.connect(path, isolation_level=None)) as other:
        before = len(records)
        if trouble == "busy":
            other.execute("BEGIN IMMEDIATE")
        records.db.execute({"full": "PRAGMA max_page_count=1", "readonly": "PRAGMA query_only=1"}.get(trouble, "SELECT 1"))
        with pytest.raises(EnvironmentError_, match=r"cannot use the tuning records .*r\.sqlite"):
            for i in range(1000):
                records.add(replace(ROW, schedule=f"new {i}", workload="x" * 500))
        assert len(records) >= before
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(EnvironmentError_, match="locked"):
            Records(path)
    assert not list(tmp_path.glob("*damaged*"))


def test_what_was_finished_survives_a_sudden_end(tmp_path: Path) -> None:
    """Killed at any moment while it writes, a process has every row that it said was written."""
    code = (
        "with Records(folder / 'r.sqlite') as r:\n"
        "    for i in range(100_000):\n"
        "        r.add(replace(ROWS[0], schedule=f'{number} {i}')); print(i, flush=True)"
    )
    rng = random.Random(1)
    for n in range(3):
        folder = tmp_path / str(n)
        folder.mkdir()
        pair = processes(folder, code, 2)
        time.sleep(rng.uniform(0.02, 0.3))
        for p in pair:
            p.kill()
        said = {f"{i} {x}" for i, p in enumerate(pair) for x in p.communicate()[0].decode().splitlines()}
        with Records(folder / "r.sqlite") as records:
            assert said <= {r.schedule for r in records.rows()}
            assert not records.damaged


def test_what_is_no_such_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").write_text("text")
    with sqlite3.connect(tmp_path / "other.sqlite") as db:
        db.execute("CREATE TABLE customers (name TEXT)")
    other = (tmp_path / "other.sqlite").read_bytes()
    with pytest.raises(ModelFileError, match="another program"):
        Records(tmp_path / "other.sqlite")
    assert (tmp_path / "other.sqlite").read_bytes() == other
    for name in ("folder", "loop"):
        with pytest.raises(EnvironmentError_, match=name):
            Records(tmp_path / name)
    for name in ("file/r.sqlite", "nul\0"):
        with pytest.raises(UsageError):
            Records(tmp_path / name)
    (tmp_path / "empty").touch()
    with Records(tmp_path / "empty") as records:
        assert records.add(record_of(ROW.cells | {"detail": "nul \0 and \ud800", "seconds": float("nan"), "time_us": -0.0}))
        assert next(records.rows()).detail == "nul \0 and \\ud800"
    shutil.copy(tmp_path / "empty", tmp_path / "copy")
    with Records(tmp_path / "copy") as records:
        assert len(records) == 1


def test_records_that_cannot_be_written_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """As in a folder that is only read, or on a full disk: nothing can be made beside the file, and nothing in it changes."""
    path = filled(tmp_path / "r.sqlite")
    before, connect = path.read_bytes(), sqlite3.connect

    def refuse(place: Any, **options: Any) -> sqlite3.Connection:
        if place != ":memory:" and "immutable" not in str(place):
            raise sqlite3.OperationalError("unable to open database file")
        return connect(place, **options)

    def only_read(place: Path | str, error: sqlite3.Error) -> EnvironmentError_:
        return EnvironmentError_(f"cannot use {place}: {error}")

    monkeypatch.setattr(sqlite3, "connect", refuse)
    monkeypatch.setattr(store, "failure", only_read)
    with pytest.raises(EnvironmentError_, match="unable to open"):
        Records(path)
    with Records(path, reading=True) as records:
        assert set(records.rows()) == set(ROWS)
        assert records.add(replace(ROW, schedule="new"))
    assert "can only be read: nothing that is measured is kept" in " ".join(capsys.readouterr().err.split())
    assert path.read_bytes() == before


def test_what_cannot_be_read_and_is_not_ours_stays_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "app.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE records (customer TEXT)")
        db.executemany("INSERT INTO records VALUES (?)", [("x" * 500,)] * 100)
        db.commit()
    path.write_bytes(path.read_bytes()[:100] + b"garbage" * 900)
    with pytest.raises(ModelFileError, match="holds no tuning records that can be read"):
        Records(path)
    assert [p.name for p in tmp_path.iterdir() if "damaged" in p.name] == []


def test_rows_are_not_written_to_a_file_that_is_gone(tmp_path: Path) -> None:
    path = filled(tmp_path / "r.sqlite")
    with Records(path) as records:
        path.rename(tmp_path / "elsewhere")
        with pytest.raises(EnvironmentError_, match="removed or replaced"):
            records.add(replace(ROW, schedule="new"))
        filled(path)
        with pytest.raises(EnvironmentError_, match="removed or replaced"):
            records.add(replace(ROW, schedule="new"))


def test_what_is_only_read_stays_empty(tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.touch()
    with Records(path, reading=True) as records:
        assert len(records) == 0
    assert [(p.name, p.stat().st_size) for p in tmp_path.iterdir()] == [("odd.json", 0)]
