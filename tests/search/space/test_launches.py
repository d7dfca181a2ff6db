"""When kernels behind others start."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.device import load_device
from fuser.ir.builder import Builder
from fuser.ir.candidate import Candidate
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.superopt.structures import structures
from fuser.workloads import workload
from search.space.launches import chained
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


def launched(m: int, tiles: dict[str, int], warps: int, stages: int) -> str:
    """How the second of two products of a model starts."""
    b = Builder("two")
    x = b.input("X", (m, 256)) @ b.input("W", (256, 512))
    graph = next(g for g in structures(b.build(Y=x @ b.input("V", (512, 256)))) if len(g.blocks) == 2 and not g.blocks[0].splits)
    kernels = []
    for block in graph.blocks:
        (k,) = block.reduced
        sizes = tuple(sorted((a.name, tiles["k" if a.name == k else "mn"]) for a in block.axes))
        kernels.append(KernelSchedule(sizes, TilingExpr((k,)), (), warps, stages))
    found = chained(Candidate(graph, Schedule(tuple(kernels))), load_device("h200"))
    first, second = found.schedule.kernels
    assert "pdl" not in first.knob  # no call overlaps the one before it
    return second.knob["pdl"]


def test_blocks_come_early_where_one_of_them_fills_an_sm():
    assert launched(512, {"mn": 128, "k": 64}, 8, 4) == "early"
    assert launched(512, {"mn": 64, "k": 32}, 4, 2) == "late"


def test_rows_come_early_where_they_are_few_for_each_sm():
    device = load_device("h200")
    for rows, when in ((128, "early"), (1024, "late")):
        b = Builder("rows")
        x = b.op("softmax", b.input("X", (rows, 256)) @ b.input("W", (256, 256)))
        graph = next(g for g in structures(b.build(Y=x)) if len(g.blocks) == 2)
        tiled = KernelSchedule((("m", 64), ("n", 64)), TilingExpr(("k",)), (), 4, 3)
        kernels = [tiled, KernelSchedule((("m", 1),), TilingExpr(), (), 1, 1)]
        names = {a.name for a in graph.blocks[0].axes}
        assert {"m", "n", "k"} <= names
        found = chained(Candidate(graph, Schedule(tuple(kernels))), device)
        assert found.schedule.kernels[1].knob["pdl"] == when
