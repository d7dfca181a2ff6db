"""The problem of a kernel that Gluon's generator writes, under its schedule.

Who computes what follows from the schedule (:mod:`fuser.lower.gluon.split`): rows for each group, columns, or trips of a loop
that groups with the same rows share out. Left to choose are blocks on an SM, slots of what a place of the grid loads once,
results through shared memory or by pointers, swizzles, and layouts of tiles that no product makes. Costs are those of the cost
model (:mod:`cost_model.groups`), capacities the bytes of the generator's own buffers and the registers that its threads are
given; what the model does not price, other layouts of registers, costs what they take longer than the generator's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace
from functools import cached_property

import numpy as np

from cost_model import groups
from cost_model.constants import constants_of
from cost_model.features import Features
from cost_model.features import schedule_features
from cost_model.group_room import THREADS
from cost_model.group_room import Held
from cost_model.group_room import held
from cost_model.resources import Resources
from cost_model.resources import resources
from cost_model.work import Work
from cost_model.work import work
from fuser.device import Device
from fuser.errors import NoValidKernelError
from fuser.ir.layout.named import MmaShared
from fuser.ir.layout.named import Registers
from fuser.ir.layout.plan import OUT
from fuser.ir.layout.plan import Buffer
from fuser.ir.layout.plan import LayoutPlan
from fuser.ir.mugraph import Stmt
from fuser.lower.gluon import choices
from fuser.lower.gluon.choices import pointed
from fuser.lower.gluon.split import GROUP_WARPS
from fuser.lower.gluon.split import Split
from fuser.lower.options import PERSISTENT
from search.layouts.facts import Dims
from search.layouts.facts import Facts
from search.layouts.modes import MOST_BLOCKS
from search.layouts.modes import Mode
from search.layouts.options import Maker
from search.layouts.problem import Clocks
from search.layouts.problem import Node
from search.layouts.problem import Option
from search.layouts.problem import Problem
from search.layouts.problem import added

UNITS = {
    "tensor": "tensor",
    "special": "special",
    "arithmetic": "fp32",
    "into_sm": "device",
    "device_memory": "memory",
    "l2": "l2",
}
"""Terms of the model that say how long a unit is busy, by the solver's names."""


@dataclass(frozen=True)
class Flow:
    """How tiles come and go: ``buffers`` of what is loaded, handed over and stored, with so many ``slots`` of what is loaded
    once; ``staged`` where all results leave by the copy engine. ``clocks`` by term, and of units beside them, for information."""

    buffers: tuple[Buffer, ...]
    slots: int
    staged: bool
    clocks: Clocks = ()
    units: Clocks = ()

    @property
    def bytes(self) -> int:
        return sum(b.bytes for b in self.buffers)


@dataclass(frozen=True, eq=False)
class Draft:
    """A kernel as the generator's own rules have it."""

    facts: Facts
    split: Split
    plan: LayoutPlan

    @staticmethod
    def of(facts: Facts) -> Draft:
        """Raises :class:`NoValidKernelError` where the generator has no form of a schedule, or the model no price."""
        split, plan = choices.planned(facts.tiles)
        found = Draft(facts, split, plan)
        if not found.held.fits[0]:
            why = f"{facts.block.name!r} by warp groups has no price under {facts.tiles.schedule}"
            raise NoValidKernelError(why, "use smaller tiles, more warps, or leave out flatten")
        return found

    @property
    def device(self) -> Device:
        return self.facts.device

    @property
    def again(self) -> int:
        return PERSISTENT.of(self.split.tiles.schedule)

    @cached_property
    def features(self) -> Features:
        return schedule_features(self.facts.block, self.facts.tiles.schedule)

    @cached_property
    def counted(self) -> tuple[Work, Resources]:
        return work(self.features, self.device), resources(self.features, self.device)

    @cached_property
    def held(self) -> Held:
        return held(self.features, self.counted[1], self.device)

    # -- what there is room for

    def registers(self, blocks: int) -> int:
        """Of a consumer's thread with so many blocks on an SM; 0 where that is too few for a product, or for the device."""
        threads = self.split.consumers + self.plan.producer
        first = int(choices.at_first(threads, blocks))
        if first < choices.of_a_product(self.split) or first * threads * THREADS * blocks > self.device.registers_per_sm:
            return 0
        return int(choices.of_a_consumer(self.split.consumers, self.plan.producer, blocks))

    def wanted(self, blocks: int) -> int:
        """Registers that a thread has to have: beside other blocks all that it wants, else those without which it spills."""
        return choices.wanted(self.split.tiles, self.plan.fragments) if blocks > 1 else math.ceil(self.held.needs[0])

    def room(self, blocks: int) -> int:
        """Bytes of a block's buffers."""
        of_sm = min(choices.ON_AN_SM, self.device.smem_per_sm) // blocks - choices.DRIVER
        return min(of_sm, choices.SHARED, self.device.smem_per_block) - choices.BARRIERS

    @property
    def blocks(self) -> range:
        """Numbers of blocks that an SM can hold at a time."""
        most = math.ceil(self.again / choices.SMS) if self.again else math.ceil(self.split.places / choices.SMS)
        return range(1, max(1, min(most, MOST_BLOCKS)) + 1)

    # -- what there is to choose

    def flows(self, blocks: int) -> Iterator[Flow]:
        tiles, turns = self.split.tiles, self.split.turns
        once = dict.fromkeys((max(2, turns), turns) if self.again else (1,))
        outs = tuple(b for _, b in choices.stagings(self.split))
        handed = tuple(b for b in self.plan.buffers if b.by == "threads")
        asked = any(pointed(tiles.schedule, t) for t in tiles.block.outputs)
        for slots in once:
            loads = tuple(choices.rings(self.split, slots))
            for kept in range(len(outs), -1, -1):
                flow = Flow((*loads, *outs[:kept], *handed), slots, kept == len(outs) and not asked)
                if flow.bytes <= self.room(blocks):
                    yield self.with_price(flow, blocks)

    def with_price(self, flow: Flow, blocks: int) -> Flow:
        found = {n: float(x[0]) * self.device.clock for n, x in self.price(flow, blocks).items() if n in TIMES}
        first = found["launch"] + found["base"]
        chain = found["waves"] / self.device.clock * found["chain"]
        terms = (("empty", first), ("chain", chain), ("others", found["seconds"] - first - chain))
        units = tuple((name, found[n]) for n, name in UNITS.items() if name != "l2" and found[n])
        return replace(flow, clocks=terms, units=units)

    def price(self, flow: Flow, blocks: int, narrow: float = 0.0) -> dict[str, groups.Counts]:
        """The model's terms, in seconds; ``narrow``: how often swizzles are halved beyond what rows allow, times the part of the
        products for which that is so."""
        w, r = self.counted
        given = replace(
            self.held,
            blocks=np.array([float(blocks)]),
            ahead=np.array([bool(self.again) and flow.slots > self.split.turns]),
            staged=np.array([flow.staged]),
            shared=np.array([float(flow.bytes + choices.BARRIERS)]),
            registers=np.array([float(self.registers(blocks))]),
        )
        g = groups.group_work(self.features, r, self.device, given)
        if narrow:
            parts = {n: replace(p, narrow=p.narrow + narrow * p.products) for n, p in zip(KINDS, g.kinds, strict=True)}
            g = replace(g, **parts)
        return groups.times(w, g, self.device, constants_of(self.device))

    def swizzles(self, ring: Buffer, flow: Flow, blocks: int) -> Iterator[Option]:
        """Of an operand of products: the widest, and what each narrower one takes longer."""
        assert isinstance(ring.layout, MmaShared)
        yield Option(f"swizzle {ring.layout.swizzle}", ring.layout)
        dots = self.facts.dots
        all_of = sum(self._flops(s) for s in dots)
        mine = sum(self._flops(s) for s in dots if ring.value in s.args) / all_of
        least = float(self.price(flow, blocks)["seconds"][0])
        narrower = [n for n in choices.SWIZZLES if n < ring.layout.swizzle]
        for i, n in enumerate(narrower, 1):
            longer = float(self.price(flow, blocks, i * mine)["seconds"][0]) - least
            yield Option(f"swizzle {n}", replace(ring.layout, swizzle=n), (("operands", longer * self.device.clock),))

    def _flops(self, s: Stmt) -> float:
        return self.facts.times[s] * math.prod(
            self.facts.size(a) for a in (*self.facts.dims(s), *self.facts.tiles.dims(s.reduce))
        )

    def maker(self, blocks: int) -> Maker:
        """What layouts of tiles cost."""
        mode = Mode(
            self.split.consumers, GROUP_WARPS, self.plan.producer, blocks, False, self.registers(blocks), self.room(blocks)
        )
        return Maker(self.facts, mode)

    def layouts(self, flow: Flow, blocks: int) -> Iterator[Node]:
        """Of tiles that no product makes: how threads have them, by what reading, folding and writing takes longer than in the
        generator's own layout."""
        if self.facts.dots or self.split.axis not in self.split.tiles.plans:
            return
        mode = Mode(
            self.split.consumers, GROUP_WARPS, self.plan.producer, blocks, False, self.registers(blocks), self.room(blocks)
        )
        maker = Maker(self.facts, mode)
        for dims, candidates in maker.classes.items():
            own = next(f.layout for f in self.plan.fragments if self.facts.dims(self.facts.block.by_value[f.value]) == dims)
            several = dict.fromkeys((own, *candidates))
            first, *options = (self._laid_out(maker, dims, layout, flow) for layout in several)
            less = tuple((t, -x) for t, x in first.clocks)
            yield Node(tile_name(dims), tuple(replace(o, clocks=added(o.clocks, less)) for o in (first, *options)))

    def _laid_out(self, maker: Maker, dims: Dims, layout: Registers, flow: Flow) -> Option:
        (option,) = maker.tile_options(dims, (layout,))
        buffers = {b.value: b for b in flow.buffers}
        clocks = [option.clocks]
        for s in self.facts.order:
            if s.access and self.facts.dims(s) == dims:
                buffer = buffers.get(s.value if s.kind == "load" else f"{s.at.source}{OUT}")
                clocks.append(maker.moved(s, layout, Option("", buffer)))
        return replace(option, clocks=added(*clocks))


KINDS = ("streamed", "late", "plain")
TIMES = frozenset((*UNITS, "launch", "base", "chain", "waves", "seconds"))


def tile_name(dims: Dims) -> str:
    return f"tile {'·'.join(dims)}"


def problems(facts: Facts) -> Iterator[Problem]:
    """One for each number of blocks on an SM. Raises :class:`NoValidKernelError` where the kernel has no form or no price."""
    draft = Draft.of(facts)
    for blocks in draft.blocks:
        if not (registers := draft.registers(blocks)) or not (flows := list(draft.flows(blocks))):
            continue
        nodes = [Node("buffers", tuple(Option(_said(f), f, f.clocks, f.bytes) for f in flows))]
        fed = {a for s in facts.dots for a in s.args}
        for ring in flows[0].buffers:
            if ring.value in fed:
                nodes.append(Node(f"buffer {ring.value}", tuple(draft.swizzles(ring, flows[0], blocks))))
        nodes += draft.layouts(flows[0], blocks)
        others = 1.0 - 1.0 / (draft.split.consumers * blocks)
        held = (draft.wanted(blocks),)
        yield Problem(tuple(nodes), (), (), draft.room(blocks), registers, held, others, (facts, (draft, blocks)), seen=0.0)


def _said(f: Flow) -> str:
    return f"{f.slots} of what is loaded once, results {'by the copy engine' if f.staged else 'by pointers'}"


def as_plan(p: Problem, options: tuple[int, ...]) -> LayoutPlan:
    """A choice as what the generator reads."""
    _, (draft, blocks) = p.about
    chosen = {n.name: n.options[o] for n, o in zip(p.nodes, options, strict=True)}
    flow: Flow = chosen["buffers"].value
    buffers = tuple(
        replace(b, layout=chosen[f"buffer {b.value}"].value) if f"buffer {b.value}" in chosen else b for b in flow.buffers
    )
    maker = draft.maker(blocks)
    picked = {dims: o.value for dims in maker.classes for n, o in chosen.items() if n == tile_name(dims)}
    fragments = []
    for f in draft.plan.fragments:
        layout = maker.layout(draft.facts.block.by_value[f.value], picked) if picked else None
        fragments.append(replace(f, layout=layout or f.layout))
    clock = draft.device.clock / 1e6
    return replace(
        draft.plan,
        blocks=blocks,
        registers=p.registers,
        buffers=buffers,
        fragments=tuple(fragments),
        costs=tuple((t, x / clock) for t, x in flow.units),
    )
