"""Equal layers of a deep chain: statements that repeat, each time with the next windows of the same tensors.

Twenty layers of relu(x W[i] + v[i]) are one layer in a loop: the source is short, and the compiler fetches the next layer's
weights while it multiplies by this one's.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from functools import cached_property

from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Stmt

Sizes = Mapping[str, tuple[int, int]]  # extent and tile of each axis

LEAST = 4
"""Fewest layers that become a loop."""


@dataclass(frozen=True)
class Layers:
    """``count`` groups of ``size`` statements from position ``first`` on. Each group reads one value of the group before
    (``made``, by its name in the first group), the first one ``initial``. ``steps``: elements between the windows of neighbouring
    groups, by the loaded value in the first group. ``axes``: for each group its axes by those of the first."""

    stmts: tuple[Stmt, ...]
    first: int
    size: int
    count: int
    initial: str
    made: str
    steps: tuple[tuple[str, int], ...]
    axes: tuple[tuple[tuple[str, str], ...], ...]

    def group(self, i: int) -> tuple[Stmt, ...]:
        start = self.first + i * self.size
        return self.stmts[start : start + self.size]

    @property
    def end(self) -> int:
        return self.first + self.count * self.size

    def without_last(self) -> Layers:
        """The same but for the last group."""
        return replace(self, count=self.count - 1, axes=self.axes[:-1])

    @cached_property
    def last(self) -> str:
        """What the last group leaves."""
        names = [s.value for s in self.group(0)]
        return self.group(self.count - 1)[names.index(self.made)].value

    def renamed(self, i: int, axes: Sequence[str]) -> tuple[str, ...]:
        """Axes of the first group as those of group i."""
        of = dict(self.axes[i])
        return tuple(of.get(a, a) for a in axes)


def find_layers(block: BlockGraph, stmts: Sequence[Stmt], tiles: Mapping[str, int] | None = None) -> Layers | None:
    """The longest run of at least :data:`LEAST` equal layers among statements in a row, if there is one. ``tiles``: tile sizes,
    in which layers agree too."""
    sizes = {a: (n, (tiles or {}).get(a, n)) for a, n in block.extents.items()}
    best: Layers | None = None
    dots = [i for i, s in enumerate(stmts) if s.contracts]
    for size in sorted({b - a for a, b in itertools.pairwise(dots)}):
        for first in range(len(stmts) - LEAST * size + 1):
            found = _run(block, tuple(stmts), first, size, sizes)
            if found and (best is None or found.count * found.size > best.count * best.size):
                best = found
    return best


def _run(block: BlockGraph, stmts: tuple[Stmt, ...], first: int, size: int, sizes: Sizes) -> Layers | None:
    groups = [stmts[i : i + size] for i in range(first, len(stmts) - size + 1, size)]
    zero = groups[0]
    place = {s.value: i for i, s in enumerate(zero) if s.kind != "store"}
    if len(place) < size:
        return None  # it stores something
    initial = made = ""
    axes: list[dict[str, str]] = [{a: a for s in zero for a in s.related}]
    steps: dict[str, int] = {}
    for r, group in enumerate(groups[1:], start=1):
        renamed = _matched(zero, group, sizes)
        if renamed is None:
            break
        crossing: set[tuple[str, str]] = set()
        fits = True
        for a, b in zip(zero, group, strict=True):
            for x, y in zip(a.args, b.args, strict=True):
                if x in place:
                    fits &= y == group[place[x]].value
                elif x != y:
                    crossing.add((x, y))
        if not fits or len(crossing) != 1:
            break
        ((start, value),) = crossing
        before = {s.value: z.value for s, z in zip(groups[r - 1], zero, strict=True)}
        if value not in before or (r > 1 and (start, before[value]) != (initial, made)):
            break
        moved = _steps(zero, group, r)
        if moved is None or (r > 1 and moved != steps):
            break
        initial, made, steps = start, before[value], moved
        axes.append(renamed)
    if not made or len(axes) < LEAST:
        return None
    found = Layers(
        stmts, first, size, len(axes), initial, made, tuple(sorted(steps.items())), tuple(tuple(sorted(x.items())) for x in axes)
    )
    return found if _closed(block, found) else None


def _matched(zero: Sequence[Stmt], group: Sequence[Stmt], sizes: Sizes) -> dict[str, str] | None:
    """The axes of a group by those of the first one, if the statements are the same otherwise."""
    of: dict[str, str] = {}
    for a, b in zip(zero, group, strict=True):
        same = (a.kind, a.op, a.dtype, a.attrs, len(a.args)) == (b.kind, b.op, b.dtype, b.attrs, len(b.args))
        if not same or a.running or a.rescale or b.running or b.rescale or len(a.reduce) != len(b.reduce):
            return None
        pairs = list(zip(a.reduce, b.reduce, strict=True))
        if (a.access is None) != (b.access is None):
            return None
        if a.access and b.access:
            if [len(d) for d in a.access.dims] != [len(d) for d in b.access.dims] or a.access.source != b.access.source:
                return None
            pairs += zip(a.access.axes, b.access.axes, strict=True)
        for x, y in pairs:
            if of.setdefault(x, y) != y or sizes[x] != sizes[y]:
                return None
    for a, b in zip(zero, group, strict=True):
        if {of.get(x, x) for x in a.axes} != set(b.axes):
            return None
    return of if len(set(of.values())) == len(of) else None


def _steps(zero: Sequence[Stmt], group: Sequence[Stmt], r: int) -> dict[str, int] | None:
    """Elements from a window of one group to that of the next, by the value of the first group."""
    found: dict[str, int] = {}
    for a, b in zip(zero, group, strict=True):
        if a.access is None or b.access is None:
            continue
        old, new = a.access.window, b.access.window
        if old is None or new is None:
            if old != new:
                return None
            found[a.value] = 0
            continue
        if (old.shape, old.view) != (new.shape, new.view) or (new.offset - old.offset) % r:
            return None
        found[a.value] = (new.offset - old.offset) // r
    return found


def _closed(block: BlockGraph, layers: Layers) -> bool:
    """Nothing else reads what is made inside, and what goes from one to the next is read by contractions alone."""
    for i in range(layers.count):
        group = layers.group(i)
        inside = {id(s) for s in group}
        handed = group[[s.value for s in layers.group(0)].index(layers.made)].value
        for s in group:
            outside = [u for u in block.users(s.value) if id(u) not in inside]
            if outside and s.value != handed:
                return False
    return all(u.contracts for u in block.users(layers.initial) if u in layers.group(0))
