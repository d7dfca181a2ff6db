"""Tuning records: rows survive files, lines and interruptions, and nothing is kept twice."""

from __future__ import annotations

import math
import os
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from fuser.errors import ModelFileError
from fuser.errors import UsageError
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.superopt.structures import one_kernel
from fuser.workloads import workload
from search.measure import rows
from search.measure.measurement import STATUSES
from search.measure.records import Records
from search.measure.rows import Record
from search.measure.rows import read_rows
from search.measure.rows import record_from_json
from search.measure.rows import record_of
from search.measure.winners import Winner
from tests.search.measure.row import ROW
from tests.work import Calls


def changed(**cells: Any) -> Record:
    """The row with other cells."""
    return record_of(ROW.cells | cells)


_time = st.none() | st.floats(0.1, 1e6)
rows_ = st.fixed_dictionaries(
    {
        "workload": st.sampled_from(["a", "b"]),
        "program": st.just("p"),
        "structure": st.sampled_from(["s", "t"]),
        "schedule": st.text('[]{}"é', max_size=4),
        "source": st.sampled_from(["", "x"]),
        "device": st.sampled_from(["GPU", "CPU"]),
        "compiler": st.sampled_from(["triton 3.6.0", "torch 2.11.0"]),
        "kind": st.sampled_from(["kernel", "peer"]),
        "repeat": st.sampled_from(["", "run"]),
        "status": st.sampled_from(STATUSES),
        "time_us": _time,
        "spread": _time,
        "detail": st.text(max_size=5),
        "registers": st.integers(-1, 255),
        "generator": st.sampled_from(["", "g"]),
        "environment": st.sampled_from(["", "{}"]),
    }
).map(record_of)


@settings(max_examples=30, deadline=None)
@given(st.lists(rows_, max_size=8))
def test_lines_give_back_the_rows(tmp_path_factory: pytest.TempPathFactory, found: list[Record]) -> None:
    path = tmp_path_factory.mktemp("lines") / "rows.jsonl"
    with Records(":memory:") as a, Records(":memory:") as b:
        for r in found:
            a.add(r)
        assert len(a) == len({r.key for r in found})
        assert a.export_lines(path) == len(a)
        assert b.import_lines(path) == len(a)
        assert list(b.rows()) == list(a.rows())
        assert b.import_lines(path) == 0


def test_a_key_is_measured_once() -> None:
    with Records(":memory:") as records:
        assert records.add(ROW)
        assert not records.add(changed(time_us=9.0))
        assert records.find(ROW.key) == ROW
        assert records.add(changed(time_us=9.0), again=True)
        assert [r.time_us for r in records.rows()] == [9.0]
        assert records.add(replace(ROW, repeat="beside peers"))


def test_a_file_outlives_the_process_and_two_may_write(tmp_path: Path) -> None:
    path = tmp_path / "tuning" / "records.sqlite"
    with Records(path) as a, Records(path) as b:
        a.add(ROW)
        b.add(replace(ROW, schedule="other"))
        assert len(a) == len(b) == 2
    with Records(path) as c:
        assert {r.schedule for r in c.rows(workload="mcfuser/G1")} == {"[]", "other"}


def test_structures_and_schedules_come_back(tmp_path: Path) -> None:
    graph = one_kernel(workload("mcfuser/S6"))
    schedule = Schedule((KernelSchedule((("b", 1), ("m", 64), ("n", 128)), TilingExpr(("n",)), (), 8, 3),))
    path = tmp_path / "rows.jsonl"
    with Records(":memory:") as a, Records(":memory:") as b:
        digest = a.add_structure(graph)
        a.add(replace(ROW, structure=digest, schedule=schedule.text))
        a.export_lines(path)
        b.import_lines(path)
        row = next(b.rows())
        assert b.structure(row.structure) == graph
        assert row.schedule_value() == schedule
        assert b.structure("none") is None


def test_a_structure_of_several_files_and_a_schedule_of_several_rows_are_parsed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, schedule = one_kernel(workload("mcfuser/S6")), Schedule((KernelSchedule((("b", 3),), TilingExpr(("n",)), (), 8, 3),))
    with Records(":memory:") as records:
        records.add(replace(ROW, structure=records.add_structure(graph), schedule=schedule.text))
        for name in ("a", "b"):
            records.export_lines(tmp_path / f"{name}.jsonl")
    calls = Calls(monkeypatch)
    calls.of("graph_from_json", lambda data: data["name"], rows)
    calls.of("from_json", str, Schedule)
    rows._graph.cache_clear()
    found = [x for name in ("a", "b") for x in read_rows(tmp_path / f"{name}.jsonl")]
    assert [x.schedule_value() for x in found if isinstance(x, Record)] == [schedule] * 2
    assert sorted(calls.seen.values()) == [1, 1]


def test_shared_values_are_written_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with Records(":memory:") as records:
        for i in range(5):
            records.add(replace(ROW, schedule=str(i)))
        records.export_lines(path)
    assert path.read_text().count("driver") == 1


def test_best_is_the_fastest_correct_row() -> None:
    rows = [
        changed(schedule="slow", time_us=5.0),
        changed(schedule="wrong", time_us=1.0, status="wrong"),
        changed(schedule="fast", time_us=2.0),
        changed(schedule="elsewhere", time_us=0.5, device="another"),
    ]
    with Records(":memory:") as records:
        for r in rows:
            records.add(r)
        best = records.best("mcfuser/G1", "GPU")
        assert best is not None
        assert best.schedule == "fast"
        assert records.best("mcfuser/G2", "GPU") is None


def test_a_line_that_was_cut_off_is_left_out_and_a_broken_one_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with Records(":memory:") as records:
        for i in range(3):
            records.add(replace(ROW, schedule=str(i)))
        records.export_lines(path)
        text = path.read_text()
        path.write_text(text[:-20])
        with Records(":memory:") as b:
            assert b.import_lines(path) == 2
        lines = text.splitlines()
        path.write_text("\n".join([lines[0], lines[1][:-5], *lines[2:]]))
        with Records(":memory:") as b, pytest.raises(ModelFileError, match="line 2"):
            b.import_lines(path)


def good_lines(path: Path) -> list[str]:
    with Records(":memory:") as records:
        records.add_structure(one_kernel(workload("mcfuser/S6")))
        for i in range(3):
            records.add(replace(ROW, schedule=f"[{i}]", structure=one_kernel(workload("mcfuser/S6")).stable_hash()))
        records.export_lines(path)
    return path.read_text().splitlines()


BAD = {
    "not JSON": "{",
    "an array": "[1, 2]",
    "a number": "7",
    "nothing": "",
    "a null": "null",
    "not a number": '{"time_us": NaN}',
    "huge": '{"grid": ' + "9" * 5000 + "}",
    "deep": "[" * 100_000,
    "zero bytes": "\0\0\0",
    "a field of another type": '{"workload": 3, "program": "p", "structure": "s", "schedule": "", "source": ""}',
    "missing fields": '{"workload": "w"}',
    "an unknown field": '{"colour": 1}',
    "a graph that is none": '{"structure": "x", "graph": [1]}',
    "another graph": '{"structure": "x", "graph": {}}',
    "a common line that is none": '{"common": 3}',
    "a boolean": '{"workload": "w", "program": "p", "structure": "s", "schedule": "", "source": "", "grid": true}',
    "a time before its start": '{"workload": "w", "program": "p", "structure": "", "schedule": "", "source": "", "time_us": -1}',
    "no time at all": '{"workload": "w", "program": "p", "structure": "", "schedule": "", "source": "", "time_us": 0}',
    "a number too large": '{"workload": "w", "program": "p", "structure": "", "schedule": "", "source": "", "grid": 1e30}',
}


@pytest.mark.parametrize("name", BAD)
def test_bad_lines_are_named_by_file_and_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / "rows.jsonl"
    lines = good_lines(path)
    for where in (1, len(lines) - 1, len(lines)):
        path.write_text("\n".join([*lines[:where], BAD[name], *lines[where:]]) + "\n")
        with Records(":memory:") as records, pytest.raises(ModelFileError, match=rf"rows\.jsonl:{where + 1}: "):
            try:
                records.import_lines(path)
            finally:
                assert len(records) == 0, "all of a file or nothing"


def test_a_winner_without_a_time_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    graph = one_kernel(workload("mcfuser/S6"))
    won = Winner("p", "GPU", "triton 3.6.0", "", "mcfuser/S6", graph.stable_hash(), "[]", "h", "full", -3.0, 3.0)
    with Records(":memory:") as records:
        records.add_winner(won, graph)
        records.export_lines(path, winners=True)
    with Records(":memory:") as records, pytest.raises(ModelFileError, match="its time is -3 µs"):
        records.import_lines(path)


def test_values_that_changed_in_a_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    text = "\n".join(good_lines(path)) + "\n"
    for old, new in (('"time_us":3.5', '"time_us":2.5'), ('"m":64', '"m":65'), ("triton 3.6.0", "triton 3.6.1"), ("exp", "mul")):
        if old in text:
            path.write_text(text.replace(old, new, 1))
            with Records(":memory:") as records, pytest.raises(ModelFileError, match=r"rows\.jsonl:\d"):
                records.import_lines(path)


def test_what_is_no_file_of_lines_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "latin").write_bytes(b'{"workload": "\xe9"}\n')
    for name in ("pipe", "loop", "none", ".", "nul\0", "latin"):
        with Records(":memory:") as records, pytest.raises(ModelFileError):
            records.import_lines(tmp_path / name)
    (tmp_path / "empty").touch()
    with Records(":memory:") as records:
        assert records.import_lines(tmp_path / "empty") == 0


def test_a_damaged_file_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "records" / "records.sqlite"  # by its name nobody else's
    path.parent.mkdir()
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(ModelFileError, match="damaged") as error:
        Records(path)
    assert "damaged1" in (error.value.hint or "")
    assert path.with_name("records.sqlite.damaged1").exists()
    with Records(path) as records:
        assert len(records) == 0


def test_another_version_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    Records(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(ModelFileError, match="99"):
        Records(path)
    assert path.exists()


def test_unknown_fields_columns_and_states_are_errors() -> None:
    with pytest.raises(ModelFileError, match="colour"):
        record_from_json(ROW.to_json() | {"colour": 1})
    with Records(":memory:") as records:
        with pytest.raises(UsageError, match="colour"):
            list(records.rows(colour=1))
        with pytest.raises(ValueError, match="odd"):
            records.add(changed(status="odd"))


def test_nothing_infinite_is_kept() -> None:
    with Records(":memory:") as records:
        records.add(changed(error_fro=math.nan, error_max=math.inf))
        row = next(records.rows())
        assert row.measurement.error_fro is None
        assert row.measurement.error_max is None
