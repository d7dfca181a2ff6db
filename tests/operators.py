"""Example attributes and operands of the operators of the table, for the tests that walk it."""

from __future__ import annotations

from typing import Any

from fuser.ir.ops import OPS

NUMBERS: dict[str, dict[str, Any]] = {
    "scale": {"scalar": 0.25},
    "shift": {"scalar": 1.5},
    "cast": {"dtype": "float16"},
    "causal_mask": {"offset": 1},
    "powf": {"exponent": 1.7},
    "pow": {"exponent": 3.5},
    "clamp_min": {"min": 0.2},
    "clamp_max": {"max": 0.8},
    "clamp": {"min": -0.5, "max": 0.9},
    "hardtanh": {"min": -0.7, "max": 0.6},
    "leaky_relu": {"negative_slope": 0.125},
    "elu": {"alpha": 0.5},
    "celu": {"alpha": 2.0},
    "softplus": {"beta": 2.0},
    "addcmul": {"value": 0.5},
}
"""Attributes of element-wise operators that have some."""


def elementwise() -> list[str]:
    return sorted(n for n, e in OPS.items() if e.kind == "map")
