"""What the assembler says of kernels by warp groups."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextlib import redirect_stdout
from typing import Any

from fuser.errors import NoValidKernelError
from fuser.errors import OutOfResourcesError
from fuser.lower.assembler import assemble
from fuser.lower.cubin import resources
from fuser.lower.forms import triton_module
from fuser.lower.gluon.choices import SHARED
from fuser.lower.kernel_source import KernelSource
from fuser.lower.pieces import GROUPS_ARCH

ASSEMBLED = "ptxas info"
SERIALIZED = re.compile(r"C75\d\d|C7602")
"""Remarks of the assembler on products that cannot run on while a warp group goes on."""
SET_ASIDE = 64
"""Bytes of a thread that may lie in local memory: what is kept from tile to tile, and while warps wait for their function."""


@contextmanager
def logged(log: io.StringIO, wanted: bool) -> Iterator[None]:
    """What Triton prints is in ``log``, with what its assembler says where that is wanted: to ask again is to assemble twice."""
    knobs = triton_module().knobs.nvidia
    with redirect_stdout(log), knobs.scope():
        if wanted:
            knobs.dump_ptxas_log = True
        yield


def check_groups(source: KernelSource, kernel: Any, log: str) -> None:
    """Raises :class:`NoValidKernelError` where the assembler lets the products of a kernel by warp groups wait for each other, or
    keeps some of its values in memory: either costs more than Triton's kernel. ``log``: what it said, if it ran; a kernel from
    Triton's cache is assembled again to hear it."""
    if kernel.metadata.shared > SHARED:
        raise OutOfResourcesError(
            f"{source.name} needs {kernel.metadata.shared} bytes of shared memory a block, of {SHARED}",
            "use smaller tiles or fewer stages",
        )
    if (spilled := resources(kernel.asm["cubin"])[1]) > SET_ASIDE:
        raise NoValidKernelError(
            f"{source.name} has too few registers: {spilled} bytes a thread are kept in memory", "use smaller tiles or more warps"
        )
    lines = log.splitlines() if ASSEMBLED in log else assemble(kernel.asm["ptx"], GROUPS_ARCH)[1]
    if remark := next((line for line in lines if SERIALIZED.search(line)), ""):
        raise NoValidKernelError(
            f"the assembler lets the products of {source.name} wait for each other: {remark.strip()[:200]}", "use other tiles"
        )
