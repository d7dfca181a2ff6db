"""What a kernel by warp groups needs beside its schedule, by simple rules: the rows of each group, the layout of every value, the
rings of shared memory. A solver may put another :class:`LayoutPlan` in the place of :func:`choose`'s.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fuser.errors import NoValidKernelError
from fuser.errors import OutOfResourcesError
from fuser.ir.layout.named import LANE_COLUMNS
from fuser.ir.layout.named import Blocked
from fuser.ir.layout.named import DotOperand
from fuser.ir.layout.named import Mma
from fuser.ir.layout.named import MmaShared
from fuser.ir.layout.named import Registers
from fuser.ir.layout.named import Slice
from fuser.ir.layout.named import Swizzled
from fuser.ir.layout.plan import OUT
from fuser.ir.layout.plan import Buffer
from fuser.ir.layout.plan import Fragment
from fuser.ir.layout.plan import LayoutPlan
from fuser.ir.layout.plan import Operand
from fuser.ir.mugraph import Stmt
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.schedule import KernelSchedule
from fuser.lower.descriptors import Descriptor
from fuser.lower.descriptors import describe
from fuser.lower.descriptors import describe_view
from fuser.lower.gluon.split import GROUP_WARPS
from fuser.lower.gluon.split import Split
from fuser.lower.gluon.split import of_16_bits
from fuser.lower.gluon.split import products
from fuser.lower.gluon.split import refuse
from fuser.lower.gluon.split import shared_out
from fuser.lower.options import BACKEND
from fuser.lower.options import OPTIONS
from fuser.lower.options import PERSISTENT
from fuser.lower.options import SPECIALIZE
from fuser.lower.options import TMA
from fuser.lower.options import option_of
from fuser.lower.tiles import Tiles

TAKEN = tuple(o.name for o in OPTIONS.values() if o.groups)
"""Options that have a meaning here; operands of products are moved by descriptors with or without ``tma``."""
COLUMNS = 256
"""Most of one ``wgmma``."""
SHARED = 227 << 10
"""Bytes of shared memory that a block can have on sm_90."""
BARRIERS = 2048
"""Bytes that are left for barriers and for the compiler's own use."""
ON_AN_SM = 228 << 10
"""Bytes of shared memory of all blocks of an SM, and of each what the driver takes."""
DRIVER = 1024
SMS = 132
"""Of the GPUs that have ``wgmma``; more blocks than fill them once want to lie side by side."""
FILE = 65536
"""Registers of an SM."""
PRODUCER_REGISTERS = 24
SPARE = 48
"""Registers of a thread for all but tiles."""
SWIZZLES = (128, 64, 32)
WIDEST = 8192
"""Columns of a box: it is copied in strips as wide as the swizzle."""


# -- layouts of registers


def parent(split: Split, columns: int) -> Registers:
    """The layout of a tile of rows by ``columns``: what ``wgmma`` leaves (of a narrower tile several lanes hold the
    same), or rows to warps where there is no product."""
    if products(split.tiles):
        wide = min(max(columns, LANE_COLUMNS), COLUMNS)
        return Mma(split.mma, (split.warps, 1), (16, wide, 16) if split.mma == 3 else (16, LANE_COLUMNS))
    vector = min(16 // split.item, columns)
    lanes = min(32, columns // vector)
    return Blocked((1, vector), (32 // lanes, lanes), (split.warps, 1), (1, 0))


def _line(split: Split, size: int) -> Registers:
    """The layout of a single row."""
    return Blocked((min(16 // split.item, max(size // (32 * split.warps), 1)),), (32,), (split.warps,), (0,))


def layouts(split: Split) -> dict[str, Registers]:
    """The layout of every value that is in registers; one that is loaded is there where something but a product reads it."""
    found: dict[str, Registers] = {}
    tiles = split.tiles
    for s in tiles.block.stmts:
        if s.kind == "store" or (s.kind == "load" and not read_in_registers(tiles, s)):
            continue
        dims = tiles.natural(s)
        if len(dims) > 2 or (len(dims) == 2 and dims[0] != split.axis):
            raise refuse(tiles, f"{s.value!r} has the dimensions {', '.join(dims)}, not rows {split.axis!r} and columns")
        if not dims:
            continue
        folded = s.kind == "compute" and s.entry.kind == "reduce" and tiles.dims(s.reduce)
        if split.axis in s.reduce:
            raise refuse(tiles, f"{s.value!r} folds the rows {split.axis!r}, which groups share out")
        if len(dims) == 2:
            found[s.value] = parent(split, split.size(dims[1]))
        elif folded:
            found[s.value] = Slice(1, found[s.args[0]])
        else:
            found[s.value] = _vector(split, s, dims[0], found)
    return found


def _vector(split: Split, stmt: Stmt, axis: str, found: Mapping[str, Registers]) -> Registers:
    """Of a value of one dimension: that of an operand, or the slice of the first tile that has it."""
    tiles = split.tiles
    for a in stmt.args:
        if tiles.natural(tiles.block.by_value[a]) == (axis,) and a in found:
            return found[a]
    return home(split, axis)


def home(split: Split, axis: str) -> Registers:
    """Where the indices of an axis are."""
    tiles = split.tiles
    for s in tiles.block.stmts:
        if s.kind != "store" and len(dims := tiles.natural(s)) == 2 and axis in dims and dims[0] == split.axis:
            return Slice(1 - dims.index(axis), parent(split, split.size(dims[1])))
    return Slice(0, parent(split, split.size(axis))) if split.axis else _line(split, split.size(axis))


def read_in_registers(tiles: Tiles, load: Stmt) -> bool:
    return any(not tiles.is_dot(u) for u in tiles.block.users(load.value))


# -- shared memory


def view_of(tiles: Tiles, stmt: Stmt) -> Descriptor:
    """The descriptor of a load, or of all stores to a tensor. Raises :class:`NoValidKernelError`."""
    of = describe_view(tiles, stmt, WIDEST) if stmt.kind == "load" else describe(tiles, stmt.at.source, WIDEST)
    return of.boxes_last


def buffer_of(split: Split, value: str, dtype: str, described: Descriptor, stages: int) -> Buffer:
    """A ring of boxes; those of every group lie side by side where they differ."""
    item = DTYPE_BYTES[dtype]
    wide = described.box[-1] * item
    rows = math.prod(described.box[:-1])
    swizzle = next((n for n in SWIZZLES if wide % n == 0), 0) if rows >= 8 else 0
    pieces = split.groups if split.axis in described.axes else 1
    size = math.prod(described.box) * item * pieces * stages
    layout = MmaShared(swizzle, 8 * item, len(described.box))
    return Buffer(value, dtype, described.box, pieces, stages, layout, "tma", size)


def rings(split: Split, once: int) -> Iterator[Buffer]:
    """Buffers of what is loaded by the copy engine: operands of products, which have to be, and tiles of two dimensions that can
    be; with ``once`` slots where they are loaded once in a place of the grid."""
    tiles = split.tiles
    often = fills(tiles)
    for s in tiles.block.loads:
        needed = any(tiles.is_dot(u) for u in tiles.block.users(s.value))
        if not needed and len(tiles.natural(s)) < 2:
            continue  # a vector comes by pointers, once for each group
        try:
            described = view_of(tiles, s)
        except NoValidKernelError:
            if needed:
                raise
            continue
        if not needed and math.prod(described.box) * DTYPE_BYTES[s.dtype] < LEAST_TILE:
            continue
        stages = max(tiles.schedule.num_stages, 1) * split.parts if often[s] != 1 else once
        most = 0 if PERSISTENT.of(tiles.schedule) else often[s]
        yield buffer_of(split, s.value, s.dtype, described, min(stages, most) if most else stages)


def fills(tiles: Tiles) -> dict[Stmt, int]:
    """How often a place of the grid loads something; 0 where several loops do."""
    found: dict[Stmt, int] = {}
    for n, around in tiles.tree.walk():
        if isinstance(n, Stmt) and n.kind == "load":
            found[n] = 0 if n in found else math.prod(x.trips for x in around)
    return found


def filled_again(often: int, slots: int) -> bool:
    """Whether what is loaded so often (:func:`fills`) does not have a slot for each time."""
    return not 1 <= often <= slots


LEAST_TILE = 1024
"""Bytes from which on a tile is worth a copy of its own."""


def pointed(schedule: KernelSchedule, tensor: str) -> bool:
    """Whether a result is asked to leave by pointers."""
    return schedule.knob.get(TMA.key(tensor)) is False


def stagings(split: Split) -> Iterator[tuple[str, Buffer]]:
    """Buffers through which results leave, by tensor, where the copy engine can write them."""
    tiles = split.tiles
    for s in tiles.block.stores:
        if pointed(tiles.schedule, s.at.source):
            continue
        try:
            described = view_of(tiles, s)
        except NoValidKernelError:
            continue
        if set(described.axes) >= set(tiles.dims(s.axes)) and len(tiles.dims(s.axes)) == len(tiles.natural(_made(tiles, s))):
            yield s.at.source, buffer_of(split, f"{s.at.source}{OUT}", s.dtype, described, split.turns)


def merged(split: Split, found: Mapping[str, Registers]) -> Iterator[Buffer]:
    """Buffers through which groups with the same rows hand over what their trips of a loop have accumulated."""
    if not split.loop:
        return
    others = split.parts - 1
    for value in sorted(split.tiles.accumulated(split.loop)):
        dims = split.tiles.natural(split.tiles.block.by_value[value])
        if not isinstance(found.get(value), Mma | Slice):
            raise refuse(split.tiles, f"{value!r} has no rows, and is not merged", "use fewer warps")
        box = tuple(split.size(a) for a in dims)
        layout = (
            MmaShared(128, 32, 2) if len(box) == 2 and box[-1] * 4 >= 128 else Swizzled(1, 1, 1, tuple(reversed(range(len(box)))))
        )
        yield Buffer(
            f"{value} part", "float32", box, split.groups, others, layout, "threads", math.prod(box) * 4 * split.groups * others
        )


def _made(tiles: Tiles, store: Stmt) -> Stmt:
    return tiles.block.by_value[store.value]


# -- registers


def at_first(groups: Any, blocks: Any) -> Any:
    """Registers of every thread of a block when it starts: an equal share of the SM's. A producer is a group too, with three idle
    warps. Of integers, or of arrays of them."""
    return np.minimum(FILE // (groups * 32 * GROUP_WARPS * blocks) // 8 * 8, 256)


def of_a_consumer(groups: Any, producer: Any, blocks: Any) -> Any:
    """Registers of a consumer's thread, when a producer has given back all but its few. Of integers, or of arrays of them."""
    left = at_first(groups + producer, blocks) * (groups + producer) - PRODUCER_REGISTERS * producer
    return np.minimum(left // groups // 8 * 8, 240)


def wanted(tiles: Tiles, fragments: Sequence[Fragment]) -> int:
    """Registers that a consumer's thread will need: accumulators, the largest other tile with a copy of it as 16-bit operand."""
    flat = [f for f in fragments if len(f.tile) == 2]
    sums = sum(f.registers for f in flat if f.value in tiles.owner)
    return sums + max((f.registers * 3 // 2 for f in flat if f.value not in tiles.owner), default=0) + SPARE


def of_a_product(split: Split) -> int:
    """Registers that every thread must have at first, or the assembler refuses the widest ``wgmma`` (C7602)."""
    dots = products(split.tiles)
    return max((min(split.size(split.tiles.natural(s)[1]), COLUMNS) // 2 + 26 for s in dots), default=0)


def side_by_side(split: Split, producer: bool, need: int, shared: int) -> int:
    """Blocks that an SM is to hold."""
    groups = split.consumers + producer
    least, most = of_a_product(split), at_first(groups, 1)
    if most < least:
        why = f"{split.consumers} groups have {most} registers a thread at first, its widest product wants {least}"
        raise refuse(split.tiles, why, "use fewer warps or columns")
    fits = (
        n
        for n in range(1, math.ceil(split.places / SMS) + 1)
        if of_a_consumer(split.consumers, producer, n) >= need
        and at_first(groups, n) >= least
        and n * (shared + DRIVER) <= ON_AN_SM
    )
    return max(fits, default=1)


def choose(split: Split) -> LayoutPlan:
    """A plan by rules. Raises :class:`NoValidKernelError` where a kernel has no form by warp groups."""
    tiles = split.tiles
    found = layouts(split)
    loads, room = list(rings(split, max(2, split.turns) if PERSISTENT.of(tiles.schedule) else 1)), SHARED - BARRIERS
    if not loads:
        raise refuse(tiles, "there is nothing that the copy engine could load")
    handed = list(merged(split, found))
    room -= sum(b.bytes for b in handed)
    outs = [b for _, b in stagings(split)]
    if sum(b.bytes for b in (*loads, *outs)) > room:
        loads = list(rings(split, split.turns))
    while outs and sum(b.bytes for b in (*loads, *outs)) > room:
        outs.pop()
    if (most := sum(b.bytes for b in loads)) > room:
        why = f"{tiles.block.name!r} would need {most} bytes of shared memory by warp groups, of {room}"
        raise OutOfResourcesError(why, "use smaller tiles or fewer stages")
    fragments = []
    for value, layout in found.items():
        tile = tuple(split.size(a) for a in tiles.natural(tiles.block.by_value[value]))
        fragments.append(Fragment(value, tile, layout, -(-math.prod(tile) // (32 * GROUP_WARPS))))
    operands = []
    for s in (s for s in tiles.block.computes if tiles.is_dot(s)):
        if not of_16_bits(tiles, s):
            raise refuse(tiles, f"the product {s.value!r} is not of two operands of 16 bits")
        for i, a in enumerate(tiles.sides(s)):
            loaded = tiles.block.by_value[a].kind == "load"
            if i and not loaded:
                raise refuse(tiles, f"{a!r}, the right operand of {s.value!r}, is computed, and only shared memory has such")
            operands.append(Operand(s.value, a, "shared" if loaded else "registers"))
    again = PERSISTENT.of(tiles.schedule)
    producer = refills(tiles, loads) and not _alone(split, loads)
    shared = sum(b.bytes for b in (*loads, *outs, *handed)) + BARRIERS
    blocks = side_by_side(split, producer, wanted(tiles, fragments), shared)
    blocks = min(blocks, math.ceil(again / SMS)) if again else blocks
    return LayoutPlan(
        split.consumers,
        GROUP_WARPS,
        split.axis,
        tiles.plans[split.axis].tile if split.axis else 0,
        producer,
        int(of_a_consumer(split.consumers, producer, blocks)),
        PRODUCER_REGISTERS,
        blocks,
        again > 0,
        (*loads, *outs, *handed),
        tuple(fragments),
        tuple(operands),
        shares=split.parts,
        loop=split.loop.axis if split.loop else "",
    )


def _alone(split: Split, buffers: Sequence[Buffer]) -> bool:
    """Whether the one group fills slots again by itself (``specialize=False``): for later trips of the one loop that it is in,
    none of which another loop runs again."""
    schedule = split.tiles.schedule
    if not SPECIALIZE.given_in(schedule) or SPECIALIZE.of(schedule):
        return False
    if split.consumers > 1 or PERSISTENT.of(schedule):
        why = f"with {SPECIALIZE.key()}=False one group fills what it alone reads, for one place of the grid"
        raise refuse(split.tiles, why, f"use warps={GROUP_WARPS} without {PERSISTENT.key()}, or leave out {SPECIALIZE.key()}")
    again = refilled(split.tiles, buffers)
    for node, around in split.tiles.tree.walk():
        if isinstance(node, Stmt) and node.kind == "load" and node.value in again and len(around) > 1:
            why = f"{node.value!r} is loaded in a loop within a loop, whose group cannot fill its slots again in time"
            raise refuse(split.tiles, why, f"leave out {SPECIALIZE.key()}")
    return True


def refilled(tiles: Tiles, buffers: Sequence[Buffer]) -> set[str]:
    """What is loaded into slots that are filled more than once in a place of the grid."""
    slots = {b.value: b.stages for b in buffers}
    return {s.value for s, n in fills(tiles).items() if s.value in slots and filled_again(n, slots[s.value])}


def refills(tiles: Tiles, buffers: Sequence[Buffer]) -> bool:
    """Whether some slot is filled more than once, so that a warp has to wait until it is empty."""
    return PERSISTENT.of(tiles.schedule) > 0 or bool(refilled(tiles, buffers))


def followed(split: Split, own: LayoutPlan, given: LayoutPlan) -> LayoutPlan:
    """The plan with what a solver has chosen otherwise: slots and swizzles of rings, results by the copy engine or by pointers,
    layouts of registers, blocks on an SM. Raises :class:`NoValidKernelError` for a form that is not written."""
    if (own.producer and not given.producer) or any(b.by == "cp.async" for b in given.buffers):
        raise refuse(split.tiles, "its plan has no warp that loads", "take a plan with a producer, by the copy engine")
    if (given.consumers, given.warps, given.divided, given.part) != (own.consumers, own.warps, own.divided, own.part):
        raise refuse(split.tiles, f"its plan shares {given.divided!r} out otherwise than the schedule's warps do")
    buffers = []
    for b in own.buffers:
        theirs = given.buffer.get(b.value)
        if theirs is not None:
            buffers.append(replace(b, stages=theirs.stages, layout=theirs.layout, bytes=b.bytes // b.stages * theirs.stages))
        elif not b.value.endswith(OUT):  # results that have none leave by pointers
            buffers.append(b)
    fragments = tuple(given.fragment.get(f.value, f) for f in own.fragments)
    if (most := sum(b.bytes for b in buffers)) > SHARED - BARRIERS:
        raise OutOfResourcesError(f"the plan of {split.tiles.block.name!r} needs {most} bytes of shared memory")
    producer = refills(split.tiles, buffers) and not _alone(split, buffers)
    registers = int(of_a_consumer(own.consumers, producer, given.blocks))
    changed = replace(own, producer=producer, registers=registers, blocks=given.blocks)
    return replace(changed, buffers=tuple(buffers), fragments=fragments)


def planned(tiles: Tiles, given: LayoutPlan | None = None) -> tuple[Split, LayoutPlan]:
    """Who computes which rows, and the plan of a schedule, with what a ``given`` one has otherwise. Raises
    :class:`NoValidKernelError` with the reason where there is none."""
    for knob, value in tiles.schedule.knobs:
        if value and (option := option_of(knob)) and option.name not in TAKEN:
            raise refuse(tiles, f"the option {knob!r} is for kernels in Triton", f"leave out {knob}, or {BACKEND.key()}=gluon")
    split = shared_out(tiles)
    single(split.tiles)
    own = choose(split)
    return split, followed(split, own, given) if given else own


def as_operand(layout: Registers) -> DotOperand:
    """The layout of a left operand in registers of 16-bit elements."""
    assert isinstance(layout, Mma)
    return DotOperand(0, layout, 2)


def single(tiles: Tiles) -> None:
    """Every axis is one register block: sizes of blocks are powers of two."""
    for axis, pieces in tiles.pieces.items():
        if axis in tiles.tree.arrays:
            raise refuse(tiles, f"an accumulator keeps a tile for each trip of {axis!r}", "choose another loop order")
        if len(pieces) > 1:
            raise refuse(tiles, f"the tile {tiles.plans[axis].tile} of {axis!r} is not one power of two", "choose another tile")
