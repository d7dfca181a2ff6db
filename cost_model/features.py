"""What a batch of candidates does, as arrays: the counts that every estimate starts from.

Where the statements of a block stand depends only on its order and on which loops are live (more than one trip), and orders
that differ in loops which are not live have one loop tree. So a batch of candidates is grouped by these, each group is placed
once, and everything else is arithmetic on arrays with one entry for each candidate.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import fields
from dataclasses import is_dataclass
from dataclasses import replace
from functools import cached_property
from functools import lru_cache
from types import MappingProxyType
from typing import Any
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from cost_model.causal import mean_part
from cost_model.causal import shortened
from cost_model.causal import unevenness
from fuser.errors import UsageError
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.placement import Paths
from fuser.ir.placement import nest
from fuser.ir.placement import place_in
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.schedule import KernelSchedule
from fuser.ir.tiling import Init
from fuser.ir.tiling import LoopTree
from fuser.ir.tiling import TilingExpr

Counts = NDArray[np.float64]
Sizes = NDArray[np.int64]
V = TypeVar("V", bound=Any)


@dataclass(frozen=True, eq=False)
class StmtFeatures:
    """One placed statement (a value needed in two loops is placed twice). Arrays have one entry for each candidate.

    ``loops``: live loops around it, outermost first. ``runs``: times that one block executes it at most, ``often`` in the mean of
    all blocks. ``elements``: elements of its
    value's tile, padding included. ``work``: elements of the tile of its iteration space (with the reduced axes). ``fill``:
    average part of ``work`` that lies inside the tensors.
    """

    stmt: Stmt
    loops: tuple[str, ...]
    runs: Counts
    often: Counts
    elements: Counts
    work: Counts
    fill: Counts

    @property
    def bytes(self) -> Counts:
        """Bytes of one execution of a load or store."""
        return self.elements * DTYPE_BYTES[self.stmt.dtype]

    @property
    def flops(self) -> Counts:
        """Arithmetic of one execution: 2 for each multiply-add of a contraction; maps and folds as the op table says."""
        return self.work * (self.stmt.entry.flops if self.stmt.kind == "compute" else 0.0)

    @property
    def sfu(self) -> Counts:
        """Special-function operations of one execution."""
        return self.work * (self.stmt.entry.sfu if self.stmt.kind == "compute" else 0.0)


@dataclass(frozen=True, eq=False)
class BufferFeatures:
    """The tile of one value inside a block; ``tiles`` of them are alive at once (an accumulator that keeps one for each trip of
    inner loops has several). ``kind``: load, fold (contraction or row fold) or map."""

    value: str
    kind: str
    dtype: str
    elements: Counts
    tiles: Counts

    @property
    def bytes(self) -> Counts:
        return self.elements * self.tiles * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, eq=False)
class Features:
    """Candidates of one block that have one loop tree. ``index`` are their positions in the batch.

    ``tile``, ``trips`` and ``grid`` say how each axis is divided; ``blocks`` is the number of thread blocks, every grid part
    counted; the trip counts in ``tree`` are placeholders. ``warps`` and ``stages`` are those of the schedules; ``options`` of
    the lowering have a value for all, or an array of one for each (None where it is left out).
    """

    block: BlockGraph
    index: Sizes
    tree: LoopTree
    extent: Mapping[str, Sizes]
    tile: Mapping[str, Sizes]
    trips: Mapping[str, Sizes]
    grid: Mapping[str, Sizes]
    blocks: Counts
    warps: Sizes
    stages: Sizes
    options: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def stmts(self) -> tuple[StmtFeatures, ...]:
        """Every placed load, compute and store in program order."""
        found = []
        for item, around in self.tree.walk():
            if isinstance(item, Init):
                continue
            loops = tuple(x.axis for x in around)
            value = item.access.axes if item.access else item.axes
            found.append(
                StmtFeatures(
                    item,
                    loops,
                    self.product(self.trips, loops),
                    self.product(self.often, loops),
                    self.product(self.tile, dict.fromkeys(value)),
                    self.product(self.tile, item.related),
                    self.filled(item.related),
                )
            )
        return tuple(found)

    @cached_property
    def often(self) -> Mapping[str, Any]:
        """Trips in the mean of all blocks."""
        masks = shortened(self.block, self.tree)
        if not masks:
            return self.trips
        part = {a: mean_part(a, m, self.extent, self.tile, self.trips, self.grid) for a, m in masks.items()}
        return {**self.trips, **{a: self.trips[a] * x for a, x in part.items()}}

    def busiest(self, slots: Counts, sms: int, stay: NDArray[np.bool_], groups: bool = False) -> tuple[Counts, Counts]:
        """:func:`cost_model.causal.unevenness` on so many places for blocks; 1 where all blocks have as many trips."""
        out, sizes = (np.ones(len(self)), np.ones(len(self))), (self.extent, self.tile, self.trips, self.grid)
        for axis, mask in shortened(self.block, self.tree).items():
            out = unevenness(mask, axis, sizes, (slots, sms, stay), groups)
        return out

    @cached_property
    def buffers(self) -> tuple[BufferFeatures, ...]:
        """The tile of every value that the block holds, once for each value."""
        owner = dict(self.tree.owner)
        found: dict[str, BufferFeatures] = {}
        for s in self.stmts:
            stmt = s.stmt
            if stmt.kind == "store" or stmt.value in found:
                continue
            kind = "load" if stmt.kind == "load" else "fold" if stmt.folds else "map"
            tiles = self.product(self.trips, families(stmt, s.loops, owner.get(stmt.value)))
            found[stmt.value] = BufferFeatures(stmt.value, kind, stmt.dtype, s.elements, tiles)
        return tuple(found.values())

    @cached_property
    def _products(self) -> dict[tuple[int, tuple[str, ...]], Counts]:
        """Those of its own mappings that were asked for: statements share their axes."""
        return {}

    @cached_property
    def settings(self) -> dict[str, NDArray[Any]]:
        """Options that were asked for, with their defaults where they are left out."""
        return {}

    @cached_property
    def homes(self) -> dict[int, tuple[str, ...]]:
        """Of statements, by their places, what :func:`cost_model.lives.home` has found."""
        return {}

    @cached_property
    def _factors(self) -> dict[tuple[int, str], Counts | None]:
        """Of its own mappings what an axis multiplies by; None where that is 1 for all."""
        return {}

    @cached_property
    def _full(self) -> dict[frozenset[str], Counts]:
        return {}

    @cached_property
    def _shares(self) -> dict[str, Counts]:
        """Of axes whose tiles are not all full the part of their elements that lies inside."""
        held = {a: self.grid[a] * self.trips[a] * t for a, t in self.tile.items()}
        return {a: self.extent[a] / n for a, n in held.items() if (self.extent[a] != n).any()}

    def product(self, of: Mapping[str, Any], axes: Iterable[str]) -> Counts:
        if of is not self.tile and of is not self.trips and of is not self.often:
            return self._product(of[a] for a in axes)
        key = id(of), tuple(axes)
        if (out := self._products.get(key)) is None:
            out = self._products[key] = self._product(x for a in key[1] if (x := self._factor(of, a)) is not None)
            out.flags.writeable = False
        return out

    def _factor(self, of: Mapping[str, Any], axis: str) -> Counts | None:
        key = id(of), axis
        if key not in self._factors:
            self._factors[key] = of[axis] if (of[axis] != 1).any() else None
        return self._factors[key]

    def _product(self, factors: Iterable[Any]) -> Counts:
        out: Any = 1.0
        for x in factors:
            out = out * x
        return out if isinstance(out, np.ndarray) else np.full(len(self.index), out)

    def filled(self, axes: frozenset[str]) -> Counts:
        if (out := self._full.get(axes)) is None:
            out = self._full[axes] = self._product(x for a, x in self._shares.items() if a in axes)
            out.flags.writeable = False
        return out

    def given(self, options: Mapping[str, Any]) -> Features:
        """With other options of the lowering; what does not depend on them is kept."""
        out = replace(self, options=options)
        vars(out).update({n: x for n, x in vars(self).items() if n in KEPT})
        return out


KEPT = frozenset(("stmts", "often", "buffers", "homes", "_products", "_factors", "_full", "_shares"))
"""What of features is computed when it is asked for and depends on no option."""


def some(of: V, keep: NDArray[np.bool_]) -> V:
    """What is known of candidates, a dataclass of arrays and of mappings to such, for some of them."""

    def part(x: Any) -> Any:
        if isinstance(x, np.ndarray):
            return x[keep]
        if isinstance(x, Mapping):
            return {k: some(v, keep) if is_dataclass(v) else part(v) for k, v in x.items()}
        return x

    return replace(of, **{x.name: part(getattr(of, x.name)) for x in fields(of)})


def families(stmt: Stmt, loops: Sequence[str], owner: str | None) -> tuple[str, ...]:
    """Loops for each trip of which an accumulator keeps a tile of its own: those inside its owner that index it."""
    if owner is None or owner not in loops:
        return ()
    return tuple(a for a in loops[loops.index(owner) + 1 :] if a in stmt.axes)


def placed(block: BlockGraph, order: TilingExpr, live: tuple[str, ...]) -> LoopTree:
    """The loop tree of a block in which exactly the ``live`` axes have loops (of two trips, as a placeholder)."""
    return _placed(block, *nest(order, live))


@lru_cache(maxsize=8192)
def _placed(block: BlockGraph, live: tuple[str, ...], paths: Paths) -> LoopTree:
    """Orders that differ in loops that are not live have one tree."""
    return place_in(block, live, paths, dict.fromkeys(live, 2))


def features(
    block: BlockGraph,
    order: TilingExpr | Sequence[TilingExpr],
    tiles: Mapping[str, Any],
    splits: Mapping[str, Any] | None = None,
    warps: Any = 4,
    stages: Any = 2,
    options: Mapping[str, Any] = MappingProxyType({}),
    which: Any = 0,
) -> tuple[Features, ...]:
    """A batch of candidates, grouped by their loop trees.

    ``tiles``: tile sizes of axes as arrays or numbers, broadcast to the size of the batch (an axis not named is one tile);
    ``splits``: the same for the counts of split axes; ``which``: of several orders the number of each candidate's. Raises
    :class:`UsageError` where :func:`fuser.ir.schedule.bind` would.
    """
    orders = (order,) if isinstance(order, TilingExpr) else order
    counts = {k: np.asarray(v, np.int64) for k, v in (splits or {}).items()}
    given = {k: np.asarray(v, np.int64) for k, v in tiles.items()}
    others = (np.asarray(x) for x in (warps, stages, which))
    shape = np.broadcast_shapes((1,), *(a.shape for a in (*counts.values(), *given.values(), *others)))
    n = shape[0]

    def full(x: Any) -> Sizes:
        return np.broadcast_to(np.asarray(x, np.int64), (n,))

    split_of, spatial, number = dict(block.splits), set(block.spatial) - set(block.reduced), full(which)
    extent: dict[str, Sizes] = {}
    for a in block.axes:
        if a.extent == FREE and a.name not in counts:
            raise UsageError(f"no number of parts is given for the split axis {a.name!r} of {block.name!r}")
        extent[a.name] = full(counts[a.name] if a.extent == FREE else a.extent)
    one = np.ones(n, np.int64)
    tile, trips, grid = dict[str, Sizes](), dict[str, Sizes](), dict[str, Sizes]()
    for axis, size in extent.items():
        if axis in split_of.values():
            tile[axis], trips[axis], grid[axis] = one, one, size
            continue
        tile[axis] = full(given[axis]) if axis in given else size
        parts = -(-size // tile[axis])
        if axis in split_of:
            grid[axis] = extent[split_of[axis]]
            trips[axis] = -(-parts // grid[axis])
            continue
        looped = np.array([axis in o.axes for o in orders])[number]
        if axis not in spatial and axis != options.get("cluster") and (parts[~looped] > 1).any():
            raise UsageError(f"axis {axis!r} of {block.name!r} has several tiles, no loop, and is not spatial")
        trips[axis], grid[axis] = np.where(looped, parts, one), np.where(looped, one, parts)
    blocks = np.ones(n)
    for axis, g in grid.items():
        if axis not in split_of:
            blocks = blocks * g
    names = [axis for axis, t in trips.items() if (t > 1).any()]
    code = number << len(names)
    for i, axis in enumerate(names):
        code |= (trips[axis] > 1).astype(np.int64) << i
    codes, of_code = np.unique(code, return_inverse=True)
    trees: dict[tuple[tuple[str, ...], Paths], int] = {}
    numbers: list[int] = []
    for c in codes.tolist():
        live = tuple(axis for i, axis in enumerate(names) if c >> i & 1)
        numbers.append(trees.setdefault(nest(orders[c >> len(names)], live), len(trees)))
    of_tree = np.array(numbers)[of_code]
    every_warps, every_stages = full(warps), full(stages)
    groups = []
    for loops, tree in trees.items():
        index = np.flatnonzero(of_tree == tree)
        groups.append(
            Features(
                block,
                index,
                _placed(block, *loops),
                {k: v[index] for k, v in extent.items()},
                {k: v[index] for k, v in tile.items()},
                {k: v[index] for k, v in trips.items()},
                {k: v[index] for k, v in grid.items()},
                blocks[index],
                every_warps[index],
                every_stages[index],
                options,
            )
        )
    return tuple(groups)


@lru_cache(1 << 10)
def schedule_features(block: BlockGraph, schedule: KernelSchedule) -> Features:
    """The features of one schedule: a batch of one."""
    (group,) = features(
        block,
        schedule.order,
        schedule.tile,
        dict(schedule.splits),
        np.array([schedule.num_warps]),
        np.array([schedule.num_stages]),
        schedule.knob,
    )
    return group


def evaluate(groups: Sequence[Features], of: Callable[[Features], NDArray[Any]]) -> NDArray[Any]:
    """``of`` each group, put back in the order of the batch."""
    parts = [(g.index, np.broadcast_to(np.asarray(of(g)), (len(g),))) for g in groups]
    out = np.empty(sum(len(i) for i, _ in parts), dtype=np.result_type(*(p for _, p in parts)))
    for index, part in parts:
        out[index] = part
    return out
