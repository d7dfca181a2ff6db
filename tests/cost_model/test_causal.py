"""Loops that end behind a diagonal: their trips against counting them, and how unevenly they lie on SMs."""

from __future__ import annotations

import numpy as np
import pytest

from cost_model.features import Features
from cost_model.features import schedule_features
from fuser.ir.builder import Builder
from fuser.ir.mugraph import BlockGraph
from fuser.ir.schedule import KernelSchedule
from fuser.superopt.structures import structures


def attention(m: int, n: int, heads: int, causal: bool = True) -> BlockGraph:
    b = Builder("attention")
    q, k, v = b.input("Q", (heads, m, 64)), b.input("K", (heads, n, 64)), b.input("V", (heads, n, 64))
    return next(g.blocks[0] for g in structures(b.build(O=b.attention(q, k, v, causal=causal))) if len(g.kernels) == 1)


def of(block: BlockGraph, m: int, n: int) -> Features:
    return schedule_features(block, KernelSchedule.parse(f"n [b=1 h=64 k=64 m={m} n={n}] warps=4 stages=2", block))


@pytest.mark.parametrize(("rows", "keys", "m", "n"), [(512, 512, 128, 64), (500, 700, 64, 128), (256, 512, 64, 32)])
def test_trips_are_those_with_anything_below_the_diagonal(rows: int, keys: int, m: int, n: int) -> None:
    block = attention(rows, keys, 2)
    f = of(block, m, n)
    (mask,) = (s for s in block.computes if s.masks)
    shown = np.arange(keys)[None, :] <= np.arange(rows)[:, None] + int(mask.attr["offset"] or 0)
    trips = [sum(bool(shown[i : i + m, j : j + n].any()) for j in range(0, keys, n)) for i in range(0, rows, m)]
    assert f.often["n"][0] == pytest.approx(np.mean(trips))
    assert f.trips["n"][0] == -(-keys // n)


def test_without_a_mask_blocks_are_alike() -> None:
    f = of(attention(512, 512, 2, causal=False), 64, 64)
    assert f.often is f.trips
    assert [x.tolist() for x in f.busiest(np.array([132.0]), 132, np.array([False]))] == [[1.0], [1.0]]


def test_the_busiest_sm_decides() -> None:
    f = of(attention(1024, 1024, 16), 64, 64)  # 256 places of 1 to 16 trips
    mean = 8.5

    def busiest(slots: int, sms: int, stay: bool, groups: bool) -> tuple[float, float]:
        place, sm = (float(x[0]) for x in f.busiest(np.array([float(slots)]), sms, np.array([stay]), groups))
        return place * mean * -(-256 // slots), sm * mean * -(-256 // slots)

    assert busiest(256, 256, False, False) == busiest(256, 256, True, True) == pytest.approx((16, 16))
    assert busiest(256, 128, False, True) == pytest.approx((16, 12))  # an SM has one of 16 and one of 8
    assert busiest(16, 16, True, False) == pytest.approx((256, 256))  # each has the same rows of all heads
    assert busiest(128, 128, True, True) == pytest.approx((17, 17))  # back and forth: 16 + 1
    assert busiest(128, 128, True, False) == pytest.approx((32, 32))
    # the longest come first: the short ones fill what is left
    assert busiest(64, 64, False, True) < busiest(64, 64, False, False)
    assert busiest(64, 64, False, True)[0] == pytest.approx(34, rel=0.05)
