"""Objects with tensors among a module's arguments and results, of classes that torch's pytrees do not know: caches of keys and
values, say. A trace sees their attributes, and calls give and get the objects."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from functools import wraps
from typing import Any
from unittest.mock import patch

from fuser.errors import UnsupportedError

DEEPEST = 4
"""Objects within objects that are looked into."""


@dataclass(frozen=True)
class Opened:
    """An object's class, its attributes that have tensors, and the others."""

    kind: type
    parts: Mapping[str, Any]
    rest: Mapping[str, Any]


@dataclass(frozen=True)
class _Form:
    """What two objects have in common that differ in their tensors alone. Attributes that are neither numbers nor words count by
    their type."""

    kind: type
    names: tuple[str, ...]
    rest: Mapping[str, Any]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Form) or (self.kind, self.names, self.rest.keys()) != (
            other.kind,
            other.names,
            other.rest.keys(),
        ):
            return False
        return all(_same(x, other.rest[n]) for n, x in self.rest.items())

    def __hash__(self) -> int:
        return hash((self.kind, self.names))


def _same(x: Any, y: Any) -> bool:
    plain = isinstance(x, (bool, int, float, complex, str, bytes, type(None)))
    return x == y if plain else type(x) is type(y)


@cache
def _register() -> None:
    from torch.utils import _pytree

    def opened_parts(x: Opened) -> tuple[list[Any], _Form]:
        return list(x.parts.values()), _Form(x.kind, tuple(x.parts), x.rest)

    def named_parts(x: Opened) -> tuple[list[Any], _Form]:
        return [(_pytree.GetAttrKey(n), v) for n, v in x.parts.items()], _Form(x.kind, tuple(x.parts), x.rest)

    def again(values: Any, form: _Form) -> Opened:
        return Opened(form.kind, dict(zip(form.names, values, strict=True)), form.rest)

    _pytree.register_pytree_node(Opened, opened_parts, again, flatten_with_keys_fn=named_parts)


def opened(value: Any) -> Any:
    """A tree with its objects opened; itself where there are none."""
    from torch.utils import _pytree

    _register()
    leaves, tree = _pytree.tree_flatten(value)
    found = [_open(x, DEEPEST) for x in leaves]
    return value if all(x is y for x, y in zip(leaves, found, strict=True)) else _pytree.tree_unflatten(found, tree)


def _open(x: Any, depth: int) -> Any:
    import torch
    from torch.utils import _pytree

    held = getattr(x, "__dict__", None)
    if not depth or not isinstance(held, dict) or isinstance(x, (torch.Tensor, torch.nn.Module, type)) or callable(x):
        return x
    parts = {}
    for name, value in held.items():
        leaves, tree = _pytree.tree_flatten(value)
        found = [_open(leaf, depth - 1) for leaf in leaves]
        if any(isinstance(leaf, (torch.Tensor, Opened)) for leaf in found):
            parts[name] = _pytree.tree_unflatten(found, tree)
    return Opened(type(x), parts, {n: v for n, v in held.items() if n not in parts}) if parts else x


def closed(value: Any) -> Any:
    """The objects again: new ones."""
    from torch.utils import _pytree

    def one(x: Any) -> Any:
        if not isinstance(x, Opened):
            return x
        found = object.__new__(x.kind)
        found.__dict__.update({n: copy.copy(v) for n, v in x.rest.items()} | {n: closed(v) for n, v in x.parts.items()})
        return found

    return _pytree.tree_map(one, value, is_leaf=lambda x: isinstance(x, Opened))


def opens(tree: Any) -> bool:
    """Whether the structure of some arguments or results has such objects."""
    return tree.type is Opened or any(map(opens, tree.children()))


def _check_kept(before: Any, given: Any, found: Any) -> None:
    """Objects that were given and are not returned must keep their tensors: nobody would see the new ones."""
    from torch.utils import _pytree

    back = {id(x) for x in _pytree.tree_leaves(found)}
    objects = _pytree.tree_leaves(before, is_leaf=lambda x: isinstance(x, Opened))
    for old, x in zip(objects, _pytree.tree_leaves(given), strict=True):
        if isinstance(old, Opened) and id(x) not in back:
            was, now = _pytree.tree_leaves(old), _pytree.tree_leaves(opened(x))
            if len(was) != len(now) or any(a is not b for a, b in zip(was, now, strict=True)):
                raise UnsupportedError(
                    f"the module gives a {type(x).__name__} that it takes other tensors, and does not return it",
                    "return the object, or use torch.compile(module, backend='mufuser')",
                )


@contextmanager
def opening(module: Any) -> Iterator[None]:
    """The module takes and returns opened objects."""
    run = module.forward

    @wraps(run)
    def forward(*args: Any, **named: Any) -> Any:
        given = closed((args, named))
        before = opened(given)
        found = run(*given[0], **given[1])
        _check_kept(before, given, found)
        return opened(found)

    with patch.object(module, "forward", forward):
        yield
