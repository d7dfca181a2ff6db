"""Whether a kernel of a model can do something while the one in front of it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from cost_model.refined import estimate
from fuser.device import Device
from fuser.ir.candidate import Candidate
from fuser.ir.schedule import Schedule
from fuser.lower.options import HOIST
from fuser.lower.places import Place
from search.space.launches import at_once
from search.space.places import places

FILLS, FITS = 1 / 2, 1 / 3
"""Parts of an SM's shared memory: a block of more finds hardly a place beside others, one of less nearly always. Blocks of
products take up to two thirds: beside one of 160 KiB one of 64 stood, and none of 80."""
SMALLER, WARPS = (1, 2, 4), (1, 2)
"""Parts of the tiles of a loop, and times their warps, that are tried where all that a block reads is under way at once."""


def starts_late(candidate: Candidate, device: Device, part: float = FILLS) -> bool:
    """Whether it cannot: it has a product of which a block needs more than this part of an SM's shared memory, or reads weights
    bit by bit that it multiplies without tensor cores, and has none of them under way when it may begin. On an H200 six layers of
    BERT base took 6.8 µs less (of 191) with smaller tiles of QKV that are priced 0.35 µs more each, and a token of LLaMA 2 to
    9 µs less (of 178) with rows of weights read at once."""
    for p in places(candidate, device):
        products = sum(bool(s.contracts) for s in p.block.computes)
        if products and _bit_by_bit(p):
            return True
        if products == 1 and estimate(p.block, p.schedule, device)["shared_bytes"] > part * device.smem_per_sm:
            return True
    return False


def read_at_once(candidate: Candidate, device: Device) -> Iterator[Candidate]:
    """The candidate of one kernel with its sums whole, where it reads weights bit by bit: in as many rows as before, or fewer."""
    here = places(candidate, device)
    if len(here) != 1 or len(candidate.graph.kernels) != 1 or not _bit_by_bit(here[0]):
        return
    block, mine = here[0].block, HOIST.set(here[0].schedule, None)
    sums = mine.order.axes
    for part, more in product(SMALLER, WARPS):
        rows = {a: n if a in block.reduced else max(n // part, 1) for a, n in mine.tiles}
        tiles = {a: block.extents[a] if a in sums else n for a, n in rows.items()}
        whole = replace(mine, tiles=tuple(tiles.items()), order=mine.order.without(sums), num_warps=more * mine.num_warps)
        yield Candidate(candidate.graph, Schedule((whole,)))


def _bit_by_bit(p: Place) -> bool:
    return p.loops and at_once(p) and not dict(p.block.splits)
