"""JSON lines of tuning records, plain or compressed by xz: read line by line, with every mistake named by file and line."""

from __future__ import annotations

import json
import lzma
import math
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from contextlib import contextmanager
from contextlib import nullcontext
from pathlib import Path
from typing import IO
from typing import Any

from fuser.console import warn
from fuser.errors import ModelFileError
from fuser.files import BAD_VALUE
from fuser.files import open_regular

LONGEST = 64 << 20
"""Most bytes of a line."""
HINT = "restore the file from its repository, or export it again"
XZ = b"\xfd7zXZ\0"
"""How a file that xz packed begins."""
BAD_LINE = (*BAD_VALUE, RecursionError)
"""What a value of the wrong type, size, key or depth raises."""


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file of lines. A last line that was cut off is left out with a warning, any other bad line is a
    :class:`ModelFileError`."""
    for _, item in numbered_lines(path):
        yield item


def numbered_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The same with the numbers of the lines, from 1."""
    with _opened(path) as file:
        for number, raw in enumerate(iter(lambda: file.readline(LONGEST + 1), b""), 1):
            if len(raw) > LONGEST:
                raise bad_line(path, number, f"it is longer than {LONGEST} bytes")
            try:
                item = json.loads(raw.decode("utf-8-sig" if number == 1 else "utf-8"), parse_constant=_no_constant)
            except BAD_LINE as error:
                if not raw.endswith(b"\n") and isinstance(error, ValueError):
                    warn(f"{path}: line {number}, the last, was cut off and is left out")
                    return
                what = error.msg if isinstance(error, json.JSONDecodeError) else str(error)[:200]
                raise bad_line(path, number, f"it is not JSON: {what}") from error
            if not isinstance(item, dict):
                raise bad_line(path, number, "it is not an object")
            yield number, item


def unpacked(path: Path) -> bytes:
    """All of a file of lines."""
    with _opened(path) as file:
        return file.read()


def bad_line(path: Path, number: int, what: str) -> ModelFileError:
    return ModelFileError(f"{path}:{number}: line {number} cannot be used: {what}", HINT)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """A regular file, unpacked where it begins as xz does; never waits for a pipe."""
    with os.fdopen(open_regular(path), "rb") as file:
        try:
            packed = file.peek(len(XZ)).startswith(XZ)
            with lzma.open(file) if packed else nullcontext(file) as lines:
                yield lines
        except OSError as error:
            raise ModelFileError(f"{path} cannot be read: {error}", "check the disk") from error
        except (EOFError, lzma.LZMAError) as error:
            raise ModelFileError(f"{path} is damaged: {error}", HINT) from error


def writer(path: Path, file: IO[bytes]) -> AbstractContextManager[IO[bytes]]:
    """What packs the lines that are written to it into ``file``, where the name of its path says so."""
    return lzma.open(file, "wb", preset=9 | lzma.PRESET_EXTREME) if path.suffix == ".xz" else nullcontext(file)


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def typed(value: Any, kind: str) -> Any:
    """``value`` as the type of a field (``str``, ``int``, ``float`` or ``float | None``). Raises :class:`ValueError`."""
    if kind == "str" and isinstance(value, str):
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "int" and number and isinstance(value, int) and abs(value) < 2**63:
        return value
    if kind.startswith("float") and number and math.isfinite(value):
        return float(value)
    if kind == "float | None" and value is None:
        return None
    raise ValueError(f"{str(value)[:40]!r} is no {kind}")
