"""Kernels that Gluon's generator writes: the solver's price is the model's, its choice the best, its picks are right."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from cost_model.refined import estimate
from fuser.agreement import agreement
from fuser.device import load_device
from fuser.errors import NoValidKernelError
from fuser.ir.builder import Builder
from fuser.ir.layout.named import MmaShared
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.lower.check import random_inputs
from fuser.lower.emulator.language import emulate
from fuser.lower.gluon.choices import planned
from fuser.lower.gluon.source import generate_gluon
from fuser.lower.options import BACKEND
from fuser.lower.tiles import Tiles
from fuser.superopt.structures import structures
from fuser.workloads import workload
from search.layouts import written
from search.layouts.facts import Facts
from search.layouts.problem import judged
from search.layouts.report import picked
from search.layouts.solve import as_plan
from search.layouts.solve import plan_layouts
from search.layouts.solve import solved
from search.space.groups import group_space
from search.space.groups import written as has_form
from search.space.kernels import kernel_space
from tests.builders import attention
from tests.builders import chain

H200 = load_device("h200")
SCHEDULES = [
    ("graphene/fmha", "n [b=1 h=64 k=64 m=192 n=128] warps=12 stages=4 persistent=132"),
    ("mirage/gqa-prefill", "n [b=1 h=64 k=64 m=64 n=128] warps=8 stages=3"),  # trips of n shared out
    ("mirage/gqa-prefill", "n [b=1 h=64 k=64 m=128 n=64] warps=16 stages=2"),
    ("mirage/gqa-prefill", "n [b=1 h=64 k=64 m=64 n=128] warps=4 stages=3 specialize=False"),
    ("graphene/gemm-bias-relu", "k [k=64 m=192 n=128] warps=12 stages=4 group=8 persistent=132"),
    ("graphene/gemm-bias-relu", "k [k=64 m=128 n=192] warps=12 stages=4 group=8"),  # columns shared out
    ("graphene/gemm-bias-relu", "k [k=64 m=64 n=128] warps=8 stages=2"),  # trips of k
    ("graphene/gemm-bias-relu", "k [k=64 m=64 n=128] warps=4 stages=4 tma_Y=False"),
    ("graphene/layernorm", "- [m=4 n=1024] warps=4 stages=2"),
]


def block(name: str) -> BlockGraph:
    return alone(workload(name)).blocks[0]


def alone(program: TensorProgram) -> KernelGraph:
    return next(g for g in structures(program) if len(g.blocks) == 1)


def in_gluon(text: str, of: BlockGraph) -> KernelSchedule:
    return KernelSchedule.parse(f"{text} {BACKEND.key()}=gluon", of)


@pytest.mark.parametrize(("name", "text"), SCHEDULES)
def test_the_price_of_the_generators_own_choice_is_the_models(name: str, text: str) -> None:
    b = block(name)
    s = in_gluon(text, b)
    _, own = planned(Tiles.of(b, s))
    for p in written.problems(Facts.of(b, s, H200)):
        every = itertools.product(*(range(len(n.options)) for n in p.nodes))
        plans = {o: written.as_plan(p, o) for o in every if judged(p, o)}
        same = [
            o
            for o, plan in plans.items()
            if (plan.buffers, plan.fragments, plan.blocks) == (own.buffers, own.fragments, own.blocks)
        ]
        for o in same:
            choice = judged(p, o)
            assert choice is not None
            assert choice.total / H200.clock * 1e6 == pytest.approx(estimate(b, s, H200)["seconds"] * 1e6)
            assert plans[o].registers == own.registers
            return
    raise AssertionError("no choice is the generator's own")


@pytest.mark.parametrize(("name", "text"), SCHEDULES)
def test_no_choice_is_better(name: str, text: str) -> None:
    b = block(name)
    f = Facts.of(b, in_gluon(text, b), H200)
    least = math.inf
    for p in written.problems(f):
        every = itertools.product(*(range(len(n.options)) for n in p.nodes))
        least = min([least, *(c.total for o in every if (c := judged(p, o)))])
    found = solved(f)
    assert found.choice.total == pytest.approx(least)
    plan = as_plan(found)
    assert plan.blocks * (plan.shared + 1024) <= H200.smem_per_sm
    threads = 128 * (plan.consumers * plan.registers + plan.producer * plan.producer_registers)
    assert plan.blocks * threads <= H200.registers_per_sm


def product(m: int, n: int, k: int) -> TensorProgram:
    b = Builder("product")
    return b.build(Y=b.relu(b.input("X", (m, k)) @ b.input("W", (k, n)) + b.input("B", (n,))))


@pytest.mark.parametrize(
    ("program", "shares"),
    [
        (attention(64, 1024, 64, 64), 2),
        (attention(100, 700, 64, 64), 2),
        (attention(64, 1024, 64, 32, 2), 2),
        (attention(200, 200, 64, 64, causal=True), 1),
        (product(130, 128, 640), 1),
        (product(64, 64, 2048), 1),
        (chain(128, 512, 64, 64), 1),
    ],
)
def test_what_is_picked_is_written_and_right(program: TensorProgram, shares: int) -> None:
    graph = alone(program)
    found = picked(graph.blocks[0], H200)
    assert found is not None and found.plan is not None and found.plan.shares == shares
    tiles = Tiles.of(graph.blocks[0], found.schedule)
    inputs = random_inputs(graph, np.random.default_rng(0))
    reference = program.evaluate({n: np.asarray(x, np.float64) for n, x in inputs.items()})
    (name,) = graph.outputs
    for made in (generate_gluon(tiles, "kernel", given=found.plan), generate_gluon(tiles, "kernel")):
        assert agreement(emulate(made, inputs)[name], reference[name], "float16", 1e-2).ok


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (attention(128, 512, 64, 64), "n [b=1 h=64 k=64 m=64 n=64] warps=8 stages=2"),
        (attention(128, 512, 64, 64), "n [b=1 h=64 k=64 m=64 n=64] warps=16 stages=2"),
        (attention(192, 256, 64, 64), "n [b=1 h=64 k=64 m=192 n=64] warps=12 stages=2 persistent=132"),
        (attention(128, 512, 64, 64), "n [b=1 h=64 k=64 m=64 n=64] warps=4 stages=3 specialize=False"),
        (product(128, 192, 256), "k [k=64 m=128 n=192] warps=12 stages=2"),
        (product(128, 128, 512), "k [k=64 m=64 n=128] warps=8 stages=2"),
    ],
)
def test_every_choice_is_written_and_right(program: TensorProgram, text: str) -> None:
    """Narrower swizzles, results by pointers, fewer slots, more and fewer blocks."""
    graph = alone(program)
    s = in_gluon(text, graph.blocks[0])
    inputs = random_inputs(graph, np.random.default_rng(0))
    reference = program.evaluate({n: np.asarray(x, np.float64) for n, x in inputs.items()})
    (name,) = graph.outputs
    (*_, p) = written.problems(Facts.of(graph.blocks[0], s, H200))
    chosen = [tuple(int(rng.integers(len(n.options))) for n in p.nodes) for rng in map(np.random.default_rng, range(4))]
    for options in dict.fromkeys(((0,) * len(p.nodes), *chosen)):
        if judged(p, options) is None:
            continue
        made = generate_gluon(Tiles.of(graph.blocks[0], s), "kernel", given=written.as_plan(p, options))
        assert agreement(emulate(made, inputs)[name], reference[name], "float16", 1e-2).ok, options


def test_a_pick_is_the_best_of_the_whole_space() -> None:
    """Of all schedules by warp groups, each with all of its choices."""
    b = alone(attention(64, 512, 64, 32)).blocks[0]
    space = group_space(kernel_space(b, H200))
    assert space is not None
    least = math.inf
    rng = np.random.default_rng(0)
    every = [batch.schedule(i) for batch in space.batches({}) for i in range(len(batch))]
    for i in rng.permutation(len(every))[:25]:
        for knobs in ({}, {"persistent": 132}, {"specialize": False}):
            s = every[i].with_knobs(**knobs)
            if has_form(b, s):
                try:
                    least = min(least, solved(Facts.of(b, s, H200)).choice.total)
                except NoValidKernelError:
                    continue
    found = picked(b, H200)
    assert found is not None and found.us <= least / H200.clock * 1e6 * (1 + 1e-6)


def test_a_plan_says_which_trips_groups_take() -> None:
    b = block("mirage/gqa-prefill")
    plan = plan_layouts(b, in_gluon(SCHEDULES[1][1], b), H200)
    assert (plan.consumers, plan.part, plan.shares, plan.loop) == (2, 64, 2, "n")
    assert plan.buffer["K"].stages == 6 and {"O_top part", "sum_4 part"} <= plan.buffer.keys()


def test_small_tiles_leave_by_pointers_where_more_blocks_fit_so() -> None:
    """Two blocks of 64 × 128 with four stages lie side by side on an SM without a buffer for what leaves."""
    b = block("graphene/gemm-bias-relu")
    s = in_gluon("k [k=64 m=64 n=128] warps=4 stages=4", b)
    plan = plan_layouts(b, s, H200)
    assert plan.blocks == 2 and "Y out" not in plan.buffer
    same = s.with_knobs(tma_Y=False)
    assert planned(Tiles.of(b, same))[1].buffers == plan.buffers
    assert estimate(b, same, H200)["seconds"] < estimate(b, s, H200)["seconds"]


def test_a_plan_for_other_groups_is_refused() -> None:
    b = block("mirage/gqa-prefill")
    s = in_gluon(SCHEDULES[1][1], b)
    plan = plan_layouts(b, s, H200)
    with pytest.raises(NoValidKernelError, match="no warp that loads"):
        generate_gluon(Tiles.of(b, s), "kernel", given=replace(plan, producer=False))
    with pytest.raises(NoValidKernelError, match="for sm_90"):
        Facts.of(b, s, load_device("a100"))
    assert all(x.layout.swizzle == 128 for x in plan.buffers if isinstance(x.layout, MmaShared))
