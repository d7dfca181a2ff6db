"""Calls of modules by functions made for their trees give what torch's own walk gives, and leave to it what is otherwise."""

from __future__ import annotations

from typing import Any
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from fuser.frontends.torch_export import from_torch  # noqa: E402
from search.calling import as_module  # noqa: E402
from search.calling import returned  # noqa: E402
from search.quick_calls import giver  # noqa: E402
from search.quick_calls import taker  # noqa: E402


class Pair(NamedTuple):
    first: Any
    second: Any


class Registered:
    """A class that somebody told torch's pytrees of, as transformers does of its outputs."""

    def __init__(self, logits: Any, more: Any) -> None:
        self.logits, self.more = logits, more


torch.utils._pytree.register_pytree_node(
    Registered,
    lambda x: ([x.logits, x.more], "context"),
    lambda values, _: Registered(*values),
    serialized_type_name="Registered",
)


class Nested(torch.nn.Module):
    def forward(self, x: Any, more: Any, scale: float = 1.0, *, named: Any = None) -> Any:
        y = x * scale + more[0] + more[1]["z"]
        found = {"y": y, "top": y.topk(2), "pair": Pair(x, [y.T, 3]), "none": named}
        return {**found, "own": Registered(y.exp(), (y, "name"))}


def args(scale: float = 2.0) -> tuple[Any, ...]:
    x = torch.randn(3, 4)
    return x, [x + 1, {"z": x.exp()}], scale


def test_calls_and_results_are_those_of_the_slow_way() -> None:
    known = from_torch(Nested(), args(), example_kwargs={"named": None})
    assert known.called is not None
    take, give = taker(known.called), giver(known.called)
    assert take is not None and give is not None
    given = args()
    found = take(given, {"named": None})
    assert found is not None and found == as_module(known.called, "it", given, {"named": None}) and len(found) == 3
    made = {r.name: torch.randn(2) for r in known.called.results if r.name} | {r.base: given[0] for r in known.called.results}
    got, want = give(made, found), returned(known.called, made, (given, {"named": None}), found)
    mine, theirs = (torch.utils._pytree.tree_flatten(x) for x in (got, want))
    assert mine[1] == theirs[1] and [type(x) for x in mine[0]] == [type(x) for x in theirs[0]]
    assert all(torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in zip(mine[0], theirs[0], strict=True))


@pytest.mark.parametrize("change", ["number", "list", "key", "missing", "keyword"])
def test_another_call_is_left_to_the_slow_way(change: str) -> None:
    called = from_torch(Nested(), args(), example_kwargs={"named": None}).called
    assert called is not None and (take := taker(called)) is not None
    x, more, scale = args(3.0 if change == "number" else 2.0)
    more = tuple(more) if change == "list" else [more[0], {"w": x}] if change == "key" else more
    given = (x, more) if change == "missing" else (x, more, scale)
    assert take(given, {"other" if change == "keyword" else "named": None}) is None
