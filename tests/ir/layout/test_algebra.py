"""The algebra of layouts: what each operation promises, for drawn layouts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from fuser.errors import ProgramError
from fuser.ir.layout.algebra import Layout
from fuser.ir.layout.algebra import Swizzle
from fuser.ir.layout.algebra import coalesce
from fuser.ir.layout.algebra import columns
from fuser.ir.layout.algebra import complement
from fuser.ir.layout.algebra import compose
from fuser.ir.layout.algebra import divide
from fuser.ir.layout.algebra import flat
from fuser.ir.layout.algebra import joined
from fuser.ir.layout.algebra import left_inverse
from fuser.ir.layout.algebra import product
from fuser.ir.layout.algebra import right_inverse
from fuser.ir.layout.algebra import rows

few = settings(max_examples=30, deadline=None)


def nested(sizes: st.SearchStrategy[int]) -> st.SearchStrategy:
    """Nested tuples with at most four numbers."""
    return st.recursive(sizes, lambda inner: st.lists(inner, min_size=1, max_size=3).map(tuple), max_leaves=4).filter(
        lambda t: len(flat(t)) <= 4
    )


def _like(shape, numbers: list[int]):
    return numbers.pop(0) if isinstance(shape, int) else tuple(_like(s, numbers) for s in shape)


@st.composite
def layouts(draw, sizes=(1, 2, 3, 4, 6, 8), strides=(0, 1, 2, 3, 4, 6, 8, 12, 24)) -> Layout:
    shape = draw(nested(st.sampled_from(sizes)))
    return Layout(shape, _like(shape, [draw(st.sampled_from(strides)) for _ in flat(shape)]))


@st.composite
def compact(draw, of=(1, 2, 3, 4)) -> Layout:
    """Every offset below its size once, in some order of its dimensions."""
    shape = draw(nested(st.sampled_from(of)))
    sizes = list(flat(shape))
    strides, at = [0] * len(sizes), 1
    for i in draw(st.permutations(range(len(sizes)))):
        strides[i], at = at, at * sizes[i]
    return Layout(shape, _like(shape, strides))


@few
@given(layouts())
def test_coalescing_keeps_the_function_and_leaves_no_hierarchy(a):
    b = coalesce(a)
    assert list(b.offsets()) == list(a.offsets())
    assert len(b.modes) <= max(len([n for n, _ in a.modes if n > 1]), 1)


@few
@given(layouts(), layouts(strides=(0, 1, 2, 3, 4, 6, 8, 16)))
def test_composition_is_that_of_functions(a, b):
    if b.span > a.size:
        return
    try:
        found = compose(a, b)
    except ProgramError:
        return
    assert list(found.offsets()) == [a(i) for i in b.offsets()]
    assert found.size == b.size and (isinstance(b.shape, int) or [d.size for d in found.dims] == [d.size for d in b.dims])


@few
@given(compact((1, 2, 4, 8)), compact((1, 2, 4)))
def test_powers_of_two_always_compose(a, b):
    if b.size <= a.size:
        assert list(compose(a, b).offsets()) == [a(i) for i in b.offsets()]


@few
@given(compact(), st.integers(1, 4), st.integers(1, 3))
def test_a_complement_covers_what_is_left_once(a, times, skip):
    spread = compose(Layout(a.size, skip), a)  # with gaps
    rest = complement(spread, a.size * skip * times)
    assert sorted(joined(spread, rest).offsets()) == list(range(a.size * skip * times))


@few
@given(compact())
def test_inverses(a):
    r, left = right_inverse(a), left_inverse(a)
    assert [a(r(i)) for i in range(a.size)] == list(range(a.size))
    assert [left(a(i)) for i in range(a.size)] == list(range(a.size))


@few
@given(compact(), st.integers(2, 5))
def test_a_left_inverse_of_what_has_gaps(a, gap):
    spread = compose(Layout(a.size, gap), a)
    assert [left_inverse(spread)(spread(i)) for i in range(a.size)] == list(range(a.size))


@few
@given(compact(), st.sampled_from((1, 2, 4)))
def test_division_has_every_element_in_one_tile(a, tile):
    if a.size % tile:
        return
    try:
        found = divide(a, Layout(tile, 1))
    except ProgramError:
        return
    assert sorted(found.offsets()) == list(range(a.size))
    assert [found(i, 0) for i in range(tile)] == [a(i) for i in range(tile)]


def test_products_repeat_a_tile():
    found = product(Layout((2, 2), (4, 1)), Layout(6, 1))
    assert str(found) == "[((2,2),(2,3)):((4,1),(2,8))]"
    assert sorted(found.offsets()) == list(range(24))


@few
@given(st.integers(0, 3), st.integers(0, 4), st.integers(0, 4))
def test_a_swizzle_undoes_itself_and_moves_within_rows(bits, base, more):
    s = Swizzle(bits, base, bits + more)
    places = [s(i) for i in range(1 << (base + bits + more + bits))]
    assert sorted(places) == list(range(len(places)))
    assert [s(i) for i in places] == list(range(len(places)))


def test_a_swizzle_stays_with_the_outer_layout():
    buffer = Layout((8, 64), (64, 1), 0, Swizzle(3, 3, 3))
    column = compose(buffer, Layout(8, 1))
    assert list(column.offsets()) == [buffer(i, 0) for i in range(8)] == [72 * i for i in range(8)]
    with pytest.raises(ProgramError, match="exchanges places"):
        compose(buffer, column)


@pytest.mark.parametrize("shape, stride", [((2, 3), (1,)), (0, 1), ((2, 2), ((1, 1), 1)), (-1, 1)])
def test_what_is_no_layout_says_so(shape, stride):
    with pytest.raises(ProgramError, match="is no layout"):
        Layout(shape, stride)


def test_what_strides_cannot_say_is_an_error():
    with pytest.raises(ProgramError, match="has no strides"):
        compose(Layout((6, 4), (1, 100)), Layout(4, 4))
    with pytest.raises(ProgramError, match="no regular rest"):
        complement(Layout((2, 2), (1, 1)), 8)
    with pytest.raises(ProgramError, match="coordinates where"):
        rows((4, 8))(1, 2, 3)


def test_rows_and_columns():
    assert list(columns((2, 3)).offsets()) == list(range(6))
    assert str(rows((4, 8))) == "[(4,8):(8,1)]"
    assert str(rows((4, (2, 4)))) == "[(4,(2,4)):(8,(4,1))]"
