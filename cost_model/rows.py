"""Rows that do not begin where a thread can load many elements at once: what they cost more.

A thread moves up to 16 bytes at once, as many as the strides of the rows, the place of a window and the mask at the end of a row
are multiples of. Fewer bytes take as many more instructions; fewer than 4 are never fetched ahead into shared memory; and a run
of bytes that begins anywhere lies in more sectors.
"""

from __future__ import annotations

import math

import numpy as np

from cost_model.execution import described
from cost_model.features import Counts
from cost_model.features import Features
from fuser.ir.mugraph import Stmt
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.rows import ROW_BYTES

SECTOR = 32
"""Bytes in which memory is read."""
FETCHED = 4
"""Least bytes that a thread fetches into shared memory without registers."""
INSTRUCTIONS = 6.0
"""Of a load or store: address, predicate, the access, and putting the elements together."""


def row_bytes(f: Features, stmt: Stmt) -> int:
    """Bytes, up to a sector, of which the beginning of every row of an access is a multiple."""
    access = stmt.at
    strides = access.strides(f.block.extents)
    starts = [s for a, s in strides.items() if s != 1 and f.block.extents[a] != 1]
    offset = access.window.offset if access.window else 0
    return math.gcd(SECTOR, *(n * DTYPE_BYTES[stmt.dtype] for n in (*starts, offset)))


def moved_at_once(f: Features, stmt: Stmt) -> Counts:
    """Bytes that a thread can move at once: a power of two up to 16. What the tile allows is not looked at."""
    access = stmt.at
    item = DTYPE_BYTES[stmt.dtype]
    bytes_ = max(math.gcd(row_bytes(f, stmt), ROW_BYTES), item)
    last = next((a for a in reversed(access.axes) if f.block.extents[a] != 1), "")
    if bytes_ == item or not last:
        return np.full(len(f), float(bytes_))
    end = f.extent[last] if not access.pitch else np.full(len(f), access.pitch)
    masked = f.extent[last] % f.tile[last] != 0
    whole = end * item
    return np.where(masked, np.minimum(bytes_, whole & -whole), bytes_).astype(float)


def slower(f: Features, stmt: Stmt) -> Counts:
    """Further instructions for each element of a tile."""
    item, at_once = DTYPE_BYTES[stmt.dtype], moved_at_once(f, stmt)
    return np.where(described(f, stmt), 0.0, INSTRUCTIONS * item * (1.0 / at_once - 1.0 / max(ROW_BYTES, item)))


def sectors(f: Features, stmt: Stmt, run: Counts) -> Counts:
    """Sectors in which ``run`` bytes side by side lie, on average over where rows begin."""
    whole = np.ceil(run / SECTOR)
    begins = row_bytes(f, stmt)
    return whole if begins == SECTOR else np.maximum(whole, (run + SECTOR - begins) / SECTOR)
