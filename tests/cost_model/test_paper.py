"""Equations 2 to 5, by hand and against the arrays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from cost_model import paper
from cost_model.features import features
from cost_model.features import schedule_features
from fuser.device import load_device
from fuser.errors import UsageError
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import Access
from fuser.ir.mugraph import Axis
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import bind
from fuser.ir.tiling import TilingExpr
from fuser.workloads import workload

A100 = load_device("a100")


def split_gemm() -> BlockGraph:
    """Partial results Y[s,m,n] of X W with k split over s."""
    x, w = Access("X", (("m",), ("k",))), Access("W", (("k",), ("n",)))
    y = Access("Y", (("s",), ("m",), ("n",)))
    return BlockGraph(
        "split",
        (Axis("s", FREE), Axis("m", 64), Axis("n", 96), Axis("k", 1024)),
        (
            Stmt("load", "X", ("m", "k"), "float16", access=x),
            Stmt("load", "W", ("k", "n"), "float16", access=w),
            Stmt("compute", "Y", ("s", "m", "n"), "float16", "matmul", ("X", "W"), ("k",)),
            Stmt("store", "Y", ("s", "m", "n"), "float16", access=y),
        ),
        (("k", "s"),),
    ).validate()


def test_every_term_by_hand() -> None:
    """b = 2, M = 128, N = 64, K = 32, H = 64 with tiles 64, 32, 16, 32 and order nk: 2 · 2 · 2 = 8 blocks."""
    block = fuse(workload("mcfuser/G1", batch=2, M=128, N=64, K=32, H=64)).blocks[0]
    schedule = KernelSchedule((("b", 1), ("m", 64), ("n", 32), ("k", 16), ("h", 32)), TilingExpr.parse("nk"))
    e = paper.estimate(block, schedule, A100)
    blocks, n, k = 8, 2, 2
    amounts = {t.key: (t.amount, t.trips, t.blocks) for t in e.memory}
    assert amounts == {
        "L_A": (64 * 16 * 2, n * k, blocks),
        "L_B": (16 * 32 * 2, n * k, blocks),
        "L_D": (32 * 32 * 2, n, blocks),
        "S_E": (64 * 32 * 2, 1, blocks),
    }
    assert [(t.amount, t.trips, t.blocks) for t in e.compute] == [
        (2 * 64 * 32 * 16, n * k, blocks),
        (2 * 64 * 32 * 32, n, blocks),
    ]
    moved = blocks * (4 * 2048 + 4 * 1024 + 2 * 2048 + 4096)
    assert e.t_mem == pytest.approx(moved / 1.555e12)
    assert e.t_comp == pytest.approx(blocks * (4 * 65536 + 2 * 131072) / 312e12)
    assert e.alpha == (8 + 108) / 8
    assert e.seconds == (e.t_mem + e.t_comp) * e.alpha


def test_a_dead_loop_hoists_its_load() -> None:
    """Figure 4b: with one trip of k, A is loaded once, and not once for each trip of n."""
    block = fuse(workload("mcfuser/G1", M=128, N=64, K=32, H=64)).blocks[0]
    tiles = {"m": 64, "n": 16, "k": 16, "h": 64}
    trips = {}
    for k in (16, 32):
        schedule = KernelSchedule(tuple((tiles | {"k": k}).items()), TilingExpr.parse("nk"))
        trips[k] = {t.key: t.trips for t in paper.estimate(block, schedule, A100).memory}["L_A"]
    assert trips == {16: 4 * 2, 32: 1}


def test_flops_of_fp32_use_another_rate() -> None:
    block = fuse(workload("mcfuser/G1", dtype="float32")).blocks[0]
    e = paper.estimate(block, KernelSchedule(), A100)
    assert {t.rate for t in e.compute} == {156e12}


@settings(deadline=None, max_examples=30)
@given(st.sampled_from((16, 32, 64)), st.sampled_from((2, 3, 4, 16)))
def test_splits_count_as_blocks_and_shorten_the_loop(k: int, parts: int) -> None:
    block = split_gemm()
    schedule = KernelSchedule((("k", k), ("m", 16), ("n", 32)), TilingExpr.parse("k"), (("s", parts),))
    e = paper.estimate(block, schedule, A100)
    assert e.n_block == 4 * 3 * parts
    f = schedule_features(block, schedule)
    assert f.blocks.tolist() == [e.n_block]
    assert paper.seconds(f, A100)[0] == pytest.approx(e.seconds, rel=1e-12)
    loads = {t.key: t.trips for t in e.memory}
    assert loads["L_X"] == -(-(1024 // k) // parts) and loads["S_Y"] == 1


def test_what_bind_refuses_the_arrays_refuse() -> None:
    block = split_gemm()
    with pytest.raises(UsageError, match="split axis 's'"):
        features(block, TilingExpr.parse("k"), {"k": 16})
    chain = fuse(workload("mcfuser/G1")).blocks[0]
    with pytest.raises(UsageError, match="no loop"):
        features(chain, TilingExpr.parse("n"), {"k": 16, "n": 16})


def test_fill_is_the_useful_part_of_a_padded_tile() -> None:
    block = fuse(workload("mcfuser/G1", M=8)).blocks[0]
    f = schedule_features(block, KernelSchedule((("m", 16),), TilingExpr()))
    (load,) = [s for s in f.stmts if s.stmt.key == "L_A"]
    assert load.fill.tolist() == [0.5]


def test_a_row_that_is_summed_up_is_not_divided_over_the_grid() -> None:
    """Softmax-like rows: n indexes the output and is summed over, so parts of it need a loop."""
    block = fuse(workload("graphene/layernorm")).blocks[0]
    schedule = KernelSchedule((("m", 1), ("n", 256)))
    with pytest.raises(UsageError):
        bind(block, schedule)
    with pytest.raises(UsageError):
        schedule_features(block, schedule)
