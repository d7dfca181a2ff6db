"""The pruning rules of MCFuser (section III-C) with the number of candidates before and after each (figure 7).

A candidate is a tiling expression with a tile size for each of its loops. Rules 1 and 2 act on expressions
(:mod:`search.space.expressions`), rule 3 on the tile sizes of each axis alone, so the first counts are products; only what rule 3
leaves is listed and held against rule 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from itertools import combinations
from math import prod

import numpy as np

from cost_model.dots import vector
from cost_model.features import Sizes
from cost_model.features import evaluate
from cost_model.features import features
from cost_model.features import placed
from cost_model.shared_memory import SLACK
from cost_model.shared_memory import equation1_printed
from fuser.device import Device
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import BlockGraph
from fuser.ir.pitched import longer_axes
from fuser.ir.pitched import reaches
from fuser.ir.tiling import TilingExpr
from fuser.lower.pieces import MMA
from search.space.expressions import batch_axes
from search.space.expressions import bindable
from search.space.expressions import contracted
from search.space.expressions import expression_axes
from search.space.expressions import rule1
from search.space.expressions import rule2
from search.space.expressions import short_axes
from search.space.expressions import sub_expressions
from search.space.expressions import tiling_expressions
from search.space.expressions import too_deep

PADDING = 0.05
"""Rule 3: the padding of an extent that is no power of 2 stays below this part of it."""
RELAXED = 0.35
"""Where rule 3 leaves no tile: powers of two up to this padding are kept beside the tile of least padding."""
FINE = (4, 8)
"""Tiles of rows of a weight that no tensor core multiplies."""
CHUNK = 1 << 20


@dataclass(frozen=True)
class TileSet:
    """Tile sizes of an axis: ``total`` before rule 3, ``values`` after it. ``note`` says how rule 3 was relaxed, if it was."""

    axis: str
    extent: int
    total: int
    values: tuple[int, ...]
    note: str = ""


@dataclass(frozen=True)
class Stage:
    """Expressions and candidates that are left after a rule (``rule`` is "all" before the first)."""

    rule: str
    title: str
    expressions: int
    candidates: int


@dataclass(frozen=True)
class Funnel:
    """``left``: the sub-tiling expressions after rule 2; ``programs``: how many different programs they place to (``nkh`` and
    ``n(k,h)`` give the same one; the paper counts both, estimates are made for one)."""

    block: str
    device: str
    stages: tuple[Stage, ...]
    tiles: tuple[TileSet, ...]
    left: tuple[str, ...]
    programs: int
    notes: tuple[str, ...]


def padding(extent: int, tile: int) -> float:
    """Elements added to ``extent`` by tiles of ``tile``, as a part of it."""
    return (math.ceil(extent / tile) * tile - extent) / extent


def rule3(extent: int, tiles: Sequence[int]) -> tuple[tuple[int, ...], str]:
    """Rule 3: no padding where the extent is a power of 2, else less than 5 %.

    Where no tile is left (197 tokens, 8 rows) the rule is relaxed to the least padding there is, and to powers of two of at
    most 35 %: a tile of 16 alone, or of all 208, would leave nothing fast for 197. The second value says so.
    """
    pad = {t: padding(extent, t) for t in tiles}
    power = extent & (extent - 1) == 0
    kept = tuple(t for t in tiles if pad[t] == 0 or (not power and pad[t] < PADDING))
    if kept:
        return kept, ""
    least = min(pad.values())
    kept = tuple(t for t in tiles if pad[t] == least or (t & (t - 1) == 0 and pad[t] <= RELAXED))
    most = max(pad[t] for t in kept)
    return kept, f"no tile of extent {extent} pads less than {PADDING:.0%}: rule 3 relaxed to {most:.1%}"


def multiples(extent: int) -> tuple[int, ...]:
    """⌈extent/16⌉ tile sizes: the multiples of 16 up to the extent, rounded up to one."""
    return tuple(range(MMA, MMA * math.ceil(extent / MMA) + 1, MMA))


def powers(extent: int, least: int = 1) -> tuple[int, ...]:
    """Powers of two below the extent, from ``least``, and the extent itself."""
    return (*(1 << i for i in range(extent.bit_length()) if least <= 1 << i < extent), extent)


@lru_cache(maxsize=1024)
def tile_sets(block: BlockGraph) -> tuple[TileSet, ...]:
    """The tile sizes of every axis that a schedule may tile (all but the grid axes of splits).

    Axes of contractions take multiples of 16. Where several axes together are the rows (or columns) of a contraction's
    operand, the longest of them does, the others take powers of two. Batch axes have tile 1. Axes that only folds sum over
    take powers of two from 16, and their extent; so does the last axis of the output, and where nothing is contracted that along
    which a large tensor lies otherwise. The other axes of the last two dimensions of the output take powers of two from 1,
    further spatial axes have tile 1. Of an axis whose rows are stored longer than their columns they are those that reach the
    end of the row (there may be none).
    """
    splits = {g for _, g in block.splits}
    batch, loops, chained = set(batch_axes(block)), expression_axes(block), contracted(block)
    stored, whole = block.stores[0].access, bool(too_deep(block))
    dims = [[a for a in d if a not in batch and a not in splits] for d in (stored.dims if stored else ())]
    last = list(chain.from_iterable([d for d in dims if d][-2:]))
    runs = _runs(block)
    beside = set() if block.contracts else runs
    longer = longer_axes(block)
    found = []
    for a in block.axes:
        if a.name in splits or a.extent == FREE:
            continue
        if a.name in batch:
            sizes: tuple[int, ...] = (1,)
        elif a.name in chained:
            sizes = multiples(a.extent) if chained[a.name] else powers(a.extent)
            sizes = (*FINE, *sizes) if _fine(block, a.name) and a.extent > MMA else sizes
        elif a.name in short_axes(block):
            sizes = (a.extent,)
        elif a.name in block.reduced:
            sizes = powers(a.extent, MMA if block.contracts or a.name in runs else 1)
        elif a.name in bindable(block) and (a.name in last or a.name in loops or a.name in beside):
            least = MMA if a.name in runs and a.name not in last[:-1] else 1
            sizes = powers(a.extent, least) if a.name in last or a.name in beside else (1,)
        else:
            sizes = (1,) if a.name in bindable(block) else (a.extent,)
        if pitch := longer.get(a.name, 0):
            sizes = tuple(t for t in sizes if reaches(a.extent, t, pitch))
        if sizes == (1,) or (whole and a.name not in bindable(block)):
            found.append(TileSet(a.name, a.extent, 1, (1,) if sizes == (1,) else (_whole(a.extent),)))
            continue
        values, note = rule3(a.extent, sizes) if sizes else ((), "")
        found.append(TileSet(a.name, a.extent, len(sizes), values, f"axis {a.name}: {note}" if note else ""))
    return tuple(found)


def _runs(block: BlockGraph) -> set[str]:
    """Axes along which elements lie side by side in a large tensor that a block reads or writes. What a kernel without products
    sums over lies so alone: rows of its result need no width of their own."""
    sizes = {s: prod(block.extents[a] or 1 for a in s.axes) for s in (*block.loads, *block.stores) if s.access and s.axes}
    largest = max(sizes.values(), default=1)
    if block.contracts:
        return set(block.extents)
    return {s.access.axes[-1] for s, n in sizes.items() if s.access and n == largest}


def _whole(extent: int) -> int:
    return max(extent, MMA)


def _fine(block: BlockGraph, axis: str) -> bool:
    """Whether all products with an axis are without tensor cores, and their operands lie along another axis: a few rows of a
    weight that is read along its rows are as good as sixteen."""
    for s in block.computes:
        if not s.contracts or axis not in s.related:
            continue
        operands = [block.by_value[a] for a in s.args]
        loads = [o.access for o in operands if axis in o.axes]
        if not vector(block, s) or axis in s.reduce or any(x is None or axis in x.dims[-1] for x in loads):
            return False
    return True


def expressions(block: BlockGraph) -> tuple[tuple[TilingExpr, ...], str]:
    """The sub-tiling expressions that rules 1 and 2 leave, and a note where they were not enumerated.

    Where :func:`search.space.expressions.too_deep` says why not, only axes bound to blockIdx are tiled; all others are whole.
    """
    if why := too_deep(block):
        return (TilingExpr(),), f"{why}; only axes bound to blockIdx are tiled"
    return rule2(block, sub_expressions(block)), ""


def distinct(block: BlockGraph, exprs: Sequence[TilingExpr]) -> tuple[TilingExpr, ...]:
    """One expression for each program: two are the same if their statements stand in the same loops whichever loops are live."""
    kept: list[TilingExpr] = []
    alike: dict[tuple[tuple[str, ...], str], list[TilingExpr]] = {}
    for e in exprs:
        axes = tuple(sorted(e.axes))
        others = alike.setdefault((axes, str(placed(block, e, axes))), [])
        fewer = [live for n in range(len(axes)) for live in combinations(axes, n)] if others else []
        if not any(all(str(placed(block, e, x)) == str(placed(block, o, x)) for x in fewer) for o in others):
            others.append(e)
            kept.append(e)
    return tuple(kept)


def tile_grid(sets: Sequence[TileSet], chunk: int = CHUNK) -> Iterator[dict[str, Sizes]]:
    """Every combination of tile sizes as arrays by axis, in pieces of about ``chunk`` combinations, the last axis fastest."""
    yield from grid_of({t.axis: t.values for t in sets}, chunk)


def grid_of(choices: Mapping[str, Sequence[int]], chunk: int = CHUNK) -> Iterator[dict[str, Sizes]]:
    """Every combination of the choices, as :func:`tile_grid`."""
    names, sizes = list(choices), [len(v) for v in choices.values()]
    values = [np.asarray(v, np.int64) for v in choices.values()]
    total = math.prod(sizes)
    for start in range(0, total, chunk):
        left, index = np.arange(start, min(total, start + chunk)), []
        for size in reversed(sizes):  # numpy's own takes no more than 64 of them
            left, mine = np.divmod(left, size)
            index.append(mine)
        yield {n: v[i] for n, v, i in zip(names, values, reversed(index), strict=True)}


def funnel(block: BlockGraph, device: Device) -> Funnel:
    """Figure 7 for any block: expressions and candidates at the start and after each rule.

    Rule 4 is eq. 1 > 1.2 × the most shared memory that a block of the device may have, eq. 1 as printed: the elements of one
    tile of each tensor.
    (Tuning holds bytes against the limit, and then what Triton allocates: see :mod:`search.space.schedules`.) Batch axes count 1.
    """
    sets = tile_sets(block)
    every, listed = math.prod(t.total for t in sets), math.prod(len(t.values) for t in sets)
    notes = [t.note for t in sets if t.note]
    if why := too_deep(block):
        start = first = (TilingExpr(),)
        notes.append(f"{why}; only axes bound to blockIdx are tiled")
    else:
        start = tiling_expressions(block)
        first = rule1(block, start)
    left = rule2(block, first)
    limit = SLACK * device.smem_per_block
    legal = sum(
        int(evaluate(features(block, e, grid, _least_splits(block)), lambda f: equation1_printed(f) <= limit).sum())
        for e in left
        for grid in tile_grid(sets)
    )
    stages = (
        Stage("all", "all tiling expressions × all tile sizes", len(start), len(start) * every),
        Stage("rule 1", "deduplication by sub-tiling expression", len(first), len(first) * every),
        Stage("rule 2", "no several tiles of an intermediate", len(left), len(left) * every),
        Stage("rule 3", "no extra padding", len(left), len(left) * listed),
        Stage("rule 4", f"shared memory (eq. 1) ≤ {SLACK} × {device.smem_per_block}", len(left), legal),
    )
    programs = len(distinct(block, left))
    return Funnel(block.name, device.name, stages, sets, tuple(str(e) for e in left), programs, tuple(notes))


def _least_splits(block: BlockGraph) -> dict[str, int]:
    return {a.name: 2 for a in block.axes if a.extent == FREE}
