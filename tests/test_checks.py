"""Arguments of wrong types are named errors."""

from __future__ import annotations

import math
from typing import Any

import pytest

import fuser
from fuser.device import load_device
from fuser.errors import UsageError
from fuser.workloads import workload


@pytest.mark.parametrize(
    "wrong",
    [
        {"target": 5}, {"device": 0}, {"graph": "a"}, {"schedule": 3}, {"effort": 3}, {"dtype": 16},
        {"superoptimize": "a"}, {"superoptimize": math.nan}, {"superoptimize": -1}, {"seed": -1}, {"seed": "a"}, {"seed": 0.5},
    ],
    ids=str,
)  # fmt: skip
def test_of_compile(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(UsageError, match=name):
        fuser.compile("mcfuser/G1", **wrong)


@pytest.mark.parametrize("call", [load_device, workload])
def test_of_names(call: Any) -> None:
    for name in (None, 3, b"h200"):
        with pytest.raises(UsageError, match="the name of a"):
            call(name)
