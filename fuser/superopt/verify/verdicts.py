"""Verdicts that are kept: what becomes a kernel is verified, and the same µGraph of the same program only once.

A verdict is found by the hash of the program, that of the µGraph, and that of the verifier's own source, first in this process
and then in the cache folder, where each has a file with a checksum: one that is damaged counts as absent.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any
from typing import get_args

from fuser import kept
from fuser.errors import UsageError
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.lower.compile import cache_dir
from fuser.superopt.verify.verdict import Rejected
from fuser.superopt.verify.verdict import Verdict

_KNOWN: dict[str, Verdict] = {}


def kept_verdict(program: TensorProgram, graph: KernelGraph) -> Verdict:
    """The verdict of :func:`fuser.superopt.verify.verifier.verify` with its default rounds and seed, at the real size and with
    large exponents, from the cache where it is known; exponentials of softmaxes without their maximum are refused."""
    known = known_verdict(program, graph)
    if known is None:
        key = _key(program, graph)
        known = _KNOWN[key] = _found(program, graph)
        _write(_path(key), known)
    return known


def _found(program: TensorProgram, graph: KernelGraph) -> Verdict:
    from fuser.superopt.rewrite.maxima import without_maximum
    from fuser.superopt.verify.verifier import verify  # what is known needs none

    verdict = verify(program, graph, real_size=True, large=True)
    if verdict.accepted and (bare := without_maximum(program, graph)):
        return Rejected(
            f"it overflows where the program does not, no maximum of its own is subtracted in {'; '.join(bare.values())}"
        )
    return verdict


def known_verdict(program: TensorProgram, graph: KernelGraph) -> Verdict | None:
    """The verdict where it is known."""
    key = _key(program, graph)
    if key not in _KNOWN and (found := _read(_path(key))) is not None:
        _KNOWN[key] = found
    return _KNOWN.get(key)


def _key(program: TensorProgram, graph: KernelGraph) -> str:
    return kept.text_hash(_verifier(), program.stable_hash(), graph.stable_hash())


def _path(key: str) -> Path:
    return cache_dir("verdicts") / f"{key}.json"


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


def _verifier() -> str:
    """Of all that has a part in a verdict: the IR, its interpreters and the verifier."""
    return kept.source_hash("fuser.ir", "fuser.interpret", "fuser.lower", "fuser.superopt")


def _write(path: Path, verdict: Verdict) -> None:
    kept.write(path, [type(verdict).__name__, asdict(verdict)])


def _read(path: Path) -> Verdict | None:
    try:
        ((name, values),) = kept.read(path)
        kind = {k.__name__: k for k in get_args(Verdict)}[name]
        return kind(**{k: _tuples(v) for k, v in values.items()})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
