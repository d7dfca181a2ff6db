"""Who computes what of a kernel by warp groups: rows shared out to groups of four warps, and trips of a loop where there are more
groups than rows for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from fuser.errors import NoValidKernelError
from fuser.ir.mugraph import Stmt
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.tiling import Loop
from fuser.lower.options import BACKEND
from fuser.lower.options import FLATTEN
from fuser.lower.options import PERSISTENT
from fuser.lower.tiles import Tiles

GROUP_WARPS = 4
"""Of a warp group, which issues ``wgmma`` together."""
MOST_GROUPS = 4
ROWS = 64
"""Of one ``wgmma``."""


@dataclass(frozen=True)
class Split:
    """A block's tiles with the rows of one group as the tile of ``axis`` (empty: nothing is shared out); a block has ``groups``
    of them side by side. With more ``parts`` than one, as many groups have the same rows: each takes its own trips of ``loop``,
    and what they accumulate is merged behind it. With more ``turns`` than one, as many groups take places of the grid in turn:
    one writes what it has while another multiplies."""

    tiles: Tiles
    axis: str
    groups: int
    parts: int = 1
    loop: Loop | None = None
    turns: int = 1
    warps: int = GROUP_WARPS
    """Of a group."""
    mma: int = 3
    """The version of its products: 2 is ``mma``, 3 ``wgmma``."""

    @property
    def consumers(self) -> int:
        """Groups of warps that compute."""
        return self.groups * self.parts * self.turns

    @property
    def places(self) -> int:
        """Blocks of the grid."""
        return self.tiles.places // self.groups

    def size(self, axis: str) -> int:
        """Lanes of the one piece of an axis."""
        return self.tiles.pieces[axis][0].size

    @cached_property
    def item(self) -> int:
        """Bytes of the smallest element that a tile is loaded or stored with: of equal tiles all have one layout."""
        return min(DTYPE_BYTES[s.dtype] for s in self.tiles.block.stmts if s.kind != "compute")


def refuse(tiles: Tiles, why: str, way: str = "") -> NoValidKernelError:
    backend = BACKEND.of(tiles.schedule)
    form = "by warp groups" if backend == "gluon" else f"for {BACKEND.key()}={backend}"
    return NoValidKernelError(f"{tiles.block.name!r} has no form {form}: {why}", way or f"leave out {BACKEND.key()}={backend}")


# -- who has which rows: of integers, or of arrays of them, as the model prices candidates


def parts_of(rows: Any, groups: Any) -> Any:
    """How many groups have the same rows, where there are fewer times 64 of them than groups."""
    tall = np.maximum(rows // ROWS, 1)
    return np.where((rows % ROWS == 0) & (tall < groups) & (groups % tall == 0), groups // tall, 1)


def divides(part: Any, multiplied: bool) -> Any:
    """Whether a group can have so many rows."""
    return (part > 0) & (part & (part - 1) == 0) & (part % (ROWS if multiplied else 1) == 0)


def columns_divide(rows: Any, columns: Any, groups: Any) -> Any:
    """Whether groups share out the columns of products instead: only what is shared out may be three times a power of two."""
    return (columns & (columns - 1) > 0) & (rows & (rows - 1) == 0) & (columns % (groups * ROWS) == 0)


def shared_out(tiles: Tiles) -> Split:
    """The rows of a schedule's tile shared out to its groups of four warps."""
    warps = tiles.schedule.num_warps
    groups = warps // GROUP_WARPS
    if warps % GROUP_WARPS or not 1 <= groups <= MOST_GROUPS:
        raise refuse(tiles, f"{warps} warps are not one to four groups of {GROUP_WARPS}", "use warps=4, 8, 12 or 16")
    axis = row_axis(tiles)
    if axis and (other := _turned(tiles, axis, groups)):
        tiles, axis = Turned(tiles.block, tiles.plans, tiles.tree, tiles.schedule, tiles.given, other), other
    if not axis:
        if groups > 1:
            raise refuse(tiles, "there are no rows to share out", "use warps=4")
        return Split(tiles, "", 1)
    plan = tiles.plans[axis]
    if turns := in_turn(tiles, groups):
        return Split(tiles, axis, 1, turns=turns)
    parts = int(parts_of(plan.tile, groups)) if products(tiles) else 1
    groups //= parts
    loop = shared_loop(tiles, parts) if parts > 1 else None
    part, rest = divmod(plan.tile, groups)
    if rest or not divides(part, bool(products(tiles))):
        raise refuse(
            tiles,
            f"{plan.tile} rows of {axis!r} are not {groups} × a power of two" + (f" from {ROWS} on" * bool(products(tiles))),
            f"let the tile of {axis!r} be {groups * ROWS} (warps={warps})",
        )
    if groups == 1:
        return Split(tiles, axis, 1, parts, loop)
    if plan.trips > 1 or plan.split:
        raise refuse(tiles, f"the rows {axis!r} are a loop, which groups cannot share out", "use warps=4")
    grid = math.ceil(math.ceil(plan.extent / part) / groups) * groups
    mine = replace(plan, tile=part, grid=grid)
    return Split(replace(tiles, plans={**tiles.plans, axis: mine}), axis, groups, parts, loop)


@dataclass(frozen=True, eq=False)
class Turned(Tiles):
    """Tiles whose values lie with another axis as their ``rows``: a product is Yᵀ = Wᵀ Xᵀ."""

    rows: str = ""

    def natural(self, stmt: Stmt) -> tuple[str, ...]:
        found = super().natural(stmt)
        return found[::-1] if len(found) == 2 and found[1] == self.rows else found


def _turned(tiles: Tiles, rows: str, groups: int) -> str:
    """The columns of all products where these are what groups share out."""
    dots = products(tiles)
    columns = {tiles.natural(s)[1] for s in dots}
    if len(columns) != 1 or any(tiles.block.by_value[a].kind != "load" for s in dots for a in s.args):
        return ""
    (axis,) = columns
    return axis if columns_divide(tiles.plans[rows].tile, tiles.plans[axis].tile, groups) else ""


def in_turn(tiles: Tiles, groups: int) -> int:
    """How many groups take places in turn, so that the end of one runs beside the start of the next (``flatten``), where nothing
    in a place could: its products read what is loaded, and nothing reads them before all are done. 0 where nobody asks for it."""
    dots = products(tiles)
    loaded = all(tiles.block.by_value[a].kind == "load" for s in dots for a in s.args)
    if not FLATTEN.of(tiles.schedule) or not dots or not loaded or not PERSISTENT.of(tiles.schedule):
        return 0
    if groups < 2:
        raise refuse(tiles, "one group has nobody to take turns with", f"use warps=8, or leave out {FLATTEN.key()}")
    if any(s.masks for s in tiles.block.computes):
        raise refuse(tiles, "groups take places in turn that have equal loops", f"leave out {FLATTEN.key()}")
    if sum(isinstance(n, Loop) for n in tiles.tree.body) != 1:
        raise refuse(tiles, "groups take places in turn that have one loop", f"leave out {FLATTEN.key()}")
    rows = tiles.plans[row_axis(tiles)].tile
    if rows % ROWS or rows & (rows - 1):
        raise refuse(tiles, f"{rows} rows are not a power of two from {ROWS} on, of one group", "choose another tile")
    return groups


def shared_loop(tiles: Tiles, parts: int) -> Loop:
    """The loop whose trips as many groups share out: it is the only one, and what it accumulates can be merged. Raises
    :class:`NoValidKernelError`."""
    loops = [n for n in tiles.tree.body if isinstance(n, Loop)]
    way = f"let the tile of rows be {ROWS} for each group"
    if len(loops) != 1 or any(isinstance(n, Loop) for n in loops[0].body) or loops[0].unrolled:
        raise refuse(tiles, f"{parts} groups have the same rows, and there is no single loop that they could share out", way)
    (loop,) = loops
    inside = [s for s in loop.body if isinstance(s, Stmt)]
    if loop.trips % parts and PERSISTENT.of(tiles.schedule):
        why = f"{parts} groups cannot share out {loop.trips} trips of {loop.axis!r} again and again"  # slots change hands
        raise refuse(tiles, why, f"leave out {PERSISTENT.key()}")
    if tiles.plans[loop.axis].grid > 1 or any(s.indexed for s in inside):
        raise refuse(tiles, f"groups cannot share out the loop over {loop.axis!r}, whose trips depend on the place", way)
    if stored := [s.at.source for s in inside if s.kind == "store"]:
        raise refuse(tiles, f"each trip of {loop.axis!r} stores {stored[0]!r}, and nothing is left to be merged", way)
    own = tiles.accumulated(loop)
    if odd := [s.value for s in inside if s.value in own and not (tiles.is_dot(s) or s.adds or s.maximizes)]:
        raise refuse(tiles, f"what the loop folds into {odd[0]!r} is not merged", way)
    return loop


def products(tiles: Tiles) -> list[Stmt]:
    return [s for s in tiles.block.computes if s.contracts]


def of_16_bits(tiles: Tiles, stmt: Stmt) -> bool:
    """Whether the operands of a product are as the warp groups' instruction has them, those in memory from the start."""
    operands = (tiles.block.by_value[a] for a in stmt.args)
    dtype = tiles.dot_dtype(stmt)
    return dtype != "float32" and all(x.dtype == dtype for x in operands if x.kind == "load")


def row_axis(tiles: Tiles) -> str:
    """The axis of the rows: the first dimension of every product; without products, that of the first tile of two dimensions
    which nothing sums over."""
    dots = products(tiles)
    if odd := [s for s in dots if not tiles.is_dot(s) or len(tiles.natural(s)) != 2]:
        raise refuse(tiles, f"the product {odd[0].value!r} is not one of rows and columns")
    rows = {tiles.natural(s)[0] for s in dots}
    if len(rows) > 1:
        raise refuse(tiles, f"its products have different rows, {' and '.join(sorted(map(repr, rows)))}")
    if rows:
        return rows.pop()
    for s in tiles.block.stmts:
        free = [a for a in tiles.natural(s) if a not in tiles.block.reduced]
        if len(tiles.natural(s)) == 2 and free:
            return free[0]
    return ""
