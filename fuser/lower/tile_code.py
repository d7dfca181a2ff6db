"""Tiles in generated source: names of register blocks, element indices, masks, pointers, and reading a block as an operand needs
it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from keyword import iskeyword
from typing import TYPE_CHECKING

from fuser.ir.fuse import identifier
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.ops import op as op_def
from fuser.ir.schedule import AxisPlan
from fuser.ir.schedule import KernelSchedule
from fuser.ir.tiling import Loop
from fuser.ir.tiling import LoopTree
from fuser.ir.tiling import Node
from fuser.lower.algebra import guarded
from fuser.lower.pieces import MMA
from fuser.lower.pieces import Piece
from fuser.lower.pieces import pieces_of

if TYPE_CHECKING:
    from fuser.lower.descriptors import Descriptor

Combo = tuple[Piece, ...]
TAKEN = frozenset({"tl", "triton", "range", "min", "float", "prefetch_l2", "gdc_wait", "gdc_launch_dependents"}) | frozenset(
    {"nan_max", "pid", "pid_in", "pid_1", "first", "height"}
)
"""Names that generated source uses for something else."""


@dataclass
class Value:
    """Register blocks of a value: dimensions in the order of ``layout``; ``fill[axis]`` is what stands in lanes outside of the
    tensor; ``factor`` is still to be multiplied; ``made`` are the register blocks that the last statement gave it, of one trip
    where the loop is unrolled.
    """

    layout: tuple[str, ...]
    names: dict[Combo, str] = field(default_factory=dict)
    dtype: str = "float32"
    fill: dict[str, str] = field(default_factory=dict)
    factor: float = 1.0
    made: set[Combo] = field(default_factory=set)


class TileCode:
    """State of one kernel's generation, and the text that depends only on tiles."""

    def __init__(
        self,
        block: BlockGraph,
        plans: dict[str, AxisPlan],
        tree: LoopTree,
        schedule: KernelSchedule,
        guards: frozenset[str] | None,
    ) -> None:
        self.block, self.plans, self.tree, self.schedule = block, plans, tree, schedule
        alone = KernelGraph("", block.inputs, (block,), block.outputs)
        self.guards = frozenset(v for _, v in guarded(alone)) if guards is None else guards
        self.owner = dict(tree.owner)
        self.around: list[frozenset[str]] = []  # what each loop around the current line accumulates
        self.loops: list[str] = []  # those of them that are loops of the source too
        self.values: dict[str, Value] = {}
        self.lines: list[str] = []
        self.depth = 1
        self.ids: dict[str, str] = {}
        self.fp32: dict[str, str] = {}
        self.moving: dict[str, tuple[str, int]] = {}  # loads that move on with a loop over layers: its counter, elements
        self.imports: set[str] = set()  # names of triton.language.extra.cuda that the source uses
        self.described: Mapping[str, Descriptor] = {}  # tensors that are moved by descriptors
        pad = bool(schedule.knob.get("pad", False))
        dots = {a for s in block.computes if self.is_dot(s) for v in s.args for a in block.by_value[v].axes}
        self.pieces: dict[str, tuple[Piece, ...]] = {}
        for axis, plan in plans.items():
            least = MMA if axis in dots and plan.tile > 1 else 1
            self.pieces[axis] = pieces_of(plan, least, pad, axis in tree.arrays)
        self.active = dict(self.pieces)

    def dims(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Axes that have a dimension in registers: a tile of one element has none."""
        return tuple(a for a in axes if self.plans[a].tile > 1)

    def is_dot(self, stmt: Stmt) -> bool:
        """The contraction has rows, columns and a sum, so that the tensor cores can do it."""
        if stmt.kind != "compute" or op_def(stmt.op).kind != "contract":
            return False
        a, b = (set(self.dims(self.block.by_value[v].axes)) for v in stmt.args)
        inner = set(self.dims(stmt.reduce))
        return bool(a - b) and bool(b - a) and bool(inner) and not (a & b) - inner

    def combos(self, axes: Sequence[str]) -> Iterator[Combo]:
        return itertools.product(*(self.active[a] for a in axes))

    def ident(self, text: str) -> str:
        """The name in the source of a value, or of what the lowering adds: then with a blank, which no value's name has."""
        if text not in self.ids:
            base = identifier(text.replace("'", "_"))
            name = f"{base}_" if base in TAKEN or iskeyword(base) else base
            taken = set(self.ids.values())
            while name in taken:
                name += "_"
            self.ids[text] = name
        return self.ids[text]

    def beside(self, name: str, what: str) -> str:
        """The name of something about a register block (its fp32 form, say), which no value has."""
        return self.ident(f"{name} {what}")

    def argument(self, tensor: str) -> str:
        """Name of the pointer to a device tensor, or of its descriptor."""
        return self.ident(f"{tensor} {'desc' if tensor in self.described else 'ptr'}")

    def suffix(self, layout: Sequence[str], combo: Combo) -> str:
        text = ""
        for axis, piece in zip(layout, combo, strict=True):
            if len(self.pieces[axis]) > 1:
                text += f"_{axis}{self.pieces[axis].index(piece)}"
        return text

    def var(self, value: str, layout: Sequence[str], combo: Combo) -> str:
        return self.piece_of(value, self.suffix(layout, combo))

    def piece_of(self, text: str, suffix: str) -> str:
        """A name with the suffix of a register block, which may be another value's name."""
        return self.beside(self.ident(text), suffix[1:]) if suffix else self.ident(text)

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line if line else "")

    # -- indices ------------------------------------------------------------------------------------------------------------

    def split_counter(self, axis: str) -> str:
        """The grid part of a split axis is counted by its grid axis, so that both have one counter."""
        plan = self.plans[axis]
        return f"p_{self.ident('i ' + (plan.split or axis))}"

    def offsets(self, axis: str, piece: Piece) -> str:
        """Vector of element indices of a piece (a scalar for a tile of one element)."""
        return self.piece_of(f"i {axis}", self.suffix((axis,), (piece,)))

    def mask(self, axis: str, piece: Piece) -> str:
        """Name of the mask of a piece, or nothing where every lane is an element."""
        plan = self.plans[axis]
        if plan.tile == 1 and not plan.ragged:
            return ""
        if piece.padded or (plan.ragged and not (plan.trips == plan.grid == 1 and piece.offset + piece.limit <= plan.extent)):
            return self.piece_of(f"ok {axis}", self.suffix((axis,), (piece,)))
        return ""

    def start(self, axis: str, piece: Piece) -> str:
        """Index of the first element of a piece; empty for 0."""
        plan = self.plans[axis]
        terms: list[str] = []
        if plan.grid > 1:
            step = plan.chunk
            counter = self.split_counter(axis)
            terms.append(f"{counter} * {step}" if step > 1 else counter)
        if axis in self.loops:
            terms.append(f"t_{self.ident('i ' + axis)} * {plan.tile}" if plan.tile > 1 else f"t_{self.ident('i ' + axis)}")
        if piece.offset:
            terms.append(str(piece.offset))
        return " + ".join(terms)

    def emit_indices(self, axis: str) -> None:
        plan = self.plans[axis]
        for piece in self.active[axis]:
            start = self.start(axis, piece)
            name = self.offsets(axis, piece)
            if plan.tile == 1:
                self.emit(f"{name} = {start or '0'}")
            else:
                lane = f"tl.arange(0, {piece.size})"
                self.emit(f"{name} = {start} + {lane}" if start else f"{name} = {lane}")
            if mask := self.mask(axis, piece):
                limits = []
                if piece.padded and (plan.trips > 1 or plan.grid > 1):
                    limits.append(f"tl.arange(0, {piece.size}) < {piece.limit}")
                limits.append(f"{name} < {plan.extent}")
                self.emit(f"{mask} = {' & '.join(f'({x})' for x in limits) if len(limits) > 1 else limits[0]}")

    def spread(self, name: str, have: Sequence[str], want: Sequence[str]) -> str:
        """Index text that broadcasts dimensions ``have`` (a subsequence of ``want``) to ``want``."""
        if not have or tuple(have) == tuple(want):
            return name
        return f"{name}[{', '.join(':' if a in have else 'None' for a in want)}]"

    def masks(self, axes: Sequence[str], combo: Combo, layout: Sequence[str]) -> str:
        found = []
        for axis, piece in zip(axes, combo, strict=True):
            if mask := self.mask(axis, piece):
                found.append(self.spread(mask, (axis,) if axis in layout else (), layout))
        return " & ".join(found)

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
        left = set(self.block.by_value[self.by_rows(stmt, order)[0]].axes)
        return (*(a for a in order if a in left), *(a for a in order if a not in left))

    def sides(self, stmt: Stmt) -> tuple[str, str]:
        """Left and right operand of a dot: the left one has the dimension that the result has first."""
        return self.by_rows(stmt, self.natural(stmt))

    def by_rows(self, stmt: Stmt, order: Sequence[str]) -> tuple[str, str]:
        a, b = stmt.args
        return (a, b) if order[0] in self.block.by_value[a].axes else (b, a)

    def key(self, axes: Sequence[str], combo: Combo, layout: Sequence[str]) -> Combo:
        """The pieces of the dimensions of ``layout``, out of those of ``axes``."""
        by_axis = dict(zip(axes, combo, strict=True))
        return tuple(by_axis[a] for a in layout)

    def pointer(self, stmt: Stmt, combo: Combo, layout: Sequence[str]) -> str:
        access = stmt.access
        assert access is not None
        strides = access.strides(self.block.extents)
        size = math.prod(access.source_shape(self.block.extents))
        terms = [self.argument(access.source)]
        if access.window and access.window.offset:
            terms.append(str(access.window.offset))
        if stmt.value in self.moving:
            counter, step = self.moving[stmt.value]
            terms.append(f"{f'tl.cast({counter}, tl.int64)' if size >= 2**31 else counter} * {step}")
        by_axis = dict(zip(stmt.axes, combo, strict=True))
        for axis in sorted(access.axes, key=lambda a: a in layout):
            index = self.spread(self.offsets(axis, by_axis[axis]), (axis,) if axis in layout else (), layout)
            if size >= 2**31:
                index = f"{index}.to(tl.int64)" if axis in layout else f"tl.cast({index}, tl.int64)"
            terms.append(f"{index} * {strides[axis]}" if strides[axis] != 1 else index)
        return " + ".join(terms)

    def read(
        self, value: str, axes: Sequence[str], combo: Combo, want: Sequence[str], fp32: bool = True, factor: bool = True
    ) -> str:
        """Text of one register block of a value, in fp32 and broadcast to the dimensions ``want``; without its pending factor
        where ``factor`` is false."""
        v = self.values[value]
        by_axis = dict(zip(axes, combo, strict=True))
        name = v.names[tuple(by_axis[a] for a in v.layout)]
        if factor and v.factor != 1.0:
            name = f"({name} * {float(v.factor)!r})"
        if fp32 and v.dtype not in ("float32", "bool"):
            name = self.as_fp32(name)
        order = [a for a in want if a in v.layout]
        if order != list(v.layout):
            name = (
                f"tl.permute({name}, ({', '.join(str(v.layout.index(a)) for a in order)}))"
                if len(order) > 2
                else f"tl.trans({name})"
            )
        return self.spread(name, order, want)

    def as_fp32(self, name: str) -> str:
        if name not in self.fp32:
            self.fp32[name] = self.beside(name, "f32")
            self.emit(f"{self.fp32[name]} = {name}.to(tl.float32)")
        return self.fp32[name]

    def inside(self, value: str) -> bool:
        """The current line is in the loop that accumulates the value; another loop over the same axis is not that loop."""
        return any(value in sums for sums in self.around)

    def accumulated(self, node: Loop) -> frozenset[str]:
        """Values that this loop accumulates."""
        found: set[str] = set()
        todo: list[Node] = [node]
        while todo:
            n = todo.pop()
            if isinstance(n, Loop):
                todo += n.body
            elif isinstance(n, Stmt) and n.kind == "compute" and self.owner.get(n.value) == node.axis:
                found.add(n.value)
        return frozenset(found)
