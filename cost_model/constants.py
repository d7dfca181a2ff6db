"""Constants of the refined model that no data sheet says: fitted where there are measurements, scaled from the nearest device
where there are none.

They are data: the file of a device holds the values with their units and what they were fitted to (:mod:`cost_model.device_file`
writes it).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from dataclasses import replace
from functools import lru_cache
from typing import Any

from fuser.device import Device
from fuser.device import list_devices
from fuser.device import load_device
from fuser.errors import UsageError
from fuser.files import shown

REFERENCE = "h200"
"""Device whose constants stand for those that were never measured."""


@dataclass(frozen=True)
class Constants:
    """``*_cost`` are multiples of the time at the peak rate of one SM; the unit of every field is in :data:`UNITS`."""

    base: float = 0.4e-6
    overlap: float = 0.5e-6
    wait: float = 0.40e-6
    rewait: float = 0.2e-6
    fetch: float = 0.5e-6
    streamed: float = 0.04e-6
    trip: float = 0.01e-6
    contraction: float = 0.01e-6
    block: float = 0.03e-6
    fold: float = 0.02e-6
    exchange: float = 0.17e-6
    group_cost: float = 1.0
    fragment_cost: float = 1.6
    flat_cost: float = 8.0
    special_cost: float = 1.0
    arithmetic_cost: float = 2.0
    move_cost: float = 1.0
    operand_cost: float = 1.6
    issue_cost: float = 2.0
    descriptor: float = 0.1e-6
    sm_bandwidth: float = 64.0
    merged: float = 0.6
    l2_rate: float = 0.6
    memory_rate: float = 0.92
    spill_groups: float = 1.5
    spill: float = 0.5
    slivers: float = 0.3
    pieces: float = 0.15
    parts: float = 0.05
    norm: float = 1.5
    library: float = 1.05


UNITS: dict[str, tuple[str, str]] = {
    "base": ("s", "first block's start to the last one's end, beside its work"),
    "overlap": ("s", "what programmatic dependent launch hides of a kernel's start"),
    "wait": ("s", "a load that nothing hides"),
    "rewait": ("s", "a load that was under way already"),
    "fetch": ("s", "from the request of a pipeline to its data"),
    "streamed": ("s", "a load in a loop without a contraction"),
    "trip": ("s", "one trip of a loop"),
    "contraction": ("s", "issue and wait of one contraction"),
    "block": ("s", "start of one more block on an SM"),
    "fold": ("s", "one row fold"),
    "exchange": ("s", "one exchange through shared memory with its barriers"),
    "group_cost": ("x", "contractions by warp groups"),
    "fragment_cost": ("x", "contractions on fragments, where there are warp groups (elsewhere group_cost holds); not fitted"),
    "flat_cost": ("x", "contractions without tensor cores"),
    "special_cost": ("x", "special functions"),
    "arithmetic_cost": ("x", "fp32 arithmetic"),
    "move_cost": ("x", "bytes between shared memory and registers"),
    "operand_cost": ("x", "bytes that warp groups read from shared memory"),
    "issue_cost": ("x", "instructions of threads that load and store by pointers, with their addresses and masks"),
    "descriptor": ("s", "start of the loads by descriptors"),
    "sm_bandwidth": ("B/clk", "from L2 into one SM; the width of its port, not fitted"),
    "merged": ("x", "part of what several blocks load at the same time that L2 serves once"),
    "l2_rate": ("x", "bandwidth of L2 that is reached"),
    "memory_rate": ("x", "bandwidth of device memory that is reached; not fitted, between a copy and a read"),
    "spill_groups": ("x", "slowdown where warp groups spill registers, each step"),
    "spill": ("x", "slowdown where others do, each step"),
    "slivers": ("x", "slowdown of a product with a tile in powers of two, one of 16 (48 as 32 and 16)"),
    "pieces": ("x", "slowdown where none of them has 16 (96 as 64 and 32)"),
    "parts": ("x", "slowdown of a product whose sum is cut so"),
    "norm": ("1", "exponent that joins chain and roof; 1 is their sum, infinity the larger"),
    "library": ("x", "contractions of library kernels, times group_cost; not fitted"),
}
_CLOCKED = ("trip", "block", "contraction", "fold", "exchange", "streamed")
"""Times that are cycles of an SM; those of memory do not follow the clock."""


def checked(where: str, table: Any) -> tuple[tuple[str, float], ...]:
    """Names and values of the constants in a device file. Raises :class:`UsageError` naming file and key."""
    if not isinstance(table, dict) or set(table) != set(UNITS):
        odd = sorted(set(map(str, table)) ^ set(UNITS)) if isinstance(table, dict) else ["a table of"]
        raise UsageError(f"{where}: constants {', '.join(odd)[:200]} are missing or unknown", "fit them again: mufuser calibrate")
    for key, entry in table.items():
        if not isinstance(entry, dict) or entry.get("unit") != UNITS[key][0]:
            raise UsageError(
                f"{where}: {key} is not {{ value, unit }} with the unit {UNITS[key][0]!r}", "mufuser calibrate writes it"
            )
        value = entry.get("value")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise UsageError(f"{where}: {key} has the value {shown(value)}", "give a positive number")
    return tuple((k, float(table[k]["value"])) for k in UNITS)


@lru_cache(maxsize=64)
def constants_of(device: Device) -> Constants:
    """The fitted constants of a device where there are any, else those of the H200; cycles are scaled to its clock. Of a kernel's
    start no more is hidden than there is: estimates below 0 would have no order."""
    if device.constants:
        found = Constants(**dict(device.constants))
    else:
        known = next((d for d in list_devices() if d.name == device.name and d.constants), load_device(REFERENCE))
        found = clocked(Constants(**dict(known.constants)), known.clock / device.clock)
    return replace(found, overlap=min(found.overlap, found.base + device.launch_latency))


def clocked(c: Constants, slower: float) -> Constants:
    """Constants where the clock is so many times slower."""
    return replace(c, **{k: getattr(c, k) * slower for k in _CLOCKED}) if slower != 1.0 else c
