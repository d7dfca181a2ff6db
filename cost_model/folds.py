"""Folds: what lanes and warps exchange for them."""

from __future__ import annotations

import numpy as np

from cost_model.execution import is_set
from cost_model.execution import kept
from cost_model.execution import outside
from cost_model.features import Counts
from cost_model.features import Features
from cost_model.features import StmtFeatures
from cost_model.lives import from_loads
from cost_model.resources import Resources
from cost_model.spreads import along
from cost_model.spreads import innermost
from cost_model.waits import Add
from fuser.ir.program import DTYPE_BYTES
from fuser.lower.options import HOIST

MEET = 8.0
"""Warps of a block that exchange the parts of a sum in the time of one exchange, where what comes behind was loaded before: more
meet at its barrier longer. Norms of rows took an H200 0.3 µs longer with 16 warps than with 8, two sums each, half of it with
one; where loads stand behind the sum more warps gain there what they lose."""
CONFLICTS = 4
"""Lanes for each warp that want the same bank where warps exchange the parts of a sum that is not along the innermost axis:
partial results of products with their sums over the grid, added by four warps along the parts, took an H200 33 µs, not 10."""


def folded(f: Features, r: Resources, s: StmtFeatures, lanes_of: Counts, runs: Counts, add: Add) -> None:
    """Exchanges of a fold, of so many lanes, that a block does so often. A tile that is no power of two is folded piece by piece,
    each spread as its own size wants: of 320 columns the last 64 leave warps for the parts that are summed."""
    stmt = s.stmt
    runs = np.where(kept(f, s, lanes_of), f.product(f.often, outside(f, s)), runs)
    add(folds=runs)
    if not r.dots or from_loads(f, f.block.by_value[stmt.args[0]]):
        meets = np.where(is_set(f, HOIST), np.maximum(f.warps / MEET, 1.0), 1.0)
        turned = innermost(f, stmt) not in (*stmt.reduce, "")
        pieces = along(f, stmt)
        # what lanes pad each tile to is shared by its pieces
        results = f.product(r.lanes, stmt.axes) / sum(x.results for x in pieces)
        elements = lanes_of / sum(x.elements for x in pieces)
        for x in pieces:
            parts = results * x.results * x.warps / (32.0 * f.warps)
            if turned:
                add(shuffles=np.log2(x.lanes) * np.maximum(parts * x.lanes, 1.0) * runs)
            if r.dots:
                continue
            met = np.where(x.warps > 1, runs, 0.0)
            add(passes=met * meets)
            if turned:
                add(fragments=CONFLICTS * 2 * DTYPE_BYTES["float32"] * x.warps * elements * x.elements * met)
        if not r.dots:
            return
    if any(d.warp_cols.max() > 1 for d in r.dots.values()):
        across = next(d.warp_cols for d in r.dots.values())
        add(passes=np.where(across > 1, runs, 0.0))
