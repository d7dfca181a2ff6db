"""What else than its price by itself decides on a kernel that has others of a model in front of it and behind it."""

from __future__ import annotations

import math
from dataclasses import replace

from cost_model.constants import constants_of
from fuser.device import Device
from fuser.ir.mugraph import BlockGraph
from fuser.ir.schedule import KernelSchedule
from fuser.lower.gluon.split import GROUP_WARPS
from fuser.lower.options import BACKEND
from fuser.lower.options import PDL
from search.ranked import Ranked
from search.ranked import Tuned
from search.space.beside import FITS
from search.space.beside import read_at_once
from search.space.beside import starts_late
from search.tune import graph_seconds
from search.tune import judged
from search.tune import multiplies_loads

NARROW, WIDE = 0.75, 0.98
"""Of the estimate of its best kernel in Triton what a product of what is loaded may take by warp groups in a model: where a group
has less of the result than :data:`MUCH`, and where it has that. There an H200 took 13 to 17 % less than the estimates of products
in Triton say (GPT-2, ViT and Mixer with batch 8), and up to 30 % more than those of narrow groups: ViT and Mixer lost 2 % of all
where these were to gain 5 %. Wide ones gained: 3.8 % of all in BERT base with batch 8, 1 % in GPT-2, ViT and a prefill."""
MUCH = 64 * 128
"""Elements of the result."""


def among(tuned: Tuned) -> Tuned:
    """The same with products by warp groups where they gain enough."""
    several = (tuned.winner, *tuned.runners)
    first = min(several, key=_compared)
    return replace(tuned, winner=first, runners=tuple(r for r in several if r is not first))


def _compared(ranked: Ranked) -> float:
    """Seconds by which candidates of a part are put in order."""
    found = [(b, s) for b, s in ranked.candidate.blocks if BACKEND.of(s) == "gluon" and multiplies_loads(b)]
    if not found:
        return judged(ranked)
    return ranked.seconds / (WIDE if all(part(b, s) >= MUCH for b, s in found) else NARROW)


def part(block: BlockGraph, schedule: KernelSchedule) -> float:
    """Elements of the result of its products that a warp group has."""
    dots = [s for s in block.computes if s.contracts]
    return max(math.prod(schedule.tile[a] for a in s.axes) for s in dots) * GROUP_WARPS / schedule.num_warps


def beside(tuned: Tuned, device: Device) -> Tuned:
    """The same where, in place of a schedule with which a kernel cannot start while the one in front runs, one with which it can
    is taken if it costs no more than that saves. Of those in the winner's language."""
    winner, language = tuned.winner, _languages(tuned.winner)
    if winner.measured is not None or device.arch < PDL.capability or not starts_late(winner.candidate, device):
        return tuned
    most = winner.seconds + constants_of(device).overlap
    further = (Ranked(c, graph_seconds(c, device)) for c in read_at_once(winner.candidate, device))
    several = (*(r for r in tuned.runners if _languages(r) == language), *further)
    near = [r for r in several if r.seconds < most and not starts_late(r.candidate, device, FITS)]
    first = min(near, key=lambda r: r.seconds, default=winner)
    return replace(tuned, winner=first, runners=tuple(r for r in (winner, *tuned.runners) if r is not first))


def _languages(ranked: Ranked) -> set[str]:
    return {BACKEND.of(s) for s in ranked.schedule.kernels}
