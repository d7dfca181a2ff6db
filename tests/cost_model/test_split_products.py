"""Products of float32 as three of tf32: what threads do for each tile and trip."""

from __future__ import annotations

from cost_model.refined import estimate
from fuser.device import load_device
from fuser.ir.builder import Builder
from fuser.superopt.structures import one_kernel
from tests.builders import schedule

H200 = load_device("h200")
B = Builder("exact", "float32")
BLOCK = one_kernel(B.build(Y=B.input("X", (1024, 2048)) @ B.input("W", (2048, 2048)).T)).blocks[0]


def us(k: int, m: int = 128, n: int = 128, warps: int = 8, stages: int = 3) -> float:
    return 1e6 * estimate(BLOCK, schedule("k", warps=warps, stages=stages, m=m, n=n, k=k), H200)["seconds"]


def test_each_trip_adds_to_the_sum() -> None:
    assert us(64) < us(32) < us(16)


def test_two_stages_fetch_nothing_ahead() -> None:
    assert us(64, stages=2) > 1.05 * us(64)


def test_columns_of_other_groups_split_the_same_rows() -> None:
    assert us(64, m=64, n=64) > 1.5 * us(64, m=64, n=64, warps=4)


def test_what_spills_is_slower() -> None:
    assert us(16, warps=4) > 1.3 * us(16)


def test_rows_along_the_sum_are_read_in_whole_vectors() -> None:
    b = Builder("odd", "float32")
    odd = one_kernel(b.build(Y=b.input("X", (1024, 2047)) @ b.input("W", (2048, 2047)).T)).blocks[0]
    tiles = schedule("k", warps=8, stages=3, m=128, n=128, k=64)
    assert 1e6 * estimate(odd, tiles, H200)["seconds"] > 2 * us(64)


def test_probabilities_from_memory_become_rows_by_way_of_shared_memory() -> None:
    b = Builder("values", "float32")
    s, v = b.input("S", (4096, 512)), b.input("V", (64, 512))
    plain, made = (one_kernel(b.build(Y=x @ v.T)).blocks[0] for x in (s, b.op("exp", s)))
    tiles = schedule("k", warps=4, stages=3, m=64, n=64, k=64)
    seconds = [estimate(x, tiles, H200)["seconds"] for x in (plain, made)]
    assert seconds[1] > 1.2 * seconds[0]
