"""The commands of this layer."""

from __future__ import annotations

from typing import Annotated
from typing import Any

import typer

from fuser.arguments import Json
from fuser.arguments import Set
from fuser.arguments import device_of
from fuser.console import bytes_text
from fuser.console import print_json
from fuser.console import print_table
from fuser.console import rate_text
from fuser.console import time_text
from fuser.device import OPTIONAL
from fuser.device import REQUIRED
from fuser.device import Device
from fuser.device import list_devices
from fuser.errors import UsageError

FIT = 79
"""Characters of each line about what constants were fitted to."""


def describe(device: Device) -> dict[str, Any]:
    """A device as a document: every number with its unit and its source."""
    units, sources = REQUIRED | OPTIONAL, dict(device.sources)
    return {
        "name": device.name,
        "title": device.title,
        "arch": device.sm,
        "aliases": list(device.aliases),
        "hypothetical": list(device.hypothetical),
        "triton": not device.no_triton,
        "triton_reason": device.no_triton,
        "numbers": {k: {"value": getattr(device, k), "unit": units[k], "source": s} for k, s in sources.items()},
        "constants": dict(device.constants),
        "calibration": dict(device.fit),
    }


def _number(value: float, unit: str) -> str:
    if unit == "B":
        return bytes_text(value)
    if unit in ("B/s", "FLOP/s", "Hz"):
        return rate_text(value, unit)
    if unit == "s":
        return time_text(value)
    return f"{value:g} {unit}"


def devices(
    names: Annotated[list[str] | None, typer.Argument(help="Devices to show in full, each number with its source.")] = None,
    settings: Set = None,
    json: Json = False,
) -> None:
    """List the GPUs whose limits and rates are known."""
    if settings and not names:
        raise UsageError("--set changes the numbers of a device that is named", f"mufuser devices h200 --set {settings[0]}")
    chosen = [device_of(n, settings) for n in names] if names else list(list_devices())
    if json:
        print_json({"devices": [describe(d) for d in chosen]})
    elif names:
        for device in chosen:
            units = REQUIRED | OPTIONAL
            rows = [(k, _number(getattr(device, k), units[k]), source) for k, source in device.sources]
            reason = [f"no kernel can be compiled: {device.no_triton}"] if device.no_triton else []
            if device.constants:
                said = (f"  {k}: {v}" for k, v in device.fit)
                on = "a real one" if device.hypothetical else "it"
                reason += [f"the cost model's constants were fitted to measurements on {on}:"]
                reason += [line if len(line) <= FIT else f"{line[: FIT - 1]}…" for line in said]
            print_table(f"{device.name}: {device.title} ({device.sm})", ("number", "value >", "source"), rows, reason)
    else:
        rows = [
            (
                d.name,
                d.sm,
                d.sm_count,
                f"{d.memory_bandwidth / 1e12:.3g}",
                f"{d.tensor_fp16 / 1e12:.4g}",
                f"{d.l2_bytes / 2**20:g}",
                f"{d.smem_per_block / 2**10:g}",
                "no" if d.no_triton else "yes",
            )
            for d in chosen
        ]
        columns = ("device", "arch", "SMs >", "TB/s >", "fp16 TFLOP/s >", "L2 MiB >", "block KiB >", "compiles")
        print_table("devices", columns, rows, ["mufuser devices NAME shows every number with its source."])
