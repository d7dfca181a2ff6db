"""Schedules near one, whose tiles warp groups can share: rows of one to four groups, columns and sums that are powers of two."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from fuser.device import Device
from fuser.errors import NoValidKernelError
from fuser.ir.mugraph import BlockGraph
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import bind
from fuser.lower.pieces import GROUPS_ARCH
from fuser.lower.pieces import next_power
from fuser.lower.tiles import Tiles
from search.layouts.facts import WGMMA_ROWS
from search.layouts.facts import rows_of
from search.layouts.modes import MOST_GROUPS

LOOPS = (32, 64, 128, 256)
WARPS = (4, 8)


def near(block: BlockGraph, schedule: KernelSchedule, device: Device) -> Iterator[KernelSchedule]:
    """The schedule with other tiles; without products with its tiles as powers of two alone, without warp groups with these and
    other warps."""
    bound, plans = bind(block, schedule)
    rounded = {a: next_power(t) for a, t in schedule.tiles if a in plans}
    if rounded != schedule.tile:
        yield replace(schedule, tiles=tuple(sorted((schedule.tile | rounded).items())))
    dots = [s for s in bound.computes if s.contracts]
    if not dots:
        return
    if device.arch != GROUPS_ARCH:
        yield from (replace(schedule, tiles=tuple(sorted(rounded.items())), num_warps=n) for n in WARPS)
        return
    try:
        row = rows_of(Tiles.of(block, schedule))
    except NoValidKernelError:
        return
    if bound.extents[row] < WGMMA_ROWS:
        return
    cut = [a for a, p in plans.items() if a in rounded and a != row and (a in schedule.order.axes or p.grid > 1)]
    cut = [a for a in cut if rounded[a] > 1 and any(a in s.related for s in dots) and bound.extents[a] >= LOOPS[0]]
    sizes = [[n for n in LOOPS if n <= next_power(bound.extents[a])] for a in cut]
    for groups, *values in itertools.product(range(1, MOST_GROUPS + 1), *sizes):
        tiles = rounded | {row: WGMMA_ROWS * groups} | dict(zip(cut, values, strict=True))
        yield replace(schedule, tiles=tuple(sorted(tiles.items())), num_warps=4 * groups)
