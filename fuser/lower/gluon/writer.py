"""A kernel by warp groups while it is written: the writer of :mod:`fuser.lower.writer`, whose register blocks have layouts.

A value is always in the layout that the plan has for it. What is broadcast or meets a value of another layout is converted; the
compiler drops conversions that move nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager

from fuser.ir.layout.named import Blocked
from fuser.ir.layout.named import Mma
from fuser.ir.layout.named import Registers
from fuser.ir.layout.named import Slice
from fuser.ir.layout.plan import LayoutPlan
from fuser.ir.mugraph import Stmt
from fuser.lower.descriptors import Descriptor
from fuser.lower.gluon.choices import home
from fuser.lower.gluon.split import Split
from fuser.lower.pieces import Piece
from fuser.lower.writer import Combo
from fuser.lower.writer import Writer
from fuser.lower.writer import spread


class GroupWriter(Writer):
    """``group`` is the number of the group of rows as text: a name in a consumer, which all of them share."""

    def __init__(self, split: Split, plan: LayoutPlan, described: Mapping[Stmt, Descriptor], group: str) -> None:
        super().__init__(split.tiles, {})
        self.split, self.plan, self.group = split, plan, group
        self._boxes = described
        views = dict.fromkeys(described.values())
        several = {d.tensor for d in views if sum(o.tensor == d.tensor for o in views) > 1}
        first = {d: s.value for s, d in reversed([*described.items()])}
        self._views = {d: first[d] if d.tensor in several else d.tensor for d in views}
        """What descriptors are called: as their tensor is, or where there are several of one, as what the first load makes."""
        self.part = ""
        """The number of the group among those with the same rows, as text; empty where it does not matter."""
        self.turn = ""
        """The number of the group among those that take places in turn, as text."""
        self.behind = 0
        """By how many trips of the innermost loop the current line is late."""
        self.into = ""
        """The value that the current statement computes."""
        self._trip: tuple[str, str] | None = None
        self.lanes_of: dict[str, Mma] = {}
        """Sums that threads keep apart in their loop (:mod:`fuser.lower.gluon.folds`), with the layout of what they keep."""
        self._layouts: dict[Registers, str] = {}
        seen = Counter(n for n, _ in split.tiles.tree.walk() if isinstance(n, Stmt))
        self.several = {s for s, count in seen.items() if count > 1}
        """Statements that stand in several loops."""

    # -- layouts ------------------------------------------------------------------------------------------------------------

    def layout(self, name: str) -> Registers | None:
        """Of a value, or of the indices of an axis; None of a number."""
        if name in self.tiles.plans:
            return home(self.split, name)
        found = self.plan.fragment.get(name)
        return found.layout if found else None

    def named(self, layout: Registers) -> str:
        """A name for a layout in the source, which begins with all of them."""
        return self._layouts.setdefault(layout, f"L{len(self._layouts)}")

    def constants(self) -> list[str]:
        """The lines that give layouts their names."""
        return [f"{name} = gl.constexpr({layout.gluon})" for layout, name in self._layouts.items()]

    def converted(self, text: str, have: Registers | None, want: Registers | None) -> str:
        return text if have == want or want is None else f"gl.convert_layout({text}, {self.named(want)})"

    def spread(self, text: str, have: Sequence[str], want: Sequence[str], of: str, into: str = "") -> str:
        if into in self.lanes_of:
            return f"{self.converted(text, self.layout(of), Slice(1, self.lanes_of[into]))}[:, None]"
        target = self.layout(into or self.into)
        if not have or target is None or rank(target) != len(want):
            return spread(text, have, want)
        for i in reversed([i for i, a in enumerate(want) if a not in have]):
            target = Slice(i, target)
        return spread(self.converted(text, self.layout(of), target), have, want)

    @contextmanager
    def giving(self, value: str) -> Iterator[None]:
        """What is written inside goes into a value."""
        before, self.into = self.into, value
        yield
        self.into = before

    # -- what the texts of Triton have without layouts ------------------------------------------------------------------------

    def full(self, stmt: Stmt, pieces: Combo, text: str) -> str:
        layout = self.layout(stmt.args[0] if self.tiles.kept(stmt) else stmt.value)
        shape = ", ".join(str(p.size) for p in pieces)
        return f"gl.full([{shape}], {text}, gl.float32, {self.named(layout)})" if layout and shape else text

    def lanes(self, axis: str, piece: Piece) -> str:
        return f"gl.arange(0, {piece.size}, {self.named(home(self.split, axis))})"

    # -- descriptors --------------------------------------------------------------------------------------------------------

    def descriptor(self, stmt: Stmt) -> Descriptor | None:
        return self._boxes.get(stmt)

    def box_argument(self, descriptor: Descriptor) -> str:
        return self.out.name(f"{self._views[descriptor]} desc")

    # -- places -------------------------------------------------------------------------------------------------------------

    @contextmanager
    def at_trip(self, axis: str, trip: str) -> Iterator[None]:
        """What is written inside is about another trip of a loop."""
        self._trip = axis, trip
        yield
        self._trip = None

    def start(self, axis: str, piece: Piece) -> str:
        """Rows count from the block's first one, and then from the group's; trips that are shared out are the group's own."""
        if self._trip and self._trip[0] == axis:
            kept, self.loops = self.loops, [x for x in self.loops if x != axis]
            first = super().start(axis, piece)
            self.loops = kept
            return " + ".join(filter(None, (first, f"{self._trip[1]} * {self.tiles.plans[axis].tile}")))
        if self.part and self.split.loop and axis == self.split.loop.axis:
            trip = f"({self.trip(axis)} * {self.split.parts} + {self.part})" if axis in self.loops else self.part
            size = self.tiles.plans[axis].tile
            return f"{trip} * {size}" if size > 1 else trip
        if self.behind and self.loops[-1:] == [axis]:
            return f"({self.trip(axis)} - {self.behind}) * {self.tiles.plans[axis].tile}"
        if axis != self.split.axis or self.split.groups == 1:
            return super().start(axis, piece)
        plan = self.tiles.plans[axis]
        terms = [f"{self.group} * {plan.tile}"] if self.group != "0" else []
        if plan.grid > self.split.groups:
            terms.insert(0, f"{self.split_counter(axis)} * {plan.tile * self.split.groups}")
        return " + ".join(terms)

    @contextmanager
    def as_group(self, group: str, behind: int = 0) -> Iterator[None]:
        """What is written inside is about the rows of another group, and of so many trips before this one."""
        before, self.group, self.behind = self.group, group, behind
        yield
        self.group, self.behind = before, 0


def rank(layout: Registers) -> int:
    """Dimensions of a tile in a layout."""
    if isinstance(layout, Slice):
        return rank(layout.parent) - 1
    return len(layout.warps) if isinstance(layout, Blocked | Mma) else 2
