"""What is found once and kept in the user's cache folder: a file for each value, as JSON with a checksum. One that is damaged, or
cannot be read, is as good as none; where nothing can be written, the value is found again next time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from fuser.errors import FuserError
from fuser.ir.added import written
from fuser.outputs import make_folder
from fuser.outputs import write_file


def source_hash(*packages: str) -> str:
    """Of all source and data of some packages, by their names, and of operators that were added to the table: what was found by
    other source is not known."""
    mine = written()
    return text_hash(_source_hash(*packages), *mine) if mine else _source_hash(*packages)


def _source_hash(*packages: str) -> str:
    return text_hash(*map(_package_hash, packages))


@cache
def _package_hash(package: str) -> str:
    folder = Path(import_module(package).__path__[0])
    digest = hashlib.sha256()
    for file in sorted(f for f in folder.rglob("*") if f.suffix in (".py", ".toml")):
        digest.update(file.read_bytes())
        digest.update(b"\0")
    return digest.hexdigest()


def text_hash(*texts: str) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode())
        digest.update(b"\0")
    return digest.hexdigest()


def read(path: Path) -> Sequence[Any]:
    """The value of a file alone in a list, which is empty where there is none."""
    try:
        checksum, _, text = path.read_text(encoding="utf-8").rstrip("\n").partition("\n")
        return [json.loads(text)] if checksum == text_hash(text) else []
    except (OSError, ValueError, RecursionError):
        return []


def write(path: Path, value: Any) -> None:
    text = json.dumps(value)
    with suppress(FuserError):  # a full disk, or a folder that cannot be written
        make_folder(path.parent)
        write_file(path, f"{text_hash(text)}\n{text}\n", lasting=False)  # the checksum tells
