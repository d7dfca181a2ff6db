"""Which contractions tensor cores compute: what the generator writes, the model has to expect."""

from __future__ import annotations

import pytest

from cost_model.features import schedule_features
from cost_model.resources import resources
from fuser.device import load_device
from fuser.ir.builder import Builder
from fuser.ir.schedule import KernelSchedule
from fuser.ir.tiling import TilingExpr
from fuser.lower.tiles import Tiles
from fuser.superopt.structures import one_kernel
from tests.builders import schedule

H200 = load_device("h200")


@pytest.mark.parametrize("batch", [1, 8])
def test_products_side_by_side_in_a_block_are_without_tensor_cores(batch: int) -> None:
    """What is summed over all products of a batch needs them in one block, or one after the other."""
    b = Builder("over_batch")
    products = b.input("X", (8, 64, 64)) @ b.input("Y", (8, 64, 64))
    block = one_kernel(b.build(Z=b.op("sum", b.op("square", products), axis=(0,)))).blocks[0]
    way = schedule("b(k)", m=16, n=16, k=16, b=batch)
    f, tiles = schedule_features(block, way), Tiles.of(block, way)
    (at,) = (i for i, s in enumerate(f.stmts) if s.stmt.contracts)
    assert bool(resources(f, H200).dots[at].tensor[0]) == tiles.is_dot(f.stmts[at].stmt) == (batch == 1)


def test_each_contraction_of_a_block_is_looked_at_by_itself() -> None:
    """A norm over heads between two products: the first is in a block for all of them, the second for none."""
    b = Builder("two")
    heads = b.op("square", b.input("X", (8, 64, 64)) @ b.input("Y", (8, 64, 64)))
    block = one_kernel(b.build(Z=b.op("sum", heads, axis=(0,)) @ b.input("W", (64, 64)))).blocks[0]
    way = KernelSchedule(tuple((a.name, a.extent) for a in block.axes), TilingExpr.parse(""), (), 4, 2, ())
    f, tiles = schedule_features(block, way), Tiles.of(block, way)
    found = resources(f, H200).dots
    assert [bool(found[i].tensor[0]) for i in sorted(found)] == [tiles.is_dot(f.stmts[i].stmt) for i in sorted(found)]
    assert {bool(d.tensor[0]) for d in found.values()} == {False, True}
