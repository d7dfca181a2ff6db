"""What a kernel brings to L2 while it waits for the kernel in front of it: the first tiles of weights, say.

The time until an earlier kernel has ended is idle otherwise. Nothing is kept in registers or shared memory; the loads behind the
wait find their lines in L2.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from collections.abc import Sequence

from fuser.ir.mugraph import Stmt
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.tiling import Loop
from fuser.ir.tiling import Node
from fuser.lower.fold_code import FoldCode
from fuser.lower.pieces import next_power
from fuser.lower.tile_code import Combo

LINE = 128
"""Bytes of a line of L2."""

HELPER = """@triton.jit
def prefetch_l2(pointers):
    tl.inline_asm_elementwise("prefetch.global.L2 [$1]; // $0", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1)
"""


class PrefetchCode(FoldCode):
    """Prefetches of the loops behind a wait."""

    prefetches: bool = False

    def prefetch(self, nodes: Sequence[Node], earlier: Collection[str]) -> None:
        """For the loops among ``nodes``: lines of tensors that no earlier kernel writes, in so many trips as the option
        ``prefetch`` says."""
        trips = int(self.schedule.knob.get("prefetch", 0))
        for node in nodes if trips else ():
            if isinstance(node, Loop) and not node.unrolled:
                self._trips(node, trips, earlier)

    def _trips(self, node: Loop, trips: int, earlier: Collection[str]) -> None:
        mine = [s for s in node.body if isinstance(s, Stmt) and self._ahead(s, earlier)]
        inner = [n for n in node.body if isinstance(n, Loop) and not n.unrolled]
        if not mine and not inner:
            return
        start = len(self.lines)
        self.emit(f"for t_{self.ident('i ' + node.axis)} in range({min(trips, node.trips)}):")
        self.depth += 1
        self.loops.append(node.axis)
        self.emit_indices(node.axis)
        empty = len(self.lines)
        for stmt in mine:
            for combo in self.combos(stmt.axes):
                self.emit(f"prefetch_l2({self._lines(stmt, combo)})")
        for loop in inner:
            self._trips(loop, 1, earlier)
        self.loops.pop()
        self.depth -= 1
        if len(self.lines) == empty:
            del self.lines[start:]
        else:
            self.prefetches = True

    def _ahead(self, stmt: Stmt, earlier: Collection[str]) -> bool:
        return (
            stmt.kind == "load"
            and stmt.access is not None
            and stmt.access.source not in earlier
            and stmt.access.source not in self.described
        )

    def _lines(self, stmt: Stmt, combo: Combo) -> str:
        """Pointers to the lines of a tile: one of the elements of each, clamped to the tensor."""
        access = stmt.access
        assert access is not None
        strides = access.strides(self.block.extents)
        step = LINE // DTYPE_BYTES[stmt.dtype]
        pieces = dict(zip(stmt.axes, combo, strict=True))
        wide = [a for a in access.axes if self.plans[a].tile > 1]
        terms = [self.argument(access.source)]
        if access.window and access.window.offset:
            terms.append(str(access.window.offset))
        for axis in access.axes:
            piece, extent = pieces[axis], self.plans[axis].extent
            index = self.offsets(axis, piece)
            if axis in wide and strides[axis] == 1:
                lines = next_power(-(-piece.limit // step))
                lanes = f"tl.arange(0, {lines}) * {step}" if lines > 1 else "tl.arange(0, 1)"
                index = " + ".join(filter(None, (self.start(axis, piece), lanes)))
                index = f"tl.minimum({index}, {extent - 1})"
            elif self.mask(axis, piece):
                index = f"tl.minimum({index}, {extent - 1})"
            if axis in wide:
                index = self.spread(index if index.isidentifier() else f"({index})", (axis,), wide)
            if math.prod(access.source_shape(self.block.extents)) >= 2**31:
                index = f"tl.cast({index}, tl.int64)"
            terms.append(f"{index} * {strides[axis]}" if strides[axis] != 1 else index)
        return " + ".join(terms)
