"""How contractions are spread over lanes and warps, and which of them warp groups multiply."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_model.features import Counts
from cost_model.features import Features
from cost_model.features import Sizes
from cost_model.lives import real
from fuser.device import Device
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Stmt
from fuser.lower.options import PRECISION

WGMMA = 90
"""First architecture whose tensor cores are fed by warp groups of four warps."""
LEAST = 16
"""Least extent of a dimension of a contraction on tensor cores."""


def padded(tile: Sizes, least: int) -> Sizes:
    """Lanes that a tile takes: whole powers of two, and multiples of 16 as several of them."""
    power = 1 << np.ceil(np.log2(np.maximum(tile, 1))).astype(np.int64)
    pieces = (tile % LEAST == 0) & (tile >= least)
    return np.where(tile == 1, 1, np.where(pieces, tile, np.maximum(power, least)))


@dataclass(frozen=True, eq=False)
class Dot:
    """A contraction, arrays by candidate. ``tensor``: it has rows, columns and a sum, so that tensor cores do it; ``groups``: by
    ``wgmma``; ``exact``: of float32, as three products of tf32 whose operands threads split. ``rows``, ``cols`` and
    ``inner`` are lanes; ``warp_rows`` · ``warp_cols`` is the number of warps."""

    left: str
    right: str
    rows: Counts
    cols: Counts
    inner: Counts
    tensor: np.ndarray
    groups: np.ndarray
    exact: np.ndarray
    warp_rows: Counts
    warp_cols: Counts

    @property
    def split(self) -> np.ndarray:
        """Those of float32 by ``wgmma``."""
        return self.groups & self.exact

    @property
    def repeat(self) -> Counts:
        """How often the same product is computed by different warps."""
        return np.maximum(self.warp_rows * 16 / self.rows, 1.0) * np.maximum(self.warp_cols * 8 / self.cols, 1.0)


def sides(f: Features, stmt: Stmt) -> tuple[Stmt, Stmt]:
    """Left and right operand: rows are the axes that come first in the block, as lowering has it."""
    order = {a.name: i for i, a in enumerate(f.block.axes)}
    a, b = (f.block.by_value[v] for v in stmt.args)
    own = [
        min((order[x] for x in p.axes if x not in stmt.reduce and x not in q.axes), default=len(order))
        for p, q in ((a, b), (b, a))
    ]
    return (a, b) if own[0] <= own[1] else (b, a)


def vector(block: BlockGraph, stmt: Stmt) -> bool:
    """A contraction without rows or columns: nothing pads its tiles, since no tensor core computes it."""
    a, b = (set(block.by_value[v].axes) - set(stmt.reduce) for v in stmt.args)
    return not (a - b and b - a)


def lanes_of(f: Features) -> dict[str, Sizes]:
    in_dots = {x for s in f.block.computes if s.contracts and not vector(f.block, s) for x in s.related}
    return {a: padded(t, LEAST if a in in_dots else 1) for a, t in f.tile.items()}


def dots_of(f: Features, lanes: dict[str, Sizes], device: Device) -> dict[int, Dot]:
    at = [i for i, s in enumerate(f.stmts) if s.stmt.contracts]
    ends_of = {a: t & -t for a, t in lanes.items()}
    tall: dict[int, NDArray[np.bool_]] = {}
    shape: dict[int, tuple[Stmt, Stmt, Counts, Counts, Counts]] = {}
    for i in at:
        stmt = f.stmts[i].stmt
        left, right = sides(f, stmt)
        rows = f.product(lanes, [a for a in stmt.axes if a in left.axes and a not in right.axes])
        cols = f.product(lanes, [a for a in stmt.axes if a in right.axes and a not in left.axes])
        shape[i] = left, right, rows, cols, f.product(lanes, stmt.reduce)
        # of a tile in pieces the last ones decide
        ends = [
            f.product(ends_of, [a for a in stmt.axes if a in x.axes and a not in y.axes])
            for x, y in ((left, right), (right, left))
        ]
        tall[i] = ends[0] >= ends[1]
    found: dict[int, Dot] = {}
    warps = f.warps.astype(float)
    for i in reversed(at):
        left, right, rows, cols, inner = shape[i]
        both = f.product(lanes, [a for a in f.stmts[i].stmt.axes if a in left.axes and a in right.axes])
        tensor = (rows > 1) & (cols > 1) & (inner > 1) & (both == 1)
        groups = tensor & (rows % 64 == 0) & (f.warps % 4 == 0) & (device.arch >= WGMMA)
        loops = real(f, f.stmts[i].loops)
        last = next((j for j in reversed(at) if j > i and real(f, f.stmts[j].loops) == loops), i)
        down = _balanced(rows, cols, warps)
        if last != i:
            down = np.where(tall[last], warps, 1.0)
        elif any(j < i and real(f, f.stmts[j].loops) == loops for j in at):
            down = np.where(tall[i], warps, 1.0)
        grouped = warps if last != i else np.minimum(np.maximum(rows // 16, 4), warps)
        down = np.where(groups, grouped, down)
        exact = {left.dtype, right.dtype} == {"float32"} and PRECISION.read(f.options) == "tf32x3"
        found[i] = Dot(left.value, right.value, rows, cols, inner, tensor, groups, tensor & exact, down, warps / down)
    return found


def _balanced(rows: Counts, cols: Counts, warps: Counts) -> Counts:
    """Warps along the rows where a contraction stands alone: each doubling goes to the side with more 16 x 8 tiles left."""
    down, across = np.ones_like(warps), np.ones_like(warps)
    tall, wide = np.ceil(rows / 16), np.ceil(cols / 8)
    for _ in range(5):
        more = down * across < warps
        rowwise = more & (tall >= wide)
        down, tall = np.where(rowwise, down * 2, down), np.where(rowwise, np.maximum(tall / 2, 1), tall)
        colwise = more & ~rowwise
        across, wide = np.where(colwise, across * 2, across), np.where(colwise, wide / 2, wide)
    return down
