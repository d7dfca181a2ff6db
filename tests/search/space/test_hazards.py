"""Faults of compilers are data about devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cost_model.features import schedule_features
from fuser.device import load_device
from fuser.ir.schedule import KernelSchedule
from fuser.ir.tiling import TilingExpr
from fuser.superopt.structures import one_kernel
from fuser.workloads import workload
from search.space.hazards import FAULTS
from search.space.hazards import hazardous


def test_faults_hold_for_capabilities_and_not_for_names() -> None:
    block = one_kernel(workload("mcfuser/G2")).blocks[0]
    tiles = (("h", 16), ("k", 64), ("m", 64), ("n", 256))
    f = schedule_features(block, KernelSchedule(tiles, TilingExpr.parse(""), (), 4, 2))
    h200 = load_device("h200")
    assert hazardous(f, h200).all()
    assert hazardous(f, replace(h200, name="another", title="Another")).all()
    for arch in (80, 86, 100, 120):
        assert not np.any(hazardous(f, replace(h200, arch=arch)))
    assert all(fault.first < fault.before and fault.compilers for fault in FAULTS)
