"""Sizes of checks."""

from __future__ import annotations

import pytest

from fuser.ir.builder import Builder
from fuser.ir.candidate import Candidate
from fuser.ir.schedule import Schedule
from fuser.lower.reduced import at_reduced_sizes
from fuser.lower.reduced import with_tiles_alike
from fuser.superopt.structures import structures
from tests.builders import schedule


@pytest.mark.parametrize(("rows", "ragged"), [(16384, False), (16383, True)])
def test_a_tile_of_thousands_beside_rows_of_one_shrinks_and_stays_as_ragged(rows: int, ragged: bool) -> None:
    b = Builder("rows")
    program = b.build(Y=b.sum(b.op("sqrt", b.sum(b.op("square", b.input("X", (rows, 4096))), 1)), 0))
    graph = next(g for g in structures(program) if ("k", "k_part") in g.blocks[0].splits)
    parts = {"k_part": 2}
    plans = schedule("k", parts, i=1, k=1024), schedule("i", parts, warps=16, i=8192)
    small = with_tiles_alike(Candidate(graph, Schedule(plans)))
    tile = dict(small.schedule.kernels[1].tiles)["i"]
    assert tile <= 128
    assert bool(rows % tile) == ragged
    sizes, _, _ = at_reduced_sizes(program, graph, small.schedule)
    assert sizes["i"] < 512
