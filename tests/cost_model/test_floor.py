"""Bounds on what any schedule takes."""

from __future__ import annotations

import pytest

from cost_model.floor import alone_seconds
from fuser.device import load_device
from fuser.ir.builder import Builder
from fuser.superopt.structures import structures

H100 = load_device("h100")


def bounds(steps: int, rows: int) -> list[float]:
    """Of the structures that have all products of a state that is multiplied again and again in one kernel."""
    b = Builder("steps")
    table, y = b.input("T", (1024, 1024)), b.input("X", (rows, 1024))
    for _ in range(steps):
        y = b.op("tanh", y @ table)
    graphs = structures(b.build(Y=y))
    whole = [g for g in graphs if len(g.blocks) == 1 and sum(s.contracts for s in g.blocks[0].computes) == steps]
    return [max(alone_seconds(k, H100) for k in g.blocks) for g in whole]


@pytest.mark.parametrize("rows", [1, 16])
def test_a_product_that_every_block_needs_is_done_by_one_sm(rows: int) -> None:
    """Its table of 2 MB goes through one SM, which takes 29 µs at least; alone it is shared out."""
    assert max(bounds(1, rows)) < 1e-6
    assert min(bounds(2, rows)) > 25e-6


def test_rows_are_shared_out() -> None:
    assert max(bounds(2, 8192)) < 60e-6
