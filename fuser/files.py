"""Files of users: read in bounded time and memory, their text made safe to print and to name files by.

Whatever a path leads to (a folder, a pipe, a device, a compressed or a damaged file), reading ends in text or in one
:class:`~fuser.errors.FuserError` that names it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuser.errors import FuserError
from fuser.errors import ModelFileError

Error = Callable[[str, str], FuserError]

ARCHIVE = b"PK\x03\x04"
"""How a ZIP archive begins; one of torch is such."""
MODEL_BYTES = 4 << 30
"""Largest text of a model: weights may be in it."""
GRAPH_BYTES = 64 << 20
"""Largest µGraph, program, schedule or result."""
DEVICE_BYTES = 1 << 20
"""Largest device file."""
VALUES = 10_000_000
"""Most values of one JSON document; each takes about 100 bytes of memory."""
DIGITS = 400
"""Most characters of one number: those of the largest float written out fit."""
_CHUNK = 1 << 22

BAD_VALUE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What Python raises for a value of the wrong type, size or key: in a file that is a mistake of the file."""


# -- reading ------------------------------------------------------------------------------------------------------------------


def open_regular(path: str | Path, error: Error = ModelFileError) -> int:
    """A descriptor of a regular file, open for reading. Never waits, not even for a pipe that nobody writes."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except OSError as problem:
        raise error(f"{path}: cannot be read ({problem.strerror})", "check the path") from None
    except ValueError:
        raise error(f"{shown(str(path))}: cannot be read (no path of a file)", "check the path") from None
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe" if stat.S_ISFIFO(mode) else "a device"
        raise error(f"{path}: cannot be read (it is {kind})", "give a regular file")
    return handle


def read_text(path: str | Path, most: int = GRAPH_BYTES, error: Error = ModelFileError) -> str:
    """The text of a file of at most ``most`` bytes (UTF-8, a byte-order mark is skipped); ``error`` says what else it is."""
    handle = open_regular(path, error)
    parts: list[bytes] = []
    size = 0
    try:
        if os.fstat(handle).st_size > most:
            raise error(f"{path}: has {os.fstat(handle).st_size} bytes, more than the {most} that are read", "give another file")
        while chunk := os.read(handle, _CHUNK):
            if not parts and (why := _no_text(chunk)):
                raise error(f"{path}: {why}", "give it as plain UTF-8 text")
            if b"\0" in chunk:
                raise error(f"{path}: is not text (a zero byte at offset {size + chunk.index(0)})", "give another file")
            size += len(chunk)
            if size > most:
                raise error(f"{path}: has more than the {most} bytes that are read", "give another file")
            parts.append(chunk)
    except OSError as problem:
        raise error(f"{path}: cannot be read ({problem.strerror})", "check the path") from None
    finally:
        os.close(handle)
    try:
        return b"".join(parts).decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise error(f"{path}: is not text (offset {problem.start})", "give it as UTF-8 text") from None


def _no_text(start: bytes) -> str:
    """What a file is that begins like this, where it is known not to be text."""
    if start.startswith(b"\x1f\x8b"):
        return "is compressed with gzip"
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "is UTF-16"
    return "is a ZIP archive" if start.startswith(ARCHIVE) else ""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(k for k, _ in pairs if k in seen or seen.add(k))
        raise ValueError(f"the key {shown(twice)} occurs twice in one object")
    return found


def _integer(text: str) -> int:
    if len(text) > DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is not finite")
    return value


def parse_json(text: str, where: str, hint: str = "", error: Error = ModelFileError) -> Any:
    """The value of a JSON document: finite numbers, no key twice in an object, a bounded number of values and depth."""
    if text.count(",") + text.count("[") + text.count("{") > VALUES:
        raise error(f"{where}: has more than {VALUES} values", hint)
    try:
        return json.loads(text, object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_float)
    except json.JSONDecodeError as problem:
        end = " (the file ends early)" if problem.pos >= len(text.rstrip()) - 1 else ""
        raise error(
            f"{where}: not valid JSON at offset {problem.pos}, line {problem.lineno}{end}: {problem.msg}",
            hint or "the file is truncated or damaged",
        ) from None
    except ValueError as problem:
        raise error(f"{where}: not valid JSON: {problem}", hint or "the file is damaged") from None
    except RecursionError:
        raise error(f"{where}: is nested too deeply", hint or "the file is damaged") from None


def read_json(path: str | Path, most: int = GRAPH_BYTES, error: Error = ModelFileError) -> Any:
    """The value of a JSON file."""
    return parse_json(read_text(path, most, error), str(path), error=error)


# -- text and names of others -------------------------------------------------------------------------------------------------

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
_BIDI = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def printable(text: str, most: int | None = None, keep: str = "") -> str:
    """``text`` without what a terminal would obey: control characters, changes of direction and lone surrogates are written as
    escapes, but for those in ``keep``; cut to ``most`` characters."""
    if most is not None and len(text) > most:
        text = f"{text[:most]}… ({len(text)} characters)"
    return _UNSAFE.sub(lambda m: m[0] if m[0] in keep else ascii(m[0])[1:-1], text)


def json_safe(text: str) -> str:
    """A JSON document with the same value and nothing that a terminal would obey."""
    return _BIDI.sub(lambda m: f"\\u{ord(m[0]):04x}", text)


def shown(value: Any, most: int = 60) -> str:
    """A foreign value in a message: its ``repr``, of bounded length and cost."""
    if isinstance(value, str | bytes):
        return repr(value if len(value) <= most else value[:most]) + ("…" if len(value) > most else "")
    if isinstance(value, list | tuple | dict):
        return f"a {'table' if isinstance(value, dict) else 'list'} of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}…"


def counted(number: int, one: str, many: str = "") -> str:
    """A number of things, for people: ``1 kernel``, ``2 kernels``; ``many`` where that is not ``one`` with an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def file_stem(name: str) -> str:
    """A name of a file made from a foreign name: letters, digits, ``._-`` alone, no hidden file, at most 100 characters.

    Different names stay different.
    """
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name[:88]).lstrip(".") or "unnamed"
    if plain == name.replace("/", "_").replace(":", "_"):
        return plain
    return f"{plain}_{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:10]}"
