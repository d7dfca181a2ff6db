"""When kernels behind others start."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.device import load_device
from fuser.ir.builder import Builder
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.lower.options import AHEAD
from fuser.lower.options import GRID_ORDER
from fuser.lower.options import PDL
from fuser.lower.options import PREFETCH
from fuser.lower.options import ROOM
from fuser.superopt.structures import structures
from fuser.workloads import workload
from search.space.launches import chained
from search.tune import rank_graph

H200 = load_device("h200")


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


def schedules(graph: KernelGraph, tiles: dict[str, int], warps: int, stages: int) -> Candidate:
    """Products in tiles of ``mn`` rows and columns, and ``k`` of their sums; rows one by one."""
    kernels = []
    for block in graph.blocks:
        loops = tuple(a for s in block.computes if s.contracts for a in s.reduce)
        sizes = tuple(sorted((a.name, tiles["k" if a.name in loops else "mn"]) for a in block.axes)) if loops else (("m", 1),)
        kernels.append(KernelSchedule(sizes, TilingExpr(loops), (), warps if loops else 1, stages if loops else 1))
    return Candidate(graph, Schedule(tuple(kernels)))


def launched(m: int, tiles: dict[str, int], warps: int, stages: int, inner: int = 512) -> KernelSchedule:
    """How the second of two products of a model starts."""
    b = Builder("two")
    x = b.input("X", (m, 256)) @ b.input("W", (256, inner))
    graph = next(
        g for g in structures(b.build(Y=x @ b.input("V", (inner, 256)))) if len(g.blocks) == 2 and not g.blocks[0].splits
    )
    first, second = chained(schedules(graph, tiles, warps, stages), H200).schedule.kernels
    assert not PDL.of(first) and not ROOM.of(first)  # no call overlaps the one before it
    return second


def test_blocks_come_early_where_there_is_one_for_each_sm() -> None:
    filling = launched(512, {"mn": 128, "k": 64}, 8, 4)
    assert PDL.of(filling) == "early" and not ROOM.of(filling)  # one fills an SM
    small = launched(512, {"mn": 64, "k": 32}, 4, 2)
    assert PDL.of(small) == "early"
    room = ROOM.of(small) + H200.smem_reserved_per_block
    assert room <= H200.smem_per_sm < 2 * room  # nor do two of these stand on one


def test_more_blocks_come_sooner_where_they_fit_beside_those_in_front() -> None:
    assert PDL.of(launched(4096, {"mn": 64, "k": 32}, 4, 2)) != "late"  # 256 blocks of 16 KiB behind 512
    assert PDL.of(launched(4096, {"mn": 64, "k": 128}, 4, 4)) == "late"  # of 128 KiB


def test_a_few_blocks_need_no_room() -> None:
    assert not ROOM.of(launched(64, {"mn": 64, "k": 32}, 4, 2))  # 4 of them


def test_products_of_one_row_come_early_and_hold_weights_meanwhile() -> None:
    assert PDL.of(launched(1, {"mn": 1, "k": 256}, 4, 2)) == "early"  # 256 blocks


def test_a_product_behind_a_long_one_comes_when_that_leaves_its_loop() -> None:
    assert PDL.of(launched(512, {"mn": 64, "k": 32}, 4, 2, inner=16384)) == "loop"


def test_weights_come_ahead_where_device_memory_is_idle() -> None:
    assert AHEAD.named(launched(512, {"mn": 64, "k": 32}, 4, 2)) == ("V",)  # 256 KiB
    assert not AHEAD.named(launched(16, {"mn": 16, "k": 64}, 4, 3, inner=65536))  # 32 MiB behind a product that reads as much
    assert not AHEAD.named(launched(8192, {"mn": 128, "k": 64}, 8, 4, inner=65536))  # as much behind one that has time for it


def test_programs_that_read_the_same_weights_stand_side_by_side() -> None:
    second = launched(512, {"mn": 64, "k": 32}, 4, 2)
    assert GRID_ORDER.of(second).split(".")[-1] == "m"


@pytest.mark.parametrize("rows", [128, 1024])
def test_rows_come_early_and_spread(rows: int) -> None:
    b = Builder("rows")
    x = b.op("softmax", b.input("X", (rows, 256)) @ b.input("W", (256, 256)))
    graph = next(g for g in structures(b.build(Y=x)) if len(g.blocks) == 2)
    second = chained(schedules(graph, {"mn": 64, "k": 64}, 4, 3), H200).schedule.kernels[1]
    share = -(-rows // H200.sm_count)
    assert PDL.of(second) == "early" and H200.smem_per_sm // (ROOM.of(second) + H200.smem_reserved_per_block) == share


def test_a_few_blocks_take_no_more_room_than_those_in_front_leave() -> None:
    b = Builder("rows")
    x = b.op("softmax", b.input("X", (32, 2048)) @ b.input("W", (2048, 4096)))
    graph = next(g for g in structures(b.build(Y=x)) if len(g.blocks) == 2 and not g.blocks[0].splits)
    small = chained(schedules(graph, {"mn": 32, "k": 32}, 4, 3), H200).schedule.kernels[1]
    assert H200.smem_per_sm < 2 * (ROOM.of(small) + H200.smem_reserved_per_block)  # 32 rows, one on an SM
    large = chained(schedules(graph, {"mn": 32, "k": 256}, 4, 5), H200).schedule.kernels[1]
    assert 0 < ROOM.of(large) < H200.smem_per_sm - 4 * 2 * 32 * 256 * 2  # beside four trips of both operands


def dots(block: BlockGraph) -> int:
    return sum(s.contracts for s in block.computes)


@pytest.mark.parametrize("keys", ["given", "made"])
def test_a_loop_finds_what_no_kernel_makes_in_l2(keys: str) -> None:
    b = Builder("decode")
    given = b.input("K", (4096, 64))
    k = given if keys == "given" else given @ b.input("V", (64, 64))
    q = b.input("X", (16, 256)) @ b.input("W", (256, 64))
    y = b.op("softmax", q @ k.T) @ k
    graph = next(g for g in structures(b.build(Y=y)) if len(g.blocks) > 1 and dots(g.blocks[-1]) == 2 and not g.blocks[-1].splits)
    found = chained(schedules(graph, {"mn": 64, "k": 64}, 4, 2), H200).schedule.kernels[-1]
    assert PREFETCH.of(found) == (1 if keys == "given" else 0)
