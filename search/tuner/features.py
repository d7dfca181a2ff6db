"""By what measurements of one candidate tell about others: names with values, of its structure, its schedule, and what the
model makes of it. :mod:`search.tuner.residual` says what the words in front of the colons weigh.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.lower.options import option_of


def features_of(structure: int, schedule: Schedule, shares: Mapping[str, float]) -> dict[str, float]:
    """Of a candidate, by the number of its structure; ``shares`` are those that terms have in its estimate."""
    features = {"all:": 1.0, f"structure:{structure}": 1.0, **shares}
    for i, k in enumerate(schedule.kernels):
        features |= described(k, f"{structure}.{i}")
    return features


def shares_of(features: Mapping[str, float]) -> dict[str, float]:
    """What of a candidate's features its schedule does not say."""
    return {name: value for name, value in features.items() if name.startswith("term:")}


def described(k: KernelSchedule, place: str) -> dict[str, float]:
    """Features of a kernel's schedule; ``place`` is its structure and number."""
    found = {f"order:{place} {k.order}": 1.0, f"warps:{place} {k.num_warps}": 1.0, f"stages:{place} {k.num_stages}": 1.0}
    for axis, size in k.tiles:
        found[f"tile:{place} {axis} {size}"] = 1.0
        found[f"size:{place} {axis}"] = math.log2(size) - 5.0
    found |= {f"split:{place} {a} {n}": 1.0 for a, n in k.splits}
    for name, value in k.knobs:
        option = option_of(name)
        found[f"option:{option.name if option else name} {value}"] = 1.0
        found[f"its:{place} {name} {value}"] = 1.0
    return found
