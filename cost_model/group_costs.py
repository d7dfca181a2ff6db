"""Constants of the price of kernels by warp groups (:mod:`cost_model.groups`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """Constants of kernels by warp groups, fitted to 1,799 schedules of 117 programs on an H200 (``experiments.group_price`` fits
    them again, with each family left out in turn). Times in seconds; ``*_cost`` are multiples of the time at peak rates."""

    product_cost: float = 1
    taller: float = 0.0179
    """Slowdown of groups that stream products, for each further 64 rows."""
    narrow: float = 0.0487
    """Slowdown of products for each time that the swizzle of an operand is halved, since its rows are shorter than 128 bytes."""
    special_cost: float = 1.81
    arithmetic_cost: float = 2.31
    alone: float = 0.5
    """Of the arithmetic of a group, what it takes by itself."""
    tail: float = 0.421
    """The same behind its loops."""
    together: float = 0.4
    """Of the arithmetic that all groups do behind loops that only multiply, what no product of another block is beside: tanh and
    GELU of 2048 x 30720 results took an H100 38 and 16 µs more than ReLU did."""
    cached: float = 145e3
    """Bytes of the code behind loops, of all groups, that an SM keeps: of more all comes from L2 for each place. Logarithms of
    that many results took 440 µs by four groups, each with 39 KB, and 292 by three."""
    fetched: float = 13e9
    """Bytes of such code a second."""
    handshake: float = 26e-9
    """A slot that is handed over: about 100 cycles."""
    dot: float = 21.2e-9
    """Start of a product, and the wait for it, where something reads it at once."""
    fold: float = 64.2e-9
    """A fold of rows over lanes."""
    store: float = 4.21e-9
    drain: float = 100e-12
    """A byte of a group's results on its way from registers."""
    direct: float = 60e-12
    """A byte that is stored by pointers: 24 products took up to 27 % longer so, 36 other kernels up to 21 % (h200-layouts)."""
    merge: float = 732e-9
    """What groups with the same rows hand over behind a loop, each to the first."""
    pointed: float = 481e-9
    """A load by pointers."""
    first: float = 198e-9
    """The first slots of a block; of persistent ones, of the first place."""
    opening: float = 0.407
    """Of the time that the first slots of all take through the port of an SM."""
    meet: float = 6
    """Exponent that joins what a group does with its loops with what it waits for slots."""
    late: float = 105e-9
    """From the release of a slot to its next data, shared by those that are ahead, where softmax stands between two products."""
    streamed: float = 662e-9
    """The same of loops that only multiply; there what fills and what reads a slot counts too."""
    arrive: float = 0.733
    """Of the time that a trip's bytes take through the port of an SM, what they take to come."""
    start: float = 15.9e-9
    """Start of a block: barriers, groups, registers."""
    follow: float = 76.8e-9
    """What more it takes where another block has to end first."""
    stay: float = 552e-12
    """What a trip takes longer where blocks go on to other places: slots and phases of rings are counted on."""
    refill: float = 70e-9
    """What a trip with softmax takes longer where its group fills slots by itself, of 19 pairs of equal schedules (h200-packed,
    h200-layouts): those of 64 keys a trip took 5 to 10 % longer, of 128 keys up to 5 % less."""
    sooner: float = 30e-9
    """What a trip of loops that only multiply takes less then: five products took 2 to 7 % less."""
    base: float = 96.8e-9
    beside: float = 1.29
    """Exponent that joins a group's products with its arithmetic."""
    norm: float = 1.1
    """Exponent that joins the chain of a group with what the other groups of its SM do."""
    l2_rate: float = 0.461
    merged: float = 0.755
    into: float = 1.1
    """Of the time that the port of an SM takes by its width."""
    operands: float = 1.6
    memory: float = 8
    """Exponent that joins SMs with L2 and device memory."""
    exposed: float = 0.155
    """Of what L2 and device memory take in one turn of all SMs, what nothing is beside."""
    spill: float = 0.0224
    """Slowdown of each 40 registers that a thread wants beyond its own."""


COSTS = Costs()
