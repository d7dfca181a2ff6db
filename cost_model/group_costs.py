"""Constants of the price of kernels by warp groups (:mod:`cost_model.groups`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """Constants of kernels by warp groups, fitted to 825 schedules of 51 programs on an H200 (``experiments.group_price`` fits
    them again, with each family left out in turn). Times in seconds; ``*_cost`` are multiples of the time at peak rates."""

    product_cost: float = 1.11
    taller: float = 0.113
    """Slowdown of groups that stream products, for each further 64 rows."""
    special_cost: float = 1.28
    arithmetic_cost: float = 0.912
    alone: float = 1.23
    """Of the arithmetic of a group, what it takes by itself."""
    tail: float = 0.607
    """The same behind its loops."""
    handshake: float = 42e-9
    """A slot that is handed over: about 100 cycles."""
    dot: float = 12e-9
    """Start of a product, and the wait for it, where something reads it at once."""
    fold: float = 128e-9
    """A fold of rows over lanes."""
    store: float = 98e-9
    direct: float = 40e-12
    """A byte that is stored by pointers, since shared memory has no room for it: products of 128 × 256 took 17 % longer so."""
    merge: float = 713e-9
    """What groups with the same rows hand over behind a loop, each to the first."""
    pointed: float = 126e-9
    """A load by pointers."""
    first: float = 677e-9
    """The first slots of a block; of persistent ones, of the first place."""
    late: float = 400e-9
    """From the release of a slot to its next data, shared by those that are ahead, where softmax stands between two products."""
    streamed: float = 228e-9
    """The same of loops that only multiply; there what fills and what reads a slot counts too."""
    start: float = 191e-9
    """Start of a block: barriers, groups, registers."""
    base: float = 398e-9
    beside: float = 2.39
    """Exponent that joins a group's products with its arithmetic."""
    norm: float = 1.17
    """Exponent that joins the chain of a group with what the other groups of its SM do."""
    l2_rate: float = 1.65
    merged: float = 0.457
    into: float = 1.2
    """Of the time that the port of an SM takes by its width."""
    operands: float = 0.67
    memory: float = 1.38
    """Exponent that joins SMs with L2 and device memory."""
    hidden: float = 1.81
    """The same of blocks that load for the next place in time."""
    spill: float = 0.0224
    """Slowdown of each 40 registers that a thread wants beyond its own."""


COSTS = Costs()
