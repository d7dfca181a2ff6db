"""The living definition of the IR: a (µGraph, schedule) pair interpreted block by block, loop by loop, tile by tile.

Semantics:

* A kernel runs its body once for every block of its grid; the grid is the product of the grid parts of its axes.
* The body is the loop tree of :func:`fuser.ir.placement.place`. A tile is exact: it ends where the axis ends, and is empty
  where the parts of a split reach beyond it. Nothing outside of a tensor is ever read, so no padding can be seen.
* A value lives from its statement to the end of that pass through the innermost enclosing loop. An accumulator lives in the scope
  of its :class:`Init`, keeps one tile for each trip of the live loops among its axes that start later, and may be read, except as
  a ``running`` operand, only after the loop that owns it.
* ``rescale`` multiplies an accumulator, before an update, by exp(degree · (old − new)) of the running maximum: ``old`` at the
  accumulator's last update, ``new`` now. On the first update there is nothing to rescale.
* Fully masked rows are defined by :func:`fuser.interpret.algebra.guarded`.
* Every element of every output is written; one that is written again must get the same value.

A tree that breaks these rules raises :class:`InterpretError`: it would be wrong on a GPU too.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import Any
from typing import Generic
from typing import TypeVar

import numpy as np

from fuser.errors import UsageError
from fuser.interpret.algebra import Algebra
from fuser.interpret.algebra import FloatAlgebra
from fuser.interpret.statements import InterpretError
from fuser.interpret.statements import Statements
from fuser.interpret.statements import run_kernels
from fuser.ir.candidate import scheduled_blocks
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.ops import Array
from fuser.ir.placement import place
from fuser.ir.schedule import AxisPlan
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.schedule import bind
from fuser.ir.tiling import Init
from fuser.ir.tiling import Loop
from fuser.ir.tiling import LoopTree
from fuser.ir.tiling import Node

V = TypeVar("V")


def interpret(graph: KernelGraph, schedule: Schedule, inputs: Mapping[str, Array], dtype: Any = np.float64) -> dict[str, Array]:
    """The outputs of a scheduled µGraph on numpy inputs, computed in ``dtype``.

    Raises :class:`UsageError` where inputs or schedule do not fit, :class:`InterpretError` where the IR's rules are broken.
    """
    if missing := [n for n in graph.inputs if n not in inputs]:
        raise UsageError(f"µGraph {graph.name!r} needs the inputs {missing}")
    values = {n: np.asarray(inputs[n]).astype(dtype) for n in graph.inputs}
    for n, x in values.items():
        if n in graph.table and x.shape != graph.table[n].shape:
            raise UsageError(f"input {n!r} of {graph.name!r} has shape {x.shape}, not {graph.table[n].shape}")
    tensors = interpret_in(FloatAlgebra(dtype), graph, schedule, values)
    return {n: tensors[n] for n in graph.outputs}


def interpret_in(algebra: Algebra[V], graph: KernelGraph, schedule: Schedule, inputs: Mapping[str, V]) -> dict[str, V]:
    """The same in any algebra. Returns every device tensor: inputs, intermediates, outputs."""
    plans = iter(scheduled_blocks(graph, schedule))
    return run_kernels(algebra, graph, inputs, lambda _, *given: _Kernel(algebra, *next(plans), *given).run())


@dataclass(eq=False)
class _Value(Generic[V]):
    """A value in scope. A plain value has one tile; an accumulator has one for each trip of the loops in ``free``."""

    stmt: Stmt
    free: tuple[str, ...] = ()
    done: bool = True
    tiles: dict[tuple[int, ...], V] = field(default_factory=dict)
    seen: dict[tuple[str, tuple[int, ...]], V] = field(default_factory=dict)  # maximum at the last update of a tile


class _Kernel(Generic[V]):
    def __init__(
        self,
        algebra: Algebra[V],
        block: BlockGraph,
        schedule: KernelSchedule,
        tensors: Mapping[str, V],
        safe: Collection[str],
    ) -> None:
        self.algebra = algebra
        self.block, self.plans = bind(block, schedule.as_one_block())
        self.on = Statements(algebra, self.block, tensors, safe)
        self.tree: LoopTree = place(self.block, schedule.order, self.plans)
        self.live = {a for a, p in self.plans.items() if p.trips > 1}
        self.grid: dict[str, int] = {}  # block index along each axis
        self.trip: dict[str, int] = {}  # trip of each enclosing loop
        self.scopes: list[dict[str, _Value[V]]] = []
        self.ranges: dict[tuple[str, int, int], Array] = {}
        self.written: dict[str, Array] = {}
        self.out: dict[str, V] = {}

    def run(self) -> dict[str, V]:
        for s in self.block.stores:
            shape = s.at.shape(self.block.extents)
            self.out[s.at.tensor] = self.algebra.empty(shape)
            self.written[s.at.tensor] = np.zeros(shape, dtype=bool)
        for grid in self.blocks():
            self.grid = grid
            self.scopes = [{}]
            self.trip = {}
            self.body(self.tree.body)
        for name, mask in self.written.items():
            if not mask.all():
                raise InterpretError(f"kernel {self.block.name!r} leaves {int((~mask).sum())} elements of {name!r} unwritten")
        return self.out

    def blocks(self) -> Iterator[dict[str, int]]:
        own = [p for p in self.plans.values() if not p.split]
        for index in itertools.product(*(range(p.grid) for p in own)):
            grid = {p.axis: g for p, g in zip(own, index, strict=True)}
            yield grid | {p.axis: grid[p.split] for p in self.plans.values() if p.split}

    # -- where a tile lies ------------------------------------------------------------------------------------------------

    def span(self, axis: str) -> slice:
        """The current tile of an axis."""
        p: AxisPlan = self.plans[axis]
        if axis in self.live and axis not in self.trip:
            raise InterpretError(f"kernel {self.block.name!r} needs a tile of {axis!r} outside of its loop: {self.tree}")
        start = self.grid[axis] * p.chunk + self.trip.get(axis, 0) * p.tile
        end = min(start + p.tile, p.extent, (self.grid[axis] + 1) * p.chunk)
        return slice(min(start, p.extent), max(end, min(start, p.extent)))

    def index(self, axis: str) -> Array:
        span = self.span(axis)
        key = (axis, span.start, span.stop)
        if key not in self.ranges:
            self.ranges[key] = np.arange(span.start, span.stop)
        return self.ranges[key]

    # -- control ----------------------------------------------------------------------------------------------------------

    def body(self, nodes: tuple[Node, ...]) -> None:
        fresh: list[_Value[V]] = []
        for n in nodes:
            if isinstance(n, Init):
                stmt = self.block.by_value[n.value]
                free = tuple(a for a in stmt.axes if a in self.live and a not in self.trip)
                value = _Value[V](stmt, free, done=False)
                self.scopes[-1][n.value] = value
                fresh.append(value)
            elif isinstance(n, Loop):
                if n.axis in self.trip:
                    raise InterpretError(f"kernel {self.block.name!r} has a loop over {n.axis!r} inside another: {self.tree}")
                for t in range(n.trips):
                    self.trip[n.axis] = t
                    self.scopes.append({})
                    self.body(n.body)
                    self.scopes.pop()
                del self.trip[n.axis]
                for value in fresh:
                    value.done = True
                fresh = []
            elif n.kind == "load":
                self.define(n, self.on.load(n, self.span))
            elif n.kind == "compute":
                self.compute(n)
            else:
                self.store(n)

    def define(self, stmt: Stmt, tile: V) -> None:
        self.scopes[-1][stmt.value] = _Value(stmt, tiles={(): tile})

    def find(self, value: str) -> _Value[V] | None:
        return next((scope[value] for scope in reversed(self.scopes) if value in scope), None)

    def read(self, value: str, reader: Stmt, running: bool) -> V:
        found = self.find(value)
        if found is None:
            raise self.misread(reader, f"{value!r} is not available there")
        if not (found.done or running):
            raise self.misread(reader, f"the accumulator {value!r} is read before its loop has ended")
        if outside := [a for a in found.free if a not in self.trip]:
            raise self.misread(reader, f"{value!r} keeps a tile for each trip over {outside}, but is read outside of those loops")
        key = tuple(self.trip[a] for a in found.free)
        if key not in found.tiles:
            raise self.misread(reader, f"tile {key} of {value!r} has not been computed")
        return found.tiles[key]

    def misread(self, reader: Stmt, what: str) -> InterpretError:
        return InterpretError(f"kernel {self.block.name!r}, {reader.key} in {self.tree}: {what}")

    # -- statements -------------------------------------------------------------------------------------------------------

    def compute(self, stmt: Stmt) -> None:
        args = [self.read(a, stmt, a in stmt.running) for a in stmt.args]
        if not stmt.folds:
            self.define(stmt, self.on.map(stmt, args, self.index))
            return
        x = self.on.fold(stmt, args)
        acc = self.find(stmt.value)
        if acc is None or acc.done:
            if looped := [a for a in stmt.reduce if a in self.live]:
                raise InterpretError(
                    f"kernel {self.block.name!r}: {stmt.value!r} is summed over {looped} without Init: {self.tree}"
                )
            self.define(stmt, x)
            return
        key = tuple(self.trip[a] for a in acc.free)
        old = acc.tiles.get(key)
        for r in stmt.rescale:
            new = self.on.align(self.read(r.maximum, stmt, True), self.block.by_value[r.maximum].axes, stmt.axes)
            if old is not None:
                old = self.algebra.rescale(old, r.degree, acc.seen[r.maximum, key], new)
            acc.seen[r.maximum, key] = new
        old = self.algebra.identity(stmt.op, self.algebra.shape(x)) if old is None else old
        acc.tiles[key] = self.algebra.combine(stmt.op, old, x)

    def store(self, stmt: Stmt) -> None:
        name, full = stmt.at.tensor, self.on.full(stmt)
        spans = [self.span(a) for a in stmt.at.axes]
        window = (*spans, ...)  # a view, of a scalar too
        x = self.on.stored(stmt, self.read(stmt.value, stmt, False), tuple(s.stop - s.start for s in spans))
        mask = self.written[name].reshape(full)[window]
        if mask.any():
            before = self.algebra.lift(lambda y: y.reshape(full)[window], self.out[name])
            if not mask.all() or not self.algebra.same(before, x):
                raise InterpretError(f"kernel {self.block.name!r} writes elements of {name!r} twice with different values")
        mask[...] = True

        def write(buffer: Array, tile: Array) -> Array:
            buffer.reshape(full)[window] = tile
            return buffer

        self.out[name] = self.algebra.lift(write, self.out[name], x)
