"""Compiled kernels in the user's cache folder: one whose text, launch, architecture and compiler are the same is not compiled
again, and needs no Triton to be loaded."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fuser import kept
from fuser.files import BAD_VALUE
from fuser.lower.assembler import compiler
from fuser.lower.descriptors import Descriptor
from fuser.lower.kernel_source import KernelSource


def place(folder: Path, source: KernelSource, arch: int) -> Path:
    """The file of a kernel: named by everything that a compiled kernel depends on, its compiler's flags among it."""
    launch = (
        source.name,
        source.num_warps,
        source.num_stages,
        source.pdl,
        source.specialize,
        source.parameters,
        source.room,
        source.cluster,
    )
    interface = (source.args, source.dtypes, source.shapes, source.outputs, source.descriptors)
    ours = kept.source_hash("fuser.lower")
    return folder / f"{kept.text_hash(ours, compiler(), str(arch), source.text, repr(launch), repr(interface))}.json"


def read(path: Path) -> Mapping[str, Any] | None:
    """What :func:`write` wrote, or None."""
    with suppress(*BAD_VALUE):
        for found in kept.read(path):
            descriptors = tuple(_descriptor(d) for d in found["descriptors"])
            return {**found, "cubin": base64.b64decode(found["cubin"]), "descriptors": descriptors}
    return None


def write(path: Path, values: Mapping[str, Any]) -> None:
    """Keep the fields of a compiled kernel but for its source and architecture."""
    cubin = base64.b64encode(values["cubin"]).decode()
    kept.write(path, {**values, "cubin": cubin, "descriptors": [asdict(d) for d in values["descriptors"]]})


def _descriptor(found: Mapping[str, Any]) -> Descriptor:
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in found.items()}
    return Descriptor(**fields)
