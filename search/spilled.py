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


def known_spills(sources: Iterable[KernelSource], arch: int) -> dict[str, int]:
    """Bytes a thread that those of some kernels spill which are known to, by what makes them equal."""
    found = {neutral(s): kept.read(_place(s, arch)) for s in sources}
    return {text: n for text, values in found.items() for n in values if isinstance(n, int)}


def keep_spills(artifacts: Iterable[KernelArtifact], least: int) -> set[str]:
    """Remembers those that spill more than ``least`` bytes; what makes each of them equal to others."""
    mine = [a for a in artifacts if a.spills > least]
    for a in mine:
        kept.write(_place(a.source, a.arch), a.spills)
    return {neutral(a.source) for a in mine}


def _place(source: KernelSource, arch: int) -> Path:
    ours = kept.source_hash("fuser.lower")
    return cache_dir("spills") / f"{kept.text_hash(ours, compiler(), str(arch), neutral(source))}.json"
