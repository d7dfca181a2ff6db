"""Readable Triton from any block graph and schedule: one generator, no templates.

The loop tree (:mod:`fuser.ir.tiling`) gives the control flow; every value is a family of register blocks, one for each combination of
pieces of its axes (:mod:`fuser.lower.pieces`). Arithmetic is fp32; operands of a contraction have the dtype of the program. Lanes
outside of a tensor are loaded as zero and set to the identity of a fold before it, so that a ragged tile changes nothing.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field

from fuser.errors import NoValidKernelError
from fuser.errors import UnsupportedError
from fuser.ir.fuse import identifier
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.ops import op as op_def
from fuser.ir.scalar import Scalar
from fuser.ir.schedule import AxisPlan
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.schedule import bind
from fuser.ir.tiling import Init
from fuser.ir.tiling import Loop
from fuser.ir.tiling import LoopTree
from fuser.ir.tiling import Node
from fuser.ir.tiling import place
from fuser.lower.algebra import guarded
from fuser.lower.pieces import MMA
from fuser.lower.pieces import Piece
from fuser.lower.pieces import pieces_of

TRITON_DTYPE = {
    "float16": "tl.float16",
    "bfloat16": "tl.bfloat16",
    "float32": "tl.float32",
    "bool": "tl.int1",
    "int32": "tl.int32",
    "int64": "tl.int64",
}
LOG2E = "1.4426950408889634"
MAX_BLOCKS = 64
"""Register blocks of one value beyond which the source would be absurd; such schedules are refused."""

Combo = tuple[Piece, ...]


@dataclass(frozen=True)
class KernelSource:
    """Generated source of one kernel: ``args`` are device tensors in order (inputs, then outputs), ``grid`` the number of blocks."""

    name: str
    text: str
    args: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    outputs: tuple[str, ...]
    grid: int
    num_warps: int
    num_stages: int


def generate_graph(graph: KernelGraph, schedule: Schedule) -> tuple[KernelSource, ...]:
    """Source of every graph-defined kernel of a µGraph, in launch order, with names that are unique to structure and schedule."""
    digest = hashlib.sha256(f"{graph.stable_hash()}{schedule.stable_hash()}".encode()).hexdigest()[:8]
    rules = guarded(graph)
    return tuple(
        generate(block, ks, f"{block.name}_{digest}", frozenset(v for k, v in rules if k == block.name))
        for block, ks in zip(graph.blocks, schedule.kernels, strict=True)
    )


def generate(block: BlockGraph, schedule: KernelSchedule, name: str = "", guards: frozenset[str] | None = None) -> KernelSource:
    """Triton source of a block under a schedule. ``guards`` are the values with a defined result where everything is masked
    (:func:`fuser.lower.algebra.guarded`); without them, those that the block alone shows.

    Raises :class:`UnsupportedError` for operators or dtypes that have no Triton form, :class:`NoValidKernelError` for schedules
    that would need an absurd number of register blocks.
    """
    block, plans = bind(block, schedule)
    return _Generator(block, plans, place(block, schedule.order, plans), schedule, guards).run(name or f"{block.name}_kernel")


@dataclass
class _Value:
    """Register blocks of a value: dimensions in the order of ``layout``; ``fill[axis]`` is what stands in lanes outside of the tensor."""

    layout: tuple[str, ...]
    names: dict[Combo, str] = field(default_factory=dict)
    dtype: str = "float32"
    fill: dict[str, str] = field(default_factory=dict)


class _Generator:
    def __init__(self, block: BlockGraph, plans: dict[str, AxisPlan], tree: LoopTree, schedule: KernelSchedule, guards: frozenset[str] | None) -> None:
        self.block, self.plans, self.tree, self.schedule = block, plans, tree, schedule
        alone = KernelGraph("", block.inputs, (block,), block.outputs)
        self.guards = frozenset(v for _, v in guarded(alone)) if guards is None else guards
        self.owner = dict(tree.owner)
        self.around: list[str] = []  # axes of the loops around the current line
        self.loops: list[str] = []  # those of them that are loops of the source too
        self.values: dict[str, _Value] = {}
        self.lines: list[str] = []
        self.depth = 1
        self.ids: dict[str, str] = {}
        self.fp32: dict[str, str] = {}
        pad = bool(schedule.knob.get("pad", False))
        dots = {a for s in block.computes if self.is_dot(s) for v in s.args for a in block.by_value[v].axes}
        self.pieces: dict[str, tuple[Piece, ...]] = {}
        for axis, plan in plans.items():
            least = MMA if axis in dots and plan.tile > 1 else 1
            self.pieces[axis] = pieces_of(plan, least, pad, axis in tree.arrays)
        self.active = dict(self.pieces)

    # -- structure of a tile ------------------------------------------------------------------------------------------------

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
        if text not in self.ids:
            base = identifier(text.replace("'", "_"))
            name = base if base not in ("tl", "triton", "range", "pid", "float") else f"{base}_"
            taken = set(self.ids.values())
            while name in taken:
                name += "_"
            self.ids[text] = name
        return self.ids[text]

    def argument(self, tensor: str) -> str:
        """Name of the pointer to a device tensor."""
        return self.ident(f"{tensor}_ptr")

    def suffix(self, layout: Sequence[str], combo: Combo) -> str:
        text = ""
        for axis, piece in zip(layout, combo, strict=True):
            if len(self.pieces[axis]) > 1:
                text += f"_{axis}{self.pieces[axis].index(piece)}"
        return text

    def var(self, value: str, layout: Sequence[str], combo: Combo) -> str:
        return self.ident(value) + self.suffix(layout, combo)

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line if line else "")

    # -- indices ------------------------------------------------------------------------------------------------------------

    def offsets(self, axis: str, piece: Piece) -> str:
        """Vector of element indices of a piece (a scalar for a tile of one element)."""
        name = f"{self.ident('i_' + axis)}{self.suffix((axis,), (piece,))}"
        return name

    def mask(self, axis: str, piece: Piece) -> str:
        """Name of the mask of a piece, or nothing where every lane is an element."""
        plan = self.plans[axis]
        if plan.tile == 1 and not plan.ragged:
            return ""
        if piece.padded or plan.ragged and not (plan.trips == plan.grid == 1 and piece.offset + piece.limit <= plan.extent):
            return f"{self.ident('ok_' + axis)}{self.suffix((axis,), (piece,))}"
        return ""

    def emit_indices(self, axis: str) -> None:
        plan = self.plans[axis]
        terms: list[str] = []
        if plan.grid > 1:
            step = plan.chunk
            counter = self.split_counter(axis)
            terms.append(f"{counter} * {step}" if step > 1 else counter)
        if axis in self.loops:
            terms.append(f"t_{self.ident('i_' + axis)} * {plan.tile}" if plan.tile > 1 else f"t_{self.ident('i_' + axis)}")
        for piece in self.active[axis]:
            own = list(terms)
            if piece.offset:
                own.append(str(piece.offset))
            start = " + ".join(own)
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

    # -- program ------------------------------------------------------------------------------------------------------------

    def run(self, kernel: str) -> KernelSource:
        for stmt in self.block.stmts:
            if len(list(self.combos(stmt.axes))) > MAX_BLOCKS:
                raise NoValidKernelError(
                    f"{stmt.value!r} of {self.block.name!r} would need {len(list(self.combos(stmt.axes)))} register blocks",
                    "use larger tiles, or an order that keeps fewer partial results",
                )
        tensors = list(dict.fromkeys((*self.block.inputs, *self.block.outputs)))
        names = [self.argument(t) for t in tensors]
        for a in self.plans:
            self.ident("i_" + a)
        name = identifier(kernel)
        self.grid()
        for axis in self.plans:
            if axis not in self.looped() and self.used(axis):
                self.emit_indices(axis)
        self.body(self.tree.body)
        access = {s.access.tensor: s for s in self.block.stmts if s.access}
        for t in tensors:
            if access[t].dtype not in TRITON_DTYPE:
                raise UnsupportedError(f"tensor {t!r} has dtype {access[t].dtype!r}, which generated kernels cannot hold")
        grid = math.prod(p.grid for p in self.plans.values() if not p.split)  # a split axis shares its counter
        header = [f"# {line}" for line in f"{self.block}\nschedule {self.schedule}\nloops {self.tree}".splitlines()]
        text = "\n".join(
            [*header, "import triton", "import triton.language as tl", "", "", "@triton.jit", f"def {name}({', '.join(names)}):"]
            + self.lines
        )
        shapes = tuple(access[t].access.shape(self.block.extents) for t in tensors)  # type: ignore[union-attr]
        return KernelSource(
            name,
            text + "\n",
            tuple(tensors),
            tuple(access[t].dtype for t in tensors),
            shapes,
            self.block.outputs,
            grid,
            self.schedule.num_warps,
            self.schedule.num_stages,
        )

    def used(self, axis: str) -> bool:
        return any(axis in s.axes for s in self.block.stmts if s.access or op_def(s.op).indexed) or any(
            self.mask(axis, p) for p in self.pieces[axis]
        )

    def looped(self) -> set[str]:
        """Axes whose indices change inside a loop that is not unrolled."""
        found: set[str] = set()

        def visit(nodes: Sequence[Node]) -> None:
            for n in nodes:
                if isinstance(n, Loop):
                    if not n.unrolled:
                        found.add(n.axis)
                    visit(n.body)

        visit(self.tree.body)
        return found

    def grid(self) -> None:
        """Decode the block's number; the last divided axis varies fastest, unless the knob ``grid_order`` names another order."""
        divided = [a for a, p in self.plans.items() if p.grid > 1]
        wanted = [a for a in str(self.schedule.knob.get("grid_order", "")).split(".") if a in divided]
        order = wanted + [a for a in divided if a not in wanted]
        counters = {a: self.split_counter(a) for a in order}
        distinct = list(dict.fromkeys(counters.values()))
        sizes = {counters[a]: self.plans[a].grid for a in order}
        if distinct:
            self.emit("pid = tl.program_id(0)")
        for i, name in enumerate(reversed(distinct)):
            if i == len(distinct) - 1:
                self.emit(f"{name} = pid" if i == 0 else f"{name} = pid_{i}")
                continue
            source = "pid" if i == 0 else f"pid_{i}"
            self.emit(f"{name} = {source} % {sizes[name]}")
            self.emit(f"pid_{i + 1} = {source} // {sizes[name]}")

    def split_counter(self, axis: str) -> str:
        """The grid part of a split axis is counted by its grid axis, so that both have one counter."""
        plan = self.plans[axis]
        return f"p_{self.ident('i_' + (plan.split or axis))}"

    def body(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if isinstance(node, Init):
                self.init(self.block.by_value[node.value])
            elif isinstance(node, Loop):
                self.loop(node)
            elif node.kind == "load":
                self.load(node)
            elif node.kind == "store":
                self.store(node)
            else:
                self.compute(node)

    def loop(self, node: Loop) -> None:
        if node.unrolled:
            outer = self.active[node.axis]
            self.around.append(node.axis)
            for trip in range(node.trips):
                self.active[node.axis] = tuple(p for p in self.pieces[node.axis] if p.trip == trip)
                self.body(node.body)
            self.around.pop()
            self.active[node.axis] = outer
            return
        saved = dict(self.values)
        self.emit(f"for t_{self.ident('i_' + node.axis)} in range({node.trips}):")
        self.depth += 1
        self.loops.append(node.axis)
        self.around.append(node.axis)
        self.emit_indices(node.axis)
        self.body(node.body)
        self.loops.pop()
        self.around.pop()
        self.depth -= 1
        # what was loaded or computed inside ends with the loop; accumulators live on
        self.values = {k: v for k, v in self.values.items() if k in saved or self.owner.get(k) == node.axis}
        self.fp32.clear()

    # -- statements ---------------------------------------------------------------------------------------------------------

    def natural(self, stmt: Stmt) -> tuple[str, ...]:
        """Order of the dimensions in registers: what the first contraction wants, else the block's order. The rows of a contraction's
        left operand stay in front of the columns of its right one."""
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

    def load(self, stmt: Stmt) -> None:
        access = stmt.access
        assert access is not None
        layout = self.natural(stmt)
        value = self.values.setdefault(stmt.value, _Value(layout, dtype=stmt.dtype, fill=dict.fromkeys(stmt.axes, "zero")))
        for combo in self.combos(stmt.axes):
            key = self.key(stmt.axes, combo, layout)
            name = self.var(stmt.value, layout, key)
            pointer = self.pointer(stmt, combo, layout)
            mask = self.masks(stmt.axes, combo, layout)
            hint = self.schedule.knob.get(f"evict_{access.tensor}", "")
            extra = (f", mask={mask}, other=0.0" if mask else "") + (f', eviction_policy="{hint}"' if hint else "")
            self.emit(f"{name} = tl.load({pointer}{extra})")
            self.fp32.pop(name, None)
            value.names[key] = name

    def key(self, axes: Sequence[str], combo: Combo, layout: Sequence[str]) -> Combo:
        """The pieces of the dimensions of ``layout``, out of those of ``axes``."""
        by_axis = dict(zip(axes, combo, strict=True))
        return tuple(by_axis[a] for a in layout)

    def pointer(self, stmt: Stmt, combo: Combo, layout: Sequence[str]) -> str:
        access = stmt.access
        assert access is not None
        strides = access.strides(self.block.extents)
        size = math.prod(access.shape(self.block.extents))
        terms = [self.argument(access.tensor)]
        by_axis = dict(zip(stmt.axes, combo, strict=True))
        for axis in sorted(access.axes, key=lambda a: a in layout):
            index = self.spread(self.offsets(axis, by_axis[axis]), (axis,) if axis in layout else (), layout)
            if size >= 2**31:
                index = f"{index}.to(tl.int64)" if axis in layout else f"tl.cast({index}, tl.int64)"
            terms.append(f"{index} * {strides[axis]}" if strides[axis] != 1 else index)
        return " + ".join(terms)

    def init(self, stmt: Stmt) -> None:
        layout = self.natural(stmt)
        value = _Value(layout)
        identity = op_def(stmt.op).identity if op_def(stmt.op).kind == "reduce" else 0.0
        text = 'float("-inf")' if identity == float("-inf") else str(identity)
        for combo in self.combos(layout):
            name = self.var(stmt.value, layout, combo)
            shape = ", ".join(str(p.size) for p in combo)
            self.emit(f"{name} = tl.full([{shape}], {text}, tl.float32)" if shape else f"{name} = {text}")
            value.names[combo] = name
        self.values[stmt.value] = value

    def read(self, value: str, axes: Sequence[str], combo: Combo, want: Sequence[str], fp32: bool = True) -> str:
        """Text of one register block of a value, in fp32 and broadcast to the dimensions ``want``."""
        v = self.values[value]
        by_axis = dict(zip(axes, combo, strict=True))
        name = v.names[tuple(by_axis[a] for a in v.layout)]
        if fp32 and v.dtype not in ("float32", "bool"):
            name = self.as_fp32(name)
        order = [a for a in want if a in v.layout]
        if order != list(v.layout):
            name = f"tl.permute({name}, ({', '.join(str(v.layout.index(a)) for a in order)}))" if len(order) > 2 else f"tl.trans({name})"
        return self.spread(name, order, want)

    def as_fp32(self, name: str) -> str:
        if name not in self.fp32:
            self.fp32[name] = f"{name}_f32"
            self.emit(f"{name}_f32 = {name}.to(tl.float32)")
        return self.fp32[name]

    def compute(self, stmt: Stmt) -> None:
        kind = op_def(stmt.op).kind
        if kind == "map":
            self.map(stmt)
        elif kind == "contract":
            self.contract(stmt)
        elif kind == "reduce":
            self.reduce(stmt)
        else:
            raise UnsupportedError(f"operator {stmt.op!r} ({stmt.value}) has no Triton form")

    def map(self, stmt: Stmt) -> None:
        entry = op_def(stmt.op)
        layout = self.natural(stmt)
        fills = [self.values[a].fill if a in self.values else {} for a in stmt.args]
        fill = {x: f for x in stmt.axes if (f := _fill(stmt, x, fills, [x in self.block.by_value[a].axes for a in stmt.args]))}
        value = self.values.setdefault(stmt.value, _Value(layout))
        value.fill = fill
        constant = {k: _number(self.block.scalar(v)) for k, v in stmt.attrs if isinstance(v, Scalar)}
        for combo in self.combos(stmt.axes):
            key = self.key(stmt.axes, combo, layout)
            args = []
            for a in stmt.args:
                if a in stmt.running:
                    args.append(self.running(a, stmt.axes, combo, layout))
                else:
                    args.append(self.read(a, stmt.axes, combo, layout))
            name = self.var(stmt.value, layout, key)
            if stmt.op == "causal_mask":
                text = self.causal(stmt, args[0], combo, layout)
            elif stmt.op == "cast":
                if stmt.attr["dtype"] not in ("float16", "bfloat16", "float32"):
                    raise UnsupportedError(f"cast to {stmt.attr['dtype']!r} ({stmt.value}) has no Triton form")
                text = args[0]
            elif not entry.triton:
                raise UnsupportedError(f"operator {stmt.op!r} ({stmt.value}) has no Triton form")
            else:
                text = entry.triton.format(*args, **constant)
            if stmt.op == "div" and stmt.value in self.guards:
                text = f"tl.where({args[1]} == 0.0, 0.0, {text})"
            if stmt.op == "sub" and stmt.value in self.guards and not stmt.running:
                text = f'{args[0]} - tl.where({args[1]} == float("-inf"), 0.0, {args[1]})'
            self.emit(f"{name} = {text}")
            self.fp32.pop(name, None)
            value.names[key] = name

    def causal(self, stmt: Stmt, x: str, combo: Combo, layout: Sequence[str]) -> str:
        by_axis = dict(zip(stmt.axes, combo, strict=True))
        rows, cols = stmt.attr["rows"], stmt.attr["cols"]

        def index(axis: str) -> str:
            if not axis:
                return "0"
            return self.spread(self.offsets(axis, by_axis[axis]), (axis,) if axis in layout else (), layout)

        offset = f" + {stmt.attr['offset']}" if stmt.attr["offset"] else ""
        return f'tl.where({index(cols)} <= {index(rows)}{offset}, {x}, float("-inf"))'

    def running(self, value: str, axes: Sequence[str], combo: Combo, want: Sequence[str]) -> str:
        """The running maximum as a shift: 0 where nothing was seen yet, so that exp(-inf - 0) is 0."""
        v = self.values[value]
        by_axis = dict(zip(axes, combo, strict=True))
        name = v.names[tuple(by_axis[a] for a in v.layout)]
        if not self.inside(value):
            self.emit(f'{name}_shift = tl.where({name} == float("-inf"), 0.0, {name})')
        return self.spread(f"{name}_shift", [a for a in want if a in v.layout], want)

    def inside(self, value: str) -> bool:
        """The current line is in the loop that accumulates the value."""
        return self.owner.get(value) in self.around

    # -- folds --------------------------------------------------------------------------------------------------------------

    def contract(self, stmt: Stmt) -> None:
        left, right = self.sides(stmt) if self.is_dot(stmt) else stmt.args
        for a in stmt.args:
            self.fill_zero(a, stmt.reduce)
        layout = self.natural(stmt)
        self.rescale(stmt)
        value = self.values.setdefault(stmt.value, _Value(layout))
        outer = tuple(a for a in stmt.axes)
        for combo in self.combos(outer):
            key = self.key(outer, combo, layout)
            name = self.var(stmt.value, layout, key)
            first = not self.inside(stmt.value)
            for inner in self.combos(stmt.reduce):
                axes, pieces = (*outer, *stmt.reduce), combo + inner
                if self.is_dot(stmt):
                    text = self.dot(stmt, left, right, axes, pieces, None if first else name, layout)
                else:
                    product = self.product(stmt, axes, pieces, layout)
                    text = product if first else f"{name} + {product}"
                self.emit(f"{name} = {text}")
                first = False
            value.names[key] = name
            self.fp32.pop(name, None)

    def dot(self, stmt: Stmt, left: str, right: str, axes: Sequence[str], combo: Combo, acc: str | None, layout: Sequence[str]) -> str:
        dtype = self.dot_dtype(stmt)
        by_axis = dict(zip(axes, combo, strict=True))
        inner = [a for a in self.dims(self.block.by_value[left].axes) if a in stmt.reduce]
        rows = [a for a in layout if a in self.block.by_value[left].axes]
        cols = [a for a in layout if a in self.block.by_value[right].axes]

        def operand(value: str, want: list[str], split: int) -> str:
            v = self.values[value]
            text = self.read(value, axes, combo, want, fp32=False)
            if v.dtype != dtype:
                text = f"{text}.to({TRITON_DTYPE[dtype]})"
            if len(want) > 2:
                sizes = [by_axis[a].size for a in want]
                text = f"tl.reshape({text}, ({math.prod(sizes[:split])}, {math.prod(sizes[split:])}))"
            return text

        a, b = operand(left, rows + inner, len(rows)), operand(right, inner + cols, len(inner))
        precision = f', input_precision="{self.schedule.knob.get("precision", "tf32x3")}"' if dtype == "float32" else ""
        if len(layout) == 2:
            return f"tl.dot({a}, {b}, {acc}{precision})" if acc else f"tl.dot({a}, {b}{precision})"
        shape = ", ".join(str(by_axis[x].size) for x in layout)
        flat = f"tl.reshape(tl.dot({a}, {b}{precision}), ({shape}))"
        return f"{acc} + {flat}" if acc else flat

    def dot_dtype(self, stmt: Stmt) -> str:
        """Operands have the narrowest dtype that the program gives one of them."""
        dtypes = [self.block.by_value[a].dtype for a in stmt.args]
        order = ("float16", "bfloat16", "float32")
        known = [d for d in order if d in dtypes]
        if not known:
            raise UnsupportedError(f"contraction {stmt.value!r} of {' and '.join(dtypes)} has no Triton form")
        return known[0]

    def product(self, stmt: Stmt, axes: Sequence[str], combo: Combo, layout: Sequence[str]) -> str:
        """Multiply and sum, for what has no rows or no columns (matrix times vector)."""
        inner = self.dims(stmt.reduce)
        want = (*layout, *inner)
        text = " * ".join(self.read(a, axes, combo, want) for a in stmt.args)
        for i in reversed(range(len(inner))):
            text = f"tl.sum({text}, {len(layout) + i})"
        return text

    def fill_zero(self, value: str, over: Sequence[str]) -> None:
        self.mask_with(value, over, "zero", "0.0")

    def mask_with(self, value: str, over: Sequence[str], state: str, text: str) -> None:
        """Set lanes outside of the tensor along the axes ``over``, unless they are known to hold that already."""
        v = self.values[value]
        axes = [a for a in over if a in v.layout and v.fill.get(a) != state and any(self.mask(a, p) for p in self.active[a])]
        if not axes:
            return
        full = self.block.by_value[value].axes
        done: set[Combo] = set()
        for combo in self.combos(full):
            key = self.key(full, combo, v.layout)
            if key in done:
                continue
            done.add(key)
            by_axis = dict(zip(full, combo, strict=True))
            mask = self.masks(axes, tuple(by_axis[a] for a in axes), v.layout)
            if mask:
                name = v.names[key]
                self.emit(f"{name} = tl.where({mask}, {name}, {text})")
                self.fp32.pop(name, None)
        for a in axes:
            v.fill[a] = state

    def rescale(self, stmt: Stmt) -> None:
        """Bring an accumulator to the new running maximum before it is added to."""
        if not self.inside(stmt.value):
            return
        v = self.values[stmt.value]
        for r in stmt.rescale:
            if self.owner.get(r.maximum) != self.owner[stmt.value]:
                continue
            top = self.values[r.maximum]
            for combo in self.combos(v.layout):
                name = v.names[combo]
                by_axis = dict(zip(v.layout, combo, strict=True))
                scale = f"{top.names[tuple(by_axis[a] for a in top.layout)]}_scale"
                if r.degree != 1:
                    scale = f"tl.exp2({r.degree} * tl.log2({scale}))"
                self.emit(f"{name} = {name} * {self.spread(scale, [a for a in v.layout if a in top.layout], v.layout)}")

    def reduce(self, stmt: Stmt) -> None:
        (arg,) = stmt.args
        entry = op_def(stmt.op)
        state, text = ("neginf", 'float("-inf")') if stmt.op == "max" else ("zero", "0.0")
        self.mask_with(arg, stmt.reduce, state, text)
        self.rescale(stmt)
        layout = self.natural(stmt)
        value = self.values.setdefault(stmt.value, _Value(layout))
        for combo in self.combos(stmt.axes):
            key = self.key(stmt.axes, combo, layout)
            name = self.var(stmt.value, layout, key)
            inner = self.dims(stmt.reduce)
            parts = []
            for over in self.combos(stmt.reduce):
                part = self.read(arg, (*stmt.axes, *stmt.reduce), combo + over, (*layout, *inner))
                for i in reversed(range(len(inner))):
                    part = f"{entry.triton}({part}, {len(layout) + i})"
                parts.append(part)
            if self.inside(stmt.value):
                parts.insert(0, name)
            total = parts[0]
            for p in parts[1:]:
                total = f"tl.maximum({total}, {p})" if stmt.op == "max" else f"{total} + {p}"
            if stmt.op == "max" and self.inside(stmt.value):
                self.emit(f"{name}_new = {total}")
                self.emit(f'{name}_shift = tl.where({name}_new == float("-inf"), 0.0, {name}_new)')
                self.emit(f"{name}_scale = tl.exp2(({name} - {name}_shift) * {LOG2E})")
                self.emit(f"{name} = {name}_new")
            else:
                self.emit(f"{name} = {total}")
            self.fp32.pop(name, None)
            value.names[key] = name

    def store(self, stmt: Stmt) -> None:
        access = stmt.access
        assert access is not None
        layout = self.dims(stmt.axes)
        held = self.values[stmt.value].layout
        if set(held) == set(layout):
            layout = held
        for combo in self.combos(stmt.axes):
            by_axis = dict(zip(stmt.axes, combo, strict=True))
            text = self.read(stmt.value, stmt.axes, combo, layout, fp32=False)
            if set(held) != set(layout):
                text = f"tl.broadcast_to({text}, ({', '.join(str(by_axis[a].size) for a in layout)}))"
            mask = self.masks(stmt.axes, combo, layout)
            extra = f", mask={mask}" if mask else ""
            if stmt.dtype != self.values[stmt.value].dtype:
                text = f"{text}.to({TRITON_DTYPE[stmt.dtype]})" if layout else f"tl.cast({text}, {TRITON_DTYPE[stmt.dtype]})"
            self.emit(f"tl.store({self.pointer(stmt, combo, layout)}, {text}{extra})")


def _number(x: float) -> str:
    return repr(float(x))


_KEEPS_ZERO = {"scale", "neg", "square", "relu", "silu", "gelu", "tanh", "cast", "erf", "sqrt"}


def _fill(stmt: Stmt, axis: str, fills: list[dict[str, str]], has: list[bool]) -> str:
    """What an element-wise operator leaves in lanes outside of the tensor, if that is known."""
    states = [f.get(axis, "") for f in fills]
    if stmt.op in _KEEPS_ZERO and states[0] == "zero":
        return "zero"
    if stmt.op == "mul" and "zero" in states and all(s == "zero" or not h for s, h in zip(states, has, strict=True)):
        return "zero"
    if stmt.op in ("add", "sub") and all(s == "zero" for s in states) and all(has):
        return "zero"
    if stmt.op == "sub" and states[0] == "neginf" and not has[1]:
        return "neginf"
    if stmt.op in ("exp",) and states[0] == "neginf":
        return "zero"
    return ""
