"""Which whole numbers are places in tensors: those drawn for a trial are such, and what is computed of them is tried."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")


def test_a_place_of_which_a_remainder_is_taken_too_is_a_place() -> None:
    """All zero they would be one place, written many times, of which each form keeps another number."""
    from fuser.runtime.joined import _example
    from fuser.runtime.joined import _traced
    from fuser.runtime.places import fill_places

    def run(x: Any, at: Any, rows: Any) -> tuple[Any, ...]:
        return (x.index_copy(0, at, rows).index_fill(1, at[:3] % x.shape[1], -1.0),)

    like = torch.empty(20, 7), torch.empty(9, dtype=torch.int64), torch.empty(9, 7)
    given = [_example(x, "cpu", None, i) for i, x in enumerate(like)]
    fill_places(_traced(run, given), given)
    assert len(given[1].unique()) == 9 and 0 <= given[1].min() <= given[1].max() < 20


def test_whole_numbers_that_are_sorted_are_different() -> None:
    """Of equal ones the compiler's order is as right as torch's, and was taken for wrong."""
    from torch.fx.experimental.proxy_tensor import make_fx

    from fuser.runtime.places import fill_places

    def order(x: Any) -> Any:
        return (torch.argsort(x, -1),)

    def moved(x: Any) -> Any:
        return (torch.sort(x, -1)[0] + 1,)

    for run, drawn in ((order, True), (moved, False)):
        x = torch.zeros(3, 16, dtype=torch.int64)
        fill_places(make_fx(run)(x), [x])
        assert all(len(row.unique()) == (16 if drawn else 1) for row in x)


def test_examples_divide_by_no_zero() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    from fuser.runtime.places import fill_places

    def parts(x: Any, y: Any) -> Any:
        return x // y, torch.fmod(x, y)

    x, y = (torch.zeros(3, 16, dtype=torch.int64) for _ in "xy")
    fill_places(make_fx(parts)(x, y + 1), [x, y])
    assert not x.any() and y.all()


def test_places_that_are_computed_from_drawn_numbers_are_tried_on_the_host() -> None:
    """Beside a tensor a GPU's process dies: a graph that would read there is not run to be compared."""
    from torch.fx.experimental.proxy_tensor import make_fx

    from fuser.runtime.places import computes_places
    from fuser.runtime.places import within_places

    def bins(x: Any, edges: Any) -> Any:
        return edges.gather(0, (x[:, None] >= edges).sum(-1) - 1)

    def sorted_(x: Any, edges: Any) -> Any:
        return edges.gather(0, x.argsort()) + edges[(x * 9).long().clamp(0, 7)]

    x, edges = torch.linspace(0.1, 0.9, 8), torch.linspace(0, 1, 8)
    graph = make_fx(bins, tracing_mode="fake")(x, edges)
    assert computes_places(graph) and not computes_places(make_fx(sorted_, tracing_mode="fake")(x, edges))
    assert within_places(graph, [x, edges]) and within_places(graph, [x - 1, edges]) is None

    def before(i: Any, edges: Any) -> Any:
        return edges.gather(0, i - 1)

    i = torch.ones(8, dtype=torch.int64)
    graph = make_fx(before, tracing_mode="fake")(i, edges)
    found = within_places(graph, [i * 0, edges])
    assert computes_places(graph) and found is not None and torch.equal(found[0], i)
    assert within_places(graph, [i * 9, edges]) is None
    assert not computes_places(make_fx(lambda i, edges: edges.gather(0, i), tracing_mode="fake")(i, edges))


HALF_BOUND = (
    lambda x: (x * 9).long().clamp(min=0),
    lambda x: x.sort()[0].long(),
    lambda x: x.topk(8)[0].long(),
    lambda x: x.argsort() * 2,
    lambda x: (x * 9).long() % 8 + 1,
)


@pytest.mark.parametrize("place", HALF_BOUND)
def test_half_a_bound_is_none(place: Any) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    from fuser.runtime.places import computes_places

    for reads in (lambda x, edges: edges.gather(0, place(x)), lambda x, edges: edges.index_fill(0, place(x), 1.0)):
        assert computes_places(make_fx(reads, tracing_mode="fake")(torch.rand(8), torch.rand(8)))
