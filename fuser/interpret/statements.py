"""What a statement of a block computes on tiles, in any algebra, and the order of kernels: what the interpretation of loops and
tiles (:mod:`fuser.interpret.reference`) and that of whole arrays (:mod:`fuser.interpret.flat`) have in common.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from math import prod
from typing import Generic
from typing import TypeVar

import numpy as np

from fuser.errors import FuserError
from fuser.interpret.algebra import Algebra
from fuser.interpret.algebra import Tile
from fuser.interpret.algebra import guarded
from fuser.ir.flow import through_kernels
from fuser.ir.mugraph import AXIS
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.mugraph import Stmt
from fuser.ir.ops import Array
from fuser.ir.scalar import Extent
from fuser.ir.scalar import bound

V = TypeVar("V")


class InterpretError(FuserError):
    """A loop tree or a µGraph that breaks the semantics of the IR: a value that is not there, an accumulator read too early, an
    element that is never written or written twice with different values."""

    code = "interpret"


def run_kernels(
    algebra: Algebra[V],
    graph: KernelGraph,
    inputs: Mapping[str, V],
    run: Callable[[BlockGraph, Mapping[str, V], Collection[str]], Mapping[str, V]],
) -> dict[str, V]:
    """Every device tensor: inputs, intermediates, outputs. ``run`` gives those that a block writes, from those that are there and
    the names of its guarded values."""
    safe = guarded(graph)

    def block(k: BlockGraph, tensors: Mapping[str, V]) -> Mapping[str, V]:
        made = run(k, tensors, {value for kernel, value in safe if kernel == k.name})
        return {n: _as_whole(x, graph.table[n].shape) if n in graph.table else x for n, x in made.items()}

    def _as_whole(x: V, shape: tuple[int, ...]) -> V:
        """A tensor that a kernel writes with fewer dimensions, as the program has it."""
        own = algebra.shape(x)
        return algebra.lift(lambda y: y.reshape(shape), x) if len(own) < len(shape) and prod(own) == prod(shape) else x

    def library(k: LibraryKernel, tensors: Mapping[str, V]) -> V:
        attrs = bound(k.attrs, lambda e: algebra.shape(tensors[e.tensor])[e.dim])
        return algebra.library(k.op, [tensors[n] for n in k.args], attrs)

    return through_kernels(graph, inputs, block, library)


class Statements(Generic[V]):
    """The statements of a block on ``tensors``, with guarded values ``safe``. A tile has an array dimension for each axis of its
    statement.

    Raises :class:`InterpretError` where the axes of an access, or the tensor that it reads, do not fit.
    """

    def __init__(self, algebra: Algebra[V], block: BlockGraph, tensors: Mapping[str, V], safe: Collection[str]) -> None:
        self.algebra, self.block, self.tensors, self.safe = algebra, block, tensors, safe
        self.extents = block.extents
        self.attrs = {s.value: bound(s.attrs, self.size) for s in block.computes}
        self.sources: dict[str, V] = {}  # what a load reads, with a dimension for each axis of its access
        for s in (*block.loads, *block.stores):
            if set(s.at.axes) != set(s.axes) or len(set(s.at.axes)) != len(s.at.axes):
                raise InterpretError(f"kernel {block.name!r}: {s} does not have the axes of its access")
            if lost := set(block.by_value[s.value].axes) - set(s.at.axes):
                raise InterpretError(f"kernel {block.name!r}: {s} loses the axes {sorted(lost)} of its value")

    def size(self, e: Extent) -> int:
        return self.extents[e.tensor] if e.dim == AXIS else self.algebra.shape(self.tensors[e.tensor])[e.dim]

    def full(self, stmt: Stmt) -> tuple[int, ...]:
        """Shape of all that a statement accesses, with a dimension for each axis."""
        return tuple(self.extents[a] for a in stmt.at.axes)

    def load(self, stmt: Stmt, span: Callable[[str], slice]) -> V:
        """The tile at ``span`` of each axis."""
        if stmt.value not in self.sources:
            self.sources[stmt.value] = self.source(stmt)
        window = (*(span(a) for a in stmt.at.axes), ...)
        perm = tuple(stmt.at.axes.index(a) for a in stmt.axes)
        return self.algebra.lift(lambda x: x[window].transpose(perm), self.sources[stmt.value])

    def source(self, stmt: Stmt) -> V:
        source, full, shape = self.tensors[stmt.at.source], self.full(stmt), stmt.at.source_shape(self.extents)
        if (own := self.algebra.shape(source)) != shape and not (len(shape) < len(own) and prod(shape) == prod(own)):
            raise InterpretError(f"kernel {self.block.name!r} reads {stmt.at} of shape {shape}, but the tensor has shape {own}")
        if box := stmt.at.window:
            seen, sizes = box.seen, stmt.at.shape(self.extents)
            part = tuple(slice(x, x + n) for x, n in zip(box.starts, sizes, strict=True))
            if prod(seen) != prod(own) or any(p.stop > n for p, n in zip(part, seen, strict=True)):
                raise InterpretError(f"kernel {self.block.name!r} reads {stmt.at} of shape {sizes} in a tensor of shape {own}")
            return self.algebra.lift(lambda x: x.reshape(seen)[part].reshape(full), source)
        return self.algebra.lift(lambda x: x.reshape(full), source)

    def map(self, stmt: Stmt, args: Sequence[V], index: Callable[[str], Array]) -> V:
        """An element-wise operator at the element indices of each axis."""
        tile = Tile(stmt.axes, {a: index(a) for a in stmt.axes}, stmt.value in self.safe)
        aligned = [self.align(x, own, stmt.axes) for x, own in zip(args, self.axes(stmt), strict=True)]
        return self.algebra.map(stmt.op, aligned, self.attrs[stmt.value], tile)

    def fold(self, stmt: Stmt, args: Sequence[V]) -> V:
        """The fold over these tiles alone."""
        axes = self.axes(stmt)
        known = {a for own in axes for a in own}
        if absent := set(stmt.reduce) - known:
            raise InterpretError(f"kernel {self.block.name!r}: {stmt} sums over {sorted(absent)}, which no operand has")
        kept = tuple(a for a in stmt.axes if a in known)
        if stmt.contracts:
            letter = dict(zip(sorted(known), string.ascii_letters, strict=False))
            spec = ",".join("".join(letter[a] for a in own) for own in axes) + "->" + "".join(letter[a] for a in kept)
            x = self.algebra.contract(stmt.op, spec, args)
        else:
            x = self.algebra.fold(stmt.op, args[0], tuple(axes[0].index(a) for a in stmt.reduce))
            kept = tuple(a for a in axes[0] if a not in stmt.reduce)
        return self.align(x, kept, stmt.axes)

    def stored(self, stmt: Stmt, x: V, shape: tuple[int, ...]) -> V:
        """What a store writes, with the axes of its access."""
        x = self.align(x, self.block.by_value[stmt.value].axes, stmt.at.axes)
        return self.algebra.lift(lambda y: np.broadcast_to(y, shape), x)

    def axes(self, stmt: Stmt) -> list[tuple[str, ...]]:
        """The axes of its operands."""
        return [self.block.by_value[a].axes for a in stmt.args]

    def align(self, x: V, own: tuple[str, ...], axes: tuple[str, ...]) -> V:
        """Transpose to the order of ``axes``, with extent 1 where the value lacks one."""
        if own == axes:
            return x
        perm = tuple(own.index(a) for a in axes if a in own)
        new = tuple(i for i, a in enumerate(axes) if a not in own)
        return self.algebra.lift(lambda y: np.expand_dims(y.transpose(perm), new), x)
