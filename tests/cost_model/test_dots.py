"""Which contractions tensor cores compute: what the generator writes, the model has to expect."""

from __future__ import annotations

import pytest

from cost_model.features import schedule_features
from cost_model.resources import resources
from fuser.device import load_device
from fuser.ir.builder import Builder
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
