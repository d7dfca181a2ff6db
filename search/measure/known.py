"""Rows of earlier runs: the best known schedules, which are part of this package, and what files and folders of others hold."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from collections.abc import Mapping
from pathlib import Path

from fuser.errors import ModelFileError
from fuser.files import BAD_VALUE
from fuser.files import open_regular
from fuser.files import read_json
from search.measure.lines import HINT
from search.measure.records import Records

PACKAGED = Path(__file__).parents[1] / "known"
"""A file for each device: the fastest known schedules of the named workloads. Their first line says what measured them and how
the file was made. An application can ship such a file of its own."""
MANIFEST = "rows-manifest.json"
"""Of a folder: the SHA-256 and the number of rows of each file of rows. What is read from a folder that has one is checked."""
SUFFIXES = (".jsonl", ".jsonl.xz")


def load(records: Records, paths: Iterable[Path]) -> int:
    """Add the rows of files, and of all files of folders; returns how many were new. Raises :class:`ModelFileError` with the name
    of the file that is missing, damaged or not in the manifest beside it."""
    return sum(records.import_lines(file) for path in paths for file in files_of(path))


def files_of(path: Path) -> list[Path]:
    """The files of rows that a path means, checked: itself, or all of a folder."""
    if not os.path.isdir(path):
        return [_checked(path, _manifest(path.parent))]
    listed = _manifest(path)
    try:
        names = {name for name in os.listdir(path) if name.endswith(SUFFIXES)} | set(listed or ())
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({error.strerror})", "check the path") from None
    if not names:
        raise ModelFileError(f"{path}: has no files of rows ({', '.join(SUFFIXES)})", "check the path")
    return [_checked(path / name, listed) for name in sorted(names)]


def sha256(file: Path) -> str:
    with os.fdopen(open_regular(file), "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _manifest(folder: Path) -> Mapping[str, str] | None:
    """SHA-256 by name of a file; None where the folder has no manifest."""
    path = folder / MANIFEST
    if not os.path.exists(path):
        return None
    try:
        return {str(name): str(entry["sha256"]) for name, entry in read_json(path).items()}
    except BAD_VALUE as error:
        raise ModelFileError(f"{path} is damaged: {type(error).__name__}: {error}", HINT) from error


def _checked(file: Path, listed: Mapping[str, str] | None) -> Path:
    if listed is None:
        return file
    if file.name not in listed:
        raise ModelFileError(
            f"{file} is not in the manifest of its folder", "write the manifest again, or move the file elsewhere"
        )
    if sha256(file) != listed[file.name]:
        raise ModelFileError(f"{file} is damaged: its SHA-256 is not the one in {MANIFEST}", HINT)
    return file
