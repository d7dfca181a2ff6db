"""The output folder of ``optimize``: what a run writes takes the place of what the run before it wrote, and of nothing else.

A run writes into a new folder beside its place and moves the files there when all are complete. ``files.json`` lists them with
their hashes; a file that is not listed, or that has changed since, belongs to somebody else and stays.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from pathlib import PurePosixPath
from typing import Any

from fuser.outputs import locked
from fuser.outputs import promised
from fuser.outputs import write_file
from fuser.outputs import writing

MANIFEST = "files.json"


def publish(folder: Path, write: Callable[[Path], Any]) -> Any:
    """Call ``write`` with an empty folder and put what it leaves there in the place of the run before; returns what it returns.

    If ``write`` raises, ``folder`` is as it was.
    """
    with promised(folder), writing(folder), tempfile.TemporaryDirectory(dir=folder, prefix=".mufuser-") as fresh:
        result = write(Path(fresh))
        made = {p.relative_to(fresh).as_posix(): _hash(p) for p in sorted(Path(fresh).rglob("*")) if p.is_file()}
        with locked(folder):
            before = _listed(folder)
            # whatever ends this half way, both runs' files are known
            write_file(folder / MANIFEST, _manifest(before | made))
            for name, digest in before.items():
                _remove(folder, name, digest)
            for name in made:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (Path(fresh) / name).replace(folder / name)
            write_file(folder / MANIFEST, _manifest(made))
    return result


def changed(folder: Path, name: str) -> bool:
    """Whether a file is known to be another than the one that was written."""
    known = _listed(folder).get(name)
    return known is not None and known != _hash(folder / name)


def _manifest(files: Mapping[str, str]) -> str:
    return json.dumps({"what": "SHA-256 of the files that mufuser optimize wrote here", "files": dict(files)}, indent=1) + "\n"


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _listed(folder: Path) -> dict[str, str]:
    """Names and hashes of the manifest that are names inside the folder; none where it is damaged."""
    try:
        files = json.loads((folder / MANIFEST).read_text())["files"]
        return {str(k): str(v) for k, v in files.items() if _inside(str(k))}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and ".." not in parts and "\0" not in name and name != MANIFEST


def _remove(folder: Path, name: str, digest: str) -> None:
    path = folder / name
    inside = folder.resolve() in path.parent.resolve().parents or path.parent.resolve() == folder.resolve()
    if not inside or path.is_symlink() or not path.is_file() or _hash(path) != digest:
        return
    path.unlink()
    parent = path.parent
    with suppress(OSError):  # not empty: others have files there
        while parent != folder:
            parent.rmdir()
            parent = parent.parent
