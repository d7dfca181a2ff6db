"""Generated source of one kernel, and all that compiling and launching it needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace
from functools import cached_property
from typing import Any

from fuser.lower.descriptors import Descriptor
from fuser.lower.descriptors import passed


@dataclass(frozen=True)
class KernelSource:
    """Generated source of one kernel: ``args`` are device tensors in order (inputs, then outputs), ``grid`` the number of
    blocks. ``pdl``: it waits by itself for the kernel in front, and may be launched before that has ended. ``capability`` is
    the least that its options need (90 for sm_90). ``descriptors``: what stands for tensors in the place of pointers, in their
    order; of one there may be several views. ``specialize``: the compiler is to give its warps different work. ``parameters``:
    further keywords of the compiler, from options that it takes as they are. ``room``: bytes of shared memory that a block asks
    for at least. ``sizes``: 32-bit integers behind the tensors, which each launch gives (of kernels with open sizes).
    ``backend``: the language of the text; in Gluon ``num_warps`` are those of its first group. ``cluster``: so many blocks in a
    row are launched as one cluster, whose blocks exchange what they have folded ``exchanges`` times.
    """

    name: str
    text: str
    args: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    outputs: tuple[str, ...]
    grid: int
    num_warps: int
    num_stages: int
    pdl: bool = False
    capability: int = 80
    descriptors: tuple[Descriptor, ...] = ()
    specialize: bool = False
    parameters: tuple[tuple[str, Any], ...] = ()
    room: int = 0
    sizes: tuple[str, ...] = ()
    backend: str = "triton"
    cluster: int = 1
    exchanges: int = 0

    @property
    def gluon(self) -> bool:
        """Its text is Gluon."""
        return self.backend != "triton"

    @property
    def grows(self) -> bool:
        """The compiled kernel has more warps than ``num_warps``."""
        return self.specialize or self.backend == "gluon"

    def named(self, name: str) -> KernelSource:
        """The same kernel under another name."""
        return replace(self, name=name, text=self.text.replace(f"def {self.name}(", f"def {name}("))

    @cached_property
    def passed(self) -> list[tuple[int, Descriptor | None]]:
        """What it is given for its tensors."""
        return passed(self.args, self.descriptors)
