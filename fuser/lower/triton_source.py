"""Readable Triton from any block graph and schedule: one generator, no templates.

The loop tree (:mod:`fuser.ir.tiling`) gives the control flow; every value is a family of register blocks, one for each
combination of pieces of its axes (:mod:`fuser.lower.pieces`). Arithmetic is fp32; operands of a contraction have the dtype of
the program. Lanes outside of a tensor are loaded as zero and set to the identity of a fold before it, so that a ragged tile
changes nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fuser.errors import NoValidKernelError
from fuser.errors import UnsupportedError
from fuser.ir.fuse import identifier
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.ops import op as op_def
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.schedule import bind
from fuser.ir.tiling import Init
from fuser.ir.tiling import Loop
from fuser.ir.tiling import Node
from fuser.ir.tiling import place
from fuser.lower.algebra import guarded
from fuser.lower.dependent_launch import statements
from fuser.lower.descriptors import Descriptor
from fuser.lower.descriptors import described
from fuser.lower.descriptors import load_text
from fuser.lower.descriptors import store_text
from fuser.lower.fold_code import NAN_MAX
from fuser.lower.fold_code import TRITON_DTYPE
from fuser.lower.frame_code import Chain
from fuser.lower.layer_code import LayerCode
from fuser.lower.map_code import MapCode
from fuser.lower.options import check_options
from fuser.lower.prefetch_code import HELPER
from fuser.lower.program_order import persistent_loop
from fuser.lower.tile_code import Value

MAX_BLOCKS = 64
"""Register blocks of one value beyond which the source would be absurd; such schedules are refused."""


@dataclass(frozen=True)
class KernelSource:
    """Generated source of one kernel: ``args`` are device tensors in order (inputs, then outputs), ``grid`` the number of
    blocks. ``pdl``: it waits by itself for the kernel in front, and may be launched before that has ended. ``capability`` is
    the least that its options need (90 for sm_90). ``descriptors``: arguments that are tensor descriptors and not
    pointers, in order. ``specialize``: the compiler is to give its warps different work.
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

    @cached_property
    def described(self) -> dict[str, Descriptor]:
        """The descriptors by tensor."""
        return {d.tensor: d for d in self.descriptors}


def generate_graph(graph: KernelGraph, schedule: Schedule) -> tuple[KernelSource, ...]:
    """Source of every graph-defined kernel of a µGraph, in launch order, with names that are unique to structure and schedule."""
    digest = hashlib.sha256(f"{graph.stable_hash()}{schedule.stable_hash()}".encode()).hexdigest()[:8]
    rules = guarded(graph)
    schedules = iter(schedule.kernels)
    paired = [(k, next(schedules) if isinstance(k, BlockGraph) else None) for k in graph.kernels]
    found = []
    for i, (block, mine) in enumerate(paired):
        if not isinstance(block, BlockGraph) or mine is None:
            continue
        before, after = paired[i - 1][1] if i else None, paired[i + 1][1] if i + 1 < len(paired) else None
        chain = Chain(
            frozenset(t for k in graph.kernels[:i] for t in k.outputs),
            before is not None and "pdl" in mine.knob,
            str(after.knob.get("pdl", "")) if after else "",
        )
        guards = frozenset(v for k, v in rules if k == block.name)
        found.append(generate(block, mine, f"{block.name}_{digest}", guards, chain))
    return tuple(found)


def generate(
    block: BlockGraph,
    schedule: KernelSchedule,
    name: str = "",
    guards: frozenset[str] | None = None,
    chain: Chain | None = None,
) -> KernelSource:
    """Triton source of a block under a schedule. ``guards`` are the values with a defined result where everything is masked
    (:func:`fuser.lower.algebra.guarded`); without them, those that the block alone shows.

    Raises :class:`UnsupportedError` for operators or dtypes that have no Triton form, :class:`NoValidKernelError` for schedules
    that would need an absurd number of register blocks, :class:`UsageError` for options that the lowering does not have.
    """
    block, plans = bind(block, schedule)
    generator = _Generator(block, plans, place(block, schedule.order, plans), schedule, guards)
    return generator.run(name or f"{block.name}_kernel", chain or Chain())


class _Generator(LayerCode, MapCode):
    """Control flow, loads, element-wise operators and stores."""

    def run(self, kernel: str, chain: Chain) -> KernelSource:
        for stmt in self.block.stmts:
            if len(list(self.combos(stmt.axes))) > MAX_BLOCKS:
                raise NoValidKernelError(
                    f"{stmt.value!r} of {self.block.name!r} would need {len(list(self.combos(stmt.axes)))} register blocks",
                    "use larger tiles, or an order that keeps fewer partial results",
                )
        if single := [a for a in sorted(self.tree.arrays) if self.plans[a].tile == 1 and self.plans[a].trips > 1]:
            raise NoValidKernelError(
                f"{self.block.name!r} would keep an accumulator for each single element of {single[0]!r}",
                f"make the tile of {single[0]!r} 2 or more, or let no other loop end inside its loop",
            )
        tensors = list(dict.fromkeys((*self.block.inputs, *self.block.outputs)))
        capability = check_options(self.schedule.knob, tensors, self.block.name)
        self.described = described(self)
        specialize = self.check_specialized()
        names = [self.argument(t) for t in tensors]
        for a in self.plans:
            self.ident("i " + a)
        name, waits = identifier(kernel), chain.waits
        grid = math.prod(p.grid for p in self.plans.values() if not p.split)  # a split axis shares its counter
        if programs := self.persistent(grid):
            chain = self.wait_once(chain)
            self.emit(persistent_loop(grid, programs, bool(self.schedule.knob.get("flatten", False)), specialize))
            self.depth += 1
        self.grid()
        for axis in self.plans:
            if axis not in self.looped() and self.used(axis):
                self.emit_indices(axis)
        self.dependent_body(chain)
        access = {s.access.source: s for s in self.block.stmts if s.access}
        for t in tensors:
            if access[t].dtype not in TRITON_DTYPE:
                raise UnsupportedError(f"tensor {t!r} has dtype {access[t].dtype!r}, which generated kernels cannot hold")
        header = [f"# {line}" for line in f"{self.block}\nschedule {self.schedule}\nloops {self.tree}".splitlines()]
        text = "\n".join(
            [
                *header,
                "import triton",
                "import triton.language as tl",
                *([f"from triton.language.extra.cuda import {', '.join(sorted(self.imports))}"] if self.imports else []),
                *(["", "", HELPER.rstrip()] if self.prefetches else []),
                *(["", "", NAN_MAX.rstrip()] if self.maxima else []),
                "",
                "",
                "@triton.jit",
                f"def {name}({', '.join(names)}):",
                *self.without_idle(),
            ]
        )
        shapes = tuple(access[t].access.source_shape(self.block.extents) for t in tensors)  # type: ignore[union-attr]
        return KernelSource(
            name,
            text + "\n",
            tuple(tensors),
            tuple(access[t].dtype for t in tensors),
            shapes,
            self.block.outputs,
            programs or grid,
            self.schedule.num_warps,
            self.schedule.num_stages,
            waits,
            capability,
            tuple(self.described[t] for t in tensors if t in self.described),
            specialize,
        )

    def body(self, nodes: Sequence[Node]) -> None:
        if layers := self.layers(nodes):
            self.rolled(layers)
        else:
            self.plain(nodes)

    def plain(self, nodes: Sequence[Node]) -> None:
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
            self.around.append(self.accumulated(node))
            for trip in range(node.trips):
                self.active[node.axis] = tuple(p for p in self.pieces[node.axis] if p.trip == trip)
                self.body(node.body)
            self.around.pop()
            self.active[node.axis] = outer
            return
        saved = dict(self.values)
        special = self.schedule.knob.get("specialize") and "persistent" not in self.schedule.knob and self.multiplies(node)
        trips = f"tl.range(0, {node.trips}, warp_specialize=True)" if special else f"range({node.trips})"
        self.emit(f"for t_{self.ident('i ' + node.axis)} in {trips}:")
        self.depth += 1
        self.loops.append(node.axis)
        self.around.append(self.accumulated(node))
        if self.used(node.axis):
            self.emit_indices(node.axis)
        self.body(node.body)
        self.loops.pop()
        self.around.pop()
        self.depth -= 1
        # what was loaded or computed inside ends with the loop; accumulators live on
        self.values = {k: v for k, v in self.values.items() if k in saved or self.owner.get(k) == node.axis}
        self.fp32.clear()
        self.settle({s.value for s in statements(node) if isinstance(s, Stmt) and self.owner.get(s.value) == node.axis})

    def load(self, stmt: Stmt) -> None:
        access = stmt.access
        assert access is not None
        by_tma = self.described.get(access.source)
        layout = tuple(a for a in by_tma.axes if self.plans[a].tile > 1) if by_tma else self.natural(stmt)
        value = self.values.setdefault(stmt.value, Value(layout, dtype=stmt.dtype))
        value.made = set()
        value.fill = dict.fromkeys(stmt.axes, "zero")  # an earlier trip of an unrolled loop may have set something else
        for combo in self.combos(stmt.axes):
            key = self.key(stmt.axes, combo, layout)
            name = self.var(stmt.value, layout, key)
            self.fp32.pop(name, None)
            value.names[key] = name
            value.made.add(key)
            if by_tma:
                text = load_text(self, self.argument(access.source), by_tma, dict(zip(stmt.axes, combo, strict=True)))
                self.emit(f"{name} = {text}")
                continue
            pointer = self.pointer(stmt, combo, layout)
            mask = self.masks(stmt.axes, combo, layout)
            hint = self.schedule.knob.get(f"evict_{access.source}", "")
            extra = (f", mask={mask}, other=0.0" if mask else "") + (f', eviction_policy="{hint}"' if hint else "")
            self.emit(f"{name} = tl.load({pointer}{extra})")

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

    def store(self, stmt: Stmt) -> None:
        access = stmt.access
        assert access is not None
        layout = self.dims(stmt.axes)
        held = self.values[stmt.value].layout
        by_tma = self.described.get(access.source)
        if by_tma:
            layout = tuple(a for a in by_tma.axes if a in layout)
        elif set(held) == set(layout):
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
            if by_tma:
                self.emit(store_text(self, self.argument(access.source), by_tma, by_axis, text))
                continue
            self.emit(f"tl.store({self.pointer(stmt, combo, layout)}, {text}{extra})")
