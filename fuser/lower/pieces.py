"""Tiles as powers of two: Triton's blocks have power-of-two extents, a schedule's tiles need not.

A tile of 80 becomes the pieces 64 and 16, or one padded, masked piece of 128; where nothing is multiplied, one of 240 is a piece
of 256 whose last lanes are no element. An axis whose accumulator keeps a tile for each trip of its loop has the pieces of all.
"""

from __future__ import annotations

from dataclasses import dataclass

from fuser.ir.schedule import AxisPlan

MMA = 16
"""Least extent of a dimension of ``tl.dot``."""
GROUPS_ARCH = 90
"""The one architecture that multiplies by warp groups (``wgmma``)."""
WASTE = 12
"""One part in so many of a tile may be lanes of no element, where fewer pieces compute it: warps wait for each other in each fold
of each piece. Softmaxes of 32000 in six pieces took an H100 74 µs, in cluster's blocks of one 57."""


@dataclass(frozen=True)
class Piece:
    """``size`` lanes starting ``offset`` elements after the start of the block's tile (of the first trip, for an unrolled axis);
    lanes from ``limit`` on belong to no element of the tile."""

    offset: int
    size: int
    limit: int
    trip: int = 0

    @property
    def padded(self) -> bool:
        return self.limit < self.size


def next_power(n: int) -> int:
    return 1 << (n - 1).bit_length()


def split_tile(tile: int, least: int, pad: bool) -> tuple[Piece, ...]:
    """Pieces of one tile; ``least`` is the smallest piece, ``pad`` asks for a single piece."""
    if tile & (tile - 1) == 0 and tile >= least:
        return (Piece(0, tile, tile),)
    if pad or tile < least or tile % MMA:
        size = max(least, next_power(tile))
        return (Piece(0, size, tile),)
    out: list[Piece] = []
    offset, bit = 0, next_power(tile)
    while offset < tile:
        rest = tile - offset
        if least == 1 and rest < (size := next_power(rest)) <= rest + tile // WASTE:
            return (*out, Piece(offset, size, rest))
        if rest >= bit:
            out.append(Piece(offset, bit, bit))
            offset += bit
        bit //= 2
    return tuple(out)


def pieces_of(plan: AxisPlan, least: int, pad: bool, unrolled: bool) -> tuple[Piece, ...]:
    """All pieces of an axis in a block: of one tile, or of every trip where the loop is unrolled."""
    tile = split_tile(plan.tile, least, pad)
    if not unrolled:
        return tile
    return tuple(Piece(trip * plan.tile + p.offset, p.size, p.limit, trip) for trip in range(plan.trips) for p in tile)
