"""Schedules near one, whose tiles warp groups can share: rows of one to four groups, columns and sums that are powers of two."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from fuser.device import Device
from fuser.ir.mugraph import BlockGraph
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import bind
from fuser.lower.pieces import next_power
from search.layouts.facts import WGMMA_ROWS
from search.layouts.modes import MOST_GROUPS

LOOPS = (32, 64, 128, 256)
MOST = 48
"""Schedules that are tried."""


def near(block: BlockGraph, schedule: KernelSchedule, device: Device) -> Iterator[KernelSchedule]:
    """The schedule with other tiles; without products, or without warp groups, with its tiles as powers of two alone."""
    bound, plans = bind(block, schedule)
    rounded = {a: next_power(t) for a, t in schedule.tiles if a in plans}
    if rounded != schedule.tile:
        yield replace(schedule, tiles=tuple(sorted((schedule.tile | rounded).items())))
    dots = [s for s in bound.computes if s.contracts]
    if not dots or device.arch != 90:
        return
    rows = set.intersection(*(set(s.axes) for s in dots)) - set(bound.reduced)
    tall = [a for a in rows if bound.extents[a] >= WGMMA_ROWS]
    looped = [a for a in schedule.order.axes if a in rounded]
    sizes = {a: [n for n in LOOPS if n <= next_power(bound.extents[a])] or [rounded[a]] for a in looped if a not in tall}
    flat = list(itertools.product(*sizes.values()))
    found = 0
    for row in tall:
        for groups in range(1, MOST_GROUPS + 1):
            for values in flat:
                tiles = rounded | {row: WGMMA_ROWS * groups} | dict(zip(sizes, values, strict=True))
                found += 1
                if found > MOST:
                    return
                yield replace(schedule, tiles=tuple(sorted(tiles.items())), num_warps=4 * groups)
