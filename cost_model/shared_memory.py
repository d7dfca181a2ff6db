"""Shared memory of a block: equation 1 of MCFuser."""

from __future__ import annotations

import math

import numpy as np

from cost_model.features import Counts
from cost_model.features import Features
from cost_model.features import families
from fuser.ir.mugraph import BlockGraph
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import bind
from fuser.ir.tiling import Init
from fuser.ir.tiling import place

SLACK = 1.2
"""Rule 4 keeps candidates of an estimate up to this multiple of the device's maximum, to allow for errors of the estimate."""


def equation1(f: Features) -> Counts:
    """Bytes of equation 1 for each candidate: the sum over the block's tensors of tile elements × dtype bytes.

    The tensors are what the block loads and what its contractions and folds give; an element-wise operator works in place of
    its operand. An accumulator that keeps a tile for each trip of inner loops counts all of them (figure 6b).
    """
    total = np.zeros(len(f))
    for b in f.buffers:
        if b.kind != "map":
            total += b.bytes
    return total


def equation1_terms(block: BlockGraph, schedule: KernelSchedule) -> dict[str, int]:
    """Bytes of each tensor in equation 1 for one schedule, by value; counted from its loop tree. Raises as ``bind`` does."""
    bound, plans = bind(block, schedule)
    tree = place(bound, schedule.order, plans)
    owner = dict(tree.owner)
    terms: dict[str, int] = {}
    for s, loops in tree.walk():
        if isinstance(s, Init) or s.kind == "store" or s.value in terms or not (s.kind == "load" or s.folds):
            continue
        axes = dict.fromkeys(s.access.axes if s.access else s.axes)
        kept = families(s, [x.axis for x in loops], owner.get(s.value))
        tiles = math.prod(plans[a].trips for a in kept)
        terms[s.value] = tiles * math.prod(plans[a].tile for a in axes) * DTYPE_BYTES[s.dtype]
    return terms


def fits(f: Features, limit: int, slack: float = SLACK) -> np.ndarray:
    """Rule 4 for each candidate: equation 1 is at most ``slack`` times ``limit`` bytes."""
    return equation1(f) <= slack * limit
