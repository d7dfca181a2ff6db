"""What a kernel brings to L2: while it waits for the kernel in front of it, the first tiles of weights, say; and ahead of the
kernel behind it, all of that one's weights.

The time until an earlier kernel has ended is idle otherwise, and device memory is while an epilogue computes. Nothing is kept in
registers or shared memory; later loads find their lines in L2.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence

from fuser.ir.mugraph import Stmt
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.program import Tensor
from fuser.ir.tiling import Loop
from fuser.ir.tiling import Node
from fuser.lower.options import PREFETCH
from fuser.lower.pieces import next_power
from fuser.lower.writer import Combo
from fuser.lower.writer import Writer
from fuser.lower.writer import spread

LINE = 128
"""Bytes of a line of L2."""

HELPER = """@triton.jit
def prefetch_l2(pointers):
    tl.inline_asm_elementwise("prefetch.global.L2 [$1]; // $0", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1)
"""

BRING = """@triton.jit
def bring_l2(pointer, PART: tl.constexpr, LAST: tl.constexpr, THREADS: tl.constexpr):
    lane = tl.arange(0, THREADS)
    start = pointer.to(tl.int64) + tl.minimum(tl.program_id(0).to(tl.int64) * PART, LAST) + lane * 0
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.eq.s32 p, $3, 0; @p cp.async.bulk.prefetch.L2.global [$1], $2; } // $0",
        "=r,l,r,r", [start, tl.full([THREADS], PART, tl.int32), lane], dtype=tl.int32, is_pure=False, pack=1
    )
"""
BULK = 16
"""Bytes that a bulk prefetch begins at and moves multiples of."""


def bring(w: Writer, tensors: Sequence[Tensor], programs: int) -> None:
    """Tensors to L2, of each an equal run of bytes by every program: one thread's bulk prefetch."""
    for name, part, last in runs(tensors, programs):
        w.helpers.add(BRING)
        w.emit(f"bring_l2({w.argument(name)}, {part}, {last}, {32 * w.tiles.schedule.num_warps})")


def runs(tensors: Sequence[Tensor], programs: int) -> Iterator[tuple[str, int, int]]:
    """Of each tensor the bytes of a program's run, and where the last one begins."""
    for tensor in tensors:
        size = tensor.nbytes // BULK * BULK
        part = BULK * math.ceil(size / (BULK * programs))
        if part:
            yield tensor.name, part, size - part


def prefetch(w: Writer, nodes: Sequence[Node], earlier: Collection[str]) -> None:
    """For the loops among ``nodes``: lines of tensors that no earlier kernel writes, in so many trips as the option
    ``prefetch`` says."""
    trips = PREFETCH.of(w.tiles.schedule)
    for node in nodes if trips else ():
        if isinstance(node, Loop) and not node.unrolled:
            _trips(w, node, trips, earlier)


def _trips(w: Writer, node: Loop, trips: int, earlier: Collection[str]) -> None:
    mine = [s for s in node.body if isinstance(s, Stmt) and _ahead(w, s, earlier)]
    inner = [n for n in node.body if isinstance(n, Loop) and not n.unrolled]
    if not mine and not inner:
        return
    start = len(w.out.lines)
    with w.out.indented(f"for {w.trip(node.axis)} in range({min(trips, node.trips)}):"):
        w.loops.append(node.axis)
        w.emit_indices(node.axis)
        empty = len(w.out.lines)
        for stmt in mine:
            for combo in w.combos(stmt.axes):
                w.emit(f"prefetch_l2({_lines(w, stmt, combo)})")
        for loop in inner:
            _trips(w, loop, 1, earlier)
        w.loops.pop()
    if len(w.out.lines) == empty:
        del w.out.lines[start:]
    else:
        w.helpers.add(HELPER)


def _ahead(w: Writer, stmt: Stmt, earlier: Collection[str]) -> bool:
    return (
        stmt.kind == "load"
        and stmt.access is not None
        and stmt.access.source not in earlier
        and stmt.access.source not in w.described
    )


def _lines(w: Writer, stmt: Stmt, combo: Combo) -> str:
    """Pointers to the lines of a tile: one of the elements of each, clamped to the tensor."""
    access = stmt.at
    strides = access.strides(w.tiles.block.extents)
    step = LINE // DTYPE_BYTES[stmt.dtype]
    pieces = dict(zip(stmt.axes, combo, strict=True))
    wide = [a for a in access.axes if w.tiles.plans[a].tile > 1]
    terms = [w.argument(access.source)]
    if access.window and access.window.offset:
        terms.append(str(access.window.offset))
    for axis in access.axes:
        piece, extent = pieces[axis], w.tiles.plans[axis].extent
        index = w.offsets(axis, piece)
        if axis in wide and strides[axis] == 1:
            lines = next_power(-(-piece.limit // step))
            lanes = f"tl.arange(0, {lines}) * {step}" if lines > 1 else "tl.arange(0, 1)"
            index = " + ".join(filter(None, (w.start(axis, piece), lanes)))
            index = f"tl.minimum({index}, {extent - 1})"
        elif w.mask(axis, piece):
            index = f"tl.minimum({index}, {extent - 1})"
        if axis in wide:
            index = spread(index if index.isidentifier() else f"({index})", (axis,), wide)
        if math.prod(access.memory_shape(w.tiles.block.extents)) >= 2**31:
            index = f"tl.cast({index}, tl.int64)"
        terms.append(f"{index} * {strides[axis]}" if strides[axis] != 1 else index)
    return " + ".join(terms)
