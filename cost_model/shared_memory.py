"""Shared memory of a block: equation 1 of MCFuser, as printed (elements) and in bytes. What Triton allocates is estimated in
:mod:`cost_model.resources`."""

from __future__ import annotations

import math

import numpy as np

from cost_model.features import Counts
from cost_model.features import Features
from cost_model.features import families
from fuser.ir.mugraph import BlockGraph
from fuser.ir.placement import place
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import bind
from fuser.ir.tiling import Init

SLACK = 1.2
"""Rule 4 keeps candidates of an estimate up to this multiple of the device's maximum, to allow for errors of the estimate."""

CHAIN = 3
"""Most contractions of the chains that equation 1 was made for: it holds the tiles of all of them at once."""


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


def equation1_printed(f: Features) -> Counts:
    """Equation 1 as the paper prints it: the sum over the same tensors of T_i · T_j, the elements of one tile of each. Rule 4 of
    the funnel holds this against the bytes of the device: so it removes 39.6 % in figure 7, "about 40 %" in the paper."""
    total = np.zeros(len(f))
    for b in f.buffers:
        if b.kind != "map":
            total += b.elements
    return total


def alive(f: Features) -> Counts:
    """The most bytes of these tensors that are needed at once where a block has no loop: a layer of a deep chain takes the place
    of the one before. Equation 1 of a block with loops."""
    if any(t.max() > 1 for t in f.trips.values()):
        return equation1(f)
    sizes = {b.value: b.bytes for b in f.buffers if b.kind != "map"}
    holds = {v: {v} & sizes.keys() for v in (s.stmt.value for s in f.stmts if s.stmt.kind == "load")}
    last: dict[str, int] = {}
    for i, s in enumerate(f.stmts):
        stmt = s.stmt
        if stmt.kind == "compute":
            # an element-wise operator works in place of its operands
            holds[stmt.value] = {stmt.value} if stmt.folds else set().union(*(holds[a] for a in stmt.args))
        for v in (*stmt.args, stmt.value):
            last |= dict.fromkeys(holds[v], i)
    most, now, first = np.zeros(len(f)), np.zeros(len(f)), set[str]()
    for i, s in enumerate(f.stmts):
        for v in holds[s.stmt.value] - first:
            now, first = now + sizes[v], first | {v}
        most = np.maximum(most, now)
        for v in [v for v in first if last[v] == i]:
            now = now - sizes[v]
    return most


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
    """Rule 4 for each candidate: equation 1 is at most ``slack`` times ``limit`` bytes; of a chain of more than
    :data:`CHAIN` contractions, what of it is alive at once."""
    return counted(f) <= slack * limit


def counted(f: Features) -> Counts:
    """The bytes that rule 4 counts."""
    return alive(f) if sum(s.contracts for s in f.block.computes) > CHAIN else equation1(f)
