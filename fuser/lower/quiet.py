"""What compilers print where they fail: all of their intermediate code, on the process's own standard output and error."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextlib import suppress
from contextvars import ContextVar
from typing import IO

WANTED = ("MLIR_ENABLE_DUMP", "LLVM_IR_ENABLE_DUMP", "MLIR_ENABLE_DIAGNOSTICS", "MLIR_ENABLE_REMARK", "MLIR_ENABLE_TIMING")
"""Variables by which somebody asks Triton for it."""
MOST = 1 << 16
"""Bytes of it that are looked at."""
_ONE = threading.RLock()
_HEARD: ContextVar[str] = ContextVar("heard", default="")


@contextmanager
def quiet(said: list[str]) -> Iterator[None]:
    """Nothing is printed, by no library either; lines that say ``error:`` are in ``said`` when it ends. Where several threads
    compile, one does so at a time."""
    if any(os.environ.get(n, "0") not in ("", "0") for n in WANTED):
        yield
        return
    with _ONE, _sink() as file:
        _flush()
        kept = {fd: os.dup(fd) for fd in (1, 2) if _open(fd)}
        try:
            for fd in kept:
                os.dup2(file.fileno(), fd)
            yield
        finally:
            _flush()
            for fd, own in kept.items():
                os.dup2(own, fd)
                os.close(own)
            file.seek(0)
            text = file.read(MOST).decode(errors="replace")
            said += [line.split("error:", 1)[1].strip() for line in text.splitlines() if "error:" in line]


@contextmanager
def heard(path: str) -> Iterator[None]:
    """What is not printed is in a file while this lasts, for whoever outlives this process."""
    token = _HEARD.set(path)
    try:
        yield
    finally:
        _HEARD.reset(token)


def _sink() -> IO[bytes]:
    try:
        if path := _HEARD.get():
            return open(path, "w+b", buffering=0)
        return tempfile.TemporaryFile()
    except OSError:  # nowhere to write
        return open(os.devnull, "w+b")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # none, closed, full
            stream.flush()


def _open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
