"""Faults of compilers are data about devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cost_model.features import schedule_features
from fuser.device import load_device
from fuser.ir.builder import Builder
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.superopt.structures import one_kernel
from fuser.workloads import workload
from search.space.hazards import FAULTS
from search.space.hazards import hazardous
from search.space.hazards import unwieldy


def test_faults_hold_for_capabilities_and_not_for_names() -> None:
    block = one_kernel(workload("mcfuser/G2")).blocks[0]
    tiles = (("h", 16), ("k", 64), ("m", 64), ("n", 256))
    f = schedule_features(block, KernelSchedule(tiles, TilingExpr.parse(""), (), 4, 2))
    h200 = load_device("h200")
    assert hazardous(f, h200).all()
    assert hazardous(f, replace(h200, name="another", title="Another")).all()
    for arch in (80, 86, 100, 120):
        assert not np.any(hazardous(f, replace(h200, arch=arch)))
    assert all(fault.first < fault.before and fault.compilers for fault in FAULTS)


def test_a_flattened_chain_by_pointers_is_left_out() -> None:
    """As an H200 has them: wrong where warp groups multiply what is computed, right by descriptors, with fragments, and where the
    pipeline ends at each place."""
    block = one_kernel(workload("mirage/mha-prefill:8")).blocks[0]
    h200 = load_device("h200")
    boxes = "tma_K=True tma_O=True tma_Q=True tma_V=True"
    for rows, knobs, expected in (
        (64, "flatten=True persistent=528", True),
        (64, "persistent=528", False),
        (64, f"flatten=True persistent=528 {boxes}", False),
        (32, "flatten=True persistent=528", False),
    ):
        text = f"n [b=1 h=64 k=64 m={rows} n=64] warps=4 stages=3 {knobs}"
        (schedule,) = Schedule.parse(text, (block,)).kernels
        assert hazardous(schedule_features(block, schedule), h200).tolist() == [expected], text


def test_rows_that_are_multiplied_both_ways_are_left_out() -> None:
    """160 rows are 128 by warp groups and 32 by fragments, which read one buffer: wrong on an H200."""
    b = Builder("product")
    block = one_kernel(b.build(Y=b.relu(b.input("X", (1576, 768)) @ b.input("W", (768, 3072))))).blocks[0]
    h200 = load_device("h200")
    for rows, rest, expected in (
        (160, "warps=4 stages=4", True),
        (96, "warps=8 stages=2", True),
        (160, "warps=4 stages=1", False),
        (160, "warps=2 stages=4", False),
        (192, "warps=8 stages=4", False),
        (48, "warps=4 stages=4", False),
    ):
        (schedule,) = Schedule.parse(f"k [k=64 m={rows} n=128] {rest}", (block,)).kernels
        f = schedule_features(block, schedule)
        assert hazardous(f, h200).tolist() == [expected], (rows, rest)
        assert not hazardous(f, replace(h200, arch=80)).any()


def test_a_product_woven_with_a_load_is_no_right_operand_in_a_loop() -> None:
    """X (W + A B) in one kernel, its sum in a loop; with all of the sum at once it is none, nor are scores with a bias, which
    are a left operand."""
    b = Builder("woven")
    x, w, a, c = b.input("X", (64, 256)), b.input("W", (256, 64)), b.input("A", (256, 16)), b.input("B", (16, 64))
    woven = one_kernel(b.build(Y=x @ (w + a @ c))).blocks[0]
    total = next(s for s in woven.computes if s.contracts and s.value.startswith("Y")).reduce[0]
    for tile, expected in ((64, True), (256, False)):
        tiles = {n.name: min(n.extent, 64) for n in woven.axes} | {total: tile}
        order = TilingExpr((total,)) if tile < 256 else TilingExpr()
        found = unwieldy(schedule_features(woven, KernelSchedule(tuple(sorted(tiles.items())), order, (), 4, 2)))
        assert found.tolist() == [expected]

    b = Builder("biased")
    q, k, v, bias = b.input("Q", (64, 64)), b.input("K", (64, 256)), b.input("V", (256, 64)), b.input("S", (64, 256))
    biased = one_kernel(b.build(O=b.relu(q @ k + bias) @ v)).blocks[0]
    keys = next(s for s in biased.computes if s.contracts and s.value.startswith("O")).reduce[0]
    tiles = {n.name: min(n.extent, 64) for n in biased.axes}
    schedule = KernelSchedule(tuple(sorted(tiles.items())), TilingExpr((keys,)), (), 4, 2)
    assert not unwieldy(schedule_features(biased, schedule)).any()


def test_a_loop_over_places_loads_what_is_multiplied_as_it_is() -> None:
    """Keys that are computed on first go to shared memory and back: never faster in rows of an H200, up to 1.7 times as long."""

    def refused(first: bool, *knobs: tuple[str, int]) -> bool:
        b = Builder("attention")
        q, k, v = (b.input(name, (4, rows, 64)) for name, rows in (("Q", 16), ("K", 64), ("V", 64)))
        block = one_kernel(b.build(O=b.softmax(q @ (b.relu(k) if first else k).T) @ v)).blocks[0]
        tiles = tuple((a.name, 1 if a.name == "b" else 16 if a.name == "m" else 64) for a in block.axes)
        return bool(unwieldy(schedule_features(block, KernelSchedule(tiles, TilingExpr.parse(""), (), 4, 2, knobs))).any())

    assert refused(True, ("persistent", 132))
    assert not refused(True)
    assert not refused(False, ("persistent", 132))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("columns", "several"), [(208, True), (400, True), (320, False), (256, False)])
def test_products_of_float32_have_two_pieces_at_most(columns: int, several: bool, dtype: str) -> None:
    b = Builder("wide", dtype)
    block = one_kernel(b.build(Y=b.input("X", (512, 128)) @ b.input("W", (128, columns)))).blocks[0]
    (schedule,) = Schedule.parse(f"k [k=16 m=32 n={columns}] warps=4 stages=4", (block,)).kernels
    assert unwieldy(schedule_features(block, schedule)).tolist() == [several and dtype == "float32"]
