"""Tuning records: every measurement is a row of one SQLite file and stays; nothing is timed twice.

A row is identified by the workload, the program, the structure, the schedule, the text of the generated kernels, the device and
the compiler. Each row is committed by itself, so that an interrupted run loses nothing; JSON lines carry rows between machines
and into a repository.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import sqlite3
from collections import Counter
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import fields
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fuser.errors import EnvironmentError_
from fuser.errors import ModelFileError
from fuser.errors import UsageError
from fuser.ir.mugraph import KernelGraph
from fuser.ir.schedule import Schedule
from fuser.ir.serialize import graph_from_json
from fuser.ir.serialize import graph_to_json

VERSION = 1
"""Version of the table."""

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
        return Schedule.from_json(json.loads(self.schedule))

    def to_json(self, common: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
        """The fields that differ from ``common`` and, where that says nothing, from their defaults."""
        usual = {f.name: f.default for f in fields(self)} | dict(common)
        return {k: v for k, v in asdict(self).items() if v != usual[k]}


SHARED = ("device", "compiler", "generator", "environment")
"""Fields that nearly all rows of a run share."""

KEY = ("workload", "program", "structure", "schedule", "source", "device", "compiler", "dtype", "kind", "repeat")
"""What must not be measured twice."""

_SQL_TYPES = {"str": "TEXT NOT NULL", "int": "INTEGER NOT NULL", "float": "REAL NOT NULL", "float | None": "REAL"}


def schedule_text(schedule: Schedule) -> str:
    """Canonical JSON of a schedule, as rows keep it."""
    return json.dumps(schedule.to_json(), sort_keys=True, separators=(",", ":"))


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

    files = [f for package in (ir, lower) for f in sorted(Path(package.__path__[0]).glob("*.py"))]
    return text_hash(*(f.read_text() for f in files))


class Records:
    """The table of one file (``":memory:"`` keeps nothing). Several processes may read and write it at once."""

    def __init__(self, path: Path | str) -> None:
        self.path = path
        if path != ":memory:":
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        try:
            self.db = self._open()
        except sqlite3.OperationalError as error:  # locked, no permission, disk full: the file itself may be well
            raise EnvironmentError_(
                f"cannot open the tuning records {path}: {error}", "choose another file or free it"
            ) from error
        except sqlite3.DatabaseError as error:
            aside = _move_aside(Path(path))
            raise ModelFileError(
                f"the tuning records {path} are damaged: {error}",
                f"the file is now {aside}; run again to start a new one, and import what you exported (Records.import_lines)",
            ) from error

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=60)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            version = db.execute("PRAGMA user_version").fetchone()[0]
            exists = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'records'").fetchone()
            if exists and version != VERSION:
                raise ModelFileError(
                    f"the tuning records {self.path} have version {version}, this program reads {VERSION}",
                    "export them with the program that wrote them, or choose another file",
                )
            if not exists:
                columns = ", ".join(f"{f.name} {_SQL_TYPES[str(f.type)]}" for f in fields(Record))
                with db:
                    db.execute(f"CREATE TABLE IF NOT EXISTS records ({columns}, UNIQUE ({', '.join(KEY)}))")
                    db.execute("CREATE TABLE IF NOT EXISTS structures (hash TEXT PRIMARY KEY, json TEXT NOT NULL)")
                    db.execute(f"PRAGMA user_version = {VERSION}")
            elif db.execute("PRAGMA quick_check").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("the file fails SQLite's own check")
        except (sqlite3.DatabaseError, ModelFileError):
            db.close()
            raise
        return db

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.db.close()

    # -- writing ------------------------------------------------------------------------------------------------------------

    def add(self, record: Record, again: bool = False) -> bool:
        """Keep a record, committed at once. A key that is there already is left as it is and False returned, unless ``again``."""
        if record.status not in STATUSES:
            raise ValueError(f"unknown status {record.status!r}")
        names = [f.name for f in fields(Record)]
        values = [_finite(getattr(record, n)) for n in names]
        verb = "INSERT OR REPLACE" if again else "INSERT OR IGNORE"
        with self.db:
            done = self.db.execute(f"{verb} INTO records ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})", values)
        return done.rowcount > 0

    def add_structure(self, graph: KernelGraph) -> str:
        """Keep a structure by its hash, which rows refer to; returns the hash."""
        digest = graph.stable_hash()
        with self.db:
            text = json.dumps(graph_to_json(graph), sort_keys=True, separators=(",", ":"))
            self.db.execute("INSERT OR IGNORE INTO structures VALUES (?, ?)", (digest, text))
        return digest

    # -- reading ------------------------------------------------------------------------------------------------------------

    def structure(self, digest: str) -> KernelGraph | None:
        row = self.db.execute("SELECT json FROM structures WHERE hash = ?", (digest,)).fetchone()
        return graph_from_json(json.loads(row[0])) if row else None

    def find(self, key: tuple[str, ...]) -> Record | None:
        """The row with this key (:attr:`Record.key`), if it was ever measured."""
        return next(self._select(" AND ".join(f"{n} = ?" for n in KEY), key), None)

    def rows(self, **where: Any) -> Iterator[Record]:
        """Rows whose columns have the given values, in the order in which they were added."""
        if unknown := sorted(set(where) - {f.name for f in fields(Record)}):
            raise UsageError(f"tuning records have no columns {', '.join(unknown)}")
        return self._select(" AND ".join(f"{k} = ?" for k in where) or "1", tuple(where.values()))

    def best(self, workload: str, device: str, kind: str = "kernel") -> Record | None:
        """The fastest correct row of a workload on a device."""
        sql = "workload = ? AND device = ? AND kind = ? AND status = 'ok' ORDER BY time_us, rowid LIMIT 1"
        return next(self._select(sql, (workload, device, kind), ordered=False), None)

    def __len__(self) -> int:
        return self.db.execute("SELECT COUNT(*) FROM records").fetchone()[0]

    def _select(self, where: str, values: tuple[Any, ...], ordered: bool = True) -> Iterator[Record]:
        names = [f.name for f in fields(Record)]
        sql = f"SELECT {', '.join(names)} FROM records WHERE {where}{' ORDER BY rowid' if ordered else ''}"
        for row in self.db.execute(sql, values):
            yield Record(*row)

    # -- in and out ---------------------------------------------------------------------------------------------------------

    def export_lines(self, path: Path, **where: Any) -> int:
        """Structures and rows as JSON lines; returns the number of rows. A line ``{"common": …}`` has the values that most rows
        share (machine, versions); rows after it leave them out."""
        rows = list(self.rows(**where))
        used = {r.structure for r in rows}
        common = _common(rows)

        def line(value: dict[str, Any]) -> str:
            return json.dumps(value, separators=(",", ":")) + "\n"

        with path.open("w") as file:
            for digest, text in self.db.execute("SELECT hash, json FROM structures ORDER BY hash"):
                if digest in used:
                    file.write(line({"structure": digest, "graph": json.loads(text)}))
            file.write(line({"common": common}))
            for row in rows:
                file.write(line(row.to_json(common)))
        return len(rows)

    def export_csv(self, path: Path, **where: Any) -> int:
        """Rows as CSV with a header, without structures."""
        rows = [asdict(r) for r in self.rows(**where)]
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, [f.name for f in fields(Record)])
            writer.writeheader()
            writer.writerows(rows)
        return len(rows)

    def import_lines(self, path: Path) -> int:
        """Add what :meth:`export_lines` wrote; rows that are there stay as they are. Returns how many were new."""
        return sum(self.add(r) for r in self._read(path))

    def _read(self, path: Path) -> Iterator[Record]:
        common: dict[str, Any] = {}
        for item in read_lines(path):
            if "graph" in item:
                self.add_structure(graph_from_json(item["graph"]))
            elif "common" in item:
                common = item["common"]
            else:
                yield record_from_json(common | item)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON documents of a file of lines; a last line that was cut off is left out, any other bad line is an error."""
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                return
            raise ModelFileError(
                f"{path}, line {number}, is not JSON: {error.msg}", "restore the file from its repository"
            ) from error


def record_from_json(data: dict[str, Any]) -> Record:
    """A record from its JSON form; fields of newer versions are an error that names them."""
    known = {f.name for f in fields(Record)}
    if unknown := sorted(set(data) - known):
        raise ModelFileError(f"a tuning record has the unknown fields {', '.join(unknown)}", "update mufuser")
    return Record(**data)


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


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _move_aside(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged{number}")).exists():
        number += 1
    path.rename(aside)
    for suffix in ("-wal", "-shm"):
        extra = path.with_name(path.name + suffix)
        if extra.exists():
            extra.rename(aside.with_name(aside.name + suffix))
    return aside
