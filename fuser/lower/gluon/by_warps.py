"""Kernels in Gluon for GPUs without ``wgmma`` and copy engine (sm_80 and later): all warps of a block compute side by side, 16
rows each at a time, with ``mma``, and bring operands of products to shared memory by ``cp.async``, so many trips ahead as the
schedule has stages less one. The loop tree is the same, and so are the functions that write operators, masks and folds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager

from fuser.ir.fuse import identifier
from fuser.ir.layout.named import DotOperand
from fuser.ir.layout.named import Mma
from fuser.ir.layout.named import Slice
from fuser.ir.mugraph import Stmt
from fuser.ir.tiling import Init
from fuser.ir.tiling import Loop
from fuser.ir.tiling import Node
from fuser.lower.causal_code import trips_needed
from fuser.lower.fold_code import rescale
from fuser.lower.frame_code import hoisted
from fuser.lower.frame_code import persistent
from fuser.lower.frame_code import used
from fuser.lower.given_options import check_options
from fuser.lower.gluon import folds
from fuser.lower.gluon.consumer import begun
from fuser.lower.gluon.consumer import computed
from fuser.lower.gluon.consumer import ended
from fuser.lower.gluon.consumer import stored
from fuser.lower.gluon.cp_async import Copied
from fuser.lower.gluon.cp_async import planned
from fuser.lower.gluon.places import Places
from fuser.lower.gluon.products import into_registers
from fuser.lower.gluon.rings import buffer_name
from fuser.lower.gluon.rings import room
from fuser.lower.gluon.source import SIGMOID
from fuser.lower.gluon.source import function
from fuser.lower.gluon.source import helpers_of
from fuser.lower.gluon.split import refuse
from fuser.lower.gluon.writer import GroupWriter
from fuser.lower.kernel_source import KernelSource
from fuser.lower.options import HOIST
from fuser.lower.options import ROOM
from fuser.lower.tiles import Tiles
from fuser.lower.writer import TRITON_DTYPE


class Warps:
    """Writes the loop tree; ``pending``: what has been copied ahead of its use and is not waited for."""

    def __init__(self, w: GroupWriter, copied: dict[str, Copied]) -> None:
        self.w, self.copied = w, copied
        self.slots = dict.fromkeys(copied, "0")
        self.pending: set[str] = set()
        self.axis, self.own = "", set[str]()
        w.lanes_of = folds.by_lanes(w)

    def nodes(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if isinstance(node, Init):
                begun(self.w, node)
            elif isinstance(node, Loop):
                self.loop(node)
            else:
                self.statement(node)

    def statement(self, stmt: Stmt) -> None:
        w = self.w
        with w.giving(stmt.value):
            if stmt.kind == "load":
                self.load(stmt)
            elif stmt.kind == "store":
                stored(w, stmt, again=False)
            elif w.tiles.is_dot(stmt):
                self.product(stmt)
            else:
                computed(w, stmt, "in Gluon")

    # -- loads --------------------------------------------------------------------------------------------------------------

    def load(self, stmt: Stmt) -> None:
        """By pointers into registers, or by copies, where a loop has not done that."""
        w, copied = self.w, self.copied.get(stmt.value)
        if copied and not (w.loops and stmt.value in self._ahead(w.loops[-1])):
            self.copy(copied, "", "0")
            w.emit("async_copy.commit_group()")
            self.pending.add(stmt.value)
            self.slots[stmt.value] = "0"
        if copied is None:
            into_registers(w, stmt)
        elif w.layout(stmt.value) is not None:
            self.wait(stmt.value)
            into_registers(w, stmt, lambda dims: self.tile(copied, dims))

    def wait(self, value: str) -> None:
        if value in self.pending:
            self.w.emit("async_copy.wait_group(0)")
            self.pending.clear()

    def tile(self, copied: Copied, dims: Sequence[str]) -> str:
        text = f"{buffer_name(self.w, copied.load.value)}.index({self.slots[copied.load.value]})"
        return text if tuple(dims) == copied.dims else f"{text}.permute((1, 0))"

    def copy(self, copied: Copied, loop: str, slot: str, trip: str = "") -> None:
        """Start the copy of a tile; of the innermost ``loop`` that of a ``trip``."""
        w, load, extents = self.w, copied.load, self.w.tiles.block.extents
        strides = load.at.strides(extents)
        terms, masks = [w.argument(load.at.source)], list[str]()
        if load.at.window and load.at.window.offset:
            terms.append(str(load.at.window.offset))
        for axis in load.at.axes:
            index, mask = self._index(copied, axis, loop, trip)
            if math.prod(load.at.memory_shape(extents)) >= 2**31:
                index = f"gl.cast({index}, gl.int64)"
            terms.append(f"{index} * {strides[axis]}" if strides[axis] != 1 else index)
            masks += [mask] * bool(mask)
        to = f"{buffer_name(w, load.value)}.index({slot})"
        extra = f", mask={' & '.join(masks)}" if masks else ""
        w.emit(f"async_copy.async_copy_global_to_shared({to}, {' + '.join(terms)}{extra})")

    def _index(self, copied: Copied, axis: str, loop: str, trip: str) -> tuple[str, str]:
        """The indices of an axis where a tile is copied, and which of them are elements."""
        w, plan, (piece,) = self.w, self.w.tiles.plans[axis], self.w.active[axis]
        name, masked = w.out.name(f"{copied.load.value} {axis} at"), w.tiles.masked(axis, piece)
        with self._outside(loop):
            start = w.start(axis, piece)
        if axis == loop:
            start = " + ".join(filter(None, (start, f"({trip}) * {plan.tile}")))
        if axis not in copied.dims:
            w.emit(f"{name} = {start or '0'}")
            return name, f"({name} < {plan.extent})" * masked
        dim = copied.dims.index(axis)
        arange = f"gl.arange(0, {piece.size}, {w.named(Slice(1 - dim, copied.threads(w.split)))})"
        w.emit(f"{name} = {start} + {arange}" if start else f"{name} = {arange}")
        inside = [f"{name} < {plan.extent}", *([f"{arange} < {piece.limit}"] * (piece.padded and plan.tile < plan.extent))]
        spread = "[None, :]" if dim else "[:, None]"
        return f"{name}{spread}", f"({' & '.join(f'({x})' for x in inside)}){spread}" * masked

    @contextmanager
    def _outside(self, loop: str) -> Iterator[None]:
        """What is written inside knows nothing of the counter of a loop."""
        kept = list(self.w.loops)
        self.w.loops = [x for x in kept if x != loop]
        yield
        self.w.loops = kept

    # -- products -----------------------------------------------------------------------------------------------------------

    def product(self, stmt: Stmt) -> None:
        w = self.w
        if inside := w.inside(stmt.value):
            rescale(w, stmt)
        operands = [self.operand(stmt, side) for side in (0, 1)]
        layout = w.tiles.natural(stmt)
        value = w.values[stmt.value] if inside and stmt.value in w.values else w.begin(stmt.value, layout)
        (combo,) = w.combos(layout)
        name = w.var(stmt.value, layout, combo)
        shape = ", ".join(str(w.split.size(a)) for a in layout)
        sums = w.layout(stmt.value)
        assert sums is not None
        w.emit(
            f"{name} = mma_v2({', '.join(operands)}, {name if inside else f'gl.zeros([{shape}], gl.float32, {w.named(sums)})'})"
        )
        w.define(value, combo, name)

    def operand(self, stmt: Stmt, side: int) -> str:
        """From shared memory, or what was computed."""
        w, sums = self.w, self.w.layout(stmt.value)
        assert isinstance(sums, Mma)
        (inner,) = w.tiles.dims(stmt.reduce)
        outer, value = w.tiles.natural(stmt)[side], w.tiles.sides(stmt)[side]
        dims, target = (inner, outer) if side else (outer, inner), w.named(DotOperand(side, sums, 2))
        if copied := self.copied.get(value):
            self.wait(value)
            return f"{self.tile(copied, dims)}.load({target})"
        (combo,) = w.combos(dims)
        with w.giving(value):
            text = w.read(value, dims, combo, dims, fp32=False)
        if w.values[value].dtype != (dtype := w.tiles.dot_dtype(stmt)):
            text = f"{text}.to({TRITON_DTYPE[dtype]})"
        return f"gl.convert_layout({text}, {target})"

    # -- loops --------------------------------------------------------------------------------------------------------------

    def _ahead(self, axis: str) -> set[str]:
        """What the innermost loop over an axis copies by itself."""
        return self.own if self.axis == axis else set()

    def loop(self, node: Loop) -> None:
        w = self.w
        if node.unrolled:
            raise refuse(w.tiles, f"an accumulator keeps a tile for each trip of {node.axis!r}", "choose another loop order")
        saved = dict(w.values)
        trips = trips_needed(w, node) or str(node.trips)
        if not trips.isdecimal():
            name = w.out.name(f"trips of {node.axis}")
            w.emit(f"{name} = {trips}")
            trips = name
        mine = [self.copied[s.value] for s in node.body if isinstance(s, Stmt) and s.kind == "load" and s.value in self.copied]
        w.around.append(w.tiles.accumulated(node))
        if any(isinstance(n, Loop) for n in node.body):
            with self._trip(node, trips):
                self.nodes(node.body)
        else:
            self._pipelined(node, trips, mine)
        ended(w, node, saved)

    @contextmanager
    def _trip(self, node: Loop, trips: str) -> Iterator[None]:
        with self.w.out.indented(f"for {self.w.trip(node.axis)} in range({trips}):"):
            self.w.loops.append(node.axis)
            if used(self.w, node.axis):
                self.w.emit_indices(node.axis)
            yield
            self.w.loops.pop()

    def _pipelined(self, node: Loop, trips: str, mine: Sequence[Copied]) -> None:
        """An innermost loop: copies of later trips are under way while one computes. All warps meet behind every wait, and
        again before they copy over what others have read."""
        w, stages = self.w, max((c.buffer.stages for c in mine), default=1)
        ahead, counter = stages - 1, w.trip(node.axis)
        for n in range(ahead if mine else 0):
            with w.out.indented(f"if {n} < {trips}:") if not trips.isdecimal() else _always():
                for c in mine if not trips.isdecimal() or n < int(trips) else ():
                    self.copy(c, node.axis, str(n), str(n))
            w.emit("async_copy.commit_group()")
        before = self.axis, self.own
        self.axis, self.own = node.axis, {c.load.value for c in mine}
        with self._trip(node, trips):
            later = f"{counter} + {ahead}" if ahead else counter
            if mine and ahead:
                w.emit(f"async_copy.wait_group({ahead - 1})")
            if mine:
                with w.out.indented(f"if {later} < {trips}:") if ahead else _always():
                    for c in mine:
                        self.copy(c, node.axis, f"({later}) % {stages}" if ahead else "0", later)
                w.emit("async_copy.commit_group()")
            if mine and not ahead:
                w.emit("async_copy.wait_group(0)")
            self.slots |= {c.load.value: f"{counter} % {stages}" if ahead else "0" for c in mine}
            waited, self.pending = self.pending, set() if mine else self.pending
            self.nodes(node.body)
        self.axis, self.own = before
        if mine:
            w.emit("async_copy.wait_group(0)")
            waited = set()
        self.pending = waited


@contextmanager
def _always() -> Iterator[None]:
    yield


# -- the kernel

IMPORTS = """from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.ampere import mma_v2"""


def generate_by_warps(tiles: Tiles, name: str) -> KernelSource:
    """Gluon source of a block under a schedule with ``backend=gluon_mma``. Raises :class:`NoValidKernelError` with the reason
    where a block has no such form, and as ``generate`` does."""
    block, schedule = tiles.block, tiles.schedule
    tensors = tuple(dict.fromkeys((*block.inputs, *block.outputs)))
    check_options(schedule.knob, tensors, block.name)
    split, plan, copied = planned(tiles)
    programs = min(persistent(split.tiles), split.places)
    nodes = hoisted(tiles.tree.body) if HOIST.of(schedule) else tiles.tree.body
    w = GroupWriter(split, plan, {}, "0")
    arguments = [w.argument(t) for t in tensors]
    for a in tiles.plans:
        w.index(a)
    for b in plan.buffers:
        for line in room(w, b):
            w.emit(line)
    places = Places.of(w, programs)
    with w.out.indented(f"for pid in range({places.first}, {places.count}, {programs}):") if programs else _always():
        for line in (*([] if programs else [f"pid = {places.first}"]), *places.decoded(w)):
            w.emit(line)
        for axis in w.tiles.plans:
            if axis not in w.tiles.looped and used(w, axis):
                w.emit_indices(axis)
        warps = Warps(w, copied)
        warps.nodes(nodes)
        if warps.pending:
            w.emit("async_copy.wait_group(0)")
    name = identifier(name)
    made = function(name, arguments, w)
    head = f"{block}\nschedule {schedule}\nloops {tiles.tree}"
    text = "".join(f"\n\n{f}\n" for f in (*helpers_of(w), *([SIGMOID] if re.search(r"\bsigmoid\(", made) else []), made))
    lines = [
        *(f"# {x}" for x in head.splitlines()),
        *(["import triton.language as tl"] * ("tl." in text)),
        IMPORTS,
        "",
        *w.constants(),
    ]
    access = {s.access.source: s for s in block.stmts if s.access}
    return KernelSource(
        name,
        "\n".join(lines) + "\n" + text,
        tensors,
        tuple(access[t].dtype for t in tensors),
        tuple(access[t].at.memory_shape(block.extents) for t in tensors),
        block.outputs,
        programs or split.places,
        schedule.num_warps,
        schedule.num_stages,
        room=ROOM.of(schedule),
        backend="gluon_mma",
    )
