"""Loads of one place under several conditions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.element_loads import wider
from fuser.ir.element_program import by_elements
from fuser.ir.elements import Recipe
from fuser.ir.elements import by_recipe
from fuser.ir.elements import tape_of
from fuser.ir.places import Atom
from fuser.ir.places import Truth
from fuser.ir.places import both
from fuser.ir.places import coordinate
from fuser.ir.places import equal
from fuser.ir.places import holds
from fuser.ir.places import inside
from fuser.ir.program import TensorProgram

A, B = coordinate(0, 9), coordinate(1, 7)


def where(under: Truth) -> np.ndarray:
    at: dict[Atom, np.ndarray] = {A.terms[0][0]: np.arange(9)[:, None], B.terms[0][0]: np.arange(7)}
    return np.broadcast_to(holds(under, at, np), (9, 7))


@st.composite
def conditions(draw: st.DrawFn) -> Truth:
    found: Truth = True
    for place, most in ((A, 9), (B, 7), (A - B, 9)):
        if draw(st.booleans()):
            low = draw(st.integers(-1, most - 1))
            found = both(found, inside(place, low, draw(st.integers(low + 1, most + 1))))
    return both(found, equal(B, 3)) if draw(st.booleans()) else found


@settings(deadline=None, max_examples=300)
@given(st.lists(conditions(), min_size=1, max_size=5))
def test_what_stands_for_conditions_holds_where_they_do_and_nowhere_else(unders: list[Truth]) -> None:
    unders = [u for u in unders if u is not False]
    found = wider(unders)
    assert set(found) == set(unders)
    for one in set(found.values()):
        mine = [where(u) for u, w in found.items() if w == one]
        assert np.array_equal(where(one), np.logical_or.reduce(mine))


def test_spans_that_follow_on_each_other_are_one() -> None:
    several = [inside(A, 0, 2), inside(A, 2, 5), inside(A, 5, 9)]
    assert set(wider(several).values()) == {True}
    apart = [inside(A, 0, 2), inside(A, 3, 5)]
    assert wider(apart) == {u: u for u in apart}
    assert set(wider([both(inside(A, 1, 4), equal(B, 3)), inside(A, 1, 4)]).values()) == {inside(A, 1, 4)}


def cut(b: Builder, x: Ref, start: int, stop: int) -> Ref:
    return b.op("slice", x, axis=0, start=start, stop=stop)


def causal(b: Builder, taps: int) -> Ref:
    """Each tap is added to the rows that have one so far in front of them."""
    x, w = b.input("X", (12, 8)), b.input("W", (8, taps))
    y = b.op("mul", x, cut(b, w.T, 0, 1).reshape(8))
    for i in range(1, taps):
        more = cut(b, y, i, 12) + b.op("mul", cut(b, x, 0, 12 - i), cut(b, w.T, i, i + 1).reshape(8))
        y = b.op("concat", cut(b, y, 0, i), more, axis=0)
    return b.op("silu", y)


def halves(b: Builder, _: int) -> Ref:
    """Half of each row is turned with the other half, the rest stays."""
    x = b.input("X", (12, 8))
    a, c = (b.op("slice", x, axis=1, start=i, stop=i + 2) for i in (0, 2))
    rest = b.op("slice", x, axis=1, start=4, stop=8)
    return b.op("concat", a - c, c + a, b.op("relu", rest), axis=1) + x


def recipe_of(program: TensorProgram) -> Recipe:
    (kernel,) = by_elements(program)
    return Recipe.read(dict(kernel.attrs)["program"])


@pytest.mark.parametrize(("make", "taps", "loads"), [(causal, 2, 4), (causal, 4, 8), (halves, 0, 3)])
def test_an_element_is_loaded_once(make: Callable[[Builder, int], Ref], taps: int, loads: int) -> None:
    b = Builder("parts", "float32")
    program = b.build(Y=make(b, taps))
    recipe = recipe_of(program)
    tape = tape_of(recipe.elements, recipe.result)
    assert len(tape.loads) == loads
    assert len({(s.op, s.at) for s in tape.loads}) == loads
    given = {n: np.random.default_rng(0).standard_normal(program[n].shape) for n in program.inputs}
    given["X"][0] = np.nan  # where a part does not read it, it is not in the result
    found = by_recipe(*(given[n] for n in recipe.inputs), program=recipe.text)
    np.testing.assert_allclose(found, program.evaluate(given)["Y"], rtol=1e-12)


def test_a_view_without_dimensions_of_one_needs_no_division() -> None:
    """A place in front of a tensor, which a condition keeps from being read, stays one."""
    b = Builder("same", "float32")
    i, x = b.input("I", (12,), "int64"), b.input("X", (12, 8))
    same = b.op("eq", cut(b, i, 1, 12), cut(b, i, 0, 11)).reshape(11, 1)
    rest = b.op("where", same, cut(b, x, 0, 11), b.input("Z", (1,)))
    recipe = recipe_of(b.build(Y=b.op("concat", cut(b, x, 0, 1), cut(b, x, 1, 12) + rest, axis=0)))
    tape = tape_of(recipe.elements, recipe.result)
    assert {a.kind for s in tape.loads for a, _ in s.at.terms} == {"coordinate"}
    assert sum(s.op == recipe.inputs[0] for s in tape.loads) == 2
