"""A device's description: limits that the driver knows, rates that were measured, and for what neither says the numbers of a
device of the same architecture."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fuser.device import MEASURED
from fuser.device import OPTIONAL
from fuser.device import REQUIRED
from fuser.device import Device
from fuser.device import load_device
from fuser.errors import UsageError
from fuser.runtime.cuda_driver import check
from fuser.runtime.cuda_driver import driver
from fuser.whatif import WHOLE
from search.calibrate.rates import DTYPES
from search.calibrate.rates import Rates

ATTRIBUTES: Mapping[str, int] = {
    "sm_count": 16,
    "clock": 13,
    "memory_clock": 36,
    "memory_bits": 37,
    "l2_bytes": 38,
    "smem_per_sm": 81,
    "smem_per_block": 97,
    "smem_reserved_per_block": 111,
    "registers_per_sm": 82,
    "max_threads_per_sm": 39,
    "max_threads_per_block": 1,
    "max_blocks_per_sm": 106,
}
"""Numbers of CUDA's ``CUdevice_attribute``; clocks are in kHz."""
KNOWN = 1.1
"""A number that is measured so many times above the peak that follows from the base is taken for the peak."""
SHARE = 0.45
"""One that is below this part of it too: boards halve rates of their chips."""
REACHED = 0.8
"""Part of its peak that a large product of a library is taken to reach there."""


def limits() -> dict[str, int]:
    """What the driver says of the first GPU that this process sees; it must have been used before."""
    cuda, device, found = driver(), ctypes.c_int(), {}
    check("cuInit", cuda.cuInit(0))
    check("cuDeviceGet", cuda.cuDeviceGet(ctypes.byref(device), 0))
    for name, number in ATTRIBUTES.items():
        value = ctypes.c_int()
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device) == 0 and (value.value or name.startswith("smem_res")):
            found[name] = value.value
    size = ctypes.c_size_t()
    check("cuDeviceTotalMem", cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device))
    return {**found, "memory_bytes": size.value}


def known(title: str) -> Device | None:
    """The device of a GPU that is known by its name."""
    try:
        return load_device(title) if not title.endswith((".toml", ".json")) else None
    except UsageError:
        return None


def described(base: Device, title: str, said: Mapping[str, Any], rates: Rates) -> Device:
    """A GPU with the name ``title`` of which the driver said so much (:func:`limits`); without constants. What is known of a GPU
    by its name stays."""
    same = known(title)
    numbers: dict[str, tuple[float, str]] = {}
    if same is None:
        numbers = _scaled(base, said) | _said(said)
        base = replace(base, name=_name(title), title=title, aliases=())
    elif same.name != base.name:
        base = same
    device = _with(base, numbers)
    found = {k: x for k, x in _measured(device, rates).items() if same is None or k in MEASURED}
    return replace(_with(device, found), constants=(), fit=())


def _name(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower().removeprefix("nvidia ")).strip("-") or "gpu"


def _said(said: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    """Numbers as a device has them."""
    source = "the CUDA driver"
    found = {k: (float(v), source) for k, v in said.items() if k in REQUIRED and k != "clock"}
    if "clock" in said:
        found["clock"] = 1e3 * said["clock"], source
    if "max_threads_per_sm" in said:
        found["max_warps_per_sm"] = said["max_threads_per_sm"] // 32, source
    if {"memory_clock", "memory_bits"} <= set(said):
        rate = 2e3 * said["memory_clock"] * said["memory_bits"] / 8
        found["memory_bandwidth"] = rate, f"{source}: {said['memory_bits']} bits at twice {said['memory_clock'] / 1e3:g} MHz"
    return found


def _scaled(base: Device, said: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    """Rates of multiprocessors that are like those of the base, as many as the driver says, at its clock."""
    clock = 1e3 * said.get("clock", base.clock / 1e3) / base.clock
    units = clock * said.get("sm_count", base.sm_count) / base.sm_count
    source = f"as {base.name} by multiprocessors and clock"
    found = {k: (units * getattr(base, k), source) for k in (*DTYPES.values(), "fp32_flops") if getattr(base, k) is not None}
    return found | {"l2_bandwidth": (clock * base.l2_bandwidth, f"as {base.name} by the clock")}


def _measured(device: Device, rates: Rates) -> dict[str, tuple[float, str]]:
    """What was measured, and peaks that cannot be as the description has them."""
    found: dict[str, tuple[float, str]] = {}
    if rates.launch:
        found["launch_latency"] = rates.launch, "measured: a trivial kernel inside a CUDA graph"
    reached = max((r for r in (rates.copy, rates.read) if r), default=0.0)
    if reached > device.memory_bandwidth:
        found["memory_bandwidth"] = 1.02 * reached, "measured: what a large copy or sum reaches, and 2 %"
    if rates.copy:
        found["copy_bandwidth"] = rates.copy, "measured: a large copy, bytes read and written"
    peaks = {number: (rates.products.get(dtype), "a large product") for dtype, number in DTYPES.items()}
    for number, (rate, what) in {**peaks, "l2_bandwidth": (rates.l2, "a copy within L2")}.items():
        peak = getattr(device, number)
        if rate and (peak is None or not SHARE * peak < rate < KNOWN * peak):
            found[number] = rate / REACHED, f"measured: {what} is taken to reach {REACHED:.0%} of it"
    if best := max((r for d, r in rates.products.items() if d != "float32"), default=0.0):
        found["matmul_rate"] = best, "measured: large products of the library, 16 bits"
    return found


def _with(device: Device, numbers: Mapping[str, tuple[float, str]]) -> Device:
    """The device with other numbers, whole where their unit is."""
    units = REQUIRED | OPTIONAL
    values: dict[str, Any] = {k: int(v) if units[k] in WHOLE else float(f"{v:.4g}") for k, (v, _) in numbers.items()}
    sources = dict(device.sources) | {k: s for k, (_, s) in numbers.items()}
    found = replace(device, **values, sources=tuple(sources.items()))
    return replace(found, copy_bandwidth=min(found.copy_bandwidth, found.memory_bandwidth))
