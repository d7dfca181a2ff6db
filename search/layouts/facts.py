"""What a block executes under a schedule, as far as layouts matter: tiles, how often, what tensor cores and folds are given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from cost_model.constants import Constants
from cost_model.constants import constants_of
from fuser.device import Device
from fuser.errors import NoValidKernelError
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.schedule import KernelSchedule
from fuser.lower.gluon.split import row_axis
from fuser.lower.options import BACKEND
from fuser.lower.options import PERSISTENT
from fuser.lower.pieces import GROUPS_ARCH
from fuser.lower.tiles import Tiles

WGMMA_ROWS = 64
FRAGMENTS_ARCH = 80
"""From here on products have the fragments of ``mma.m16n8k16``."""
Dims = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Facts:
    """A block with its schedule bound, on a device. ``rows`` is the axis of every product's rows (without products, of the first
    tile of two dimensions), empty where there is none. A schedule for Gluon allows what its generator writes."""

    tiles: Tiles
    device: Device
    rows: str

    @property
    def written(self) -> bool:
        """In Gluon, whose generator decides who computes what (:mod:`search.layouts.written`)."""
        return BACKEND.of(self.tiles.schedule) == "gluon"

    @staticmethod
    def of(block: BlockGraph, schedule: KernelSchedule, device: Device) -> Facts:
        """Raises :class:`NoValidKernelError` where tiles are in pieces, or those of products have more than two dimensions."""
        tiles = Tiles.of(block, schedule)
        found = Facts(tiles, device, rows_of(tiles))
        if found.written:
            if device.arch != GROUPS_ARCH:
                why = f"kernels by warp groups are for sm_{GROUPS_ARCH}, and {device.title} is sm_{device.arch}"
                raise NoValidKernelError(why, f"leave out {BACKEND.key()}=gluon")
            return found
        for axis, pieces in tiles.pieces.items():
            if len(pieces) > 1 and not (axis == found.rows and found.grouped):
                raise NoValidKernelError(
                    f"the tile {tiles.plans[axis].tile} of {axis!r} of {block.name!r} is in {len(pieces)} pieces",
                    "layouts are chosen for tiles that are one power of two: name another schedule",
                )
        if found.dots and device.arch < FRAGMENTS_ARCH:
            raise NoValidKernelError(
                f"no layouts are chosen for products on sm_{device.arch}", f"name a device from sm_{FRAGMENTS_ARCH} on"
            )
        deep = [a for s in found.dots for a in (s.value, *s.args) if len(tiles.natural(block.by_value[a])) > 2]
        if deep:
            raise NoValidKernelError(f"{deep[0]!r} of {block.name!r} is a tile of more than two dimensions", "use a tile of 1")
        return found

    @property
    def block(self) -> BlockGraph:
        return self.tiles.block

    @cached_property
    def constants(self) -> Constants:
        return constants_of(self.device)

    @cached_property
    def dots(self) -> tuple[Stmt, ...]:
        """Products for the tensor cores."""
        return tuple(s for s in self.block.computes if self.tiles.is_dot(s))

    @cached_property
    def grouped(self) -> bool:
        """Warp groups can do all of its products."""
        fits = all(self.size(self.rows) % WGMMA_ROWS == 0 and self.tiles.dot_dtype(s) != "float32" for s in self.dots)
        return bool(self.dots) and self.device.arch == GROUPS_ARCH and fits

    @cached_property
    def order(self) -> tuple[Stmt, ...]:
        """Statements as they are executed, each once."""
        return tuple(dict.fromkeys(n for n, _ in self.tiles.tree.walk() if isinstance(n, Stmt)))

    @cached_property
    def times(self) -> Mapping[Stmt, int]:
        """How often a block executes each statement."""
        found: dict[Stmt, int] = {}
        for node, loops in self.tiles.tree.walk():
            if isinstance(node, Stmt):
                found[node] = found.get(node, 0) + math.prod(x.trips for x in loops)
        return found

    @cached_property
    def trips(self) -> int:
        """Trips of the loop in which most is done."""
        return max((self.times[s] for s in self.dots or self.order), default=1)

    def inside(self, stmt: Stmt) -> bool:
        """Whether a statement is executed again in each of these trips."""
        return self.trips > 1 and self.times[stmt] == self.trips

    @cached_property
    def programs(self) -> int:
        """Tiles of the grid."""
        return self.tiles.places

    @property
    def persistent(self) -> bool:
        return bool(PERSISTENT.of(self.tiles.schedule))

    @property
    def turns(self) -> int:
        """Blocks of the busiest SM."""
        return -(-self.programs // self.device.sm_count)

    @cached_property
    def _sizes(self) -> Mapping[str, int]:
        return {axis: sum(p.size for p in pieces) for axis, pieces in self.tiles.pieces.items()}

    def size(self, axis: str) -> int:
        """Lanes of a tile's axis."""
        return self._sizes[axis]

    @cached_property
    def _dims(self) -> Mapping[Stmt, Dims]:
        made = self.block.by_value
        return {s: self.tiles.natural(made[s.value] if s.kind == "store" else s) for s in (*self.block.stmts, *self.order)}

    def dims(self, stmt: Stmt) -> Dims:
        """The dimensions of a value's tile; of a stored one, those that it has in registers."""
        return self._dims[stmt]

    @cached_property
    def sides(self) -> Mapping[Stmt, tuple[str, str]]:
        """Left and right operand of each product."""
        return {s: self.tiles.sides(s) for s in self.dots}

    def tile(self, dims: Dims, groups: int = 1) -> tuple[int, ...]:
        """Sizes of a tile, of one of so many groups that share its rows."""
        return tuple(self.size(a) // (groups if a == self.rows else 1) for a in dims)

    def bytes(self, stmt: Stmt) -> int:
        """Of a statement's tile."""
        return math.prod(self.size(a) for a in self.dims(stmt)) * DTYPE_BYTES[stmt.dtype]

    def whole(self, stmt: Stmt) -> int:
        """Bytes of the device tensor that a load or store goes through."""
        return math.prod(stmt.at.shape(self.block.extents)) * DTYPE_BYTES[stmt.dtype]

    def feeds(self, load: Stmt) -> bool:
        """Whether a product reads what is loaded as it is."""
        return load.kind == "load" and any(u in self.dots for u in self.block.users(load.value))

    def strides(self, stmt: Stmt) -> tuple[int, ...]:
        """Elements from one to the next in memory, along each dimension of a load or store."""
        found = stmt.at.strides(self.block.extents)
        return tuple(found.get(a, 0) for a in self.dims(stmt))

    def in_memory(self, stmt: Stmt) -> Dims:
        """The dimensions of a load or store as they lie in memory: the last is contiguous."""
        along = dict(zip(self.dims(stmt), self.strides(stmt), strict=True))
        return tuple(sorted(along, key=lambda a: -along[a]))


def rows_of(tiles: Tiles) -> str:
    """The axis of the rows; empty where no product is for tensor cores. Raises :class:`NoValidKernelError` where products have
    different ones."""
    if any(s.contracts for s in tiles.block.computes) and not any(map(tiles.is_dot, tiles.block.computes)):
        return ""
    try:
        return row_axis(tiles)
    except NoValidKernelError as error:
        raise NoValidKernelError(error.message, "name another schedule") from None
