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


def _begins(f: Features, stmt: Stmt) -> Counts:
    """Bytes, up to a sector, of which the place where each run of a tile begins is a multiple."""
    access, item = stmt.at, DTYPE_BYTES[stmt.dtype]
    strides, offset = access.strides(f.block.extents), access.window.offset if access.window else 0
    found = np.full(len(f), math.gcd(SECTOR, offset * item))
    inside = np.ones(len(f), bool)
    for i, dim in reversed(list(enumerate(access.dims))):
        for a in (a for a in reversed(dim) if f.block.extents[a] != 1):
            ends, step = f.tile[a] >= f.extent[a], strides[a] * item
            found = np.gcd(found, np.where(inside, np.where(ends, 0, f.tile[a] * step), step).astype(np.int64))
            inside = inside & ends
        if access.window:  # rows of some columns end before the next begins
            inside = inside & (f.product(f.extent, dim) == access.window.seen[i])
    return found.astype(float)


def _sectors(run: Counts, begins: Counts) -> Counts:
    return np.maximum(np.ceil(run / SECTOR), (run + SECTOR - begins) / SECTOR)


def sectors(f: Features, stmt: Stmt, run: Counts) -> Counts:
    """Sectors in which ``run`` bytes side by side lie, on average over where rows begin."""
    return _sectors(run, _begins(f, stmt))


def partial(f: Features, stmt: Stmt, run: Counts) -> Counts:
    """Of these sectors those that ``run`` bytes fill in part only."""
    begins = _begins(f, stmt)
    ends = np.where(begins == SECTOR, run % SECTOR > 0, 2.0 * (1.0 - begins / SECTOR))
    return np.minimum(ends, _sectors(run, begins))
