"""What a kernel by warp groups needs at a reduced size, to be written there as at its own: slots that are filled again have to be
filled again there, so that its barriers count on, and groups that share trips out need some each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace

from fuser.errors import NoValidKernelError
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.schedule import KernelSchedule
from fuser.ir.tiling import Loop
from fuser.lower.gluon import choices
from fuser.lower.gluon.split import shared_out
from fuser.lower.options import BACKEND
from fuser.lower.options import PERSISTENT
from fuser.lower.tiles import Tiles

STAGES = 3
"""With as many a kernel is written as with more (:func:`fuser.lower.gluon.skew.roomy`)."""


@dataclass(frozen=True)
class Filled:
    """What is loaded in ``loops``, so often in a place of the grid (0: several loops do), into ``slots`` for each stage."""

    value: str
    loops: tuple[Loop, ...]
    often: int
    slots: int

    def again(self, schedule: KernelSchedule) -> bool:
        """Its slots are filled more than once."""
        return PERSISTENT.of(schedule) > 0 or choices.filled_again(self.often, self.slots * schedule.num_stages)


def trips_of_groups(block: BlockGraph, schedule: KernelSchedule) -> dict[str, int]:
    """Trips of each loop: two show all that it does where no slots are filled again, of every group that has trips of its own."""
    found: dict[str, int] = {}
    for f in _filled(block, schedule):
        each = STAGES + 1 if f.again(schedule) else 2
        found |= {x.axis: min(x.trips, max(each * f.slots + x.trips % f.slots, found.get(x.axis, 0))) for x in f.loops}
    return found


def with_stages(block: BlockGraph, own: KernelSchedule, small: BlockGraph, schedule: KernelSchedule) -> KernelSchedule:
    """The schedule of a block at reduced size with few enough stages: what is filled again in the real one is there, too."""
    again = {f.value for f in _filled(block, own) if f.again(own)}
    places = 2 if PERSISTENT.of(own) else 1
    fills = [(places * f.often, f.slots) for f in _filled(small, schedule) if f.value in again]
    most = [(often - 1) // slots for often, slots in fills if often > slots]
    return replace(schedule, num_stages=min([schedule.num_stages, *most]))


def _filled(block: BlockGraph, schedule: KernelSchedule) -> Iterator[Filled]:
    """Loads in loops of a kernel by warp groups; what has no such form is refused where it is generated."""
    if BACKEND.of(schedule) == "triton":
        return
    with suppress(NoValidKernelError):
        tiles = Tiles.of(block, schedule)
        parts = shared_out(tiles).parts if BACKEND.of(schedule) == "gluon" else 1
        often = choices.fills(tiles)
        for node, loops in tiles.tree.walk():
            if isinstance(node, Stmt) and node.kind == "load" and loops:
                yield Filled(node.value, loops, often[node], parts)
