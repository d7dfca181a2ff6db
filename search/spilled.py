"""What compiled kernels spill, by what makes them equal: one that spills much is in many candidates, beside other kernels or
under another name, and is compiled once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fuser import kept
from fuser.lower.assembler import compiler
from fuser.lower.compile import KernelArtifact
from fuser.lower.compile import cache_dir
from fuser.lower.compile import neutral
from fuser.lower.kernel_source import KernelSource


def known_spills(sources: Iterable[KernelSource], arch: int) -> int:
    """Bytes a thread that the worst of some kernels is known to spill; 0 where none is known to."""
    found = (kept.read(_place(s, arch)) for s in sources)
    return max((n for values in found for n in values if isinstance(n, int)), default=0)


def keep_spills(artifacts: Iterable[KernelArtifact], least: int) -> None:
    """Remembers those that spill more than ``least`` bytes."""
    for a in artifacts:
        if a.spills > least:
            kept.write(_place(a.source, a.arch), a.spills)


def _place(source: KernelSource, arch: int) -> Path:
    ours = kept.source_hash("fuser.lower")
    return cache_dir("spills") / f"{kept.text_hash(ours, compiler(), str(arch), neutral(source))}.json"
