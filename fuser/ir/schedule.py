"""Schedules: everything that a structure leaves free. A µGraph and a schedule together determine one program for the GPU."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from functools import cached_property
from functools import lru_cache
from typing import Any

from fuser.errors import UsageError
from fuser.ir import reading
from fuser.ir.hashed import Hashed
from fuser.ir.hashing import canonical
from fuser.ir.hashing import hashed
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import BlockGraph
from fuser.ir.tiling import TilingExpr

LARGEST = 1 << 31
"""No tile or split is beyond this."""
_SPELLING = re.compile(r"(?P<order>\S+) *\[(?P<sizes>[^\[\]]*)\](?P<rest>[^\[\]]*)")
_EXAMPLE = "n [h=64 k=64 m=64 n=32] warps=4 stages=3"


def _words(text: str) -> dict[str, str]:
    """``a=1 b=2`` by name."""
    found: dict[str, str] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if not (name and equals and value) or name in found:
            raise UsageError(f"{word!r} in a schedule is {'there twice' if name in found else 'no NAME=VALUE'}", _EXAMPLE)
        found[name] = value
    return found


def _value(text: str) -> bool | int | str:
    """Of an option."""
    if text in ("True", "False"):
        return text == "True"
    return int(text) if text.isdecimal() and len(text) < 10 else text


@dataclass(frozen=True)
class KernelSchedule(Hashed):
    """The free choices of one kernel.

    ``tiles``: elements of each axis that a block handles at once (an axis not named has tile = extent).
    ``order``: the sub-tiling expression inside a block; axes not in it are divided over the grid, in the order of the block's
    axes.
    ``splits``: number of parts of each split axis. ``knobs``: further options of the lowering, sorted by name.
    """

    tiles: tuple[tuple[str, int], ...] = ()
    order: TilingExpr = TilingExpr()
    splits: tuple[tuple[str, int], ...] = ()
    num_warps: int = 4
    num_stages: int = 2
    knobs: tuple[tuple[str, Any], ...] = ()

    __hash__ = Hashed.__hash__

    @cached_property
    def tile(self) -> dict[str, int]:
        return dict(self.tiles)

    @cached_property
    def knob(self) -> dict[str, Any]:
        return dict(self.knobs)

    @property
    def cluster(self) -> str:
        """The axis whose tiles the blocks of one cluster share out, a tile each; empty where blocks stand alone."""
        return str(self.knob.get("cluster", ""))

    def as_one_block(self) -> KernelSchedule:
        """The same work where one block does what a cluster shares out."""
        tiles = tuple((a, n) for a, n in self.tiles if a != self.cluster)
        return replace(self, tiles=tiles).with_knobs(cluster=None) if self.cluster else self

    def with_knobs(self, **options: Any) -> KernelSchedule:
        """The schedule with options set, or removed where they are None."""
        knobs = {k: v for k, v in (self.knob | options).items() if v is not None}
        return replace(self, knobs=tuple(sorted(knobs.items())))

    def to_json(self) -> dict[str, Any]:
        return {
            "tiles": dict(self.tiles),
            "order": str(self.order),
            "splits": dict(self.splits),
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "knobs": dict(self.knobs),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> KernelSchedule:
        """Read what :meth:`to_json` wrote. Raises :class:`ProgramError` that names what is missing or wrong."""
        what = "a schedule"
        with reading.reading(what):
            data = reading.table(data, what)

            def counts(key: str) -> dict[str, int]:
                where = f"{key} of {what}"
                found = reading.table(reading.get(data, key, what), where)
                return {reading.text(k, where): reading.integer(v, f"{where} of {k}") for k, v in found.items()}

            tiles, splits = counts("tiles"), counts("splits")
            knobs = reading.table(reading.get(data, "knobs", what), f"knobs of {what}")
            for key, value in knobs.items():
                if not isinstance(value, str | int | float):
                    raise reading.wrong(f"the knob {key}", value, "a value")
            return KernelSchedule(
                tuple(sorted(tiles.items())),
                TilingExpr.parse(reading.text(reading.get(data, "order", what), f"the order of {what}"), tuple(tiles)),
                tuple(sorted(splits.items())),
                reading.integer(reading.get(data, "num_warps", what), f"num_warps of {what}", 1),
                reading.integer(reading.get(data, "num_stages", what), f"num_stages of {what}"),
                tuple(sorted(knobs.items())),
            )

    @staticmethod
    def parse(text: str, block: BlockGraph) -> KernelSchedule:
        """Read what :meth:`__str__` wrote for a kernel. Raises :class:`UsageError` naming the word that is wrong."""
        match = _SPELLING.fullmatch(text.strip())
        if match is None:
            raise UsageError(f"{text.strip()!r} is not the schedule of a kernel", f"as it is printed: {_EXAMPLE}")
        sizes, rest = _words(match["sizes"]), _words(match["rest"])
        free = {a.name for a in block.axes if a.extent == FREE}
        for name, size in sizes.items():
            if name not in block.extents:
                raise UsageError(f"{block.name!r} has no axis {name!r}", f"its axes: {', '.join(block.extents)}")
            if not size.isdecimal() or not 0 < int(size) <= LARGEST:
                raise UsageError(f"{name}={size} of {block.name!r} is no size", "a positive number")
        counts = {key: rest.pop(key, default) for key, default in (("warps", "4"), ("stages", "2"))}
        if odd := [f"{k}={n}" for k, n in counts.items() if not n.isdecimal() or not 0 < int(n) <= 64]:
            raise UsageError(f"{odd[0]} of {block.name!r} is no number of them", f"as it is printed: {_EXAMPLE}")
        order = "" if match["order"] == "-" else match["order"]
        return KernelSchedule(
            tuple(sorted((k, int(v)) for k, v in sizes.items() if k not in free)),
            TilingExpr.parse(order, tuple(block.extents)),
            tuple(sorted((k, int(v)) for k, v in sizes.items() if k in free)),
            int(counts["warps"]),
            int(counts["stages"]),
            tuple(sorted((k, _value(v)) for k, v in rest.items())),
        )

    def __str__(self) -> str:
        tiles = " ".join(f"{k}={v}" for k, v in self.tiles)
        splits = "".join(f" {k}={v}" for k, v in self.splits)
        knobs = "".join(f" {k}={v}" for k, v in self.knobs)
        return f"{self.order or '-'} [{tiles}{splits}] warps={self.num_warps} stages={self.num_stages}{knobs}"


@dataclass(frozen=True)
class Schedule:
    """One :class:`KernelSchedule` for each block graph of a kernel graph, in launch order."""

    kernels: tuple[KernelSchedule, ...]

    def to_json(self) -> list[dict[str, Any]]:
        return [k.to_json() for k in self.kernels]

    @staticmethod
    def from_json(data: Any) -> Schedule:
        return Schedule(tuple(KernelSchedule.from_json(k) for k in reading.items(data, "a schedule")))

    @staticmethod
    def parse(text: str, blocks: Sequence[BlockGraph]) -> Schedule:
        """Read what :meth:`__str__` wrote for a graph with these kernels. Raises :class:`UsageError` as
        :meth:`KernelSchedule.parse`, and where there are more or fewer kernels."""
        parts = [p for p in text.split(";") if p.strip()]
        if len(parts) != len(blocks):
            raise UsageError(f"a schedule of {len(parts)} kernels, where there are {len(blocks)}", f"one is {_EXAMPLE}")
        return Schedule(tuple(KernelSchedule.parse(p, b) for p, b in zip(parts, blocks, strict=True)))

    @property
    def text(self) -> str:
        """Its canonical JSON, as rows keep it."""
        return _named(self)[0]

    def stable_hash(self) -> str:
        """SHA-256 of that."""
        return _named(self)[1]

    def __str__(self) -> str:
        return " ; ".join(map(str, self.kernels))


@lru_cache(1 << 12)
def _named(schedule: Schedule) -> tuple[str, str]:
    """Text and hash. Many structures have equal schedules."""
    text = canonical(schedule.to_json())
    return text, hashed(text)


@dataclass(frozen=True)
class AxisPlan:
    """How one axis is divided in a kernel: ``extent`` ≤ ``grid`` · ``trips`` · ``tile`` elements.

    With ``split`` the grid part is that of another axis: block ``g`` of it handles elements [g·chunk, (g+1)·chunk), where chunk
    is trips · tile; parts beyond the extent are empty.
    """

    axis: str
    extent: int
    tile: int
    trips: int
    grid: int
    split: str = ""

    @property
    def chunk(self) -> int:
        return self.trips * self.tile

    @property
    def ragged(self) -> bool:
        """The last tile is partly outside of the tensor, so that accesses need a mask."""
        return self.grid * self.chunk != self.extent


def bind(block: BlockGraph, schedule: KernelSchedule) -> tuple[BlockGraph, dict[str, AxisPlan]]:
    """The block with its split counts bound, and the plan of every axis.

    Raises :class:`UsageError` where the schedule does not fit the block: a reduced axis divided over the grid without a split,
    or an axis in the order that the block lacks.
    """
    counts = dict(schedule.splits)
    free = {a.name for a in block.axes if a.extent == FREE}
    if missing := free - set(counts):
        raise UsageError(f"schedule of {block.name!r} does not say into how many parts {sorted(missing)} are split")
    if empty := [a for a in sorted(free) if counts[a] < 1]:
        raise UsageError(f"schedule of {block.name!r} splits {empty[0]!r} into {counts[empty[0]]} parts", "use 1 or more")
    block = block.with_extents({a: counts[a] for a in free})
    looped = schedule.order.axes
    if unknown := set(looped) - set(block.extents):
        raise UsageError(f"schedule of {block.name!r} loops over {sorted(unknown)}, which the block does not have")
    split_of = dict(block.splits)
    split_axes = set(split_of.values())
    plans: dict[str, AxisPlan] = {}
    for axis, extent in block.extents.items():
        if axis in split_axes:
            plans[axis] = AxisPlan(axis, extent, 1, 1, extent)
            continue
        tile = schedule.tile.get(axis, extent)
        if tile < 1:
            raise UsageError(f"tile size {tile} of axis {axis!r} of {block.name!r} is not positive")
        parts = math.ceil(extent / tile)
        if axis in split_of:
            trips = math.ceil(parts / block.extents[split_of[axis]])
            plans[axis] = AxisPlan(axis, extent, tile, trips, block.extents[split_of[axis]], split_of[axis])
        elif axis in looped:
            plans[axis] = AxisPlan(axis, extent, tile, parts, 1)
        elif parts == 1 or axis in block.spatial or axis == schedule.cluster:
            plans[axis] = AxisPlan(axis, extent, tile, 1, parts)
        else:
            raise UsageError(
                f"axis {axis!r} of {block.name!r} is reduced or not common to all outputs, has tile {tile} < {extent}, "
                "and no loop",
                f"add {axis!r} to the order {schedule.order!s}, make its tile {extent}, or let a cluster share it out",
            )
    return block, plans
