"""Mirage's view of a scheduled block: grid and for-loop dimensions, and imap, omap and fmap (Mirage, section 2).

In this IR they are not free choices but follow from the axes: a grid dimension maps to the data dimension of a tensor that has
one of its axes, and to ``-`` (replicated) where none has. Grid dimensions are the divided axes in the order of the block's axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.placement import place
from fuser.ir.schedule import AxisPlan
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import bind
from fuser.ir.tiling import Loop
from fuser.ir.tiling import LoopTree
from fuser.ir.tiling import Node

GRID = ("x", "y", "z")


@dataclass(frozen=True)
class TensorMap:
    """Maps of one access. An entry is the data dimension (``"1"``; several as ``"0·2"``) or ``"-"``.

    ``grid`` has an entry for each of x, y, z: the imap of an input, the omap of an output. ``loop`` has one for each for-loop:
    the dimension of an input that the loop walks, or along which an output is concatenated (``-``: accumulated, or the same).
    """

    tensor: str
    value: str
    grid: tuple[str, ...]
    loop: tuple[str, ...]


@dataclass(frozen=True)
class BlockMaps:
    """``grid`` are the axes of x, y and z with their numbers of blocks, ``loops`` the for-loops with their trips, outermost
    first."""

    name: str
    grid: tuple[tuple[tuple[str, ...], int], ...]
    loops: tuple[tuple[str, int], ...]
    inputs: tuple[TensorMap, ...]
    outputs: tuple[TensorMap, ...]

    @property
    def folded(self) -> tuple[str, ...]:
        """Axes that share the last grid dimension, because more than three are divided."""
        return self.grid[-1][0] if len(self.grid[-1][0]) > 1 else ()

    def imap(self, tensor: str) -> str:
        return vector(_named(self.inputs, tensor).grid)

    def omap(self, tensor: str) -> str:
        return vector(_named(self.outputs, tensor).grid)

    def fmap(self, tensor: str) -> str:
        return vector(_named((*self.inputs, *self.outputs), tensor).loop)

    def __str__(self) -> str:
        parts = [f"{d}={'·'.join(axes)}:{size}" for d, (axes, size) in zip(GRID, self.grid, strict=True) if axes]
        loops = [f"{axis}:{trips}" for axis, trips in self.loops]
        lines = [f"grid ({', '.join(parts)}) for ({', '.join(loops)})"]
        if self.folded:
            lines.append(f"  more than three axes are divided: {', '.join(self.folded)} share z")
        for kind, maps in (("imap", self.inputs), ("omap", self.outputs)):
            lines += [f"  {m.tensor}: {kind} {vector(m.grid)}" + (f" fmap {vector(m.loop)}" if m.loop else "") for m in maps]
        return "\n".join(lines)


def vector(entries: Sequence[str]) -> str:
    """As the papers write it: ``(0,-,-)``; a single for-loop without brackets."""
    return entries[0] if len(entries) == 1 else f"({','.join(entries)})"


def _named(maps: tuple[TensorMap, ...], tensor: str) -> TensorMap:
    for m in maps:
        if tensor in (m.tensor, m.value):
            return m
    raise KeyError(f"no access to {tensor!r}; there are {', '.join(m.tensor for m in maps)}")


def block_maps(block: BlockGraph, schedule: KernelSchedule) -> BlockMaps:
    """Maps of a block under a schedule. Raises :class:`fuser.errors.UsageError` where the schedule does not fit."""
    block, plans = bind(block, schedule)
    divided = [a for a, p in plans.items() if p.grid > 1 and not p.split]
    groups = [tuple(divided[i : i + 1]) for i in range(2)] + [tuple(divided[2:])]
    loops = loop_axes(place(block, schedule.order, plans))

    def maps(s: Stmt) -> TensorMap:
        dims = s.at.dims
        grid = tuple(_dims(dims, {x for x in plans if _divides(plans[x], axes)}) for axes in groups)
        return TensorMap(s.at.tensor, s.value, grid, tuple(_dims(dims, {a}) for a, _ in loops))

    sizes = [1, 1, 1]
    for i, axes in enumerate(groups):
        for a in axes:
            sizes[i] *= plans[a].grid
    return BlockMaps(
        block.name,
        tuple(zip(groups, sizes, strict=True)),
        loops,
        tuple(maps(s) for s in block.loads),
        tuple(maps(s) for s in block.stores),
    )


def loop_axes(tree: LoopTree) -> tuple[tuple[str, int], ...]:
    """Loops of a tree with their trips, outermost and earliest first; loops over one axis count once."""
    found: dict[str, int] = {}

    def visit(nodes: tuple[Node, ...]) -> None:
        for n in nodes:
            if isinstance(n, Loop):
                found.setdefault(n.axis, n.trips)
                visit(n.body)

    visit(tree.body)
    return tuple(found.items())


def _divides(plan: AxisPlan, grid: tuple[str, ...]) -> bool:
    """The blocks along a grid dimension have different parts of the axis."""
    return plan.axis in grid or (plan.split != "" and plan.split in grid)


def _dims(dims: tuple[tuple[str, ...], ...], axes: set[str]) -> str:
    return "·".join(str(i) for i, dim in enumerate(dims) if axes & set(dim)) or "-"
