"""What a µGraph computes, without its loops and tiles: every value as one whole array.

This is the mathematics of a structure alone: a running maximum is the finished one and nothing is rescaled. It is fast, so that
a wrong graph is refused before anything is interpreted tile by tile, and it has every value at hand, for tests of single
accumulators.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from typing import Generic
from typing import TypeVar

import numpy as np

from fuser.errors import UnsupportedError
from fuser.interpret.algebra import Algebra
from fuser.interpret.algebra import Tile
from fuser.interpret.algebra import guarded
from fuser.interpret.reference import InterpretError
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.mugraph import Stmt
from fuser.ir.ops import Array
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar

V = TypeVar("V")
Hook = Callable[[str, Stmt, V], V]


@dataclass(frozen=True)
class Flat(Generic[V]):
    """``tensors``: every device tensor; ``values``: every value of every block by (kernel, value), with the axes of its
    statement.
    """

    tensors: dict[str, V]
    values: dict[tuple[str, str], V]


def evaluate_flat(algebra: Algebra[V], graph: KernelGraph, inputs: Mapping[str, V], hook: Hook[V] | None = None) -> Flat[V]:
    """Evaluate a µGraph whose split counts are bound. ``hook(kernel, statement, value)`` may replace each computed value.

    Raises :class:`InterpretError` where an access does not fit its tensor or a store drops an axis.
    """
    tensors: dict[str, V] = {n: inputs[n] for n in graph.inputs}
    values: dict[tuple[str, str], V] = {}
    safe = guarded(graph)
    for k in graph.kernels:
        if isinstance(k, LibraryKernel):
            tensors[k.output] = algebra.library(k.op, [tensors[n] for n in k.args], _bound(k.attrs, graph, {}))
            continue
        if any(e == FREE for e in k.extents.values()):
            raise UnsupportedError(f"kernel {k.name!r} has split counts that nothing has chosen", "bind them with with_extents")
        run = _Block(algebra, graph, k, tensors, safe, hook)
        tensors |= run.run()
        values |= {(k.name, v): x for v, x in run.values.items()}
    return Flat(tensors, values)


def _bound(attrs: tuple[tuple[str, Any], ...], graph: KernelGraph, extents: Mapping[str, int]) -> dict[str, Any]:
    def size(e: Extent) -> int:
        return extents[e.tensor] if e.dim < 0 else graph.table[e.tensor].shape[e.dim]

    return {k: v.bind(size) if isinstance(v, Scalar) else v for k, v in attrs}


class _Block(Generic[V]):
    def __init__(
        self,
        algebra: Algebra[V],
        graph: KernelGraph,
        block: BlockGraph,
        tensors: Mapping[str, V],
        safe: frozenset[tuple[str, str]],
        hook: Hook[V] | None,
    ) -> None:
        self.algebra, self.graph, self.block, self.tensors, self.safe, self.hook = algebra, graph, block, tensors, safe, hook
        self.values: dict[str, V] = {}

    def run(self) -> dict[str, V]:
        block, extents = self.block, self.block.extents
        out: dict[str, V] = {}
        for s in block.stmts:
            if s.kind == "compute":
                value = self.compute(s)
                self.values[s.value] = self.hook(block.name, s, value) if self.hook else value
                continue
            assert s.access is not None
            if set(s.access.axes) != set(s.axes) or len(set(s.access.axes)) != len(s.access.axes):
                raise InterpretError(f"kernel {block.name!r}: {s} does not have the axes of its access")
            full = tuple(extents[a] for a in s.access.axes)
            if s.kind == "load":
                source = self.tensors[s.access.source]
                if self.algebra.shape(source) != s.access.source_shape(extents):
                    raise InterpretError(
                        f"kernel {block.name!r} reads {s.access} of shape {s.access.source_shape(extents)}, "
                        f"but the tensor has shape {self.algebra.shape(source)}"
                    )
                if box := s.access.window:
                    part = tuple(slice(x, x + n) for x, n in zip(box.starts, s.access.shape(extents), strict=True))
                    source = self.algebra.lift(lambda x, seen=box.seen, part=part: x.reshape(seen)[part], source)
                perm = tuple(s.access.axes.index(a) for a in s.axes)
                self.values[s.value] = self.algebra.lift(lambda x, f=full, p=perm: x.reshape(f).transpose(p), source)
            else:
                own = block.by_value[s.value].axes
                if lost := set(own) - set(s.access.axes):
                    raise InterpretError(f"kernel {block.name!r}: {s} loses the axes {sorted(lost)} of its value")
                x = self.align(self.values[s.value], own, s.access.axes)
                shape = s.access.shape(extents)
                result = self.algebra.lift(lambda y, f=full, t=shape: np.broadcast_to(y, f).reshape(t), x)
                if s.access.tensor in out and not self.algebra.same(out[s.access.tensor], result):
                    raise InterpretError(f"kernel {block.name!r} writes {s.access.tensor!r} twice with different values")
                out[s.access.tensor] = result
        return out

    def compute(self, s: Stmt) -> V:
        args = [self.values[a] for a in s.args]
        axes = [self.block.by_value[a].axes for a in s.args]
        if not s.folds:
            ranges = {a: np.arange(self.block.extents[a]) for a in s.axes}
            tile = Tile(s.axes, ranges, (self.block.name, s.value) in self.safe)
            aligned = [self.align(x, own, s.axes) for x, own in zip(args, axes, strict=True)]
            return self.algebra.map(s.op, aligned, _bound(s.attrs, self.graph, self.block.extents), tile)
        known = {a for own in axes for a in own}
        if absent := set(s.reduce) - known:
            raise InterpretError(f"kernel {self.block.name!r}: {s} sums over {sorted(absent)}, which no operand has")
        split = [(a, g) for a, g in self.block.splits if a in s.reduce]
        if not split:
            return self.align(self.fold(s, args, axes, s.axes), tuple(a for a in s.axes if a in known), s.axes)
        if len(split) > 1:
            raise UnsupportedError(f"{s.value!r} reduces two split axes at once")
        (axis, part), pieces = split[0], list[V]()
        count, extent = self.block.extents[part], self.block.extents[axis]
        chunk = math.ceil(extent / count)
        for i in range(count):
            window = {axis: slice(min(i * chunk, extent), min((i + 1) * chunk, extent)), part: slice(i, i + 1)}
            cut = [self.cut(x, own, window) for x, own in zip(args, axes, strict=True)]
            kept = tuple(a for a in s.axes if a in known)
            pieces.append(self.align(self.fold(s, cut, axes, s.axes), kept, s.axes))
        at = s.axes.index(part)
        return self.algebra.lift(lambda *xs: np.concatenate(xs, at), *pieces)

    def cut(self, x: V, own: tuple[str, ...], window: Mapping[str, slice]) -> V:
        index = tuple(window.get(a, slice(None)) for a in own)
        return self.algebra.lift(lambda y: y[index], x)

    def fold(self, s: Stmt, args: list[V], axes: list[tuple[str, ...]], out: tuple[str, ...]) -> V:
        """The fold over whole axes; the result has those axes of ``out`` that an operand has."""
        known = {a for own in axes for a in own}
        kept = tuple(a for a in out if a in known)
        if s.op == "matmul":
            letter = dict(zip(sorted(known), string.ascii_letters, strict=False))
            spec = ",".join("".join(letter[a] for a in own) for own in axes) + "->" + "".join(letter[a] for a in kept)
            return self.algebra.contract(s.op, spec, args)
        folded = self.algebra.fold(s.op, args[0], tuple(axes[0].index(a) for a in s.reduce))
        return self.align(folded, tuple(a for a in axes[0] if a not in s.reduce), kept)

    def align(self, x: V, own: tuple[str, ...], axes: tuple[str, ...]) -> V:
        if own == axes:
            return x
        perm = tuple(own.index(a) for a in axes if a in own)
        new = tuple(i for i, a in enumerate(axes) if a not in own)

        def moved(y: Array) -> Array:
            return np.expand_dims(y.transpose(perm), new)

        return self.algebra.lift(moved, x)
