"""When a kernel behind another one may start (programmatic dependent launch, options ``pdl``).

Early, as soon as all blocks of the one in front have started, hides most. But blocks that wait take room from those that still
work: where a long kernel is followed by a short one that only waits, the short one starts when the last blocks of the long one
are about to store (``late``). On an H200 that is 4 to 6 % for the split attentions of 16 µs and more; at 9 µs the two are even,
below early is faster.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from math import ceil
from math import inf
from math import prod

from cost_model.refined import estimate
from fuser.device import Device
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import BlockGraph
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.lower.options import AHEAD
from fuser.lower.options import BACKEND
from fuser.lower.options import GRID_ORDER
from fuser.lower.options import GROUP
from fuser.lower.options import HOIST
from fuser.lower.options import PDL
from fuser.lower.options import PERSISTENT
from fuser.lower.options import PREFETCH
from fuser.lower.options import ROOM
from fuser.lower.options import in_grid_order
from fuser.lower.pieces import next_power
from fuser.lower.places import Place
from fuser.lower.places import operands
from search.space.places import places

LONG = 12e-6
"""Seconds of a kernel from which waiting blocks are in its way."""
LONG_FRONT = 5e-6
"""Seconds of a product of more than a block for each SM from which blocks that wait for it are in its way."""
AHEAD_PART = 0.5
"""Of the bytes that device memory could bring in the time in which the kernel in front leaves it alone, the part up to which
weights come ahead. On an H200 up to 0.4 gained 0.3 to 0.9 µs for nearly all; what needs all of that time or more lost 1 to 3."""
AHEAD_L2 = 4
"""They may fill one part in so many of L2: 33 MB that came ahead cost 5 µs of 57."""
L2_PART = 2
"""What is read again, program after program, may fill one part in so many of L2."""
FEW_WARPS = 4
"""Warps that a block keeps."""
SPREAD = 8
"""Blocks for fewer than one in so many SMs need not be kept apart."""
UNIT = 1024
"""Bytes in which shared memory is given to a block."""
SHORT = 0.4
"""Part of that kernel's time up to which the one behind it is only a tail."""


def with_launches(candidate: Candidate, device: Device, total: float = inf) -> Candidate:
    """The candidate with ``pdl=late`` for short kernels behind long ones. ``total`` is what all take together, where that is
    known."""
    if total <= LONG or not any(map(PDL.of, candidate.schedule.kernels)):
        return candidate
    kernels = list(candidate.schedule.kernels)
    for i, (front, mine) in enumerate(pairwise(candidate.blocks), 1):
        if PDL.of(mine[1]) and (long := _seconds(*front, device)) > LONG and _seconds(*mine, device) < SHORT * long:
            kernels[i] = PDL.set(kernels[i], "late")
    return Candidate(candidate.graph, Schedule(tuple(kernels)))


@lru_cache(1 << 12)
def _seconds(block: BlockGraph, schedule: KernelSchedule, device: Device) -> float:
    """What the best schedules of a graph ask for again and again: they share most of their kernels."""
    return estimate(block, schedule, device)["seconds"]


def chained(candidate: Candidate, device: Device) -> Candidate:
    """The kernels of a model: each starts before the one in front has ended, loads what its epilogue reads in front of its main
    loop, and finds weights in L2 that the one in front has brought there; programs that read the same weights stand side by side.

    A kernel that comes early finds SMs idle that the one in front leaves. Where more blocks than its share of the grid fit on an
    SM, they would pile up there and not go to those that are free a moment later: so they ask for more shared memory. Products
    of more than a block for each SM come late all the same where none of these fits beside the blocks in front, and products of
    what is loaded behind such a one, where that is long, when it leaves its main loop; but those that read all at once come
    early, since their blocks hold nothing but weights or keys, which are under way while they wait. The rules come from chains
    on an H200 that differ in one thing (experiments/results/h200-chains, experiments/results/h200-chain-neighbours).
    """
    found: list[KernelSchedule] = []
    made = {t for k in candidate.graph.kernels for t in k.outputs}
    front = _Front()
    for i, p in enumerate(places(_slim(candidate), device)):
        mine = p.schedule
        if not p.loops and flat(p.block):
            mine = HOIST.set(mine, True)
        # by warp groups tiles come in rings, and what is left has no registers to spare; without loops it is chosen by its price
        if p.loops and BACKEND.of(mine) != "gluon" and HOIST.at_place(p, True):
            mine = HOIST.set(mine, True)
        weights = [t for t in operands(p.block) if t not in made]
        if order := _side_by_side(p, weights):
            mine = GRID_ORDER.set(mine, order)
        in_turn = any(s.contracts for s in p.block.computes) and not at_once(p)
        programs = min(p.programs, PERSISTENT.of(mine) or p.programs)
        share = ceil(programs / device.sm_count)
        follows = i or not isinstance(candidate.graph.kernels[0], BlockGraph)
        mine = PDL.set(mine, "early") if follows else mine
        terms = estimate(p.block, mine, device)
        shared = terms["shared_bytes"] + device.smem_reserved_per_block
        if follows:
            crowds = in_turn and share > 1 and front.shared + shared > device.smem_per_sm
            mine = PDL.set(mine, "late" if crowds else "loop" if front.long and in_turn and _of_loads(p.block) else "early")
            if p.facts.resident() > share and SPREAD * programs > device.sm_count:
                room, left = _room(share, device), _beside(front.shared, share, device)
                if room > left and 2 * programs < device.sm_count:
                    room = min(_room(share + 1, device), left)
                if room > 0:
                    mine = ROOM.set(mine, room)
                    shared = max(shared, room + device.smem_reserved_per_block)
            if p.loops and not made & _loaded_in_loops(p) and not PREFETCH.of(mine):
                mine = PREFETCH.set(mine, PREFETCH.at_place(replace(p, schedule=mine), 1))
        size = sum(candidate.graph.table[t].nbytes for t in weights)
        if p.behind and 0 < size <= min(front.idle, device.l2_bytes / AHEAD_L2):
            mine = AHEAD.set(mine, True, *weights)
        front = _Front(
            AHEAD_PART * (terms["seconds"] - terms["device_memory"]) * device.memory_bandwidth,
            in_turn and share > 1 and terms["seconds"] > LONG_FRONT,
            min(share, p.facts.resident()) * shared,
        )
        found.append(mine)
    return Candidate(candidate.graph, Schedule(tuple(found)))


@dataclass(frozen=True)
class _Front:
    """Of the kernel in front: bytes that device memory may bring while it is busy with other things, whether it is a long
    product, read bit by bit, of more than a block for each SM, and the bytes of an SM's shared memory that its blocks take."""

    idle: float = 0.0
    long: bool = False
    shared: float = 0.0


def _slim(candidate: Candidate) -> Candidate:
    """Without the padding of products that no tensor core computes, and with as many fewer warps: what adds the parts of an
    attention of few rows took 1.4 µs less, all that it reads under way at once 2.1."""
    kernels = []
    for block, mine in candidate.blocks:
        least = {a: min(n, next_power(block.extents[a])) for a, n in mine.tiles} if flat(block) else mine.tile
        less = prod(mine.tile.values()) // prod(least.values())
        warps = max(mine.num_warps // less, min(mine.num_warps, FEW_WARPS))
        kernels.append(mine if less == 1 else replace(mine, tiles=tuple(least.items()), num_warps=warps))
    return Candidate(candidate.graph, Schedule(tuple(kernels)))


def flat(block: BlockGraph) -> bool:
    """Whether it multiplies, and no product is a sum over rows and columns, as tensor cores have them."""
    dots = [s for s in block.computes if s.contracts]
    sides = [[set(block.by_value[a].axes) for a in s.args[:2]] for s in dots if s.reduce]
    return bool(dots) and not any(left - right and right - left for left, right in sides)


def _of_loads(block: BlockGraph) -> bool:
    """Whether all that it multiplies is loaded."""
    return all(block.by_value[a].kind == "load" for s in block.computes if s.contracts for a in s.args)


def at_once(p: Place) -> bool:
    """Whether all that a block reads is under way at once: of products without tensor cores, which have no rows or one, and of
    parts of a sum without a loop."""
    if dict(p.block.splits):
        return not p.loops
    dots = [[set(p.block.by_value[a].axes) for a in s.args[:2]] for s in p.block.computes if s.contracts]
    return all(p.plans[a].tile == 1 for left, right in dots for a in left - right)


def _room(share: int, device: Device) -> int:
    """Bytes of shared memory of a block of which an SM holds ``share``, and no more."""
    return -(-device.smem_per_sm // (share + 1) // UNIT) * UNIT - device.smem_reserved_per_block + UNIT


def _beside(front: float, share: int, device: Device) -> int:
    """The most bytes of shared memory that ``share`` blocks may take each on an SM where the blocks in front take ``front``."""
    return int((device.smem_per_sm - front) // share // UNIT) * UNIT - device.smem_reserved_per_block


def _loaded_in_loops(p: Place) -> set[str]:
    """Tensors of which each trip of a loop reads a part."""
    looped = {a for a, plan in p.plans.items() if plan.trips > 1}
    return {s.access.source for s in p.block.loads if s.access and looped & set(s.axes)}


def _side_by_side(p: Place, weights: Collection[str]) -> str:
    """The order of the grid in which programs that read the same parts of ``weights`` follow one another: these come from device
    memory, all else is in L2. Empty where that is the order already, or where the rest does not stay there."""
    loads = [s for s in p.block.loads if s.access and s.access.source in weights]
    names = in_grid_order(p.schedule, p.divided)
    mine = {p.plans[a].split or a for s in loads for a in s.axes}
    wanted = sorted(names, key=lambda a: a not in mine)
    rest = {s.access.source: s.access.memory_shape(p.block.extents) for s in p.block.loads if s not in loads and s.access}
    if not loads or wanted == names or GROUP.of(p.schedule) or L2_PART * 2 * sum(map(prod, rest.values())) > p.device.l2_bytes:
        return ""
    return ".".join(wanted)
