"""A kernel in one mode: which layouts its tiles may have, and the clocks that every choice takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from fuser.ir.layout.named import Registers
from fuser.ir.layout.named import Slice
from fuser.ir.mugraph import Stmt
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.specs import L2_PORT
from fuser.ir.specs import rate
from search.layouts import layouts as lay
from search.layouts.facts import Dims
from search.layouts.facts import Facts
from search.layouts.modes import Mode
from search.layouts.problem import Clocks
from search.layouts.problem import added

WAIT = 60.0
"""Clocks until a product that is waited for has begun and ended, beside its work."""
BESIDE = 0.45
"""Of the shorter of products and arithmetic, what the other hides: warps issue both."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """Facts and a mode, and what follows from both."""

    f: Facts
    m: Mode

    @cached_property
    def rounds(self) -> int:
        """Blocks of an SM that come one after another."""
        return -(-self.f.programs // (self.f.device.sm_count * self.m.blocks))

    @cached_property
    def fetch(self) -> float:
        return self.f.constants.fetch * self.f.device.clock

    def busy(self, unit: str, amount: float) -> Clocks:
        """``amount`` of clocks of a block's unit."""
        return ((unit, amount * self.f.turns),) if amount else ()

    def chain(self, term: str, amount: float) -> Clocks:
        return ((term, amount * self.rounds),) if amount else ()

    def shape(self, dims: Dims) -> tuple[int, ...]:
        """A group's part of a tile."""
        return self.f.tile(dims, self.m.groups)

    # -- layouts of tiles ----------------------------------------------------------------------------------------------------

    @cached_property
    def classes(self) -> dict[Dims, tuple[Registers, ...]]:
        """Tiles with the same dimensions share a layout: those of the largest rank that something computes."""
        f, found = self.f, dict[Dims, tuple[Registers, ...]]()
        most = max((len(f.dims(s)) for s in f.order if s.kind == "compute" or self.in_registers(s)), default=0)
        for s in f.order:
            dims = f.dims(s)
            if (
                s.kind == "store"
                or len(dims) < most
                or not dims
                or dims in found
                or not (s.kind == "compute" or self.in_registers(s))
            ):
                continue
            if f.dots:
                found[dims] = tuple(lay.of_products(f.size(dims[-1]), self.m.warps, f.grouped))
            else:
                element = min(DTYPE_BYTES[x.dtype] for x in f.order if x.kind == "load")
                found[dims] = tuple(dict.fromkeys(lay.of_tiles(self.shape(dims), self.m.warps, element)))
        return found

    def in_registers(self, load: Stmt) -> bool:
        """Something but a product reads what is loaded."""
        return load.kind == "load" and any(u not in self.f.dots for u in self.f.block.users(load.value))

    def layout(self, value: Stmt, picked: dict[Dims, Registers]) -> Registers | None:
        """Of a value, given those of the tiles: a vector is a slice of the first tile that has its dimension."""
        dims = self.f.dims(value)
        if dims in picked or not dims:
            return picked.get(dims)
        for arg in value.args if value.folds else ():
            own = self.f.dims(self.f.block.by_value[arg])
            if own in picked and len(own) == len(dims) + 1:
                return sliced(picked[own], own, dims)
        for own, layout in picked.items():
            if [a for a in own if a in dims] == list(dims):
                return sliced(layout, own, dims)
        return None

    # -- work ----------------------------------------------------------------------------------------------------------------

    def products(self, s: Stmt) -> float:
        """Clocks of the tensor cores for a product of the whole tile."""
        flop = 2.0 * math.prod(self.f.size(a) for a in (*self.f.dims(s), *self.f.tiles.dims(s.reduce)))
        cost = self.f.constants.group_cost if self.f.grouped or self.f.device.arch < 90 else self.f.constants.fragment_cost
        return flop * cost / rate("tensor", self.f.device, self.f.tiles.dot_dtype(s))

    def arithmetic(self, s: Stmt) -> tuple[float, float]:
        """Clocks of fp32 lanes and of special functions for the whole tile of an element-wise statement or a fold."""
        c, d = self.f.constants, self.f.device
        over = s.axes if not s.folds else (*s.axes, *s.reduce)
        lanes = math.prod(self.f.size(a) for a in self.f.tiles.dims(over))
        special = s.entry.sfu * lanes * c.special_cost / rate("special", d)
        return max(s.entry.flops, 1.0) * lanes * c.arithmetic_cost / 2 / rate("fp32", d), special

    @cached_property
    def elementwise(self) -> tuple[Stmt, ...]:
        return tuple(s for s in self.f.order if s.kind == "compute" and s not in self.f.dots)

    @cached_property
    def trip(self) -> float:
        """Clocks of one trip, or of a block without a loop: what an SM's groups need together, or one of them alone."""
        f = self.f
        tensor = sum(self.products(s) for s in f.dots if not f.trips > 1 or f.inside(s))
        other = [self.arithmetic(s) for s in self.elementwise if not f.trips > 1 or f.inside(s)]
        lanes, special = (sum(x[i] for x in other) for i in (0, 1))
        return max(self.m.blocks * max(tensor, lanes, special), (tensor + lanes + special) / self.m.groups)

    def fixed(self) -> Clocks:
        """What every choice of this mode takes."""
        f, found = self.f, list[Clocks]()
        hidden = [0.0, 0.0]
        for s in f.dots:
            clocks = self.products(s)
            found += [self.busy("tensor", f.times[s] * clocks), self.chain("products", f.times[s] * clocks / self.m.groups)]
            found.append(self.chain("waits", f.times[s] * WAIT))
            hidden[0] += clocks / self.m.groups + WAIT if f.inside(s) else 0.0
        for s in self.elementwise:
            lanes, special = (x * f.times[s] for x in self.arithmetic(s))
            found += [self.busy("fp32", lanes), self.busy("special", special)]
            alone = (lanes + special) / self.m.groups * max(1.0, 4 / self.m.warps)
            found.append(self.chain("arithmetic", alone))
            hidden[1] += alone / f.times[s] if f.inside(s) else 0.0
        if self.m.overlap:
            found.append(self.chain("hidden", -f.trips * BESIDE * min(*hidden) if hidden[1] else -f.trips * WAIT * len(f.dots)))
        moved = sum(f.times[s] * f.bytes(s) for s in f.order if s.kind == "load" and len(f.dims(s)) < 2)
        found.append(self.busy("device", moved / L2_PORT))
        tensors = sum(f.whole(s) for s in dict.fromkeys(s for s in f.order if s.access))
        found.append((("memory", tensors / (f.device.memory_bandwidth * f.constants.memory_rate) * f.device.clock),))
        found.append((("start", f.constants.base * f.device.clock),))
        first = 1 if f.persistent else self.rounds
        found.append((("fetch", self.fetch * first),) if any(s.kind == "load" for s in f.order) else ())
        found.append(self.chain("barriers", self._barriers()))
        return added(*found)

    def _barriers(self) -> float:
        """Clocks of a block in barriers: each trip hands buffers over; without a producer every group waits for the others before
        one of them refills."""
        rings = sum(self.f.times[s] for s in self.f.order if self.f.feeds(s))
        if not self.f.grouped:
            return lay.HANDSHAKE / 3 * max((self.f.times[s] for s in self.f.order if self.f.feeds(s)), default=0)
        return lay.HANDSHAKE * rings * (0.5 if self.m.producer else 0.35 + 0.25 * self.m.groups)


def sliced(layout: Registers, have: Dims, want: Dims) -> Registers:
    """What is left of a tile's layout without some of its dimensions."""
    for i in reversed([i for i, a in enumerate(have) if a not in want]):
        layout = Slice(i, layout)
    return layout
