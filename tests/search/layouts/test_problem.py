"""The solver is as good as looking at every choice."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from fuser.errors import OutOfResourcesError
from search.layouts.problem import LATE
from search.layouts.problem import Choice
from search.layouts.problem import Edge
from search.layouts.problem import Node
from search.layouts.problem import Option
from search.layouts.problem import Problem
from search.layouts.problem import bound
from search.layouts.problem import fewer
from search.layouts.problem import judged
from search.layouts.problem import solve

TERMS = ("tensor", "shared", "waits", "barriers", f"{LATE}A", f"{LATE}B")
clocks = st.lists(st.tuples(st.sampled_from(TERMS), st.integers(0, 40).map(float)), max_size=3, unique_by=lambda x: x[0]).map(
    tuple
)


def best(p: Problem) -> Choice | None:
    """By looking at all of them."""
    every = (judged(p, c) for c in itertools.product(*(range(len(n.options)) for n in p.nodes)))
    return next(iter(sorted((c for c in every if c), key=lambda c: c.total)), None)


@st.composite
def problems(draw) -> Problem:
    nodes = tuple(
        Node(
            f"n{i}",
            tuple(
                Option(f"o{j}", j, draw(clocks), draw(st.integers(0, 9)), draw(st.integers(0, 9)))
                for j in range(draw(st.integers(1, 3)))
            ),
            frozenset(draw(st.sets(st.integers(0, 1)))),
        )
        for i in range(draw(st.integers(1, 4)))
    )
    edges = []
    for a, b in itertools.combinations(range(len(nodes)), 2):
        if draw(st.booleans()):
            pairs = itertools.product(range(len(nodes[a].options)), range(len(nodes[b].options)))
            edges.append(Edge(a, b, {p: c for p in pairs if (c := draw(clocks))}))
    held = (draw(st.integers(0, 9)), draw(st.integers(0, 9)))
    return Problem(nodes, tuple(edges), draw(clocks), draw(st.integers(0, 30)), draw(st.integers(0, 30)), held)


@settings(max_examples=30, deadline=None)
@given(problems())
def test_the_solver_finds_what_is_best(p):
    expected = best(p)
    if expected is None:
        with pytest.raises(OutOfResourcesError):
            solve(p)
        return
    found = solve(p)
    assert found.total == pytest.approx(expected.total)
    assert bound(p) <= expected.total + 1e-9
    less = best(fewer(p))
    assert less is not None and less.total == pytest.approx(expected.total)
