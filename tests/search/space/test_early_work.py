"""What kernels do beside the one in front of them."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.device import load_device
from fuser.ir.candidate import Candidate
from fuser.ir.schedule import Schedule
from fuser.lower.options import PDL
from fuser.superopt.structures import structures
from search.calibrate.programs import lora
from search.calibrate.programs import product
from search.space.early_work import saved
from search.tune import graph_seconds
from search.tune import rank_graph

H200 = load_device("h200")


def test_a_product_that_waits_for_nothing_runs_beside_the_low_rank_one_in_front():
    graph = next(g for g in structures(lora("lora", 512, 3776, 1344)) if [k.name for k in g.kernels] == ["lora_0", "lora_1"])
    best = rank_graph(graph, H200, np.random.default_rng(0))[0][0]
    assert [PDL.of(k) for k in best.schedule.kernels] == ["", "early"]
    assert saved(best.candidate, H200) > 2e-6
    first, second = best.schedule.kernels
    late = Candidate(graph, Schedule((first, PDL.set(second, "late"))))
    assert saved(late, H200) == 0
    assert best.seconds == pytest.approx(graph_seconds(best.candidate, H200), rel=1e-3)
    assert graph_seconds(late, H200) == pytest.approx(best.seconds + saved(best.candidate, H200), rel=1e-3)


def test_a_sum_that_needs_all_of_the_product_in_front_saves_nothing():
    split = next(g for g in structures(product("product", 64, 4096, 256, "plain")) if len(g.kernels) == 2)
    best = rank_graph(split, H200, np.random.default_rng(0))[0][0]
    assert saved(best.candidate, H200) == 0
