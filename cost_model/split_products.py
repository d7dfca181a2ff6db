"""Products of float32 as three of tf32, whose operands threads split: how much longer they take than tensor cores could."""

from __future__ import annotations

import numpy as np

from cost_model.dots import WGMMA
from cost_model.execution import described
from cost_model.features import Counts
from cost_model.features import Features
from cost_model.lives import made_by
from cost_model.lives import made_here
from cost_model.resources import Resources
from cost_model.rows import moved_at_once
from fuser.device import Device
from fuser.ir.rows import ROW_BYTES
from fuser.lower.options import PRECISION

SPLIT, ADDED, RESCALED = 1.07, 7.0, 4.0
"""Times what tensor cores need for three products of tf32 that one of float32 takes, the operands of which threads split, and so
many lanes of a product for each trip in which they add it to the sum, and times as many where they rescale that: 1024 × 6144 by
6144 × 6144 took an H200 795 µs with tiles of 128 × 128 × 64, 925 and 1246 with 32 and 16 along the sum. This and what is below:
fitted to four programs, 100 schedules, of four others first choices are the fastest of 26, and estimates 6 to 13 % off, not 15 to
27; what attention has besides to 253 schedules of six, the first choices of which took 1.11 times the best, not 1.7."""
SPLITTING, FRAGMENTS, BESIDE, SEEN = 11.5, 0.85, 2.2, 128
"""Operands are split once for each tile: so many lanes of a product for each row and column of it; of fragments by each warp that
reads them, and twice as long where warp groups have other columns of the same rows. Sides beyond SEEN were not measured."""
TURNED = 0.125
"""Warp groups read tf32 along the sum alone. What lies otherwise is stored so, which takes longer by this for each row or column
of it: 1024 × 2048 by 2048 × 2048 took an H200 165 µs with 64 columns a tile, 220 with 128."""
LOOSE = 63.0
"""Times as long for rows along the sum that are not read in whole vectors (one measurement: 6151 × 2933 by 2933 × 4211 in
7.5 ms)."""
FULL, NARROWER, ALONE = 64, 0.75, 1.12
"""Columns of a tile below which warp groups take longer for each row of the left operand that they split, by which power, and how
much longer one warp group takes that nobody multiplies beside."""
TINY, SMALL = 256, 1.4
"""Elements of a warp's part of a tile from which on fragments do not take so many times as long. This, and what is above it: of
six products of float32 with long sums on an H100 (experiments/results/h100-regret/products.txt) first choices take 1.04 times the
best of 22, not 1.19."""
LEFT = 1.8
"""Times as long where rows are computed of what is loaded, not of another product: they become operands by way of shared memory
(probabilities of scores that lie in memory: 1.5 to 1.7 times the estimate, in two programs that suggested it)."""


def times_of_tensor_cores(f: Features, r: Resources, i: int, dtype: str, device: Device) -> Counts | float:
    """How much longer a product of float32 takes than its tensor cores at their peak."""
    if dtype != "float32" or device.arch < WGMMA or PRECISION.read(f.options) != "tf32x3":
        return 1.0
    d, stmt = r.dots[i], f.stmts[i].stmt

    def lanes(value: str, mine: Counts, others: Counts, readers: Counts) -> Counts:
        """What lies outside of the loop is split once; warp groups read it from registers for each few columns."""
        made, here = f.block.by_value[value], made_here(f, i, value)
        grouped: Counts | float = 1.0
        if here and made.access is not None:
            loose = ~described(f, made) & (moved_at_once(f, made) < ROW_BYTES)
            grouped = np.where(loose, LOOSE, 1.0) if made.at.along(stmt.reduce) else np.maximum(TURNED * mine, 1.0)
        slower = np.where(d.groups, grouped * np.maximum(FULL / others, 1.0) ** NARROWER, FRAGMENTS * readers * here)
        return slower / np.minimum(others, SEEN)

    beside = np.where(d.groups & (d.warp_cols > 1), BESIDE, 1.0)
    each = lanes(d.left, d.rows, d.cols, d.warp_cols) + lanes(d.right, d.cols, d.rows, d.warp_rows)
    added = np.where(d.groups, ADDED * (RESCALED if stmt.rescale else 1.0) / d.inner, 0.0)
    computed = f.block.by_value[d.left].kind == "compute" and made_by(f, d.left, r.dots) is None
    passed = np.where(d.groups & computed, LEFT, 1.0)
    small = d.rows * d.cols <= TINY * d.warp_rows * d.warp_cols
    alone = np.where(d.groups, np.where(d.warp_rows * d.warp_cols <= 4, ALONE, 1.0), np.where(small, SMALL, 1.0))
    return SPLIT * (1.0 + SPLITTING * each + added) * beside * passed * alone
