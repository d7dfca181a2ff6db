"""What a µGraph computes, without its loops and tiles: every value as one whole array.

This is the mathematics of a structure alone: a running maximum is the finished one and nothing is rescaled. It is fast, so that
a wrong graph is refused before anything is interpreted tile by tile, and it has every value at hand, for tests of single
accumulators.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic
from typing import TypeVar

import numpy as np

from fuser.errors import UnsupportedError
from fuser.interpret.algebra import Algebra
from fuser.interpret.statements import InterpretError
from fuser.interpret.statements import Statements
from fuser.interpret.statements import run_kernels
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import Stmt

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
    values: dict[tuple[str, str], V] = {}

    def run(block: BlockGraph, tensors: Mapping[str, V], safe: Collection[str]) -> dict[str, V]:
        if any(e == FREE for e in block.extents.values()):
            raise UnsupportedError(
                f"kernel {block.name!r} has split counts that nothing has chosen", "bind them with with_extents"
            )
        found, written = _block(Statements(algebra, block, tensors, safe), hook)
        values.update({(block.name, v): x for v, x in found.items()})
        return written

    return Flat(run_kernels(algebra, graph, inputs, run), values)


def _block(on: Statements[V], hook: Hook[V] | None) -> tuple[dict[str, V], dict[str, V]]:
    """The values of a block, and what it writes."""
    block, values, out = on.block, dict[str, V](), dict[str, V]()
    for s in block.stmts:
        if s.kind == "load":
            values[s.value] = on.load(s, lambda _: slice(None))
        elif s.kind == "compute":
            value = _compute(on, s, [values[a] for a in s.args])
            values[s.value] = hook(block.name, s, value) if hook else value
        else:
            name, shape = s.at.tensor, s.at.shape(block.extents)
            result = on.algebra.lift(lambda y, t=shape: y.reshape(t), on.stored(s, values[s.value], on.full(s)))
            if name in out and not on.algebra.same(out[name], result):
                raise InterpretError(f"kernel {block.name!r} writes {name!r} twice with different values")
            out[name] = result
    return values, out


def _compute(on: Statements[V], s: Stmt, args: list[V]) -> V:
    if not s.folds:
        return on.map(s, args, lambda a: np.arange(on.extents[a]))
    split = [(a, g) for a, g in on.block.splits if a in s.reduce]
    if not split:
        return on.fold(s, args)
    if len(split) > 1:
        raise UnsupportedError(f"{s.value!r} reduces two split axes at once")
    (axis, part), pieces = split[0], list[V]()
    count, extent = on.extents[part], on.extents[axis]
    chunk = math.ceil(extent / count)
    for i in range(count):
        window = {axis: slice(min(i * chunk, extent), min((i + 1) * chunk, extent)), part: slice(i, i + 1)}
        pieces.append(on.fold(s, [_cut(on, x, own, window) for x, own in zip(args, on.axes(s), strict=True)]))
    at = s.axes.index(part)
    return on.algebra.lift(lambda *xs: np.concatenate(xs, at), *pieces)


def _cut(on: Statements[V], x: V, own: tuple[str, ...], window: Mapping[str, slice]) -> V:
    index = tuple(window.get(a, slice(None)) for a in own)
    return on.algebra.lift(lambda y: y[index], x)
