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
from search.space.groups import by_warp_groups
from search.tune import GROUPED
from search.tune import graph_seconds
from search.tune import multiplies_loads

AMONG = 0.75
"""Of the estimate of its best kernel in Triton what a product of what is loaded may take by warp groups whose part of the result
is less than :data:`WIDE`; that of wider ones is :data:`search.tune.GROUPED`. In models an H200 took 13 to 17 % less than the
estimates of products in Triton say (GPT-2, ViT and Mixer with batch 8), and up to 30 % more than those of narrow groups: ViT and
Mixer lost 2 % of all where these were to gain 5 %. By wide ones, priced 1 to 15 % lower, BERT base with batch 8 gained 14 to 20 %
of a product, and GPT-2 1 % of all."""
WIDE = 64 * 128
"""Elements of the result that a group of four warps has."""


def among(tuned: Tuned) -> Tuned:
    """The same with products by warp groups where they gain enough."""
    several = (tuned.winner, *tuned.runners)
    other = min((r.seconds for r in several if not by_warp_groups(r.schedule)), default=math.inf)

    def gains(r: Ranked) -> bool:
        found = [(b, s) for b, s in r.candidate.blocks if BACKEND.of(s) == "gluon" and multiplies_loads(b)]
        return not found or r.seconds <= other * (GROUPED if all(part(b, s) >= WIDE for b, s in found) else AMONG)

    first = next(filter(gains, several), tuned.winner)
    return replace(tuned, winner=first, runners=tuple(r for r in several if r is not first))


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
