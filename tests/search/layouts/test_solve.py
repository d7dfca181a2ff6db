"""Layouts of real kernels: the solver's plan against every plan, and what it has to hold."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from fuser.device import load_device
from fuser.errors import NoValidKernelError
from fuser.ir.layout.named import Mma
from fuser.ir.layout.named import MmaShared
from fuser.ir.mugraph import BlockGraph
from fuser.ir.schedule import KernelSchedule
from fuser.superopt.structures import structures
from fuser.workloads import workload
from search.layouts.facts import Facts
from search.layouts.modes import modes
from search.layouts.options import problem
from search.layouts.problem import judged
from search.layouts.report import planned
from search.layouts.solve import plan_layouts
from search.layouts.solve import solved

H200 = load_device("h200")
ATTENTION = "n [b=1 h=64 k=64 m={m} n={n}] warps=4 stages=3"


def block(name: str) -> BlockGraph:
    return structures(workload(name))[0].blocks[0]


def schedule(text: str, of: BlockGraph) -> KernelSchedule:
    return KernelSchedule.parse(text, of)


SMALL = [
    ("graphene/fmha", ATTENTION.format(m=192, n=128), "h200"),
    ("graphene/layernorm", "- [m=4 n=1024] warps=2 stages=2", "h200"),
    ("graphene/gemm-bias-relu", "k [k=32 m=64 n=64] warps=2 stages=3", "a100"),
]


@pytest.mark.parametrize("name, text, device", SMALL)
def test_a_plan_is_the_best_of_all_choices(name, text, device):
    b = block(name)
    f = Facts.of(b, schedule(text, b), load_device(device))
    found = solved(f)
    least = math.inf
    for m in modes(f):
        p = problem(f, m)
        if p is None:
            continue
        count = math.prod(len(n.options) for n in p.nodes)
        if count > 500:  # every one of them where that is possible, else every second option of the largest
            p = thinner(p)
        every = itertools.product(*(range(len(n.options)) for n in p.nodes))
        least = min([least, *(c.total for o in every if (c := judged(p, o)))])
    assert found.choice.total <= least * (1 + 1e-9)
    assert judged(found.problem, found.choice.options) == found.choice


def thinner(p):
    kept = [(0, *range(1, len(n.options), max(len(n.options) // 4, 1))) for n in p.nodes]
    nodes = tuple(replace(n, options=tuple(n.options[i] for i in dict.fromkeys(k))) for n, k in zip(p.nodes, kept, strict=True))
    numbers = [{old: new for new, old in enumerate(dict.fromkeys(k))} for k in kept]
    edges = tuple(
        replace(
            e,
            clocks={
                (numbers[e.first][i], numbers[e.second][j]): c
                for (i, j), c in e.clocks.items()
                if i in numbers[e.first] and j in numbers[e.second]
            },
        )
        for e in p.edges
    )
    return replace(p, nodes=nodes, edges=edges)


def test_what_a_plan_of_attention_holds():
    b = block("graphene/fmha")
    plan = plan_layouts(b, schedule(ATTENTION.format(m=192, n=128), b), H200)
    assert (plan.consumers, plan.part, plan.divided) == (3, 64, "m")
    assert plan.registers * plan.consumers * 128 + plan.producer * 128 * plan.producer_registers <= 65536 // plan.blocks
    assert plan.blocks * (plan.shared + 1024) <= H200.smem_per_sm
    assert plan.fragment["O_top"].layout == Mma(3, (4, 1), (16, 64, 16))
    assert plan.fragment["matmul_1"].tile == (64, 128) and plan.fragment["matmul_1"].registers == 64
    assert plan.fragment["sum_4"].registers == 2  # a row statistic: two rows a thread
    assert {o.value: o.place for o in plan.operands}["exp_3"] == "registers"
    assert all(isinstance(x.layout, MmaShared) and x.layout.swizzle == 128 for x in plan.buffers)
    assert plan.buffer["Q"].pieces == 3 and plan.buffer["K"].pieces == 1
    assert plan.buffer["K"].stages >= 2 and plan.us > 0


def test_registers_are_those_that_were_found_by_compiling():
    """240, 160 and 112 of a thread for two, three and four groups beside a producer."""
    b = block("graphene/fmha")
    for groups, registers in ((2, 240), (3, 160), (4, 112)):
        f = Facts.of(b, schedule(ATTENTION.format(m=64 * groups, n=64), b), H200)
        mine = next(m for m in modes(f) if m.groups == groups and m.producer and m.blocks == 1)
        assert mine.registers == registers


def test_four_groups_take_fewer_keys_and_three_more():
    """What fits: 128 keys a step need 140 registers a thread, which four groups with a producer have not."""
    b = block("graphene/fmha")
    four = plan_layouts(b, schedule(ATTENTION.format(m=256, n=128), b), H200)
    assert not (four.consumers == 4 and four.producer)


def test_schedules_compete_by_their_plans():
    b = block("graphene/fmha")
    several = [schedule(ATTENTION.format(m=m, n=n), b) for m in (128, 192) for n in (64, 128)]
    found = planned(b, several, H200)
    assert found.us == min(planned(b, [s], H200).us for s in several)
    assert found.schedule.tile["n"] == 128  # fewer trips: fewer barriers and folds


@pytest.mark.parametrize(
    "name, text, says",
    [
        ("graphene/fmha", "n [b=1 h=64 k=64 m=64 n=48] warps=4 stages=3", "in 2 pieces"),
        ("graphene/gemm-bias-relu", "k [k=256 m=256 n=256] warps=8 stages=4", "no layout"),
    ],
)
def test_what_has_no_plan_says_why(name, text, says):
    b = block(name)
    with pytest.raises(NoValidKernelError, match=says) as error:
        plan_layouts(b, schedule(text, b), H200)
    assert error.value.hint
