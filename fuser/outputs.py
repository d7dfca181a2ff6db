"""Files that we write: whole or not at all, so that a full disk, Ctrl-C or a second process never costs what was there before.

A full disk is an :class:`EnvironmentError_`, a place that cannot be written a :class:`UsageError`; both name the file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from contextlib import suppress
from pathlib import Path
from typing import IO
from typing import Any

from fuser.errors import EnvironmentError_
from fuser.errors import FuserError
from fuser.errors import UsageError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""Errors of the machine and not of the place: no space, no memory, no more open files."""


def write_file(path: Path | str, data: str | bytes, lasting: bool = True) -> None:
    """Put ``data`` (text as UTF-8; what cannot be encoded, escaped) in the place of a file. One that need not be ``lasting`` may
    be damaged where the machine stops a moment later."""
    with replacing(path, lasting) as file:
        file.write(data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data)


@contextmanager
def replacing(path: Path | str, lasting: bool = True) -> Iterator[IO[bytes]]:
    """A file to write to, which takes the place of ``path`` when the block ends well; until then, and otherwise, what was there
    stays. Links are followed; what is no file (a pipe, ``/dev/stdout``) is written to directly."""
    with writing(path):
        target = Path(os.path.realpath(path))
        if target.is_symlink():  # a loop: realpath gives up without an error
            target.stat()
        if _special(target):
            with target.open("wb") as file:
                yield file
            return
        partial = target.with_name(f".{uuid.uuid4().hex[:12]}.partial")
        try:
            with partial.open("xb") as file:
                yield file
                file.flush()
                if lasting:  # a file system may say only now that it is full
                    os.fsync(file.fileno())
            with suppress(FileNotFoundError):
                partial.chmod(stat.S_IMODE(target.stat().st_mode))
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)


def replace_by(path: Path | str, write: Callable[[Path], Any]) -> None:
    """Put what ``write`` writes to the path that it is given in the place of a file: for libraries that open files themselves.
    That path has the suffix of ``path``."""
    with writing(path):
        target = Path(os.path.realpath(path))
        partial = target.with_name(f".{uuid.uuid4().hex[:12]}.partial{target.suffix}")
        try:
            write(partial)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)


def make_folder(path: Path | str) -> Path:
    """The folder, made with its parents where it is missing; raises where no file can be made in it."""
    with writing(path):
        Path(path).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return Path(path)


@contextmanager
def promised(path: Path | str) -> Iterator[Path]:
    """:func:`make_folder`, for a block that will write to it: if that fails, folders that were made and are still empty go."""
    folder = Path(os.path.abspath(path))
    with writing(path):
        made = [p for p in (folder, *folder.parents) if not os.path.lexists(p)]
    try:
        yield make_folder(path)
    except BaseException:
        for p in made:
            with suppress(OSError):
                p.rmdir()
        raise


@contextmanager
def writing(path: Path | str) -> Iterator[None]:
    """Errors of the operating system while ``path`` is written, as ours."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error
    except ValueError as error:
        if "null byte" not in str(error):
            raise
        raise UsageError(f"{str(path)!r} is no name of a file", "give a place that can be written") from error


def cannot_write(path: Path | str, error: OSError) -> FuserError:
    """The error for a file or folder that could not be written."""
    what = f"cannot write {path}: {error.strerror or error}"
    if error.errno in FULL:
        return EnvironmentError_(what, "free some space or write to another place; what was there before is as it was")
    return UsageError(what, "give a place that can be written; what was there before is as it was")


@contextmanager
def locked(folder: Path | str) -> Iterator[None]:
    """Other processes (and threads) that ask for the same folder wait until the block ends. Where the file system has no locks
    nobody waits."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise cannot_write(folder, error) from error
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _special(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)
