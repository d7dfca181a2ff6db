"""What rows that are not aligned cost."""

from __future__ import annotations

import numpy as np
import pytest

from cost_model.features import schedule_features
from cost_model.refined import estimate
from cost_model.rows import moved_at_once
from cost_model.rows import partial
from cost_model.rows import row_bytes
from cost_model.rows import sectors
from fuser.device import load_device
from fuser.ir.builder import Builder
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import KernelGraph
from fuser.ir.pitched import laid
from fuser.ir.schedule import KernelSchedule
from fuser.ir.tiling import TilingExpr

H200 = load_device("h200")


def product(columns: int, dtype: str = "float16") -> KernelGraph:
    b = Builder("back")
    h, v = b.input("H", (512, columns), dtype), b.input("V", (768, columns), dtype)
    return fuse(b.build(Y=b.op("matmul", h, b.op("transpose", v, perm=(1, 0)), dtype=dtype)))


def tiles(k: int) -> KernelSchedule:
    return KernelSchedule((("k", k), ("m", 64), ("n", 64)), TilingExpr.parse("k", ("k", "m", "n")), num_stages=3)


@pytest.mark.parametrize(
    ("columns", "tile", "at_once"),
    [(200, 64, 16), (197, 64, 2), (198, 64, 4), (196, 64, 8), (196, 28, 8), (208, 16, 16), (204, 12, 8), (197, 197, 2)],
)
def test_what_a_thread_moves_at_once(columns: int, tile: int, at_once: int) -> None:
    """As the compiler finds it: strides, and the mask at the end of a row, decide."""
    graph = product(columns)
    f = schedule_features(graph.blocks[0], tiles(tile))
    assert moved_at_once(f, graph.blocks[0].loads[0]) == at_once


def test_longer_rows_are_aligned() -> None:
    graph = laid(product(197), [("H", 200), ("V", 200)])
    assert graph is not None
    f = schedule_features(graph.blocks[0], tiles(64))
    assert [moved_at_once(f, s) for s in graph.blocks[0].loads] == [16, 16]
    assert row_bytes(f, graph.blocks[0].loads[0]) == 16


def test_runs_that_begin_anywhere_lie_in_more_sectors() -> None:
    run = np.array([16.0, 32.0, 128.0])
    some = [(c, schedule_features(product(c).blocks[0], tiles(64))) for c in (208, 200, 197)]
    found = {c: sectors(f, f.block.loads[0], run).tolist() for c, f in some}
    assert found == {208: [1, 1, 4], 200: [1, 1.5, 4.5], 197: [46 / 32, 62 / 32, 158 / 32]}


def test_what_is_aligned_costs_less() -> None:
    longer = laid(product(197), [("H", 200), ("V", 200)])
    assert longer is not None
    schedule = tiles(64)
    times = [estimate(g.blocks[0], schedule, H200)["seconds"] for g in (product(200), longer, product(198), product(197))]
    assert times[0] == pytest.approx(times[1], rel=0.01), "197 columns in rows of 200 are read as 200"
    assert times[1] < times[2] < times[3]


def turned(columns: int, tile: int, back: bool = False) -> float:
    """Microseconds in which rows of 64 numbers become rows of ``columns``, written in pieces, or these come back."""
    b = Builder("turned", "float32")
    x = b.input("X", (48, 64, columns) if back else (48, columns, 64))
    (block,) = fuse(b.build(Y=b.relu(x).T)).blocks
    lanes = {64: 32, columns: tile, 48: 1}
    expr = TilingExpr.parse("-", tuple(a.name for a in block.axes))
    tiles = tuple(sorted((a.name, lanes[block.extents[a.name]]) for a in block.axes))
    return 1e6 * estimate(block, KernelSchedule(tiles, expr, num_warps=8, num_stages=2), H200)["seconds"]


def test_sectors_in_which_pieces_of_rows_begin_are_read_first() -> None:
    assert turned(36481, 32) > 1.1 * turned(36481, 128)
    assert turned(36480, 32) == pytest.approx(turned(36480, 128), rel=0.03)
    assert turned(36481, 32, back=True) == pytest.approx(turned(36481, 128, back=True), rel=0.03)


@pytest.mark.parametrize(("groups", "torn"), [(1, 1), (2, 1), (4, 0)])
def test_pieces_of_rows_that_fill_no_sector_cost_more(groups: int, torn: int) -> None:
    """Four channels of two bytes are a quarter of a sector."""
    b = Builder("turned")
    y = b.op("group_norm", b.input("X", (2, 64, 32, 32)), groups=16)
    block = fuse(b.build(Y=b.op("silu", y).transpose(0, 2, 3, 1))).blocks[0]
    schedule = KernelSchedule((("h", 4), ("i", 1024), ("m", 1), ("n", groups)))
    f = schedule_features(block, schedule)
    (store,) = block.stores
    assert partial(f, store, np.array([4 * groups * 2.0])).tolist() == [torn]
