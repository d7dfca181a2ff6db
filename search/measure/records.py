"""Tuning records: every measurement is a row of one SQLite file and stays; nothing is timed twice.

A row is identified by the workload, the program, the structure, the schedule, the text of the generated kernels, the device and
the compiler. Each row is committed by itself, so that an interrupted run loses nothing; JSON lines carry rows between machines
and into a repository.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fuser.console import warn
from fuser.errors import EnvironmentError_
from fuser.errors import FuserError
from fuser.errors import ModelFileError
from fuser.errors import UsageError
from fuser.ir.candidate import Candidate
from fuser.ir.hashing import canonical
from fuser.ir.mugraph import KernelGraph
from fuser.ir.serialize import graph_from_json
from fuser.kept import source_hash
from fuser.outputs import replacing
from search.measure.lines import BAD_LINE
from search.measure.lines import writer
from search.measure.measurement import STATUSES
from search.measure.rows import COLUMNS
from search.measure.rows import KEY
from search.measure.rows import KINDS
from search.measure.rows import Record
from search.measure.rows import read_rows
from search.measure.rows import record_from_json
from search.measure.rows import record_of
from search.measure.store import Table
from search.measure.store import checksum
from search.measure.store import failure
from search.measure.store import intact
from search.measure.store import open_store
from search.measure.store import transaction
from search.measure.winners import WINNERS
from search.measure.winners import Winner

SHARED = ("device", "compiler", "generator", "environment")
"""Fields that nearly all rows of a run share."""

_SQL_TYPES = {"str": "TEXT NOT NULL", "int": "INTEGER NOT NULL", "float": "REAL NOT NULL", "float | None": "REAL"}


def _sound(values: Sequence[Any]) -> bool:
    """Whether a row without a checksum can have been written."""
    try:
        record = record_from_json(dict(zip(COLUMNS, values, strict=True)))
        return record.kind == "peer" or bool(record.schedule_value())
    except ModelFileError:
        return False


def _sound_structure(values: Sequence[Any]) -> bool:
    graph = _graph(values[1])
    return graph is not None and graph.stable_hash() == values[0]


def _graph(text: str) -> KernelGraph | None:
    try:
        return graph_from_json(json.loads(text))
    except (FuserError, *BAD_LINE):
        return None


def generator_version() -> str:
    """Hash of the source of everything between a structure with a schedule and its kernels: all of ``fuser.ir`` and
    ``fuser.lower``, since a list of those that matter would miss the next one."""
    return source_hash("fuser.ir", "fuser.lower")[:16]


class Records:
    """The table of one file (``":memory:"`` keeps nothing). Several processes may read and write it at once. Rows that are
    damaged are as good as none, and said so once; ``damaged`` counts them. ``reading``: the file need not be written."""

    def __init__(self, path: Path | str, reading: bool = False) -> None:
        self.path = path
        self.damaged: set[tuple[str, Any]] = set()
        self.db = open_store(path, (RECORDS, STRUCTURES, WINNERS), reading)
        self._file = self._there()
        self._graphs: dict[str, KernelGraph] = {}

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.db.close()

    @contextmanager
    def _safely(self) -> Iterator[None]:
        """Errors of SQLite as ours, but for those of a program that uses it wrongly."""
        try:
            yield
        except sqlite3.ProgrammingError:
            raise
        except sqlite3.Error as error:
            raise failure(self.path, error) from error

    def _there(self) -> tuple[int, int] | None:
        """What the path leads to at this moment."""
        if self.path == ":memory:":
            return None
        try:
            found = os.stat(self.path)
        except OSError:
            return (0, 0)
        return found.st_dev, found.st_ino

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction. Raises :class:`EnvironmentError_` where it would be lost with a file that is not there any more."""
        if self._there() != self._file:
            raise EnvironmentError_(
                f"the tuning records {self.path} were removed or replaced while they were in use", "run the same command again"
            )
        with self._safely(), transaction(self.db):
            yield

    # -- writing ------------------------------------------------------------------------------------------------------------

    def add(self, record: Record, again: bool = False) -> bool:
        """Keep a record, committed at once. A key that is there already is left as it is and False returned, unless ``again``.
        Raises :class:`EnvironmentError_` where it cannot be written."""
        with self._writing():
            return self._add(record, again)

    def _add(self, record: Record, again: bool = False) -> bool:
        if record.status not in STATUSES:
            raise ValueError(f"unknown status {record.status!r}")
        return RECORDS.insert(self.db, record.values(), again)

    def add_structure(self, graph: KernelGraph, digest: str = "") -> str:
        """Keep a structure by its hash, which rows refer to; returns the hash."""
        digest = digest or graph.stable_hash()
        with self._writing():
            self._add_structure(digest, graph)
        return digest

    def _add_structure(self, digest: str, graph: KernelGraph) -> None:
        STRUCTURES.insert(self.db, (digest, canonical(graph.to_json())))
        self._graphs[digest] = graph

    def add_winner(self, winner: Winner, graph: KernelGraph) -> None:
        """Keep what a search ended with, in place of what an earlier one did; its structure too."""
        with self._writing():
            self._add_structure(winner.structure, graph)
            WINNERS.insert(self.db, winner.values(), replace=True)

    def _add_winner(self, winner: Winner) -> bool:
        """That of another store, unless ours was searched as far, or is faster."""
        where = [getattr(winner, n) for n in WINNERS.key]
        ours = next(self.winners(**dict(zip(WINNERS.key, where, strict=True))), None)
        if ours and (ours.reach, -ours.time_us) >= (winner.reach, -winner.time_us):
            return False
        return WINNERS.insert(self.db, winner.values(), replace=True)

    # -- reading ------------------------------------------------------------------------------------------------------------

    def structure(self, digest: str) -> KernelGraph | None:
        if digest not in self._graphs:
            for row in self._select(STRUCTURES, "hash = ?", (digest,)):
                if graph := _graph(row[1]):
                    self._graphs[digest] = graph
                else:
                    self._leave_out(row)
        return self._graphs.get(digest)

    def candidate(self, row: Record) -> Candidate | None:
        """What a row of a kernel is about; None where its structure is not kept."""
        graph = self.structure(row.structure)
        return Candidate(graph, row.schedule_value()) if graph else None

    def find(self, key: tuple[str, ...]) -> Record | None:
        """The row with this key (:attr:`Record.key`), if it was ever measured."""
        return next(self._records(" AND ".join(f"{n} = ?" for n in KEY), key), None)

    def rows(self, **where: Any) -> Iterator[Record]:
        """Rows whose columns have the given values, in the order in which they were added."""
        if unknown := sorted(set(where) - set(COLUMNS)):
            raise UsageError(f"tuning records have no columns {', '.join(unknown)}")
        return self._records(" AND ".join(f"{k} = ?" for k in where) or "1", tuple(where.values()))

    def winners(self, **where: str) -> Iterator[Winner]:
        """Winners whose columns have the given values."""
        sql = " AND ".join(f"{k} = ?" for k in where) or "1"
        return (Winner(*row) for row in self._select(WINNERS, sql, tuple(where.values()), "rowid"))

    def best(self, workload: str, device: str, kind: str = "kernel") -> Record | None:
        """The fastest correct row of a workload on a device."""
        sql = "workload = ? AND device = ? AND kind = ? AND status = 'ok'"
        return next(self._records(sql, (workload, device, kind), "time_us IS NULL, time_us, rowid"), None)

    def __len__(self) -> int:
        with self._safely():
            return self.db.execute("SELECT COUNT(*) FROM records").fetchone()[0]

    def _records(self, where: str, values: Sequence[Any], order: str = "rowid") -> Iterator[Record]:
        return (record_of(dict(zip(COLUMNS, row, strict=True))) for row in self._select(RECORDS, where, values, order))

    def _select(self, table: Table, where: str, values: Sequence[Any], order: str = "rowid") -> Iterator[tuple[Any, ...]]:
        """The undamaged rows."""
        sql = f"SELECT {table.names} FROM {table.name} WHERE {where} ORDER BY {order}"
        with self._safely():
            for row in self.db.execute(sql, values).fetchall():
                if intact(row):
                    yield row[:-1]
                else:
                    self._leave_out(row)

    def _leave_out(self, row: tuple[Any, ...]) -> None:
        if not self.damaged:
            warn(f"{self.path}: damaged rows are left out, and what they were about is measured again")
        self.damaged.add(row)

    # -- in and out ---------------------------------------------------------------------------------------------------------

    def export_lines(self, path: Path, about: Mapping[str, Any] | None = None, winners: bool = False, **where: Any) -> int:
        """Structures and rows as JSON lines, packed where the name ends in ``.xz``; returns the number of rows. A line
        ``{"common": …}`` has the values that most rows share (machine, versions); rows after it leave them out. Rows have the
        checksum of all their values. ``about`` is a first line for people; ``winners``: those of searches too."""
        rows = list(self.rows(**where))
        wins = list(self.winners(**{k: v for k, v in where.items() if k in WINNERS.columns})) if winners else []
        used = {r.structure for r in (*rows, *wins)}
        common = _common(rows)

        def line(value: dict[str, Any]) -> bytes:
            return json.dumps(value, separators=(",", ":")).encode() + b"\n"

        with replacing(path) as place, writer(path, place) as file:
            if about:
                file.write(line({"about": about}))
            for digest, text in self._select(STRUCTURES, "1", (), "hash"):
                if digest in used and self.structure(digest):
                    file.write(line({"structure": digest, "graph": json.loads(text)}))
            file.write(line({"common": common}))
            for row in rows:
                file.write(line(row.to_json(common) | {"checksum": checksum(row.values())}))
            for w in wins:
                file.write(line({"winner": asdict(w), "checksum": checksum(w.values())}))
        return len(rows)

    def import_lines(self, path: Path) -> int:
        """Add what :meth:`export_lines` wrote, all of it or, where something is wrong with it, nothing; rows that are there stay
        as they are. Returns how many were new. Raises :class:`ModelFileError` with the number of the line."""
        with self._writing():
            return sum(self._take(item) for item in read_rows(path))

    def merge(self, other: Records) -> int:
        """Add the rows, structures and winners of another store; returns how many of them were new. Where both have a winner, the
        one that was searched further stays, or the faster."""
        with self._writing():
            for digest, text in list(other._select(STRUCTURES, "1", (), "hash")):
                if other.structure(digest):
                    STRUCTURES.insert(self.db, (digest, text))
            new = sum(self._add(row) for row in other.rows())
            return new + sum(self._add_winner(w) for w in other.winners())

    def remove(self, rows: Sequence[Record], winners: Sequence[Winner]) -> None:
        """Forget rows and winners, and structures that nothing names any more; the file gets smaller."""
        with self._writing():
            for r in rows:
                self.db.execute(f"DELETE FROM records WHERE {' AND '.join(f'{n} = ?' for n in KEY)}", r.key)
            for w in winners:
                key = [getattr(w, n) for n in WINNERS.key]
                self.db.execute(f"DELETE FROM winners WHERE {' AND '.join(f'{n} = ?' for n in WINNERS.key)}", key)
            named = "SELECT structure FROM records UNION SELECT structure FROM winners"
            self.db.execute(f"DELETE FROM structures WHERE hash NOT IN ({named})")
        with self._safely():
            self.db.execute("VACUUM")

    def _take(self, item: Record | Winner | tuple[str, KernelGraph]) -> bool:
        if isinstance(item, Record):
            return self._add(item)
        if isinstance(item, Winner):
            return self._add_winner(item)
        self._add_structure(*item)
        return False


def _common(rows: Sequence[Record]) -> dict[str, Any]:
    """The most frequent value of each field in :data:`SHARED`."""
    return {n: Counter(getattr(r, n) for r in rows).most_common(1)[0][0] for n in SHARED} if rows else {}


RECORDS = Table("records", {n: _SQL_TYPES[t] for n, t in KINDS.items()}, KEY, _sound, ("program", "device"))
STRUCTURES = Table("structures", {"hash": "TEXT NOT NULL", "json": "TEXT NOT NULL"}, ("hash",), _sound_structure)
