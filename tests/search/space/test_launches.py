"""A short kernel behind a long one starts late, others early."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.device import load_device
from fuser.superopt.structures import structures
from fuser.workloads import workload
from search.tune import rank_graph


@pytest.mark.parametrize(("name", "when"), [("mirage/mqa-spec:8", "late"), ("mirage/gqa-inc", "early")])
def test_the_sum_of_a_long_split_waits_for_its_stores(name, when):
    device = load_device("h200")
    split = next(g for g in structures(workload(name)) if len(g.blocks) == 2 and g.blocks[0].splits)
    best = rank_graph(split, device, np.random.default_rng(0))[0][0]
    assert best.schedule.kernels[1].knob["pdl"] == when


def test_devices_without_dependent_launch_have_no_such_option():
    device = load_device("a100")
    split = next(g for g in structures(workload("mirage/gqa-inc")) if len(g.blocks) == 2 and g.blocks[0].splits)
    best = rank_graph(split, device, np.random.default_rng(0))[0][0]
    assert not any(k.knobs for k in best.schedule.kernels)
