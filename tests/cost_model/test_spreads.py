"""How what folds are given is spread over lanes and warps."""

from __future__ import annotations

import numpy as np
import pytest

from cost_model.features import schedule_features
from cost_model.spreads import along
from cost_model.spreads import powers
from cost_model.work import work
from fuser.device import load_device
from fuser.ir.builder import Builder
from fuser.ir.schedule import KernelSchedule
from fuser.superopt.structures import structures

H200 = load_device("h200")


def test_tiles_are_cut_into_powers_of_two_or_padded():
    assert [p.tolist() for p in powers(np.array([80, 96, 100, 64]))] == [[64, 64, 128, 64], [16, 32, 0, 0]]


@pytest.mark.parametrize(("columns", "warps", "met"), [(320, 4, 2), (256, 1, 0), (512, 4, 0), (768, 8, 2)])
def test_warps_that_a_piece_has_no_columns_for_stand_along_the_parts_of_its_sum(columns, warps, met):
    b = Builder("parts", "float32")
    p = b.input("P", (2, 64, columns))
    (block,) = next(g.blocks for g in structures(b.build(Y=b.sum(p, 0) + b.input("v", (columns,)))) if len(g.blocks) == 1)
    part, row, column = block.by_value["P"].at.axes
    tiles = ((part, 2), (row, 2), (column, columns))
    f = schedule_features(block, KernelSchedule(tiles, num_warps=warps))
    (fold,) = (s.stmt for s in f.stmts if s.stmt.folds)
    assert sum(float(x.warps[0]) > 1 for x in along(f, fold)) == met
    assert float(work(f, H200).passes[0]) == met
