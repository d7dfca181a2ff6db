"""What a measurement depends on beside the text of its kernels: their compiler and, where libraries do some of it, these."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache

from fuser.files import BAD_VALUE
from fuser.installed import version_of
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import LibraryKernel
from fuser.lower.assembler import FLAGGED
from fuser.lower.assembler import compiler
from search.measure.rows import Record

BESIDE = " beside "
"""Between a compiler, with its flags, and libraries."""
PARTS = {
    "cublas": ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12"),
    "cudnn": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
}
"""What torch calls, by the names under which it may be installed."""


@cache
def libraries() -> str:
    """Versions of torch, and of what it calls where that is installed by itself; empty without torch."""
    found = {"torch": version_of("torch")}
    if found["torch"]:
        found |= {part: next(filter(None, map(version_of, names)), "") for part, names in PARTS.items()}
    return ", ".join(f"{part} {version}" for part, version in found.items() if version)


def with_libraries(made: str) -> str:
    """A compiler, with the libraries beside which something was chosen or timed."""
    return f"{made}{BESIDE}{libraries()}" if libraries() else made


def made_with(candidate: Candidate) -> str:
    """By what a candidate is compiled, and what it calls."""
    return with_libraries(compiler()) if calls_libraries(candidate) else compiler()


def calls_libraries(candidate: Candidate) -> bool:
    return any(isinstance(k, LibraryKernel) for k in candidate.graph.kernels)


def same_compiler(other: str) -> bool:
    """Whether a kernel is what it was: the same Triton, and the same assembler or, where nothing can be run, any."""
    (here, _, flags), (there, _, theirs) = (x.partition(BESIDE)[0].partition(FLAGGED) for x in (compiler(), other))
    return flags == theirs and (there == here or (", ptxas" not in here and there.partition(",")[0] == here))


def libraries_of(row: Record) -> str:
    """Those beside which a row was timed. Earlier versions wrote torch's alone, among what they said of the machine."""
    if found := row.compiler.partition(BESIDE)[2]:
        return found
    with suppress(*BAD_VALUE):
        return f"torch {json.loads(row.environment)['torch']}"
    return ""


def same_libraries(other: str) -> bool:
    """Whether calls take what they took, as far as both say: torch's version has to be known. Where nothing can be run, any."""
    here, there = (dict(x.split(" ", 1) for x in text.split(", ") if " " in x) for text in (libraries(), other))
    if not here or here["torch"].endswith("+cpu"):
        return True
    return "torch" in there and all(_same(here[part], there[part]) for part in here.keys() & there.keys())


def _same(one: str, other: str) -> bool:
    """Whether two versions are one; some installers leave out what stands behind the plus."""
    (mine, _, local), (theirs, _, behind) = one.partition("+"), other.partition("+")
    return mine == theirs and (not local or not behind or local == behind)
