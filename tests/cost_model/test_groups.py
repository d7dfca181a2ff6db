"""Prices of kernels by warp groups: what blocks hold is what the generator gives them, and times are near those of an H200."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from cost_model import groups
from cost_model.features import schedule_features
from cost_model.refined import estimate
from cost_model.resources import resources
from fuser.device import load_device
from fuser.ir.builder import Builder
from fuser.ir.mugraph import BlockGraph
from fuser.ir.schedule import KernelSchedule
from fuser.ir.tiling import TilingExpr
from fuser.lower.gluon.choices import BARRIERS
from fuser.lower.gluon.choices import DRIVER
from fuser.lower.gluon.choices import planned
from fuser.lower.tiles import Tiles
from fuser.superopt.structures import structures
from fuser.workloads import workload

H200 = load_device("h200")
ATTENTION, PRODUCT = (
    "n [b=1 h=64 k=64 m={} n={}] warps={} stages={} backend=gluon",
    "k [k=64 m={} n={}] warps={} stages={} backend=gluon",
)


def block(name: str) -> BlockGraph:
    return next(g.blocks[0] for g in structures(workload(name)) if len(g.blocks) == 1)


@pytest.mark.parametrize(
    ("name", "text"),
    [("graphene/fmha", ATTENTION), ("mirage/mha-prefill", ATTENTION), ("graphene/gemm-bias-relu", PRODUCT)],
)
def test_blocks_hold_what_the_generator_gives_them(name: str, text: str) -> None:
    """Rows for each group or trips shared out, more stages than there is room for, blocks that stay or end."""
    b, rng, fits = block(name), np.random.default_rng(0), 0
    for _ in range(40):
        m, n = int(rng.choice([64, 128, 192, 256])), int(rng.choice([64, 128]))
        knobs = str(rng.choice(["", " persistent=132", " group=8 persistent=264"]))
        s = KernelSchedule.parse(text.format(m, n, rng.choice([4, 8, 12, 16]), rng.integers(2, 6)) + knobs, b)
        held = groups.held_by_groups(schedule_features(b, s), H200)
        if not held.fits[0]:
            assert estimate(b, s, H200)["seconds"] == inf
            continue
        fits += 1
        _, plan = planned(Tiles.of(b, s))
        assert (held.groups[0], held.blocks[0], held.registers[0]) == (plan.consumers, plan.blocks, plan.registers)
        assert held.shared[0] == sum(x.bytes for x in plan.buffers) + BARRIERS
    assert fits > 10


@pytest.mark.parametrize(
    ("name", "text", "us"),
    [
        ("graphene/fmha", ATTENTION.format(192, 128, 12, 4) + " persistent=132", 49.2),
        ("graphene/fmha", ATTENTION.format(128, 64, 8, 4) + " persistent=132", 61.9),
        ("mirage/gqa-prefill:8", ATTENTION.format(256, 64, 16, 3), 143.4),
        ("mirage/gqa-prefill", ATTENTION.format(64, 128, 8, 3), 23.5),
        ("mirage/gqa-prefill", ATTENTION.format(64, 64, 4, 2) + " persistent=132", 42.5),
        ("graphene/gemm-bias-relu", PRODUCT.format(192, 128, 12, 4) + " group=8 persistent=132", 170.7),
    ],
)
def test_times_are_near_those_of_an_h200(name: str, text: str, us: float) -> None:
    b = block(name)
    assert estimate(b, KernelSchedule.parse(text, b), H200)["seconds"] * 1e6 == pytest.approx(us, rel=0.18)


def test_more_slots_pay() -> None:
    """With one slot ahead each trip waits for its data."""
    b = block("mirage/gqa-prefill")
    few, more = (estimate(b, KernelSchedule.parse(ATTENTION.format(64, 64, 4, n), b), H200) for n in (2, 4))
    assert few["fetch"] > 1.5 * more["fetch"] and few["seconds"] >= more["seconds"]


def test_a_smaller_sm_holds_fewer_blocks() -> None:
    """The generator writes for an SM of Hopper; a device with less has what fits it, or no such kernel."""
    b = block("graphene/gemm-bias-relu")
    f = schedule_features(b, KernelSchedule.parse(PRODUCT.format(64, 128, 4, 3) + " persistent=264", b))
    whole = groups.held_by_groups(f, H200)
    need = int(whole.shared[0]) + DRIVER
    assert whole.blocks[0] == 2
    for small in (replace(H200, smem_per_sm=need), replace(H200, registers_per_sm=H200.registers_per_sm // 2)):
        assert groups.held_by_groups(f, small).blocks[0] == 1 and groups.held_by_groups(f, small).fits[0]
    for none in (replace(H200, smem_per_block=need - DRIVER - 1), replace(H200, registers_per_sm=1024)):
        assert not groups.held_by_groups(f, none).fits[0]


def test_instructions_of_few_columns_wait_for_the_way_of_their_rows() -> None:
    """A product of 16 columns reads its 64 rows from shared memory as one of 64 does."""

    def products(columns: int) -> float:
        b = Builder("product")
        one = next(iter(structures(b.build(Y=b.input("X", (512, 4096)) @ b.input("W", (4096, columns)))))).blocks[0]
        m, k, n = *one.by_value["X"].at.axes, one.by_value["W"].at.axes[-1]
        schedule = KernelSchedule(((k, 64), (m, 64), (n, columns)), TilingExpr.parse(k), (), 4, 4, (("backend", "gluon"),))
        f = schedule_features(one, schedule)
        return float(groups.group_work(f, resources(f, H200), H200).streamed.products[0])

    assert products(16) > 0.5 * products(64)
    assert products(256) == pytest.approx(2 * products(128), rel=0.1)


def test_code_of_all_groups_has_to_fit_into_the_cache_for_instructions() -> None:
    """Logarithms of 2048 x 30720 results took an H100 440 µs by four groups, 292 by three; without them four are as fast."""

    def us(op: str, m: int, warps: int, stages: int) -> float:
        b = Builder("epilogue")
        y = b.op("relu", b.input("X", (2048, 768)) @ b.input("W", (30720, 768)).T)
        (graph,) = [g for g in structures(b.build(Y=y if op == "relu" else b.op(op, y))) if len(g.blocks) == len(g.kernels) == 1]
        (kernel,) = graph.blocks
        s = KernelSchedule.parse(PRODUCT.format(m, 128, warps, stages) + " persistent=132", kernel)
        return float(estimate(kernel, s, load_device("h100"))["seconds"]) * 1e6

    assert us("log1p", 256, 16, 3) > 1.3 * us("log1p", 192, 12, 4) > 1.1 * us("relu", 192, 12, 4)
    assert us("tanh", 256, 16, 3) < us("tanh", 192, 12, 4) and us("tanh", 256, 16, 3) > 1.1 * us("relu", 256, 16, 3)
