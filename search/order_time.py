"""Estimates of what orders elements along an axis: our kernels, and torch's sorting and selecting.

All are fitted to an H200 (31 shapes of up to 33 million elements), in cycles of its multiprocessors where they have much to do,
and in seconds where they wait.
"""

from __future__ import annotations

from cost_model.rows import SECTOR
from fuser.device import Device
from fuser.ir.program import DTYPE_BYTES
from fuser.lower.order_code import SHORT
from fuser.lower.order_code import Order

BEGIN, TURN = 2.5e-6, 0.4e-6
"""Seconds of a kernel of ours that has little to do, and of a turn that takes one more element."""
TAKEN, COMPARED = 5.0, 4.0
"""Elements that a multiprocessor goes through in a cycle: for the next one of a row, and to compare another with."""
WIDER = 1.5
"""Times as long as torch takes for numbers of 64 bits."""


def order_seconds(order: Order, device: Device) -> float:
    """Of what a call runs."""
    rate = device.sm_count * device.clock
    if order.in_turn:
        turns = order.rows * order.n * order.first / (TAKEN * rate)
        return BEGIN + max(order.first * TURN, turns, _moving(order, device))
    if order.by_rank:
        return BEGIN + max(order.rows * order.n**2 / (COMPARED * rate), _moving(order, device))
    return torch_seconds(order, device)


def _moving(order: Order, device: Device) -> float:
    """Seconds in which elements and places go through memory; of rows across it whole sectors through the L2 for each, but
    where a block has neighbouring rows."""
    size = DTYPE_BYTES[order.dtype]
    read, written = order.rows * order.n * size, order.rows * order.first * DTYPE_BYTES["int64"]
    run = size * (order.n if order.inner == 1 else min(order.inner, order.several))
    asked = (read + written) * max(SECTOR / run, 1.0)
    return max((read + written) / device.memory_bandwidth, asked / device.l2_bandwidth)


def torch_seconds(order: Order, device: Device) -> float:
    """Of torch's own."""
    rows, n, rate = order.rows, order.n, device.sm_count * device.clock
    if order.first < n:  # a block for each row looks for the last that is taken digit by digit
        return 11e-6 + min(4.5e-9 * n, 45e-6) + rows * (840 + 6.5 * n) / rate
    if n <= 2 * SHORT:  # rows are merged
        seconds = 9.5e-6 + rows * (260 + 15.6 * n) / rate
    elif n <= 1 << 12:
        seconds = (21e-6 if n <= 1 << 11 else 26e-6) + rows * n * 8.3 / rate
    else:
        seconds = 49e-6 + rows * n * 18.5 / rate
    return seconds * (WIDER if order.dtype == "int64" else 1.0)
