"""Streams of weights past a few rows: what the model counts of them, and which schedules are there and which are left out."""

from __future__ import annotations

import numpy as np

from cost_model.features import schedule_features
from cost_model.refined import estimate
from fuser.device import load_device
from fuser.ir.builder import Builder
from fuser.ir.mugraph import BlockGraph
from fuser.ir.schedule import KernelSchedule
from fuser.ir.tiling import TilingExpr
from fuser.superopt.structures import structures
from search.space.hazards import unwieldy
from search.space.prune import tile_sets

H200 = load_device("h200")


def block(rows: int, turned: bool = False, k: int = 4096, n: int = 4096) -> BlockGraph:
    b = Builder("product")
    x, w = b.input("X", (rows, k)), b.input("W", (n, k) if turned else (k, n))
    return structures(b.build(Y=x @ (w.T if turned else w)))[0].blocks[0]


def schedule(warps: int, stages: int, **tiles: int) -> KernelSchedule:
    return KernelSchedule(tuple(sorted(tiles.items())), TilingExpr(("k",)), (), warps, stages)


def test_nothing_pads_the_tile_of_a_product_without_rows() -> None:
    """So many terms are multiplied, whatever the tile of the columns is."""
    few, many = (estimate(block(1, turned=True), schedule(4, 2, k=1024, n=n), H200) for n in (4, 16))
    assert np.isclose(few["blocks"] * few["tensor"], 4 * few["blocks"] * many["tensor"] / 4, rtol=0.1)
    assert 4096 * 4096 * 2 / H200.memory_bandwidth < few["seconds"] < 2.0 * 4096 * 4096 * 2 / H200.memory_bandwidth


def test_tiles_of_a_few_rows_of_a_weight() -> None:
    fine, coarse = ({t.axis: t.values for t in tile_sets(block(1, turned))} for turned in (True, False))
    assert min(fine["n"]) == 4
    assert min(coarse["n"]) == 16


def test_what_threads_cannot_hold_is_left_out() -> None:
    b = Builder("gated")
    x, w, u = b.input("X", (1, 2048)), b.input("W", (8192, 2048)), b.input("U", (8192, 2048))
    both = structures(b.build(Y=b.silu(x @ w.T) * (x @ u.T)))[0].blocks[0]
    crammed = KernelSchedule((("k", 2048), ("n", 32)), TilingExpr(), (), 4, 2)
    held = KernelSchedule((("k", 512), ("n", 8)), TilingExpr(("k",)), (), 4, 2)
    assert unwieldy(schedule_features(both, crammed)).all()
    assert not unwieldy(schedule_features(both, held)).any()


def test_products_of_few_rows_fetch_ahead() -> None:
    for stages, left_out in ((1, True), (3, False)):
        f = schedule_features(block(4), schedule(4, stages, k=64, m=16, n=64))
        assert bool(np.all(unwieldy(f))) == left_out
