"""How Triton spreads what a fold is given over lanes and warps."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from cost_model.execution import VECTOR
from cost_model.execution import is_set
from cost_model.features import Counts
from cost_model.features import Features
from cost_model.features import Sizes
from fuser.ir.mugraph import Stmt
from fuser.ir.program import DTYPE_BYTES
from fuser.lower.options import HOIST
from fuser.lower.pieces import MMA


@dataclass(frozen=True, eq=False)
class Spread:
    """How the elements that one fold is given stand: ``warps`` and ``lanes`` along its sum, each with a part of it; the block has
    so many ``elements`` and ``results``."""

    warps: Counts
    lanes: Counts
    elements: Counts
    results: Counts


def innermost(f: Features, stmt: Stmt) -> str:
    """The axis along which what a fold is given lies side by side in memory; none where it is one element for all."""
    load = _loaded(f, f.block.by_value[stmt.args[0]])
    return next((a for dim in reversed(load.access.dims) for a in reversed(dim)), "") if load is not None and load.access else ""


def along(f: Features, stmt: Stmt) -> tuple[Spread, ...]:
    """Of a fold, one for each piece of its tile (none of it where a candidate has fewer), as Triton spreads what is loaded: 16
    bytes a thread along the innermost axis, then lanes and after them warps along that axis and the others from the first on."""
    load = _loaded(f, f.block.by_value[stmt.args[0]])
    axes = [a for dim in load.access.dims for a in dim] if load is not None and load.access is not None else []
    one = np.ones(len(f))
    if load is None or not axes:  # one element for all
        return (Spread(f.warps.astype(float), one, one, one),)
    if axes[-1] in stmt.reduce:  # lanes have added most of it by then: the pieces are added before warps meet
        return (_spread(f, stmt, load, axes, {a: 2.0 ** np.ceil(np.log2(f.tile[a])) for a in axes}),)
    cut = [powers(f.tile[a]) for a in axes]
    return tuple(_spread(f, stmt, load, axes, dict(zip(axes, sizes, strict=True))) for sizes in product(*cut))


def powers(tile: Sizes) -> list[Counts]:
    """The powers of two that tiles are cut into, the largest first and 0 where there are no more: 80 is 64 and 16; what is no
    multiple of 16 is padded instead."""
    whole = np.where(tile % MMA == 0, tile, 1 << np.ceil(np.log2(tile)).astype(np.int64))
    found: list[Counts] = []
    while whole.any():
        largest = np.where(whole > 0, 1 << np.floor(np.log2(np.maximum(whole, 1))).astype(np.int64), 0)
        found.append(largest.astype(float))
        whole = whole - largest
    return found


def _spread(f: Features, stmt: Stmt, load: Stmt, axes: Sequence[str], sizes: Mapping[str, Counts]) -> Spread:
    """Of a piece of these sizes."""
    elements = np.multiply.reduce([*sizes.values()])
    left = {a: np.maximum(n, 1.0) for a, n in sizes.items()}
    inner = axes[-1]
    wide = np.minimum(VECTOR / DTYPE_BYTES[load.dtype], elements / (32.0 * f.warps))
    left[inner] = np.maximum(left[inner] / np.maximum(wide, 1.0), 1.0)
    found: list[Counts] = []
    for threads in (np.full(len(f), 32.0), f.warps.astype(float)):
        mine = np.ones(len(f))
        for a in (inner, *axes[:-1]):
            here = np.minimum(threads, left[a])
            left[a], threads = left[a] / here, threads / here
            mine = mine * (here if a in stmt.reduce else 1.0)
        found.append(np.where(elements > 0, mine, 1.0))
    lanes, warps = found
    results = np.multiply.reduce([np.ones(len(f)), *(n for a, n in sizes.items() if a not in stmt.reduce)])
    return Spread(warps, lanes, elements, np.where(elements > 0, results, 0.0))


def _loaded(f: Features, value: Stmt) -> Stmt | None:
    """The load whose spread over threads a value has: of several the one with most axes, which the others are copied to."""
    found, todo, seen = list[Stmt](), [value], set[str]()
    while todo:
        if (s := todo.pop()).value in seen:
            continue
        seen.add(s.value)
        if s.kind == "load":
            found.append(s)
        elif not s.folds:
            todo += [f.block.by_value[a] for a in reversed(s.args)]
    return max(found, key=lambda x: len(x.axes), default=None)


def hoisted(f: Features, i: int) -> NDArray[np.bool_]:
    """Whether a load behind the first loop comes in front of it; without a loop, one behind the first sum across warps."""
    if HOIST.key() not in f.options:
        return np.zeros(len(f), np.bool_)
    if any(s.loops for s in f.stmts):
        return is_set(f, HOIST) & (not f.stmts[i].loops and any(s.loops for s in f.stmts[:i]))
    sums = [] if f.block.contracts else [s.stmt for s in f.stmts[:i] if s.stmt.reduce]
    return is_set(f, HOIST) & np.logical_or.reduce(
        [np.zeros(len(f), np.bool_), *(x.warps > 1 for s in sums for x in along(f, s))]
    )
