"""A kernel under its schedule on a device, as options are decided for it: what one may ask before any source is written."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import dropwhile

from fuser.device import Device
from fuser.ir.mugraph import BlockGraph
from fuser.ir.schedule import AxisPlan
from fuser.ir.schedule import KernelSchedule


@dataclass(frozen=True)
class Facts:
    """What is known of a kernel beyond its plans, asked only where an option depends on it.

    ``movable``: whether a tensor may have a descriptor under a schedule; ``kept``: values whose sums stay apart by lane until
    their loop ends; ``multiplies``: whether some innermost loop multiplies on tensor cores; ``resident``: programs that an SM
    holds at the same time, by the model; ``by_warps``: whether a schedule has a form for ``backend=gluon_mma``; ``flat``:
    whether the loop of a program gains by being one with that over places.
    """

    movable: Callable[[KernelSchedule, str], bool]
    kept: Callable[[KernelSchedule], frozenset[str]]
    multiplies: Callable[[KernelSchedule], bool]
    resident: Callable[[], int]
    by_warps: Callable[[KernelSchedule], bool]
    flat: Callable[[], bool]


@dataclass(frozen=True)
class Place:
    """A block with its split counts bound, under a schedule that may have options. ``behind``: the kernel in front of it is
    generated too."""

    block: BlockGraph
    schedule: KernelSchedule
    plans: dict[str, AxisPlan]
    device: Device
    behind: bool
    facts: Facts

    @cached_property
    def divided(self) -> dict[str, int]:
        """Axes of the grid and their sizes; a split axis shares its counter, which is one of them."""
        return {a: p.grid for a, p in self.plans.items() if p.grid > 1 and not p.split}

    @property
    def programs(self) -> int:
        return math.prod(self.divided.values())

    @property
    def loops(self) -> bool:
        return any(plan.trips > 1 for plan in self.plans.values())

    @property
    def late(self) -> bool:
        """Whether something is loaded behind the main loop; without a loop behind a sum, for which warps wait for each other (of
        products what is loaded early takes the registers of their operands)."""
        if self.loops:
            return any(not set(s.axes) & set(self.schedule.order.axes) for s in self.block.loads)
        behind = dropwhile(lambda s: not s.reduce, self.block.stmts)
        return self.schedule.num_warps > 1 and not self.block.contracts and any(s.kind == "load" for s in behind)

    @property
    def late_tiles(self) -> bool:
        """Whether what is loaded behind the main loop is as large as the accumulator, and no vector. In front of a flattened loop
        Triton queues it: as many such tiles in registers as there are stages. 27 of 27 such kernels spilled 0.5 to 5 KB and took
        3 to 470 times as long on an H200."""
        loop = set(self.schedule.order.axes)
        loads = (s for s in self.block.loads if not set(s.axes) & loop)
        return bool(self.loops) and any(sum(self.plans[a].tile > 1 for a in s.axes) > 1 for s in loads)

    def reread(self, tensor: str) -> bool:
        """Whether several programs read the same elements of an input."""
        loads = (s for s in self.block.loads if s.access and s.access.source == tensor)
        axes = {self.plans[a].split or a for s in loads for a in s.axes}
        return any(a not in axes for a in self.divided)


def operands(block: BlockGraph) -> tuple[str, ...]:
    """Device tensors whose tiles are multiplied as they are loaded."""
    dots = (s for s in block.computes if s.contracts)
    loads = (block.by_value[a] for s in dots for a in s.args)
    return tuple(dict.fromkeys(s.access.source for s in loads if s.access))
