"""Tensors of data and threads: Graphene's figures 3 to 6, and partial tiles."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from fuser.errors import ProgramError
from fuser.ir.layout.algebra import Layout
from fuser.ir.layout.algebra import columns
from fuser.ir.layout.algebra import rows
from fuser.ir.layout.tensors import QUAD_PAIR
from fuser.ir.layout.tensors import WARP
from fuser.ir.layout.tensors import blocks
from fuser.ir.layout.tensors import row_major
from fuser.ir.layout.tensors import tensor
from fuser.ir.layout.tensors import threads

A = tensor("A", columns((4, 8)), "float32")


def picture(layout: Layout) -> list[list[int]]:
    return [[layout(i, j) for j in range(8)] for i in range(4)]


def test_figure_3_memory_layouts():
    assert picture(columns((4, 8)))[1] == [1, 5, 9, 13, 17, 21, 25, 29]
    assert picture(rows((4, 8)))[1] == [8, 9, 10, 11, 12, 13, 14, 15]
    pairs = Layout((4, (2, 4)), (2, (1, 8)))  # two neighbours, then down the rows, then the next two
    assert picture(pairs) == [[2 * i + j % 2 + 8 * (j // 2) for j in range(8)] for i in range(4)]
    both = Layout(((2, 2), (2, 4)), ((2, 16), (1, 4)))  # hierarchy in both dimensions
    assert sorted(both.offsets()) == list(range(32))
    assert both.rank == 2 and [both(i, 0) for i in range(4)] == [0, 2, 16, 18] and [both(0, j) for j in range(4)] == [0, 1, 4, 5]
    assert Layout((4, 8), (9, 1))(3, 7) == 34  # padded rows


@pytest.mark.parametrize(
    "tilers, expected",
    [
        ((2, 4), "%A:[(2,2):(2,16)].[(2,4):(1,4)].fp32"),
        ((Layout(2, 2), 4), "%A:[(2,2):(1,16)].[(2,4):(2,4)].fp32"),
        ((Layout(2, 2), Layout((2, 2), (1, 4))), "%A:[(2,2):(1,8)].[(2,(2,2)):(2,(4,16))].fp32"),
    ],
)
def test_figure_4_tiles(tilers, expected):
    tiled = A.tile(*tilers)
    assert str(A) == "%A:[(4,8):(1,4)].fp32"
    assert str(tiled) == expected
    everywhere = [(t, e) for t in itertools.product(range(2), repeat=2) for e in itertools.product(range(2), range(4))]
    found = {tiled.index(*w): tiled.offset(*w) for w in everywhere}
    assert found == {(i, j): A.offset((i, j)) for i in range(4) for j in range(8)}
    assert not tiled.partial


def test_figure_5_threads_of_ldmatrix():
    groups = threads("1", WARP).tile(8)
    assert str(groups) == "#1:[4:8].[8:1].thread"
    square = groups.reshape((2, 2))
    assert str(square) == "#1:[(2,2):(8,16)].[8:1].thread"
    for tid in range(WARP):  # the index expressions of the figure: group_m, group_n, thread in group
        assert square.offset((tid // 8 % 2, tid // 16), tid % 8) == tid


def test_figure_6_quad_pairs():
    pairs = threads("1", WARP).tile(QUAD_PAIR)
    assert str(pairs) == "#1:[4:4].[(4,2):(1,16)].thread"
    assert list(pairs.at(0).levels[0].offsets()) == [0, 1, 2, 3, 16, 17, 18, 19]
    assert sorted(pairs.offset(g, t) for g in range(4) for t in range(8)) == list(range(WARP))


def test_a_grid_is_a_tensor_of_blocks():
    assert str(blocks("0", 8, 4).tile(2, 1)) == "#0:[(4,4):(2,8)].[(2,1):(1,0)].block"


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 17), st.integers(1, 17), st.integers(1, 9), st.integers(1, 9))
def test_partial_tiles_are_predicated(m, n, x, y):
    whole = row_major("A", (m, n), "float16", "GL")
    tiled = whole.tile(x, y)
    assert tiled.partial == bool(m % x or n % y)
    seen = [
        (tiled.index(t, e), tiled.offset(t, e))
        for t in itertools.product(range(-(-m // x)), range(-(-n // y)))
        for e in itertools.product(range(x), range(y))
        if tiled.inside(t, e)
    ]
    assert sorted(seen) == [((i, j), n * i + j) for i in range(m) for j in range(n)]


def test_tiles_of_tiles_and_one_of_them():
    block = row_major("A", (128, 64), "float16", "SH").tile(64, 16)
    piece = block.at((1, 2))
    assert piece.offset((3, 4)) == block.offset((1, 2), (3, 4)) == (64 + 3) * 64 + 2 * 16 + 4
    inner = piece.tile(8, 8)
    assert inner.index((1, 1), (2, 3)) == (64 + 8 + 2, 32 + 8 + 3)
    assert inner.offset((1, 1), (2, 3)) == (64 + 10) * 64 + 32 + 11


def test_what_cannot_be_tiled_says_so():
    with pytest.raises(ProgramError, match="tiled in 1 dimensions"):
        A.tile(2)
    with pytest.raises(ProgramError, match="cut again"):
        A.tile(2, 4).at((0, 0)).tile(2, 3)
    with pytest.raises(ProgramError, match="level 0"):
        A.reshape((3, 4))
