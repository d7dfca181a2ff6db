"""Device files as text: limits and rates with their sources, and constants of the cost model with what they were fitted to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from dataclasses import replace
from typing import Any

from cost_model.constants import UNITS
from cost_model.constants import Constants
from fuser.device import OPTIONAL
from fuser.device import REQUIRED
from fuser.device import SCHEMA
from fuser.device import Device

FILES = (".toml", ".json")
"""How their names end."""


def fitted(device: Device, constants: Constants, fit: Mapping[str, str]) -> Device:
    """The device with constants, and what they were fitted to, as a file has them: four digits."""
    values = tuple((k, float(f"{v:.4g}")) for k, v in asdict(constants).items())
    return replace(device, constants=values, fit=tuple(fit.items()))


def document(device: Device) -> dict[str, Any]:
    """A device as its file holds it."""
    units, sources = REQUIRED | OPTIONAL, dict(device.sources)
    head = {"schema": SCHEMA, "name": device.name, "title": device.title, "arch": device.arch}
    if device.no_triton:
        head["no_triton"] = device.no_triton
    found: dict[str, Any] = {
        **head,
        "aliases": list(device.aliases),
        "numbers": {k: {"value": getattr(device, k), "unit": units[k], "source": s} for k, s in sources.items()},
    }
    if device.fit:
        found["calibration"] = dict(device.fit)
    if device.constants:
        found["constants"] = {k: {"value": v, "unit": UNITS[k][0], "meaning": UNITS[k][1]} for k, v in device.constants}
    return found


def text(device: Device, name: str) -> str:
    """What a file of that name is to hold: JSON, or TOML where the name ends in ``.toml``."""
    found = document(device)
    if not name.endswith(".toml"):
        return json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    lines = [f"{k} = {_toml(v)}" for k, v in found.items() if not isinstance(v, dict)]
    for title, table in found.items():
        if isinstance(table, dict):
            lines += ["", f"[{title}]", *(f"{_toml_key(k)} = {_toml(v)}" for k, v in table.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """A value as TOML writes it in a line; texts look as in JSON."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, float):
        return f"{value:.12g}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_key(key: str) -> str:
    return key if key.isidentifier() and key.isascii() else json.dumps(key, ensure_ascii=False)
