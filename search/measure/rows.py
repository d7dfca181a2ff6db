"""Rows of tuning records: what a measurement is of, and its form in tables and in lines of JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import MISSING
from dataclasses import dataclass
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fuser.agreement import SINGLE
from fuser.agreement import TOLERANCE
from fuser.errors import FuserError
from fuser.errors import ModelFileError
from fuser.ir.hashing import canonical
from fuser.ir.mugraph import KernelGraph
from fuser.ir.schedule import Schedule
from fuser.ir.serialize import graph_from_json
from search.measure.lines import BAD_LINE
from search.measure.lines import bad_line
from search.measure.lines import numbered_lines
from search.measure.lines import typed
from search.measure.measurement import STATUSES
from search.measure.measurement import Measurement
from search.measure.store import checksum
from search.measure.winners import Winner


@dataclass(frozen=True)
class Record:
    """A measurement with what it is of and where it was made.

    ``kind`` is ``kernel`` for a µGraph with a schedule and ``peer`` for another implementation (``structure`` then has its
    name). ``repeat`` is empty for the first measurement of a kernel; peers and kernels measured again, beside others, have the
    name of the run there. ``generator`` is the hash of the lowering's source, ``source`` that of the kernels' text.
    """

    workload: str
    program: str
    structure: str
    schedule: str
    source: str
    device: str
    compiler: str
    measurement: Measurement = Measurement()
    kind: str = "kernel"
    repeat: str = ""
    dtype: str = "float16"
    seed: int = 0
    generator: str = ""
    environment: str = ""
    batch: str = ""
    timestamp: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(getattr(self, n) for n in KEY)

    @property
    def ok(self) -> bool:
        """Whether it was right, as that is judged today: once a wrong element could pass by its share of a norm."""
        m = self.measurement
        return m.ok and (m.error_max or 0.0) <= SINGLE * TOLERANCE.get(self.dtype, math.inf)

    @property
    def status(self) -> str:
        return self.measurement.status

    @property
    def detail(self) -> str:
        return self.measurement.detail

    @property
    def time_us(self) -> float | None:
        return self.measurement.time_us

    def schedule_value(self) -> Schedule:
        """Raises :class:`ModelFileError` where the text is none."""
        try:
            return _schedule(self.schedule)
        except (FuserError, *BAD_LINE) as error:
            what = f"a tuning record of {self.workload} has no schedule: {self.schedule[:60]!r}"
            raise ModelFileError(what, "restore the file that it came from") from error

    @property
    def cells(self) -> dict[str, Any]:
        """The value of each column."""
        flat = vars(self) | vars(self.measurement)
        return {n: flat[n] for n in COLUMNS}

    def values(self) -> tuple[Any, ...]:
        """The cells as a table keeps them: nothing infinite, no negative zero, text that can be encoded."""
        return tuple(_CASTS[KINDS[n]](v) for n, v in self.cells.items())

    def to_json(self, common: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
        """The cells that differ from ``common`` and, where that says nothing, from their defaults."""
        usual = _USUAL | dict(common)
        return {k: v for k, v in self.cells.items() if k not in usual or v != usual[k]}


COLUMNS = (
    *("workload", "program", "structure", "schedule", "source", "device", "compiler", "kind", "repeat", "dtype"),
    *("status", "time_us", "min_us", "spread", "error_fro", "error_max", "detail"),
    *("grid", "shared_bytes", "registers", "spills", "kernels", "calls", "replays", "seed", "seconds"),
    *("generator", "environment", "batch", "timestamp"),
)
"""Of a table, in the order that checksums go by."""

KEY = ("workload", "program", "structure", "schedule", "source", "device", "compiler", "dtype", "kind", "repeat")
"""What must not be measured twice."""

_MEASURED = frozenset(f.name for f in fields(Measurement))
_FIELDS = {f.name: f for part in (Record, Measurement) for f in fields(part) if f.name in COLUMNS}
_USUAL = {n: f.default for n, f in _FIELDS.items() if f.default is not MISSING}

KINDS: Mapping[str, str] = {n: str(_FIELDS[n].type) for n in COLUMNS}
"""The type of each column."""


def record_of(cells: Mapping[str, Any]) -> Record:
    """The record with these cells; those that are missing have their defaults."""
    found = Measurement(**{n: v for n, v in cells.items() if n in _MEASURED})
    return Record(measurement=found, **{n: v for n, v in cells.items() if n not in _MEASURED})


def _text(value: Any) -> str:
    return str(value) if str(value).isascii() else str(value).encode("utf-8", "backslashreplace").decode()


def _number(value: Any) -> float | None:
    return float(value) + 0.0 if value is not None and math.isfinite(value) else None


_CASTS: Mapping[str, Callable[[Any], Any]] = {
    "str": _text,
    "int": int,
    "float": lambda x: _number(x) or 0.0,
    "float | None": _number,
}


@lru_cache(maxsize=1 << 14)
def _schedule(text: str) -> Schedule:
    return Schedule.from_json(json.loads(text))


@lru_cache(maxsize=1 << 10)  # most structures are in several files
def _graph(text: str) -> KernelGraph:
    return graph_from_json(json.loads(text))


def record_from_json(data: Mapping[str, Any]) -> Record:
    """A record from its JSON form; fields that are missing, of another type or of newer versions are an error that names them,
    and so is a checksum that does not fit."""
    if unknown := sorted(set(data) - set(COLUMNS) - {"checksum"}):
        raise ModelFileError(f"a tuning record has the unknown fields {', '.join(unknown)[:200]}", "update mufuser")
    if missing := [n for n in COLUMNS if n not in data and n not in _USUAL]:
        raise ModelFileError(f"a tuning record lacks the fields {', '.join(missing)}", "restore it")
    values = {}
    for name in data.keys() - {"checksum"}:
        try:
            values[name] = typed(data[name], KINDS[name])
        except ValueError as error:
            raise ModelFileError(f"the field {name} of a tuning record is wrong: {error}", "restore it") from error
    record = record_of(values)
    if record.status not in STATUSES:
        raise ModelFileError(f"a tuning record has the unknown status {record.status[:40]!r}", "update mufuser")
    if record.status == "ok" and record.time_us is not None and record.time_us <= 0:
        raise ModelFileError(f"a tuning record has the time {record.time_us:g} µs", "restore it")
    if "checksum" in data and data["checksum"] != checksum(record.values()):
        raise ModelFileError("a tuning record does not fit its checksum", "restore it")
    return record


def winner_of(item: Mapping[str, Any]) -> Winner:
    """Of a line; raises :class:`ValueError` where it is not what was written."""
    kinds = {f.name: str(f.type) for f in fields(Winner)}
    if set(item["winner"]) != set(kinds):
        raise ValueError("it is no winner of this version")
    found = Winner(**{n: typed(v, kinds[n]) for n, v in item["winner"].items()})
    if item["checksum"] != checksum(found.values()):
        raise ValueError("it does not fit its checksum")
    if not found.time_us > 0:
        raise ValueError(f"its time is {found.time_us:g} µs")
    return found


def read_rows(path: Path) -> Iterator[Record | Winner | tuple[str, KernelGraph]]:
    """What a file of lines holds, checked: rows and winners, and before them their structures with the hashes by which they name
    them. Raises :class:`ModelFileError` with the number of the line."""
    common: dict[str, Any] = {}
    for number, item in numbered_lines(path):
        try:
            if "graph" in item:
                graph = _graph(canonical(item["graph"]))
                if graph.stable_hash() != item["structure"]:
                    raise ValueError("its µGraph is not the one that its hash names")
                yield item["structure"], graph
            elif "winner" in item:
                yield winner_of(item)
            elif "common" in item:
                common = dict(item["common"])
            elif "about" not in item:
                yield record_from_json(common | item)
        except FuserError as error:
            raise bad_line(path, number, error.message) from error
        except BAD_LINE as error:
            raise bad_line(path, number, f"{type(error).__name__}: {str(error)[:200]}") from error
