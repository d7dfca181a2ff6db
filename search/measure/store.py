"""The SQLite file under the tuning records: many processes may open it at once, and nothing in it changes unnoticed.

Every row carries a checksum of its values. SQLite's own check finds what is wrong with pages and indices when a file is opened;
such a file is put aside, and the rows that can still be read and whose checksum is right go into a new one.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import sqlite3
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import ExitStack
from contextlib import closing
from contextlib import contextmanager
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fuser.console import note
from fuser.console import warn
from fuser.errors import EnvironmentError_
from fuser.errors import FuserError
from fuser.errors import ModelFileError
from fuser.errors import UsageError
from fuser.outputs import locked
from fuser.outputs import make_folder

VERSION = 4
"""Of the tables. Those of version 1 had no checksums, those of version 2 no winners, those of version 3 no index."""

OWN = ("records", "records.sqlite")
"""Folder and name of a user's own records, in the cache."""

FORMS = "give records (SQLite), or JSON lines (.jsonl, .jsonl.xz)"

PATIENCE = 60.0
"""Seconds to wait for another process that writes."""

_MACHINE = {
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_AUTH,
}
"""Failures that say nothing about the file itself."""


@dataclass(frozen=True)
class Table:
    """Columns with their SQL types, those that no two rows share, whether values of version 1 make sense, and columns by which
    rows are looked up besides."""

    name: str
    columns: Mapping[str, str]
    key: tuple[str, ...]
    sound: Callable[[Sequence[Any]], bool] = lambda _: True
    asked: tuple[str, ...] = ()

    @property
    def names(self) -> str:
        return ", ".join((*self.columns, "checksum"))

    @property
    def created(self) -> tuple[str, ...]:
        """What SQLite remembers of the table. The trigger refuses what a program that knows of no checksums inserts; it would
        be ignored silently otherwise."""
        columns = ", ".join(f"{n} {t}" for n, t in self.columns.items())
        unique = f"UNIQUE ({', '.join(self.key)})"
        refuse = "SELECT RAISE(ABORT, 'this file belongs to a newer mufuser')"
        return (
            f"CREATE TABLE {self.name} ({columns}, checksum TEXT, {unique})",
            f"CREATE TRIGGER {self.name}_checked BEFORE INSERT ON {self.name} WHEN NEW.checksum IS NULL BEGIN {refuse}; END",
        )

    @property
    def index(self) -> tuple[str, ...]:
        """What SQLite remembers of the columns that are asked for."""
        columns = ", ".join(self.asked)
        return (f"CREATE INDEX {self.name}_asked ON {self.name} ({columns})",) if self.asked else ()

    def insert(self, db: sqlite3.Connection, values: Sequence[Any], replace: bool = False) -> bool:
        """A row, unless an undamaged one with its key is there (or ``replace``); False then."""
        row, marks = (*values, checksum(values)), ", ".join("?" * (len(values) + 1))
        verb = "INSERT OR REPLACE" if replace else "INSERT OR IGNORE"
        done = db.execute(f"{verb} INTO {self.name} ({self.names}) VALUES ({marks})", row).rowcount > 0
        if done or replace:
            return done
        key = [v for n, v in zip(self.columns, values, strict=True) if n in self.key]
        names = [n for n in self.columns if n in self.key]
        found = db.execute(
            f"SELECT {self.names} FROM {self.name} WHERE {' AND '.join(f'{n} = ?' for n in names)}", key
        ).fetchone()
        return self.insert(db, values, replace=True) if found and not intact(found) else False


def checksum(values: Sequence[Any]) -> str:
    """Of the values of a row: 64 bits in hexadecimal."""
    return hashlib.blake2b(json.dumps(list(values)).encode(), digest_size=8).hexdigest()


def intact(row: Sequence[Any]) -> bool:
    """Whether the last value of a row is the checksum of the others."""
    try:
        return row[-1] == checksum(row[:-1])
    except TypeError:  # bytes in place of text: no value that was ever written
        return False


def failure(path: Path | str, error: sqlite3.Error) -> FuserError:
    """What SQLite says of a file, as one of our errors."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _MACHINE:
        hint = "free some space or choose another file; rows that were written before are safe, and the same command goes on"
        return EnvironmentError_(f"cannot use the tuning records {path}: {error}", hint)
    return ModelFileError(f"the tuning records {path} are damaged: {error}", "run again: what is whole will be saved")


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All of the block or, if it raises, nothing of it."""
    if db.in_transaction:  # an interrupt between two lines left it
        db.execute("ROLLBACK")
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            if db.in_transaction:
                db.execute("ROLLBACK")
        raise


def open_store(path: Path | str, tables: Sequence[Table], reading: bool = False) -> sqlite3.Connection:
    """A connection to a file, made where it is missing, brought to this version where it is older. Raises
    :class:`EnvironmentError_` where the machine is at fault and :class:`ModelFileError` for what is no such file; a damaged
    one is put aside first. Where it cannot be written and ``reading`` is enough it is a copy in memory; what is empty then stays
    so."""
    try:
        if reading and path != ":memory:" and os.path.isfile(path) and not os.path.getsize(path):
            return _ready(":memory:", tables)
        return _opened(path, tables)
    except (EnvironmentError_, UsageError) as trouble:
        locked_ = getattr(trouble.__cause__, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        if not reading or locked_ or not os.path.isfile(path):
            raise
        return _copied(Path(path), tables, trouble)


def _copied(path: Path, tables: Sequence[Table], trouble: FuserError) -> sqlite3.Connection:
    """What a file holds that cannot be written. Without room for what SQLite keeps beside it, it has to be taken for one that
    nobody writes."""
    for how in ("mode=ro", "mode=ro&immutable=1"):
        memory = _connect(":memory:")
        with suppress(sqlite3.Error), closing(sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True)) as there:
            there.backup(memory)
            try:
                db = _ready(path, tables, memory)
            except sqlite3.Error as error:
                raise failure(path, error) from error
            warn(f"{path} can only be read: nothing that is measured is kept ({trouble.message})")
            return db
        memory.close()
    raise trouble


def _opened(path: Path | str, tables: Sequence[Table]) -> sqlite3.Connection:
    if path == ":memory:":
        return _ready(path, tables)
    try:
        folder = make_folder(Path(path).parent)
        with locked(folder):
            try:
                return _ready(path, tables)
            except sqlite3.Error as error:
                problem = failure(path, error)
                if isinstance(problem, ModelFileError):
                    if not _was_store(Path(path), tables):  # a file that was named by mistake stays where it is
                        raise ModelFileError(f"{path} holds no tuning records that can be read: {error}", FORMS) from error
                    problem = _put_aside(Path(path), tables, error)
                raise problem from error
    except ValueError as error:
        raise UsageError(f"{str(path)!r} is no name of a file: {error}", "choose another name") from error


def _was_store(path: Path, tables: Sequence[Table]) -> bool:
    """Whether a file that SQLite cannot read was ours once: by its name, or since a description of our tables is in it."""
    if path.absolute().parts[-2:] == OWN:
        return True
    with ExitStack() as stack, suppress(OSError, ValueError):  # it may be of any size, or empty
        file = stack.enter_context(open(path, "rb"))
        data = stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return any(data.find(t.created[0].partition(",")[0].encode()) >= 0 for t in tables)
    return False


def _connect(path: Path | str) -> sqlite3.Connection:
    """Text that is damaged beyond UTF-8 comes with replacements, so that its checksum is wrong."""
    own = str(path) != ":memory:"  # what lies in memory alone is read by every thread, once it is there
    db = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None, check_same_thread=own)
    db.text_factory = partial(str, encoding="utf-8", errors="replace")
    return db


def _ready(path: Path | str, tables: Sequence[Table], db: sqlite3.Connection | None = None) -> sqlite3.Connection:
    db = db or _connect(path)
    try:
        found = [sql for (sql,) in db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid")]
        names = {n for (n,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if found and not names & {t.name for t in tables}:  # before anything is written, the mode of its journal too
            raise ModelFileError(f"{path} is a database of another program", "choose another file")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        if not found:
            with transaction(db):
                _create(db, tables, tables)
            return db
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version not in range(1, VERSION + 1):
            raise ModelFileError(
                f"the tuning records {path} have version {version}, this program reads {VERSION}",
                "export them with the program that wrote them, or choose another file",
            )
        problem = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if problem != "ok":
            raise sqlite3.DatabaseError(f"SQLite's own check finds: {' '.join(problem.split())}")
        if version == 1:
            _migrate(path, db, [t for t in tables if t.name in names])
        there = [t for t in tables if t.name in names]
        written = {sql for t in there for sql in (*t.created, *(t.index if version == VERSION else ()))}
        if version > 1 and set(found) != written:
            raise sqlite3.DatabaseError("the description of its tables is not the one that was written")
        if version < VERSION:
            with transaction(db):
                if db.execute("PRAGMA user_version").fetchone()[0] < VERSION:
                    _create(db, [t for t in tables if t.name not in names], tables)
        elif len(there) < len(tables):
            raise sqlite3.DatabaseError("it lacks a table")
    except UnicodeDecodeError as error:  # of SQLite's own message, which quotes what is damaged
        db.close()
        raise sqlite3.DatabaseError("the description of its tables is no text") from error
    except (sqlite3.Error, FuserError):
        db.close()
        raise
    return db


def _create(db: sqlite3.Connection, tables: Sequence[Table], indexed: Sequence[Table], version: int = VERSION) -> None:
    for sql in (*(s for t in tables for s in t.created), *(s for t in indexed for s in t.index)):
        db.execute(sql)
    db.execute(f"PRAGMA user_version = {version}")


def _migrate(path: Path | str, db: sqlite3.Connection, tables: Sequence[Table]) -> None:
    """Tables without checksums get them. What cannot have been written is left out, since nothing else tells what is damaged."""
    with transaction(db):
        if db.execute("PRAGMA user_version").fetchone()[0] > 1:
            return
        kept = left = 0
        for t in tables:
            there = {row[1] for row in db.execute(f"PRAGMA table_info({t.name})")}
            if there != set(t.columns):
                raise sqlite3.DatabaseError(f"the table {t.name} has other columns than those of version 1")
            db.execute(f"ALTER TABLE {t.name} RENAME TO old_{t.name}")
        _create(db, tables, (), 2)
        for t in tables:
            for row in db.execute(f"SELECT {', '.join(t.columns)} FROM old_{t.name} ORDER BY rowid"):
                good = t.sound(row)
                kept, left = kept + good, left + (not good)
                if good:
                    t.insert(db, row)
            db.execute(f"DROP TABLE old_{t.name}")
    note(f"{path}: {kept} rows of version 1 have checksums now" + (f", {left} damaged ones were left out" if left else ""))


def _put_aside(path: Path, tables: Sequence[Table], why: sqlite3.Error) -> FuserError:
    """Rename a damaged file, save what is whole in it, and say so."""
    aside = move_aside(path)
    saved = 0
    try:
        with closing(_ready(path, tables)) as new, closing(_connect(aside)) as old, transaction(new):
            for t in tables:
                rows = {r for order in ("ASC", "DESC") for r in _readable(old, t, order)}
                saved += sum(t.insert(new, r[1:-1]) for r in sorted(rows, key=lambda r: r[0]))
    except sqlite3.Error as error:
        return failure(path, error)
    rest = f"; {saved} rows of it are whole and in the new {path.name}: run again" if saved else "; run again to start a new one"
    return ModelFileError(f"the tuning records {path} are damaged: {why}", f"the damaged file is now {aside}{rest}")


def _readable(db: sqlite3.Connection, t: Table, order: str) -> Iterator[tuple[Any, ...]]:
    """Rows with a right checksum, up to the first page that cannot be read, the number of the row in front."""
    with suppress(sqlite3.Error, UnicodeDecodeError):
        for row in db.execute(f"SELECT rowid, {t.names} FROM {t.name} NOT INDEXED ORDER BY rowid {order}"):
            if isinstance(row[0], int) and intact(row[1:]):
                yield row


def move_aside(path: Path, why: str = "damaged") -> Path:
    """Rename a file, with what SQLite keeps beside it, to the first free ``NAME.damagedN``; returns that."""
    number = 1
    while (aside := path.with_name(f"{path.name}.{why}{number}")).exists():
        number += 1
    for suffix in ("-wal", "-shm"):
        extra = path.with_name(path.name + suffix)
        if extra.exists():
            extra.rename(aside.with_name(aside.name + suffix))
    path.rename(aside)
    return aside
