"""The funnel of figure 7 and the rules behind it."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from cost_model import paper
from cost_model.features import evaluate
from cost_model.features import features
from cost_model.shared_memory import equation1
from cost_model.shared_memory import equation1_terms
from fuser.cli import main
from fuser.device import load_device
from fuser.ir.builder import Builder
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import BlockGraph
from fuser.ir.pitched import laid
from fuser.ir.rows import pitch_of
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.lower.triton_source import generate_graph
from fuser.superopt.structures import structures
from fuser.workloads import workload
from search.space.prune import funnel
from search.space.prune import grid_of
from search.space.prune import multiples
from search.space.prune import padding
from search.space.prune import rule3
from search.space.prune import tile_grid
from search.space.prune import tile_sets
from search.space.schedules import ScheduleSpace

A100 = load_device("a100")


def chain(m: int, n: int, k: int, h: int) -> BlockGraph:
    return fuse(workload("mcfuser/G1", M=m, N=n, K=k, H=h)).blocks[0]


def test_figure_7() -> None:
    f = funnel(chain(1024, 1024, 512, 512), A100)
    assert [s.expressions for s in f.stages] == [26, 5, 3, 3, 3]
    assert [s.candidates for s in f.stages[:3]] == [109_051_904, 20_971_520, 12_582_912]
    assert f.stages[3].candidates == 3 * 7 * 7 * 6 * 6 and f.stages[3].candidates < 0.01 * f.stages[2].candidates
    # the paper: "approximately a 40% reduction"
    assert 1 - f.stages[4].candidates / f.stages[3].candidates == pytest.approx(0.396, abs=0.0005)
    assert (f.left, f.programs, f.notes) == (("nk", "nkh", "n(k,h)"), 2, ())


def test_rule_4_counts_what_equation_1_allows() -> None:
    b = chain(64, 48, 32, 64)
    limit = 5_000
    f = funnel(b, replace(A100, smem_per_block=limit))
    # A, B, C, D and E
    held = [v.axes for v in (*b.loads, *(c for c in b.computes if c.folds))]
    assert len(held) == 5
    legal = 0
    for order in f.left:
        for grid in tile_grid(tile_sets(b)):
            for tiles in zip(*(v.tolist() for v in grid.values()), strict=True):
                schedule = KernelSchedule(tuple(zip(grid, tiles, strict=True)), TilingExpr.parse(order))
                legal += sum(math.prod(schedule.tile.get(a, 1) for a in set(axes)) for axes in held) <= 1.2 * limit
    assert 0 < f.stages[-1].candidates == legal < f.stages[-2].candidates


def test_equation_1_by_hand() -> None:
    b = chain(512, 256, 64, 64)
    names = [s.value for s in b.computes]
    schedule = KernelSchedule((("m", 64), ("n", 32), ("k", 16), ("h", 64)), TilingExpr.parse("nk"))
    expected = {"A": 64 * 16, "B": 16 * 32, names[0]: 64 * 32, "D": 32 * 64, names[1]: 64 * 64}
    assert equation1_terms(b, schedule) == {k: 2 * v for k, v in expected.items()}


def test_equation_1_counts_every_cached_tile() -> None:
    """Figure 6: ``kn`` keeps one tile of the intermediate for each trip of n."""
    b = chain(512, 256, 64, 64)
    first = b.computes[0].value
    tiles = (("m", 64), ("n", 32), ("k", 16), ("h", 64))
    one = equation1_terms(b, KernelSchedule(tiles, TilingExpr.parse("nk")))[first]
    assert equation1_terms(b, KernelSchedule(tiles, TilingExpr.parse("kn")))[first] == one * 256 // 32


@given(st.integers(1, 3000))
def test_rule_3_leaves_something_and_says_when_it_is_relaxed(extent: int) -> None:
    every = multiples(extent)
    assert len(every) == math.ceil(extent / 16)
    kept, note = rule3(extent, every)
    assert kept and set(kept) <= set(every)
    worst = max(padding(extent, t) for t in kept)
    assert bool(note) == (worst >= 0.05)
    if extent & (extent - 1) == 0 and extent >= 16:
        assert worst == 0
    if note:
        assert min(padding(extent, t) for t in every) == min(padding(extent, t) for t in kept)


@pytest.mark.parametrize(("extent", "expected"), [(8, (16,)), (80, (16, 80)), (64, (16, 32, 64)), (197, (16, 32, 64, 128, 208))])
def test_rule_3_on_sizes_of_real_models(extent: int, expected: tuple[int, ...]) -> None:
    assert rule3(extent, multiples(extent))[0] == expected


def test_batch_axes_have_tile_1() -> None:
    sets = {t.axis: t.values for t in tile_sets(fuse(workload("mcfuser/S1")).blocks[0])}
    assert sets["b"] == (1,) and sets["m"] == (16, 32, 64, 128, 256, 512)


def test_rows_may_be_one_to_a_block() -> None:
    sets = {t.axis: t.values for t in tile_sets(fuse(workload("mirage/ntrans")).blocks[0])}
    assert sets["m"][0] == 1 and 4096 in sets["n"]


def test_the_command_prints_the_funnel(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["space", "--gemm-chain", "1024", "1024", "512", "512", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["spaces"]
    assert found["start"] == {"expressions": 26, "candidates": 109_051_904}
    assert [r["expressions"]["after"] for r in found["rules"]] == [5, 3, 3, 3]
    assert found["end"]["candidates"] == found["rules"][-1]["candidates"]["after"] <= 10**4


def test_the_table_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["space", "--gemm-chain", "1024", "1024", "512", "512"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and any("109,051,904" in line for line in lines)


def test_nothing_to_show_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["space"]) == 2
    assert "--gemm-chain" in capsys.readouterr().err


def test_a_chain_too_long_to_enumerate_is_tiled_over_the_grid_only() -> None:
    """Eight loops: said in the notes, and what is left are schedules without loops."""
    b = Builder("long")
    x = b.input("X", (512, 32))
    for i in range(6):
        x = x @ b.input(f"W{i}", (32, 32))
    block = fuse(b.build(Y=x)).blocks[0]
    f = funnel(block, A100)
    assert f.left == ("",) and any("8 loops" in n for n in f.notes)
    assert f.stages[-1].candidates > 0


NAMES = ("mcfuser/G1", "mcfuser/S6", "mirage/rmsnorm", "mirage/lora", "graphene/layernorm", "graphene/gemm", "graphene/lstm")


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(NAMES), st.integers(0, 2**32 - 1))
def test_arrays_agree_with_the_loop_tree(name: str, seed: int) -> None:
    """A batch of random candidates, whichever loops are live, against each one counted by itself."""
    from search.space.prune import expressions
    from search.space.prune import tile_sets

    rng = np.random.default_rng(seed)
    block = fuse(workload(name)).blocks[0]
    orders, _ = expressions(block)
    order = orders[rng.integers(len(orders))]
    tiles = {t.axis: rng.choice(t.values, 6) for t in tile_sets(block)}
    groups = features(block, order, tiles)
    times = evaluate(groups, lambda f: paper.seconds(f, A100))
    shared = evaluate(groups, equation1)
    for i in range(6):
        schedule = KernelSchedule(tuple((a, int(v[i])) for a, v in tiles.items()), order)
        e = paper.estimate(block, schedule, A100)
        assert times[i] == pytest.approx(e.seconds, rel=1e-12)
        assert shared[i] == e.shared_bytes == sum(equation1_terms(block, schedule).values())


@pytest.mark.parametrize("columns", [9, 17, 36, 37])
def test_tiles_reach_the_end_of_longer_rows(columns: int) -> None:
    """A mean over an image gives rows of few columns: a tile of one column, or of two, ends before the row does."""
    b = Builder("means")
    program = b.build(Y=b.op("mean", b.input("X", (8, columns, 4, 4), "float32"), axis=(2, 3), keepdims=False))
    graph = laid(fuse(program), [("Y", pitch_of(program["Y"]))])
    assert graph is not None
    (kernel,) = ScheduleSpace(graph, A100).kernels
    found = [batch.schedule(i) for batch in kernel.batches({}) for i in range(len(batch))]
    assert found
    for schedule in found:
        generate_graph(graph, Schedule((schedule,)))


def test_axes_along_which_large_tensors_lie_are_tiled_beside_those_of_the_result() -> None:
    """A norm of images reads rows of pixels and writes rows of channels."""
    b = Builder("turned")
    y = b.op("group_norm", b.input("X", (2, 64, 32, 32)), groups=16)
    program = b.build(Y=b.op("silu", y).transpose(0, 2, 3, 1))
    (behind,) = {g.blocks[1] for g in structures(program) if any("i" in s for b in g.blocks for s in b.splits)}
    assert max({t.axis: t.values for t in tile_sets(behind)}["i"]) >= 64


def test_a_grid_may_have_more_axes_than_an_array() -> None:
    """An unrolled recurrence of 32 steps in one kernel has 65."""
    choices = {f"a{i}": [1] for i in range(70)} | {"x": [2, 3], "y": [4, 5, 6]}
    (grid,) = grid_of(choices)
    assert list(zip(grid["x"].tolist(), grid["y"].tolist(), strict=True)) == [(x, y) for x in (2, 3) for y in (4, 5, 6)]
    assert grid["a69"].tolist() == [1] * 6
