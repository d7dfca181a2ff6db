"""µGraphs: what every kernel, every thread block and every thread does.

One representation carries both papers. A :class:`KernelGraph` is a list of kernels whose edges live in device memory. A
:class:`~fuser.ir.block.BlockGraph` says what one thread block does: statements in SSA order over *axes*, as in einsum. An
axis is the product grid × loop × tile; which parts it has is chosen by a schedule (:mod:`fuser.ir.schedule`), and where the
statements stand in the loops follows by dominance (:mod:`fuser.ir.tiling`). Mirage's imap, omap and fmap are views of that
(:mod:`fuser.ir.maps`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import cached_property
from typing import Any

from fuser.errors import ProgramError
from fuser.ir.access import Access
from fuser.ir.applied import Applied
from fuser.ir.block import AXIS
from fuser.ir.block import FREE
from fuser.ir.block import Axis
from fuser.ir.block import BlockGraph
from fuser.ir.block import Rescale
from fuser.ir.block import Stmt
from fuser.ir.block import live
from fuser.ir.block import ordered
from fuser.ir.dtypes import result_dtype
from fuser.ir.hashing import digest
from fuser.ir.program import Tensor
from fuser.ir.program import attributes_to_json
from fuser.ir.program import infer_shape

__all__ = [
    "AXIS", "FREE", "Access", "Axis", "BlockGraph", "Kernel", "KernelGraph", "LibraryKernel", "Rescale", "Stmt",
    "live", "ordered",
]  # fmt: skip

VERSION = 1
"""Of the JSON form (:mod:`fuser.ir.serialize` reads it)."""


@dataclass(frozen=True)
class LibraryKernel(Applied):
    """A kernel of a library (cuBLAS-like): one operator of the op table on whole device tensors."""

    name: str
    op: str
    args: tuple[str, ...]
    output: str
    attrs: tuple[tuple[str, Any], ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.args))

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.output,)

    def to_json(self) -> dict[str, Any]:
        attrs = attributes_to_json(self.attrs)
        return {"library": self.op, "name": self.name, "args": list(self.args), "output": self.output, "attrs": attrs}

    def __str__(self) -> str:
        extra = "".join(f", {k}={v}" for k, v in self.attrs)
        return f"library {self.name}: {self.output} = {self.op}({', '.join(self.args)}{extra})"


Kernel = BlockGraph | LibraryKernel


@dataclass(frozen=True)
class KernelGraph:
    """Kernels in launch order. ``tensors`` gives inputs and outputs as the program has them; shapes of intermediates follow from
    the accesses and the schedule."""

    name: str
    inputs: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    outputs: tuple[str, ...]
    tensors: tuple[Tensor, ...] = field(default=())

    @cached_property
    def table(self) -> dict[str, Tensor]:
        return {t.name: t for t in self.tensors}

    @cached_property
    def blocks(self) -> tuple[BlockGraph, ...]:
        return tuple(k for k in self.kernels if isinstance(k, BlockGraph))

    @property
    def intermediates(self) -> tuple[str, ...]:
        """Device tensors that one kernel writes for a later one."""
        return tuple(dict.fromkeys(t for k in self.kernels for t in k.outputs if t not in self.outputs))

    @cached_property
    def device_tensors(self) -> dict[str, Tensor]:
        """Every tensor in device memory whose shape no schedule chooses: program tensors, and what kernels write for later
        ones.
        """
        found = dict(self.table)
        for k in self.kernels:
            if isinstance(k, LibraryKernel):
                if all(a in found for a in k.args):
                    shape = infer_shape(k.op, [found[a].shape for a in k.args], dict(k.attrs))
                    dtype = result_dtype(k.op, [found[a].dtype for a in k.args], dict(k.attrs))
                    found.setdefault(k.output, Tensor(k.output, shape, dtype))
                continue
            for s in k.stores:
                if s.access and not any(k.extents[a] == FREE for a in s.access.axes):
                    found.setdefault(s.access.tensor, Tensor(s.access.tensor, s.access.shape(k.extents), s.dtype))
        return found

    @cached_property
    def extents(self) -> dict[str, int]:
        return {k: v for b in self.blocks for k, v in b.extents.items()}

    def with_extents(self, sizes: Mapping[str, int]) -> KernelGraph:
        """The same structure at other sizes; program tensors that blocks access change shape with their axes, those of which
        they read windows alone do not."""
        blocks = tuple(k.with_extents(sizes) if isinstance(k, BlockGraph) else k for k in self.kernels)
        shapes = {
            s.access.tensor: s.access.shape(b.extents)
            for b in blocks
            if isinstance(b, BlockGraph)
            for s in b.stmts
            if s.access and not s.access.window and not any(b.extents[a] == FREE for a in s.access.axes)
        }
        kernels = tuple(_within(k, shapes) if isinstance(k, BlockGraph) else k for k in blocks)
        return replace(self, kernels=kernels, tensors=tuple(replace(t, shape=shapes.get(t.name, t.shape)) for t in self.tensors))

    def validate(self) -> KernelGraph:
        kernels, tensors = [k.name for k in self.kernels], [t.name for t in self.tensors]
        for what, names in (("kernels", kernels), ("tensors", tensors), ("inputs", self.inputs)):
            if twice := [n for n, count in Counter(names).items() if count > 1 or not n]:
                raise ProgramError(f"{self.name!r} has several {what} of the name {twice[0]!r}, or {what} without a name")
        known = set(self.inputs)
        for k in self.kernels:
            if isinstance(k, BlockGraph):
                k.validate()
            if missing := set(k.inputs) - known:
                raise ProgramError(f"kernel {k.name!r} reads {sorted(missing)}, which nothing has written")
            for n in k.outputs:
                if n in known:
                    what = "an input of" if n in self.inputs else "already written in"
                    raise ProgramError(
                        f"kernel {k.name!r} writes {n!r}, which is {what} {self.name!r}", "write a tensor of another name"
                    )
                known.add(n)
        if missing := set(self.outputs) - known:
            raise ProgramError(f"outputs {sorted(missing)} of {self.name!r} are never written")
        return self

    def to_json(self) -> dict[str, Any]:
        return {
            "mugraph": VERSION,
            "name": self.name,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "tensors": [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in self.tensors],
            "kernels": [k.to_json() for k in self.kernels],
        }

    def stable_hash(self) -> str:
        """SHA-256 of the canonical JSON; equal structures with equal sizes have equal hashes."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return digest(self.to_json())

    def __str__(self) -> str:
        head = f"µGraph {self.name}({', '.join(str(self.table.get(n, n)) for n in self.inputs)}) -> {', '.join(self.outputs)}"
        return "\n".join([head, *(str(k) for k in self.kernels)])


def _within(block: BlockGraph, shapes: Mapping[str, tuple[int, ...]]) -> BlockGraph:
    """The block with its windows in tensors of these shapes."""
    stmts = list(block.stmts)
    for i, s in enumerate(stmts):
        if s.access and (w := s.access.window) and not w.view and shapes.get(w.tensor, w.shape) != w.shape:
            stmts[i] = replace(s, access=replace(s.access, window=replace(w, shape=shapes[w.tensor])))
    return replace(block, stmts=tuple(stmts))
