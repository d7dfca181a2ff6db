"""Products of rows in groups, each with a matrix of its own (the experts of a mixture): one kernel, whatever the sizes of the
groups are, which only the GPU knows; and how many rows a group has, or where it ends.

A block multiplies a tile of rows of one group. Tiles are counted group by group, so that a block finds its own from where the
groups end; there are as many blocks as the worst sizes ask for, and those beyond the last tile end at once. Rows behind the last
group are a group that is zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from fuser.ir.mugraph import LibraryKernel
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.program import Tensor
from fuser.lower.options import PRECISION
from fuser.lower.pieces import next_power
from fuser.lower.run_code import Made

LEAST, MOST = 16, 128
"""Rows of a tile: tensor cores multiply no fewer; about as many as a group has."""
BYTES = 128
"""Of a row that a step of the loop multiplies."""


class Tile(NamedTuple):
    """What a block multiplies: rows of a group and columns, so many elements of a row at a time, some steps ahead."""

    rows: int
    columns: int
    depth: int
    stages: int
    warps: int

    @staticmethod
    def of(x: Tensor, groups: int, columns: int) -> Tile:
        """For about as many rows as a group has; where these are many, fewer blocks of more rows (11 shapes on an H200, bfloat16,
        groups alike or not: 1.36 times as fast as torch's own in the mean)."""
        mean = x.shape[0] // groups
        rows = min(MOST if mean >= 2 * MOST else MOST // 2, max(LEAST, next_power(mean)))
        width = min(64 if rows == LEAST else 128, max(16, next_power(columns)))
        depth = min(BYTES // DTYPE_BYTES[x.dtype] * (2 if rows == 32 else 1), max(16, next_power(x.shape[1])))
        many = MOST * MOST // (4 if x.dtype == "float32" else 1)  # which is multiplied in three parts
        return Tile(rows, width, depth, 4 if rows in (LEAST, 64) else 3, 8 if rows * width >= many else 4)


def grouped(kernel: LibraryKernel, tensors: Mapping[str, Tensor], transposed: bool) -> Made | None:
    """Lines of the kernel (``x_ptr``: the rows, ``w_ptr``: a matrix for each group, ``b_ptr``: where each group ends); None where
    places in memory need more than 32 bits."""
    x, w, ends = (tensors[a] for a in kernel.args)
    (rows, inner), groups, columns = x.shape, w.shape[0], tensors[kernel.output].shape[1]
    if max(rows * inner, rows * columns, inner * columns) >= 1 << 31 or not ends.dtype.startswith("int"):
        return None
    tile, width, depth, stages, warps = Tile.of(x, groups, columns)
    lanes, several = next_power(groups + 1), min(groups + 1, rows)
    tiles = (rows + (tile - 1) * several) // tile
    whole = inner % depth == 0
    precision = f', input_precision="{PRECISION.default}"' if x.dtype == "float32" else ""
    down, along = ("k[:, None]", f"n[None, :] * {inner}") if transposed else (f"k[:, None] * {columns}", "n[None, :]")
    lines = [
        "at = tl.program_id(0)",
        f"tile = at % {tiles}",
        f"n = at // {tiles} * {width} + tl.arange(0, {width})",
        f"group = tl.arange(0, {lanes})",
        f"ends = tl.minimum(tl.load(b_ptr + group, group < {groups}, {rows}), {rows}).to(tl.int32)",
        f"begins = tl.minimum(tl.load(b_ptr + group - 1, (group > 0) & (group <= {groups}), 0), {rows}).to(tl.int32)",
        f"begins = tl.where(group > {groups}, {rows}, begins)",
        f"tiles = (ends - begins + {tile - 1}) // {tile}",
        "upto = tl.cumsum(tiles, 0)",
        "mine = tl.sum((upto <= tile).to(tl.int32), 0)",
        "own = group == mine",
        f"first = tl.sum(tl.where(own, begins + (tile - upto + tiles) * {tile}, 0), 0)",
        "end = tl.sum(tl.where(own, ends, 0), 0)",
        "if first < end:",
        f"    m = first + tl.arange(0, {tile})",
        f"    k = tl.arange(0, {depth})",
        "    there = m[:, None] < end",
        f"    inside = n[None, :] < {columns}",
        f"    found = tl.zeros([{tile}, {width}], tl.float32)",
        f"    if mine < {groups}:",
        f"        x_at = x_ptr + m[:, None] * {inner} + k[None, :]",
        f"        w_at = w_ptr + mine.to(tl.int64) * {inner * columns} + {down} + {along}",
        f"        for step in range(0, {inner}, {depth}):",
        f"            x = tl.load(x_at, there{'' if whole else f' & (k[None, :] < {inner} - step)'}, 0.0)",
        f"            w = tl.load(w_at, inside{'' if whole else f' & (k[:, None] < {inner} - step)'}, 0.0)",
        f"            found = tl.dot(x, w, found{precision})",
        f"            x_at += {depth}",
        f"            w_at += {depth if transposed else depth * columns}",
        f"    tl.store(y_ptr + m[:, None] * {columns} + n[None, :], found, there & inside)",
    ]
    return Made(lines, tiles * math.ceil(columns / width), warps, stages)


BINS, ELEMENTS = 32, 512
"""Numbers that a block counts, and elements that it compares with them at once."""


def counted(kernel: LibraryKernel, tensors: Mapping[str, Tensor], bins: int, so_far: bool) -> Made | None:
    """Lines of a kernel that compares all elements with some numbers (``x_ptr``); None where they are no whole ones."""
    (x,) = (tensors[a] for a in kernel.args)
    many = math.prod(x.shape)
    if x.dtype not in ("int32", "int64") or many >= 1 << 31:
        return None
    test = "(x <= here) & (x >= 0)" if so_far else "x == here"
    lines = [
        f"here = tl.program_id(0) * {BINS} + tl.arange(0, {BINS})[None, :]",
        f"found = tl.zeros([1, {BINS}], tl.int32)",
        f"for at in range(0, {many}, {ELEMENTS}):",
        f"    place = at + tl.arange(0, {ELEMENTS})[:, None]",
        f"    x = tl.load(x_ptr + place, place < {many}, -1)",
        f"    found += tl.sum(({test}).to(tl.int32), 0)[None, :]",
        f"tl.store(y_ptr + here, found, here < {bins})",
    ]
    return Made(lines, math.ceil(bins / BINS), 4)
