"""The best schedules get the options that the model says they gain by, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cost_model.features import Counts
from cost_model.features import Features
from fuser.device import load_device
from fuser.ir.builder import Builder
from fuser.ir.candidate import Candidate
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.lower.options import BACKEND
from fuser.lower.options import FLATTEN
from fuser.lower.options import HOIST
from fuser.lower.options import OPTIONS
from fuser.lower.options import PERSISTENT
from fuser.lower.options import TMA
from fuser.lower.options import Option
from fuser.lower.triton_source import generate_graph
from fuser.superopt.structures import one_kernel
from fuser.superopt.structures import structures
from fuser.workloads import workload
from search.space.estimates import estimator
from search.space.places import places
from search.space.polish import WITHIN
from search.space.polish import estimated
from search.space.polish import polished
from search.space.polish import sets
from search.tune import graph_seconds
from search.tune import tune_fast

H200, A100 = load_device("h200"), load_device("a100")
LESS = Option("less", int, "an option that halves a kernel's waits", values=(1,), choices=(1,), modelled=False)


def product(m: int = 64, n: int = 64, k: int = 64) -> Candidate:
    tiles = (("k", k), ("m", m), ("n", n))
    return Candidate(one_kernel(workload("graphene/gemm")), Schedule((KernelSchedule(tiles, TilingExpr.parse("k"), (), 4, 3),)))


def test_sets_are_what_the_table_allows() -> None:
    """By descriptors or not, persistent or not, flattened only if persistent; each lowers, none twice."""
    (place,) = places(product(), H200)
    found = sets(place)
    assert found[0] == place.schedule and len(set(found)) == len(found) > 6
    assert all(replace(s, knobs=()) == place.schedule for s in found)
    assert {bool(TMA.named(s)) for s in found} == {True, False}
    assert {PERSISTENT.given_in(s) for s in found if FLATTEN.of(s)} == {True}
    for s in found:
        generate_graph(product().graph, Schedule((s,)))
    (old,) = places(product(), A100)
    assert not any(TMA.named(s) for s in sets(old))


@pytest.mark.parametrize("rest", [(256, 256), (256,)])
def test_tiles_are_not_queued_in_front_of_a_flattened_loop(rest: tuple[int, ...]) -> None:
    """Triton would hold as many of them in registers as there are stages; a bias is small."""
    b = Builder("product")
    program = b.build(Y=b.input("X", (256, 256)) @ b.input("W", (256, 256)) + b.input("R", rest))
    mine = KernelSchedule((("k", 64), ("m", 64), ("n", 64)), TilingExpr.parse("k"), (), 4, 3)
    first = replace(H200, sm_count=8)
    for kernel, both in ((mine, len(rest) == 1), (BACKEND.set(mine, "gluon"), True)):
        (place,) = places(Candidate(one_kernel(program), Schedule((PERSISTENT.set(kernel, 8),))), first)
        assert any(HOIST.of(s) and not FLATTEN.of(s) for s in sets(place))
        assert any(FLATTEN.of(s) and not HOIST.of(s) for s in sets(place))
        assert any(HOIST.of(s) and FLATTEN.of(s) for s in sets(place)) == both


def test_loops_in_turn_are_not_flattened() -> None:
    softmax = Builder("softmax")
    program = softmax.build(Y=softmax.softmax(softmax.input("X", (264, 4096)), axis=1))
    rows, columns = (a.name for a in one_kernel(program).blocks[0].axes)
    mine = KernelSchedule(((rows, 1), (columns, 1024)), TilingExpr.parse(columns), (), 4, 2)
    (place,) = places(Candidate(one_kernel(program), Schedule((mine,))), H200)
    found = sets(place)
    assert any(PERSISTENT.of(s) for s in found) and not any(FLATTEN.of(s) for s in found)


@pytest.mark.parametrize(("dtype", "causal"), [("float16", False), ("float16", True), ("float32", False)])
def test_loops_that_gain_nothing_are_not_flattened(dtype: str, causal: bool) -> None:
    b = Builder("attention", dtype)
    q, k, v = (b.input(n, (32, 1024, 64)) for n in "QKV")
    program = b.build(Y=b.op("attention", q, k, v, scale=0.125, causal=causal))
    mine = KernelSchedule((("b", 1), ("h", 64), ("k", 64), ("m", 64), ("n", 64)), TilingExpr.parse("n"), (), 4, 2)
    (place,) = places(Candidate(one_kernel(program), Schedule((mine,))), H200)
    assert any(FLATTEN.of(s) for s in sets(place)) == (dtype == "float16" and not causal)


def test_estimates_are_those_of_each_alone() -> None:
    several = [places(product(m), H200)[0] for m in (64, 128)]
    block, estimate = product().graph.blocks[0], estimator(H200)
    tried = [s for place in several for s in sets(place)]
    alone = [estimated(block, [s], estimate)[0] for s in tried]
    np.testing.assert_allclose(estimated(block, tried, estimate), alone, rtol=1e-12)


def test_a_new_option_that_pays_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry with counts is enough, in every kernel; without a gain none is chosen."""
    program = workload("mcfuser/G4")
    monkeypatch.setitem(OPTIONS, "less", replace(LESS, counts=lambda f, value: {"waits": -0.5}))
    best = tune_fast(program, load_device("a100")).winner
    assert {s.knob.get("less") for s in best.schedule.kernels} == {1}
    plain = tune_fast(program, H200, options=False).winner
    assert not any("less" in s.knob for s in plain.schedule.kernels)
    monkeypatch.setitem(OPTIONS, "less", replace(LESS, counts=lambda f, value: {"waits": 0.5}))
    assert not any("less" in s.knob for r in tune_fast(program, H200).runners for s in r.schedule.kernels)


def test_only_what_may_win_is_tried() -> None:
    """Schedules far behind the best are left as they are, and a kernel of several candidates is estimated once."""
    graph = next(g for g in structures(workload("mcfuser/S1")) if len(g.blocks) == 1)
    best = tune_fast(workload("mcfuser/S1"), H200, graphs=(graph,), options=False).winner
    calls = []

    def counting(f: Features) -> Counts:
        calls.append(f)
        return np.where(np.arange(len(f)) > 0, 0.5e-6, 1e-6)

    slow = replace(best, estimate=2 * WITHIN * best.seconds)
    found = polished([best, best, slow], H200, counting)
    assert len(found) == 5 and slow in found and best in found and len(calls) == 1
    assert found[0].seconds == pytest.approx(best.seconds - 0.5e-6) and found[0].schedule != best.schedule


@pytest.mark.parametrize(("m", "k", "n"), [(512, 3072, 768), (256, 4096, 1024), (1024, 1024, 1024)])
def test_products_with_a_residual_get_descriptors(m: int, k: int, n: int) -> None:
    """Their own estimates, not those that the search assumed; the epilogue's operands come before the loop."""
    b = Builder("product")
    x, w, bias, rest = b.input("X", (m, k)), b.input("W", (k, n)), b.input("b", (n,)), b.input("R", (m, n))
    tuned = tune_fast(b.build(Y=x @ w + bias + rest), H200)
    for r in (tuned.winner, *tuned.runners[:4]):
        assert graph_seconds(r.candidate, H200) == pytest.approx(r.seconds, rel=1e-9)
    alone = [r.schedule.kernels[0] for r in (tuned.winner, *tuned.runners) if len(r.schedule.kernels) == 1]
    whole = next(k for k in alone if BACKEND.of(k) == "triton")
    assert {"X", "W"} <= set(TMA.named(whole)) and HOIST.of(whole)
    plain = tune_fast(tuned.program, H200, options=False)
    first, without = (min(r.seconds for r in (t.winner, *t.runners) if len(r.schedule.kernels) == 1) for t in (tuned, plain))
    assert tuned.winner.seconds <= plain.winner.seconds and first < without
