"""What options of several verbs have in common."""

from __future__ import annotations

import math

import typer

LONGEST = 1e7
"""Most seconds of any budget: four months."""


def finite(value: float) -> float:
    """A typer callback: ``nan`` is within no range, and yet passes the test for each."""
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no number of seconds.")
    return value
