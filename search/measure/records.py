"""Tuning records: every measurement is a row of one SQLite file and stays; nothing is timed twice.

A row is identified by the workload, the program, the structure, the schedule, the text of the generated kernels, the device and
the compiler. Each row is committed by itself, so that an interrupted run loses nothing; JSON lines carry rows between machines
and into a repository.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import sqlite3
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import MISSING
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import fields
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fuser.console import warn
from fuser.errors import EnvironmentError_
from fuser.errors import FuserError
from fuser.errors import ModelFileError
from fuser.errors import UsageError
from fuser.ir.hashing import canonical
from fuser.ir.mugraph import KernelGraph
from fuser.ir.schedule import Schedule
from fuser.ir.serialize import graph_from_json
from fuser.outputs import replacing
from fuser.outputs import write_file
from search.measure.lines import BAD_LINE
from search.measure.lines import bad_line
from search.measure.lines import numbered_lines
from search.measure.lines import typed
from search.measure.lines import writer
from search.measure.store import Table
from search.measure.store import checksum
from search.measure.store import failure
from search.measure.store import fetch
from search.measure.store import intact
from search.measure.store import open_store
from search.measure.store import transaction

STATUSES = ("ok", "unsupported", "invalid", "compile", "resources", "wrong", "nan", "timeout", "crash")
"""``ok``, or the class of the failure: the generator refused (unsupported, invalid), the compiler did, the device lacks shared
memory or registers, the numbers are wrong or not numbers, the kernel hung, the process died."""


@dataclass(frozen=True)
class Record:
    """One measurement of one candidate. Times are microseconds of one call, from graph replays: median, least, and ``spread`` as
    the 10th to 90th percentile over the median. Errors are relative to float64: Frobenius norm, and largest over the largest
    value.

    ``kind`` is ``kernel`` for a µGraph with a schedule and ``peer`` for another implementation (``structure`` then has its
    name). ``repeat`` is empty for the first measurement of a kernel; peers and kernels measured again, beside others, have the
    name of the run there. ``seconds`` is what finding this out cost. ``generator`` is the hash of the lowering's source,
    ``source`` that of the kernels' text.
    """

    workload: str
    program: str
    structure: str
    schedule: str
    source: str
    device: str
    compiler: str
    kind: str = "kernel"
    repeat: str = ""
    dtype: str = "float16"
    status: str = "ok"
    time_us: float | None = None
    min_us: float | None = None
    spread: float | None = None
    error_fro: float | None = None
    error_max: float | None = None
    detail: str = ""
    grid: int = 0
    shared_bytes: int = 0
    registers: int = -1
    spills: int = -1
    kernels: int = 1
    calls: int = 0
    replays: int = 0
    seed: int = 0
    seconds: float = 0.0
    generator: str = ""
    environment: str = ""
    batch: str = ""
    timestamp: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(getattr(self, n) for n in KEY)

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    def schedule_value(self) -> Schedule:
        """Raises :class:`ModelFileError` where the text is none."""
        try:
            return Schedule.from_json(json.loads(self.schedule))
        except (FuserError, *BAD_LINE) as error:
            what = f"a tuning record of {self.workload} has no schedule: {self.schedule[:60]!r}"
            raise ModelFileError(what, "restore the file that it came from") from error

    def values(self) -> tuple[Any, ...]:
        """The fields in order, as a row keeps them: nothing infinite, no negative zero, text that can be encoded."""
        return tuple(_CASTS[n](getattr(self, n)) for n in _TYPES)

    def to_json(self, common: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
        """The fields that differ from ``common`` and, where that says nothing, from their defaults."""
        usual = {f.name: f.default for f in fields(self)} | dict(common)
        return {k: v for k, v in asdict(self).items() if v != usual[k]}


SHARED = ("device", "compiler", "generator", "environment")
"""Fields that nearly all rows of a run share."""

KEY = ("workload", "program", "structure", "schedule", "source", "device", "compiler", "dtype", "kind", "repeat")
"""What must not be measured twice."""

_TYPES = {f.name: str(f.type) for f in fields(Record)}
_SQL_TYPES = {"str": "TEXT NOT NULL", "int": "INTEGER NOT NULL", "float": "REAL NOT NULL", "float | None": "REAL"}


def _text(value: Any) -> str:
    return str(value) if str(value).isascii() else str(value).encode("utf-8", "backslashreplace").decode()


def _number(value: Any) -> float | None:
    return float(value) + 0.0 if value is not None and math.isfinite(value) else None


_PYTHON: Mapping[str, Callable[[Any], Any]] = {
    "str": _text,
    "int": int,
    "float": lambda x: _number(x) or 0.0,
    "float | None": _number,
}
_CASTS = {n: _PYTHON[t] for n, t in _TYPES.items()}


def _sound(values: Sequence[Any]) -> bool:
    """Whether a row without a checksum can have been written."""
    try:
        record = record_from_json(dict(zip(_TYPES, values, strict=True)))
        return record.kind == "peer" or bool(record.schedule_value())
    except ModelFileError:
        return False


def _sound_structure(values: Sequence[Any]) -> bool:
    try:
        return graph_from_json(json.loads(values[1])).stable_hash() == values[0]
    except (FuserError, *BAD_LINE):
        return False


def schedule_text(schedule: Schedule) -> str:
    """Canonical JSON of a schedule, as rows keep it."""
    return canonical(schedule.to_json())


def text_hash(*texts: str) -> str:
    """First 16 hexadecimal digits of the SHA-256 of texts, one after another."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def generator_version() -> str:
    """Hash of the source of everything between a structure with a schedule and its kernels: all of ``fuser.ir`` and
    ``fuser.lower``, since a list of those that matter would miss the next one."""
    import fuser.ir as ir
    import fuser.lower as lower

    files = [f for package in (ir, lower) for f in sorted(Path(package.__path__[0]).rglob("*.py"))]
    return text_hash(*(f.read_text() for f in files))


class Records:
    """The table of one file (``":memory:"`` keeps nothing). Several processes may read and write it at once. Rows that are
    damaged are as good as none, and said so once; ``damaged`` counts them."""

    def __init__(self, path: Path | str) -> None:
        self.path = path
        self.damaged: set[tuple[str, Any]] = set()
        self.db = open_store(path, (RECORDS, STRUCTURES))
        self._file = self._there()

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

    def add_structure(self, graph: KernelGraph) -> str:
        """Keep a structure by its hash, which rows refer to; returns the hash."""
        with self._writing():
            return self._add_structure(graph)

    def _add_structure(self, graph: KernelGraph) -> str:
        digest = graph.stable_hash()
        STRUCTURES.insert(self.db, (digest, canonical(graph.to_json())))
        return digest

    # -- reading ------------------------------------------------------------------------------------------------------------

    def structure(self, digest: str) -> KernelGraph | None:
        found = next((text for _, text in self._select(STRUCTURES, "hash = ?", (digest,))), None)
        return graph_from_json(json.loads(found)) if found else None

    def find(self, key: tuple[str, ...]) -> Record | None:
        """The row with this key (:attr:`Record.key`), if it was ever measured."""
        return next(self._records(" AND ".join(f"{n} = ?" for n in KEY), key), None)

    def rows(self, **where: Any) -> Iterator[Record]:
        """Rows whose columns have the given values, in the order in which they were added."""
        if unknown := sorted(set(where) - set(_TYPES)):
            raise UsageError(f"tuning records have no columns {', '.join(unknown)}")
        return self._records(" AND ".join(f"{k} = ?" for k in where) or "1", tuple(where.values()))

    def best(self, workload: str, device: str, kind: str = "kernel") -> Record | None:
        """The fastest correct row of a workload on a device."""
        sql = "workload = ? AND device = ? AND kind = ? AND status = 'ok'"
        return next(self._records(sql, (workload, device, kind), "time_us IS NULL, time_us, rowid"), None)

    def __len__(self) -> int:
        with self._safely():
            return self.db.execute("SELECT COUNT(*) FROM records").fetchone()[0]

    def _records(self, where: str, values: Sequence[Any], order: str = "rowid") -> Iterator[Record]:
        return (Record(*row) for row in self._select(RECORDS, where, values, order))

    def _select(self, table: Table, where: str, values: Sequence[Any], order: str = "rowid") -> Iterator[tuple[Any, ...]]:
        """The undamaged rows."""
        with self._safely():
            for row in fetch(self.db, f"SELECT {table.names} FROM {table.name} WHERE {where} ORDER BY {order}", values):
                if intact(row):
                    yield row[:-1]
                    continue
                if not self.damaged:
                    warn(f"{self.path}: damaged rows are left out, and what they were about is measured again")
                self.damaged.add(row)

    # -- in and out ---------------------------------------------------------------------------------------------------------

    def export_lines(self, path: Path, about: Mapping[str, Any] | None = None, **where: Any) -> int:
        """Structures and rows as JSON lines, packed where the name ends in ``.xz``; returns the number of rows. A line
        ``{"common": …}`` has the values that most rows share (machine, versions); rows after it leave them out. Rows have the
        checksum of all their values. ``about`` is a first line for people."""
        rows = list(self.rows(**where))
        used = {r.structure for r in rows}
        common = _common(rows)

        def line(value: dict[str, Any]) -> bytes:
            return json.dumps(value, separators=(",", ":")).encode() + b"\n"

        with replacing(path) as place, writer(path, place) as file:
            if about:
                file.write(line({"about": about}))
            for digest, text in self._select(STRUCTURES, "1", (), "hash"):
                if digest in used:
                    file.write(line({"structure": digest, "graph": json.loads(text)}))
            file.write(line({"common": common}))
            for row in rows:
                file.write(line(row.to_json(common) | {"checksum": checksum(row.values())}))
        return len(rows)

    def export_csv(self, path: Path, **where: Any) -> int:
        """Rows as CSV with a header, without structures."""
        rows = [asdict(r) for r in self.rows(**where)]
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(_TYPES))
        writer.writeheader()
        writer.writerows(rows)
        write_file(path, text.getvalue())
        return len(rows)

    def import_lines(self, path: Path) -> int:
        """Add what :meth:`export_lines` wrote, all of it or, where something is wrong with it, nothing; rows that are there stay
        as they are. Returns how many were new. Raises :class:`ModelFileError` with the number of the line."""
        with self._writing():
            return sum(self._add(r) for r in self._read(path))

    def _read(self, path: Path) -> Iterator[Record]:
        common: dict[str, Any] = {}
        for number, item in numbered_lines(path):
            try:
                if "graph" in item:
                    if self._add_structure(graph_from_json(item["graph"])) != item["structure"]:
                        raise ValueError("its µGraph is not the one that its hash names")
                elif "common" in item:
                    common = dict(item["common"])
                elif "about" not in item:
                    yield record_from_json(common | item)
            except FuserError as error:
                raise bad_line(path, number, error.message) from error
            except BAD_LINE as error:
                raise bad_line(path, number, f"{type(error).__name__}: {str(error)[:200]}") from error


def record_from_json(data: dict[str, Any]) -> Record:
    """A record from its JSON form; fields that are missing, of another type or of newer versions are an error that names them,
    and so is a checksum that does not fit."""
    if unknown := sorted(set(data) - set(_TYPES) - {"checksum"}):
        raise ModelFileError(f"a tuning record has the unknown fields {', '.join(unknown)[:200]}", "update mufuser")
    if missing := [f.name for f in fields(Record) if f.default is MISSING and f.name not in data]:
        raise ModelFileError(f"a tuning record lacks the fields {', '.join(missing)}", "restore it")
    values = {}
    for name in data.keys() - {"checksum"}:
        try:
            values[name] = typed(data[name], _TYPES[name])
        except ValueError as error:
            raise ModelFileError(f"the field {name} of a tuning record is wrong: {error}", "restore it") from error
    record = Record(**values)
    if record.status not in STATUSES:
        raise ModelFileError(f"a tuning record has the unknown status {record.status[:40]!r}", "update mufuser")
    if "checksum" in data and data["checksum"] != checksum(record.values()):
        raise ModelFileError("a tuning record does not fit its checksum", "restore it")
    return record


def rounded(record: Record) -> Record:
    """Times to the nanosecond, errors to four digits: what is worth committing."""

    def digits(x: float | None) -> float | None:
        return None if x is None else float(f"{x:.4g}")

    return replace(
        record,
        time_us=None if record.time_us is None else round(record.time_us, 3),
        min_us=None if record.min_us is None else round(record.min_us, 3),
        spread=digits(record.spread),
        error_fro=digits(record.error_fro),
        error_max=digits(record.error_max),
        seconds=round(record.seconds, 3),
    )


def _common(rows: Sequence[Record]) -> dict[str, Any]:
    """The most frequent value of each field in :data:`SHARED`."""
    return {n: Counter(getattr(r, n) for r in rows).most_common(1)[0][0] for n in SHARED} if rows else {}


def best_of(rows: Iterable[Record]) -> dict[str, Record]:
    """The fastest correct row of each workload."""
    found: dict[str, Record] = {}
    for r in rows:
        if r.ok and r.time_us is not None and (r.workload not in found or r.time_us < (found[r.workload].time_us or math.inf)):
            found[r.workload] = r
    return found


RECORDS = Table("records", {n: _SQL_TYPES[t] for n, t in _TYPES.items()}, KEY, _sound)
STRUCTURES = Table("structures", {"hash": "TEXT NOT NULL", "json": "TEXT NOT NULL"}, ("hash",), _sound_structure)
