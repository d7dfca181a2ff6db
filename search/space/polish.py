"""Options of the lowering for the best schedules of a search.

What options gain depends on the tiles: so the best few schedules get them, each kernel by itself, in all sets that the options of
the table allow there. That costs a few estimates for each kernel, where options as further knobs would multiply the space. Where
they decide which tiles are best, in products with one loop, the search itself assumes those that usually pay.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_model.features import Counts
from cost_model.features import Features
from cost_model.features import evaluate
from cost_model.features import features
from fuser.device import Device
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.lower.descriptors import LEAST_BYTES
from fuser.lower.descriptors import MAX_BOX
from fuser.lower.options import BACKEND
from fuser.lower.options import HOIST
from fuser.lower.options import OPTIONS
from fuser.lower.options import TMA
from fuser.lower.options import Option
from fuser.lower.places import Place
from fuser.lower.places import operands
from search.ranked import Ranked
from search.space.kernels import Estimator
from search.space.kernels import deeper
from search.space.places import places
from search.space.variants import moves

FEW = 8
"""Schedules of a graph that get options."""
WITHIN, NEAR = 1.25, 1.05
"""Times the best estimate up to which a schedule may become the best by options; where the search has assumed them already."""
EVEN = 1.003
"""Times the best estimate up to which the fewest options are taken."""
GAIN = 0.98
"""Of its time without them a kernel may take with options to be given them: what is even stays plain."""


def polished(ranked: Sequence[Ranked], device: Device, estimate: Estimator, best: float = inf) -> list[Ranked]:
    """Ranked schedules of a graph (best first) with their own estimates, those that come near ``best`` seconds with options too
    where these make them faster; best first. Where the search assumed options, the others are left out."""
    found: list[Ranked] = []
    exact = not any(map(assumable, ranked[0].graph.blocks))
    most = (WITHIN if exact else NEAR) * min(best, ranked[0].seconds)
    near = next((i for i, r in enumerate(ranked) if i and (i >= FEW or r.seconds > most)), len(ranked))
    looked_at = ranked[:near] if any(map(_folding, ranked[0].graph.blocks)) else []
    pairs = (pair for r in looked_at for pair in zip(r.candidate.blocks, places(r.candidate, device), strict=True))
    known = _with_options([(block, place) for (block, _), place in pairs if _folding(block)], estimate)
    for r in ranked[:near]:
        kernels = [k for block, mine in r.candidate.blocks if (k := known.get((id(block), mine)))]
        plain = r if exact else replace(r, estimate=r.estimate + sum(k.plain - k.assumed for k in kernels))
        found.append(plain)
        gained = sum(k.plain - k.seconds for k in kernels)
        if gained > 0:
            schedule = Schedule(tuple(k.schedule if (k := known.get((id(b), s))) else s for b, s in r.candidate.blocks))
            found.append(replace(plain, candidate=Candidate(r.graph, schedule), estimate=plain.estimate - gained))
    found += ranked[near:] if exact else ()
    return sorted(found, key=lambda r: r.seconds)


def _folding(block: BlockGraph) -> bool:
    """Whether a kernel may gain by options: of 1600 schedules of kernels that fold nothing none did."""
    return any(s.folds for s in block.computes)


@dataclass(frozen=True)
class _Kernel:
    """A kernel with the options that suit it best: seconds with them, without any, and with those that its search assumed."""

    schedule: KernelSchedule
    seconds: float
    plain: float
    assumed: float

    @staticmethod
    def of(block: BlockGraph, tried: Sequence[KernelSchedule], seconds: Counts) -> _Kernel:
        """Of sets of options, the first of which is the one without any, and the seconds of each."""
        plain, at = float(seconds[0]), int(np.argmin(seconds))
        assumed = float(seconds[_assumed(tried, block)]) if assumable(block) else plain
        if seconds[at] < GAIN * plain:
            even = np.flatnonzero(seconds <= EVEN * seconds[at])
            at = min(even.tolist(), key=lambda i: (len(tried[i].knobs), seconds[i]))
            return _Kernel(tried[at], float(seconds[at]), plain, assumed)
        return _Kernel(tried[0], plain, plain, assumed)


def _with_options(kernels: Sequence[tuple[BlockGraph, Place]], estimate: Estimator) -> dict[tuple[int, KernelSchedule], _Kernel]:
    """Each kernel by its block and schedule. Those of one block are estimated together: a batch costs hardly more than one of
    them."""
    known = {(id(block), place.schedule): (block, place) for block, place in kernels}
    alike: dict[int, list[tuple[KernelSchedule, list[KernelSchedule]]]] = {}
    for (number, mine), (_, place) in known.items():
        alike.setdefault(number, []).append((mine, sets(place)))
    found: dict[tuple[int, KernelSchedule], _Kernel] = {}
    for number, several in alike.items():
        block = known[number, several[0][0]][0]
        seconds = estimated(block, [s for _, tried in several for s in tried], estimate)
        for mine, tried in several:
            found[number, mine] = _Kernel.of(block, tried, seconds[: len(tried)])
            seconds = seconds[len(tried) :]
    return found


def assumable(block: BlockGraph) -> bool:
    """Whether the search of a block assumes options: its products are sums over one axis, so that it is one loop, whose tiles
    descriptors move and whose epilogue may be loaded in front of it. They decide there which tiles are best."""
    return bool(deeper(block))


def _assumed(tried: Sequence[KernelSchedule], block: BlockGraph) -> int:
    """Which of the sets the search has assumed: the largest one of these options."""
    names = {HOIST.key(), *map(TMA.key, operands(block))}
    counts = [len(s.knobs) if set(s.knob) <= names | set(tried[0].knob) else 0 for s in tried]
    return int(np.argmax(counts))


def with_assumed(f: Features, device: Device) -> Features:
    """The candidates with operands by descriptors where their tiles allow it, and the epilogue's loads in front of the loop."""
    if not assumable(f.block) or not TMA.offered(device.arch, False):
        return f
    found: dict[str, Any] = {HOIST.key(): np.ones(len(f), np.bool_)}
    for tensor in operands(f.block):
        moved = np.logical_and.reduce([_fits(f, s) for s in f.block.loads if s.access and s.access.source == tensor])
        found[TMA.key(tensor)] = moved
    return f.given({**f.options, **found})


def _fits(f: Features, load: Stmt) -> NDArray[np.bool_]:
    """Which tiles of a load a descriptor can move, as far as tiles decide (:mod:`fuser.lower.descriptors`)."""
    if not load.at.axes:  # one element
        return np.zeros(len(f), np.bool_)
    *rest, inner = load.at.axes
    found = np.ones(len(f), np.bool_)
    for a in dict.fromkeys((*rest, inner)):
        size = f.tile[a].astype(np.int64)
        found &= ((size & (size - 1)) == 0) & (size <= MAX_BOX)
    item, strides = DTYPE_BYTES[load.dtype], load.at.strides(f.block.extents)
    aligned = all(strides[a] * item % LEAST_BYTES == 0 for a in rest)
    return found & (f.tile[inner] * item >= LEAST_BYTES) & aligned


def sets(place: Place) -> list[KernelSchedule]:
    """The place's schedule, and it with every set of options that the model sees and the place allows, each once."""
    found = {place.schedule: None}
    for option in OPTIONS.values():
        # those that are given are decided by rules: what they gain depends on the kernel in front; another language never gains
        # by its price
        seen = option.seen and option.given is None and option is not BACKEND
        if seen and option.offered(place.device.arch, place.behind):
            found |= dict.fromkeys(s for mine in tuple(found) for s in _with(option, replace(place, schedule=mine)))
    return list(found)


def _with(option: Option[Any], p: Place) -> list[KernelSchedule]:
    if option.needs and not OPTIONS[option.needs].given_in(p.schedule):
        return []
    return [s for move in moves(option, [p]) if not move.detail and (s := move.edit(p)) is not None]


def estimated(block: BlockGraph, tried: Sequence[KernelSchedule], estimate: Estimator) -> Counts:
    """Seconds of schedules of a block."""
    orders = {o: i for i, o in enumerate(dict.fromkeys(s.order for s in tried))}
    names = dict.fromkeys(n for s in tried for n in s.knob)
    values: Mapping[str, Any] = {n: np.array([s.knob.get(n) for s in tried], object) for n in names}
    groups = features(
        block,
        tuple(orders),
        {a: np.array([s.tile[a] for s in tried]) for a in tried[0].tile},
        {a: np.array([dict(s.splits)[a] for s in tried]) for a, _ in tried[0].splits},
        np.array([s.num_warps for s in tried]),
        np.array([s.num_stages for s in tried]),
        which=np.array([orders[s.order] for s in tried]),
    )

    def of(f: Features) -> Any:
        return estimate(f.given({n: v[f.index] for n, v in values.items()}))

    return evaluate(groups, of)
