"""What a kernel by all warps of a block (:mod:`fuser.lower.gluon.by_warps`) needs beside its schedule: the layout of every
value, and what asynchronous copies bring to shared memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fuser.errors import OutOfResourcesError
from fuser.ir.layout.named import Blocked
from fuser.ir.layout.named import Swizzled
from fuser.ir.layout.plan import Buffer
from fuser.ir.layout.plan import Fragment
from fuser.ir.layout.plan import LayoutPlan
from fuser.ir.mugraph import Stmt
from fuser.ir.program import DTYPE_BYTES
from fuser.lower.gluon.choices import layouts
from fuser.lower.gluon.choices import single
from fuser.lower.gluon.split import Split
from fuser.lower.gluon.split import products
from fuser.lower.gluon.split import refuse
from fuser.lower.gluon.split import row_axis
from fuser.lower.options import option_of
from fuser.lower.tiles import Tiles

TAKEN = ("backend", "grid_order", "group", "hoist", "lazy", "pad", "persistent", "precision", "room")
"""Options that have a meaning here."""
ROWS = 16
"""Of one ``mma``."""
SHARED = 163 << 10
"""Bytes of shared memory that a block can have on sm_80."""
VECTOR = 16
"""Bytes that a thread copies at once; 4 at least."""
WARPS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Copied:
    """A tile that is copied to shared memory: its load, its dimensions as they lie in memory, and its ring."""

    load: Stmt
    dims: tuple[str, ...]
    buffer: Buffer

    def threads(self, split: Split) -> Blocked:
        """Which thread copies what."""
        vector = VECTOR // DTYPE_BYTES[self.load.dtype]
        lanes = min(32, self.buffer.box[1] // vector)
        return Blocked((1, vector), (32 // lanes, lanes), (split.warps, 1), (1, 0))


def planned(tiles: Tiles) -> tuple[Split, LayoutPlan, dict[str, Copied]]:
    """What is in which layout, and what is copied. Raises :class:`NoValidKernelError` with the reason where there is no form."""
    for knob, value in tiles.schedule.knobs:
        if value and (option := option_of(knob)) and option.name not in TAKEN:
            raise refuse(tiles, f"the option {knob!r} has no meaning there", f"leave out {knob}")
    warps = tiles.schedule.num_warps
    axis = row_axis(tiles)
    if not products(tiles) or warps not in WARPS or tiles.plans[axis].tile % (ROWS * warps):
        raise refuse(tiles, f"its rows are not {ROWS} for each of {warps} warps, or it has no products")
    single(tiles)
    split = Split(tiles, axis, 1, warps=warps, mma=2)
    found = layouts(split)
    copied = {s.value: _copied(split, s) for s in tiles.block.loads if any(tiles.is_dot(u) for u in tiles.block.users(s.value))}
    for s in products(tiles):
        if tiles.dot_dtype(s) == "float32" or any(v.load.dtype != tiles.dot_dtype(s) for a in s.args if (v := copied.get(a))):
            raise refuse(tiles, f"the product {s.value!r} is not of two operands of 16 bits")
    buffers = tuple(c.buffer for c in copied.values())
    if (most := sum(b.bytes for b in buffers)) > SHARED:
        raise OutOfResourcesError(
            f"{tiles.block.name!r} would need {most} bytes of shared memory by cp.async, of {SHARED}", "use smaller tiles"
        )
    fragments = tuple(Fragment(v, (), layout, 0) for v, layout in found.items())
    return split, LayoutPlan(1, warps, axis, tiles.plans[axis].tile, False, 0, 0, 1, False, buffers, fragments, ()), copied


def _copied(split: Split, load: Stmt) -> Copied:
    tiles, item = split.tiles, DTYPE_BYTES[load.dtype]
    strides = load.at.strides(tiles.block.extents)
    dims = tuple(sorted(tiles.dims(load.axes), key=lambda a: -strides[a]))
    offset = load.at.window.offset if load.at.window else 0
    steps = [offset, *(strides[a] for a in load.at.axes if a != dims[-1])]
    if len(dims) != 2 or strides[dims[-1]] != 1 or any(n * item % 4 for n in steps) or tiles.plans[dims[-1]].extent * item % 4:
        raise refuse(tiles, f"{load.at.source!r} is not rows of whole vectors of 4 bytes, which asynchronous copies want")
    box = tuple(split.size(a) for a in dims)
    across = box[1] * item // VECTOR
    if not across:
        raise refuse(tiles, f"the rows of {load.at.source!r} in a tile are shorter than {VECTOR} bytes")
    trips = {x for n, around in tiles.tree.walk() if n is load for x in around}
    stages = min(max(tiles.schedule.num_stages, 1), max((x.trips for x in trips), default=1))
    phases = min(8, across)
    layout = Swizzled(VECTOR // item, max(8 // across, 1), phases, (1, 0))
    return Copied(load, dims, Buffer(load.value, load.dtype, box, 1, stages, layout, "cp.async", math.prod(box) * item * stages))
