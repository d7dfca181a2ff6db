"""Verdicts that are kept: what becomes a kernel is verified, and the same µGraph of the same program only once.

A verdict is found by the hash of the program, that of the µGraph, and that of the verifier's own source, first in this process
and then in the cache folder, where each has a file with a checksum: one that is damaged counts as absent.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any
from typing import get_args

from fuser.errors import FuserError
from fuser.errors import UsageError
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.lower.compile import cache_dir
from fuser.outputs import make_folder
from fuser.outputs import write_file
from fuser.superopt.verify.verifier import Verdict
from fuser.superopt.verify.verifier import verify

_KNOWN: dict[str, Verdict] = {}


def kept_verdict(program: TensorProgram, graph: KernelGraph) -> Verdict:
    """The verdict of :func:`fuser.superopt.verify.verifier.verify` with its default rounds and seed and at the real
    size, from the cache where it is known."""
    key = _sha256(_verifier(), program.stable_hash(), graph.stable_hash())
    path = cache_dir("verdicts") / f"{key}.json"
    if key not in _KNOWN:
        found = _read(path)
        if found is None:
            found = verify(program, graph, real_size=True)
            _write(path, found)
        _KNOWN[key] = found
    return _KNOWN[key]


def accepted(program: TensorProgram, graph: KernelGraph) -> Verdict:
    """The verdict of a µGraph that somebody passes in; raises :class:`UsageError` where it is refused or cannot be decided."""
    verdict = kept_verdict(program, graph)
    if not verdict.accepted:
        raise UsageError(
            f"the µGraph {graph.name!r} is not known to compute {program.name!r}: {verdict}",
            "`mufuser verify` and `mufuser show` take it as JSON; leave the µGraph out for one of our own",
        )
    return verdict


def verdict_document(verdict: Verdict) -> dict[str, Any]:
    """A verdict for reports: its kind, what it says, and its evidence."""
    return {"verdict": verdict.kind, "says": str(verdict), "evidence": asdict(verdict)}


@cache
def _verifier() -> str:
    """Hash of the source of all that has a part in a verdict: the IR, its interpreters and the verifier."""
    import fuser.interpret as interpret
    import fuser.ir as ir
    import fuser.lower as lower
    import fuser.superopt as superopt

    files = [f for package in (ir, interpret, lower, superopt) for f in sorted(Path(package.__path__[0]).rglob("*.py"))]
    return _sha256(*(f.read_text(encoding="utf-8") for f in files))


def _sha256(*texts: str) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode())
        digest.update(b"\0")
    return digest.hexdigest()


def _write(path: Path, verdict: Verdict) -> None:
    text = json.dumps([type(verdict).__name__, asdict(verdict)])
    with suppress(FuserError):  # a full disk or a folder that cannot be written: the verdict is found again next time
        make_folder(path.parent)
        write_file(path, f"{_sha256(text)}\n{text}\n")


def _read(path: Path) -> Verdict | None:
    try:
        checksum, _, text = path.read_text(encoding="utf-8").rstrip("\n").partition("\n")
        if checksum != _sha256(text):
            return None
        name, values = json.loads(text)
        kind = {k.__name__: k for k in get_args(Verdict)}[name]
        return kind(**{k: _tuples(v) for k, v in values.items()})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
