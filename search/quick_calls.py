"""Arguments and results of a module by functions that are made once for their trees: torch's own walk over a tree takes as long
as a small kernel. What they do not know, or what is otherwise than when the module was compiled, is for :mod:`search.calling`."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from itertools import count
from typing import Any
from typing import TypeVar

from fuser.frontends.imported import Called
from fuser.frontends.left import kept_alone
from fuser.frontends.left import leaves_behind
from fuser.frontends.opened import opens
from search.calling import leaf_makers

T = TypeVar("T")
Take = Callable[[Any, dict[str, Any]], bool]
"""Puts the tensors of an argument into a table by name; False where it is otherwise."""
Give = Callable[[Sequence[Any]], Any]
"""Makes a result of its leaves."""
Taker = Callable[[Sequence[Any], Mapping[str, Any]], dict[str, Any] | None]
Giver = Callable[[Mapping[str, Any], Mapping[str, Any]], Any]


def taker(called: Called) -> Taker | None:
    """Finds the tensors of a call by name: None for a call that is otherwise. None where arguments are of further kinds."""
    if opens(called.arguments):
        return None
    leaves = iter(zip(called.inputs, called.fixed, strict=True))
    ordered, keywords = called.arguments.children()
    in_order = _every(_take(child, leaves) for child in ordered.children())
    named_ones = _every(_take(child, leaves) for child in keywords.children()) if in_order is not None else None
    if in_order is None or named_ones is None:
        return None
    by_name = list(zip(keywords.context or (), named_ones, strict=True))

    def take(given: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any] | None:
        if len(given) != len(in_order) or len(named) != len(by_name):
            return None
        found: dict[str, Any] = {}
        for one, x in zip(in_order, given, strict=True):
            if not one(x, found):
                return None
        for key, one in by_name:
            if key not in named or not one(named[key], found):
                return None
        return found

    return take


def _take(tree: Any, leaves: Any) -> Take | None:
    import torch

    tensor, kind = torch.Tensor, tree.type
    if tree.is_leaf():
        name, fixed = next(leaves)
        if not name:
            return lambda x, _: x is fixed or (type(x) is type(fixed) and not isinstance(x, tensor) and x == fixed)

        def leaf(x: Any, found: dict[str, Any]) -> bool:
            found[name] = x
            return isinstance(x, tensor)

        return leaf
    several = _every(_take(child, leaves) for child in tree.children())
    if tree.type not in (tuple, list, dict) or several is None:
        return None
    keys = list(tree.context) if kind is dict else None

    def inner(x: Any, found: dict[str, Any]) -> bool:
        if type(x) is not kind or len(x) != len(several) or (keys is not None and list(x) != keys):
            return False
        return all(t(v, found) for t, v in zip(several, x.values() if keys is not None else x, strict=True))

    return inner


def giver(called: Called) -> Giver | None:
    """What the module returns, of the program's outputs and of inputs by name; None where torch does not know what it returns."""
    kept = kept_alone(called.returns)
    tree = called.returns.child(0) if kept else called.returns
    if leaves_behind(tree) or opens(tree):
        return None
    make, makers = _give(tree, count()), leaf_makers(called)
    if make is None or kept is None or called.owner is None:
        return None if make is None else lambda found, given: make([one(found, given) for one in makers])
    keep, first = called.owner.keep, tree.num_leaves

    def give(found: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
        leaves = [one(found, given) for one in makers]
        keep(kept(leaves[first:]))
        return make(leaves)

    return give


def _give(tree: Any, numbers: Any) -> Give | None:
    from torch.utils._pytree import SUPPORTED_NODES

    if tree.is_leaf():
        number = next(numbers)
        return lambda leaves: leaves[number]
    parts = _every(_give(child, numbers) for child in tree.children())
    if parts is None:
        return None
    if tree.type is namedtuple:
        return lambda leaves: tree.context(*[p(leaves) for p in parts])
    if getattr(tree.type, "__module__", "") == "torch.return_types":
        return lambda leaves: tree.type([p(leaves) for p in parts])
    if tree.type is dict:
        keys = list(tree.context)
        return lambda leaves: {k: p(leaves) for k, p in zip(keys, parts, strict=True)}
    if tree.type is list:
        return lambda leaves: [p(leaves) for p in parts]
    if tree.type is tuple:
        return lambda leaves: tuple([p(leaves) for p in parts])
    known = SUPPORTED_NODES.get(tree.type)  # a class that somebody told torch of: outputs of transformers, say
    return known and (lambda leaves: known.unflatten_fn([p(leaves) for p in parts], tree.context))


def _every(found: Iterable[T | None]) -> list[T] | None:
    """All of them, where none is None."""
    every: list[T] = []
    for x in found:
        if x is None:
            return None
        every.append(x)
    return every
