"""Compilers may end their process by an assertion: a process that is nobody's child has kernels compiled by one that stays for
that. What was begun and has not ended, since its compiler's process died, of it or meanwhile, is compiled in a process of its
own; where that dies too, the cache folder keeps why, and no process dies of it again."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from pathlib import Path
from typing import TypeVar

from fuser import kept
from fuser.errors import DiedError
from fuser.errors import EnvironmentError_
from fuser.errors import said
from fuser.lower.quiet import heard
from fuser.outputs import FULL
from fuser.pools import alone
from fuser.pools import careful
from fuser.pools import elsewhere
from fuser.pools import may_start

R = TypeVar("R")
HINT = "another schedule of the program may compile: this one is not tried again"
TELLING = ("Assertion", "LLVM ERROR", "error:", "terminate called")
"""What the line has that says why."""


def attempt(path: Path, name: str, work: Callable[..., R], *args: object) -> R:
    """``work(*args)``, the compilation of a kernel whose file is to be ``path``: here in a child, but in another process where
    one that began it is no more, or this one takes care (:func:`fuser.pools.careful`). Raises :class:`DiedError` where that
    dies, or one died so before."""
    mark = path.with_suffix(".begun")
    for why in kept.read(mark):
        raise DiedError(f"the compiler died of {name}: {why}", HINT)
    with _begun(mark) as unfinished:
        apart = alone if unfinished or careful() else elsewhere if parent_process() is None else None
        if apart is None or not may_start():
            return work(*args)
        try:
            return _apart(apart, work, *args)
        except DiedError as error:
            if not error.outside:
                kept.write(mark, error.message)
            raise DiedError(f"the compiler died of {name}: {error.message}", HINT, error.ended, error.outside) from error


@contextmanager
def _begun(mark: Path) -> Iterator[bool]:
    """Marks what is compiled while it is; whether the mark was there, of a process that has ended."""
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        file = mark.open("ab")
    except OSError:  # nothing can be kept
        yield False
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            before = file.tell() > 0
            file.write(b"begun\n")
            file.flush()
        except OSError:  # another process is at it
            yield False
            return
        try:
            yield before
        except DiedError:
            raise
        except BaseException:
            mark.unlink(missing_ok=True)
            raise
        mark.unlink(missing_ok=True)


def _apart(apart: Callable[..., R], work: Callable[..., R], *args: object) -> R:
    """What another process answers; this one where none can be started. What it says as it dies is why."""
    try:
        folder = tempfile.mkdtemp(prefix="mufuser-")
    except OSError:  # nowhere to hear it
        return work(*args)
    told = Path(folder) / "told"
    try:
        return apart(_told, told, work, *args)
    except (DiedError, OSError) as error:
        if not told.exists():
            return work(*args)
        if not isinstance(error, DiedError):
            raise
        lines = told.read_text(errors="replace").splitlines()
        told_why = next((line for line in reversed(lines) if any(t in line for t in TELLING)), "")
        how = error.message.rpartition(": ")[2]
        raise DiedError(f"{told_why[-200:]} ({how})" if told_why else how, ended=error.ended, outside=error.outside) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _told(path: Path, work: Callable[..., R], *args: object) -> R:
    path.touch()
    with heard(str(path)):
        return work(*args)


def unwritten(name: str, cache: Path, error: OSError) -> EnvironmentError_:
    """Where a compiler could not write."""
    why = error.strerror or said(error)
    if error.errno in FULL or error.errno is None:
        room = f"free some space: compilers write to {cache}, to {tempfile.gettempdir()} and to Triton's cache"
        return EnvironmentError_(f"{name} cannot be compiled: {why}", room)
    place = f"{error.filename}: " if error.filename else ""
    return EnvironmentError_(
        f"{name} cannot be compiled: {place}{why}",
        f"set MUFUSER_CACHE (now {cache}) and TRITON_CACHE_DIR to folders that can be written",
    )
