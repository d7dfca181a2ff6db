"""What options of several verbs have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated
from typing import Any

import typer

from fuser.console import note
from fuser.device import Device
from fuser.device import load_device

LONGEST = 1e7
"""Most seconds of any budget: four months."""

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Target = Annotated[str, typer.Option("--target", help="The device; see mufuser devices.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=X", help="What if the device had smem=2x, sms=264, clock=2.1GHz, ...? (repeat)"),
]
BucketSizes = Annotated[
    list[str] | None,
    typer.Option(
        "--buckets",
        metavar="DIM=SIZES",
        help="Kernels for several sizes of an open dimension: 'input_ids:1=128,256' (repeat).",
    ),
]


def device_of(target: str, settings: Sequence[str] | None = None) -> Device:
    """The device that a command is about; that it is hypothetical is said."""
    device = load_device(target, settings or ())
    if device.hypothetical:
        note(f"note: nobody has the {'; '.join([device.title, *(h for h in device.hypothetical if h not in device.title)])}")
    return device


def seconds(name: str, text: str, least: float = 0.0) -> Any:
    """An option of so many seconds."""
    return typer.Option(name, min=least, max=LONGEST, callback=finite, metavar="SECONDS", help=text)


def finite(value: float) -> float:
    """A typer callback: ``nan`` is within no range, and yet passes the test for each."""
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no number of seconds.")
    return value
