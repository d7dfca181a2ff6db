"""Which place of the grid a block computes: one, or one after the other. Where places are not alike, since a causal mask leaves
less of some, those with the most to do come first, and rounds of a persistent kernel go back and forth: who had the most in one
round has the least in the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fuser.lower.causal_code import trips_needed
from fuser.lower.gluon.writer import GroupWriter
from fuser.lower.options import GRID_ORDER
from fuser.lower.options import GROUP
from fuser.lower.options import in_grid_order
from fuser.lower.program_order import decode


@dataclass(frozen=True)
class Places:
    """``count`` places of the grid for ``programs`` persistent blocks (0: a block for each place)."""

    count: int
    programs: int
    uneven: bool

    @classmethod
    def of(cls, w: GroupWriter, programs: int) -> Places:
        loops = dict.fromkeys(x for _, around in w.tiles.tree.walk() for x in around)
        return cls(w.split.places, programs, bool(w.split.axis) and any(trips_needed(w, x) for x in loops))

    @property
    def first(self) -> str:
        return "gl.program_id(0)"

    @property
    def last(self) -> str:
        """Of a persistent block."""
        return f"{self.first} + ({self.count - 1} - {self.first}) // {self.programs} * {self.programs}"

    def turn(self, at: str) -> str:
        """The place that is a block's turn after ``at`` places of all blocks."""
        n, full = self.programs, self.count // self.programs
        if not self.uneven or full < 2:
            return at
        return f"{at} + min({at} // {n} % 2, {full} - {at} // {n}) * ({n - 1} - 2 * ({at} % {n}))"

    def decoded(self, w: GroupWriter) -> Iterator[str]:
        """Lines that say where ``pid`` is."""
        split = w.split
        shares = {a: split.groups if a == split.axis else 1 for a in w.tiles.plans}
        parts = {a: p.grid // shares[a] for a, p in w.tiles.plans.items()}
        order = in_grid_order(w.tiles.schedule, [a for a, n in parts.items() if n > 1])
        if self.uneven and not GRID_ORDER.of(w.tiles.schedule):
            order.sort(key=lambda a: a != split.axis)
        counters = {w.split_counter(a): parts[a] for a in order}  # a split and its parts are one
        yield from decode(list(counters.items()), GROUP.of(w.tiles.schedule))
        if self.uneven and parts[split.axis] > 1:
            rows = w.split_counter(split.axis)
            yield f"{rows} = {parts[split.axis] - 1} - {rows}"
