"""The places of a kernel graph's schedule: where options of the lowering are tried."""

from __future__ import annotations

from functools import cache
from typing import Any

from cost_model import refined
from cost_model.features import schedule_features
from fuser.device import Device
from fuser.errors import FuserError
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.placement import place as placed
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import bind
from fuser.ir.tiling import Loop
from fuser.lower.causal_code import ends_early
from fuser.lower.descriptors import why_not
from fuser.lower.gluon.by_warps import generate_by_warps
from fuser.lower.options import BACKEND
from fuser.lower.options import LAZY
from fuser.lower.options import PAD
from fuser.lower.places import Facts
from fuser.lower.places import Place
from fuser.lower.tiles import Tiles
from fuser.lower.tiles import loops_of


def behind(graph: KernelGraph) -> tuple[bool, ...]:
    """Of each graph-defined kernel, whether the one in front of it is graph-defined too."""
    generated = [isinstance(k, BlockGraph) for k in graph.kernels]
    return tuple(i > 0 and generated[i - 1] for i, mine in enumerate(generated) if mine)


def places(base: Candidate, device: Device) -> list[Place]:
    return [place_of(*mine, device, follows) for mine, follows in zip(base.blocks, behind(base.graph), strict=True)]


def place_of(block: BlockGraph, schedule: KernelSchedule, device: Device, follows: bool) -> Place:
    """A kernel's place. Raises :class:`fuser.errors.UsageError` where the schedule does not fit the block."""
    bound, plans = bind(block, schedule)

    @cache
    def tree():
        return placed(bound, schedule.order, plans)

    known: dict[tuple[Any, ...], Tiles] = {}

    def tiles(s: KernelSchedule) -> Tiles:
        """Of all options tiles depend on these alone."""
        key = PAD.of(s), LAZY.of(s)
        return known.get(key) or known.setdefault(key, Tiles(bound, plans, tree(), s, frozenset()))

    @cache
    def resident() -> int:
        f = schedule_features(bound, schedule)
        if BACKEND.of(schedule) == "gluon":
            return int(refined.terms(f.given({BACKEND.key(): "gluon"}), device)["occupancy"][0])
        f = f.given({})
        registers, shared = int(refined.registers(f, device)[0]), int(refined.shared_memory(f, device)[0])
        threads = 32 * schedule.num_warps
        return device.blocks_per_sm(threads, min(registers, device.registers_per_thread), shared)

    def kept(s: KernelSchedule) -> frozenset[str]:
        return frozenset(x.value for x in bound.computes if tiles(s).kept(x))

    def multiplies(s: KernelSchedule) -> bool:
        return any(map(tiles(s).multiplies, loops_of(tree().body)))

    @cache
    def flat() -> bool:
        """One loop, with as many trips at each place: flattened, several in turn took an H200 1.4 to 2.4 times as long as the
        best schedule, those that end at a diagonal 1.3 to 1.7, two products of float32 1.0 to 2.9 times as long."""
        loops, owner = [x for x in tree().body if isinstance(x, Loop) and x.axis not in tree().arrays], dict(tree().owner)
        exact = [s for s in bound.computes if s.contracts and all(bound.by_value[v].dtype == "float32" for v in s.args)]
        return len(loops) == 1 and len(exact) < 2 and ends_early(bound, owner, loops[0]) is None

    @cache
    def fits(t: Tiles, tensor: str) -> bool:
        return not why_not(t, tensor)

    def movable(s: KernelSchedule, tensor: str) -> bool:
        return fits(tiles(s), tensor)

    def by_warps(s: KernelSchedule) -> bool:
        try:
            generate_by_warps(tiles(s), block.name)
        except FuserError:
            return False
        return True

    return Place(bound, schedule, plans, device, follows, Facts(movable, kept, multiplies, resident, by_warps, flat))
