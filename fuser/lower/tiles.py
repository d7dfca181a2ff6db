"""What is fixed of a kernel before a line of it is written: how each axis is cut into register blocks, and the order of the
dimensions of every value. Every backend reads these facts; none changes them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fuser.errors import UnsupportedError
from fuser.interpret.algebra import guarded
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.placement import place
from fuser.ir.schedule import AxisPlan
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import bind
from fuser.ir.tiling import Loop
from fuser.ir.tiling import LoopTree
from fuser.ir.tiling import Node
from fuser.lower.dependent_launch import statements
from fuser.lower.options import LAZY
from fuser.lower.options import PAD
from fuser.lower.pieces import MMA
from fuser.lower.pieces import Piece
from fuser.lower.pieces import pieces_of

LAZY_REGISTERS = 32
"""Registers of a thread up to which a sum keeps its tile until its loop ends."""


@dataclass(frozen=True, eq=False)
class Tiles:
    """A block with its schedule bound. ``guards`` are the values with a defined result where everything is masked
    (:func:`fuser.interpret.algebra.guarded`); None: those that the block alone shows."""

    block: BlockGraph
    plans: Mapping[str, AxisPlan]
    tree: LoopTree
    schedule: KernelSchedule
    given: frozenset[str] | None = None

    @staticmethod
    def of(block: BlockGraph, schedule: KernelSchedule, guards: frozenset[str] | None = None) -> Tiles:
        """Raises :class:`fuser.errors.UsageError` where the schedule does not fit the block."""
        block, plans = bind(block, schedule)
        return Tiles(block, plans, place(block, schedule.order, plans), schedule, guards)

    @cached_property
    def guards(self) -> frozenset[str]:
        if self.given is not None:
            return self.given
        alone = KernelGraph("", self.block.inputs, (self.block,), self.block.outputs)
        return frozenset(v for _, v in guarded(alone))

    @cached_property
    def owner(self) -> dict[str, str]:
        """The axis of the loop that accumulates a value."""
        return dict(self.tree.owner)

    @cached_property
    def pieces(self) -> dict[str, tuple[Piece, ...]]:
        """Register blocks of every axis, those of all trips where its loop is unrolled."""
        pad = PAD.of(self.schedule)
        dots = {a for s in self.block.computes if self.is_dot(s) for v in s.args for a in self.block.by_value[v].axes}
        return {
            axis: pieces_of(plan, MMA if axis in dots and plan.tile > 1 else 1, pad, axis in self.tree.arrays)
            for axis, plan in self.plans.items()
        }

    # -- axes ---------------------------------------------------------------------------------------------------------------

    def dims(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Axes that have a dimension in registers: a tile of one element has none."""
        return tuple(a for a in axes if self.plans[a].tile > 1)

    def masked(self, axis: str, piece: Piece) -> bool:
        """Whether some lane of a piece may be no element of the tensor."""
        plan = self.plans[axis]
        if plan.tile == 1 and not plan.ragged:
            return False
        return piece.padded or (plan.ragged and not (plan.trips == plan.grid == 1 and piece.offset + piece.limit <= plan.extent))

    @cached_property
    def looped(self) -> frozenset[str]:
        """Axes whose indices change inside a loop that is not unrolled."""
        return frozenset(n.axis for n in loops_of(self.tree.body) if not n.unrolled)

    @property
    def places(self) -> int:
        """Blocks of the grid; a split axis shares its counter."""
        return math.prod(p.grid for p in self.plans.values() if not p.split)

    # -- contractions and folds ---------------------------------------------------------------------------------------------

    def is_dot(self, stmt: Stmt) -> bool:
        """The contraction has rows, columns and a sum, so that the tensor cores can do it."""
        if stmt.kind != "compute" or not stmt.contracts:
            return False
        a, b = (set(self.dims(self.block.by_value[v].axes)) for v in stmt.args)
        inner = set(self.dims(stmt.reduce))
        return bool(a - b) and bool(b - a) and bool(inner) and not (a & b) - inner

    def dot_dtype(self, stmt: Stmt) -> str:
        """Operands have the narrowest dtype that the program gives one of them."""
        dtypes = [self.block.by_value[a].dtype for a in stmt.args]
        order = ("float16", "bfloat16", "float32")
        known = [d for d in order if d in dtypes]
        if not known:
            raise UnsupportedError(f"contraction {stmt.value!r} of {' and '.join(dtypes)} has no Triton form")
        return known[0]

    def natural(self, stmt: Stmt) -> tuple[str, ...]:
        """Order of the dimensions in registers: what the first contraction wants, else the block's order. The rows of a
        contraction's left operand stay in front of the columns of its right one."""
        dims = self.dims(stmt.axes)
        order = dims
        for user in self.block.users(stmt.value):
            if self.is_dot(user):
                inner = [a for a in dims if a in user.reduce]
                outer = [a for a in dims if a not in user.reduce]
                order = tuple(inner + outer) if self.sides(user)[1] == stmt.value else tuple(outer + inner)
                break
        if not self.is_dot(stmt):
            return order
        left = set(self.block.by_value[self._by_rows(stmt, order)[0]].axes)
        return (*(a for a in order if a in left), *(a for a in order if a not in left))

    def sides(self, stmt: Stmt) -> tuple[str, str]:
        """Left and right operand of a dot: the left one has the dimension that the result has first."""
        return self._by_rows(stmt, self.natural(stmt))

    def _by_rows(self, stmt: Stmt, order: Sequence[str]) -> tuple[str, str]:
        a, b = stmt.args
        return (a, b) if order[0] in self.block.by_value[a].axes else (b, a)

    def kept(self, stmt: Stmt) -> tuple[Piece, ...]:
        """The dimensions that a sum keeps until its loop ends: tiles are added lane by lane, and lanes and warps meet once, not
        in every trip. Empty where they meet in every trip. The option ``lazy`` decides; without it, whether the tile is small."""
        folds = stmt.adds and not self.is_dot(stmt)
        read = any(stmt.value in s.running for s in self.block.computes)
        if not folds or stmt.rescale or read or stmt.value not in self.owner:
            return ()
        if self.owner[stmt.value] in self.tree.arrays or any(len(self.pieces[a]) > 1 for a in stmt.reduce):
            return ()
        lanes = math.prod(self.pieces[a][0].size for a in self.dims((*stmt.axes, *stmt.reduce)))
        lazy = LAZY.of(self.schedule)
        if not (lanes <= LAZY_REGISTERS * 32 * self.schedule.num_warps if lazy is None else lazy):
            return ()
        return tuple(self.pieces[a][0] for a in self.dims(stmt.reduce))

    # -- loops --------------------------------------------------------------------------------------------------------------

    def accumulated(self, node: Loop) -> frozenset[str]:
        """Values that a loop accumulates."""
        inside = (s for s in statements(node) if isinstance(s, Stmt) and s.kind == "compute")
        return frozenset(s.value for s in inside if self.owner.get(s.value) == node.axis)

    def multiplies(self, node: Loop) -> bool:
        """The loop stays a loop, has a contraction on tensor cores, and no loop inside."""
        return (
            not node.unrolled
            and not any(isinstance(n, Loop) and not n.unrolled for n in node.body)
            and any(isinstance(s, Stmt) and self.is_dot(s) for s in statements(node))
        )


def loops_of(nodes: Sequence[Node]) -> Iterator[Loop]:
    """Every loop of a loop tree, outer ones first."""
    for n in nodes:
        if isinstance(n, Loop):
            yield n
            yield from loops_of(n.body)
