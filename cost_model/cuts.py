"""Tiles that are no powers of two: products of them are cut into pieces, 80 columns as 64 and 16."""

from __future__ import annotations

import numpy as np

from cost_model.features import Features
from cost_model.features import Sizes
from cost_model.resources import Resources
from cost_model.waits import Add
from fuser.lower.pieces import MMA


def pieces(f: Features) -> dict[str, Sizes]:
    """Power-of-two pieces of the tile of each axis: 80 = 64 + 16."""
    found: dict[str, Sizes] = {}
    for a, t in f.tile.items():
        sizes, which = np.unique(t, return_inverse=True)
        found[a] = np.array([n.bit_count() if n % 16 == 0 else 1 for n in sizes.tolist()])[which]
    return found


def cuts(f: Features, r: Resources, add: Add) -> None:
    """Whether the tile of the one product, or of products with the same sides, is no power of two along a side, or in its sum."""
    stmts = [f.stmts[i].stmt for i in r.dots]
    if len({frozenset(s.axes) for s in stmts}) != 1:
        return
    summed = dict.fromkeys(a for s in stmts for a in s.reduce)
    inside, sizes = ([f.tile[a].astype(np.int64) for a in axes] for axes in (summed, stmts[0].axes))
    cut, apart = ([(n % MMA == 0) & ((n & (n - 1)) > 0) for n in x] for x in (sizes, inside))
    thin = [c & ((n & -n) == MMA) for c, n in zip(cut, sizes, strict=True)]
    add(
        slivers=np.logical_or.reduce(thin).astype(float),
        pieces=(np.logical_or.reduce(cut) & ~np.logical_or.reduce(thin)).astype(float),
        parts=np.logical_or.reduce(apart).astype(float),
    )
