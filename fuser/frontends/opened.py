"""Objects with tensors among a module's arguments and results, of classes that torch's pytrees do not know: caches of keys and
values, say. A trace sees their attributes, and calls give and get the objects."""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

DEEPEST = 8
"""Objects within objects that are looked into."""
PLAIN = (bool, int, float, complex, str, bytes, type(None))
TRACED = (bool, int, float, str, type(None))
"""Arguments that torch.export takes beside tensors."""
DICTS = (dict, OrderedDict, defaultdict)

Way = tuple[tuple[str, Any], ...]
"""From the arguments to an object within them: names of attributes and keys of items, each with ``attribute`` or ``item``. That
of an object that was met before is its number."""


@dataclass(frozen=True)
class Opened:
    """An object's class, its attributes that have tensors, and the others; objects are numbered as they are met."""

    kind: type
    parts: Mapping[str, Any]
    rest: Mapping[str, Any]
    number: int = 0


@dataclass(frozen=True)
class Same:
    """An object that is somewhere else too."""

    way: Way


@dataclass(frozen=True)
class Fixed:
    """What holds no tensor."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and _same(self.value, other.value)

    def __hash__(self) -> int:
        return hash(type(self.value))


@dataclass(frozen=True)
class _Form:
    """What two objects have in common that differ in their tensors alone."""

    kind: type
    names: tuple[str, ...]
    rest: Mapping[str, Any]
    number: int

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Form) or (self.kind, self.names) != (other.kind, other.names):
            return False
        return _same(self.rest, other.rest)

    def __hash__(self) -> int:
        return hash((self.kind, self.names))


def _same(x: Any, y: Any) -> bool:
    """Whether nothing can be told apart by a module that gets the one or the other: what no class compares counts by its type."""
    if x is y or type(x) is not type(y):
        return x is y
    if isinstance(x, (list, tuple)):
        return len(x) == len(y) and all(map(_same, x, y))
    if isinstance(x, Mapping):
        return x.keys() == y.keys() and all(_same(v, y[k]) for k, v in x.items())
    if isinstance(x, Opened):
        return x.kind is y.kind and _same(x.parts, y.parts) and _same(x.rest, y.rest)
    if isinstance(x, np.ndarray):
        return x.dtype == y.dtype and np.array_equal(x, y)
    x, y = (getattr(v, "__code__", v) for v in (x, y))
    return type(x).__eq__ is object.__eq__ or bool(x == y)


@cache
def register() -> None:
    """Tells torch's pytrees of these nodes."""
    from torch.utils import _pytree

    def opened_parts(x: Opened) -> tuple[list[Any], _Form]:
        return list(x.parts.values()), _Form(x.kind, tuple(x.parts), x.rest, x.number)

    def named_parts(x: Opened) -> tuple[list[Any], _Form]:
        return [(_pytree.GetAttrKey(n), v) for n, v in x.parts.items()], _Form(x.kind, tuple(x.parts), x.rest, x.number)

    def again(values: Any, form: _Form) -> Opened:
        return Opened(form.kind, dict(zip(form.names, values, strict=True)), form.rest, form.number)

    _pytree.register_pytree_node(Opened, opened_parts, again, flatten_with_keys_fn=named_parts)
    for leaf in (Same, Fixed):
        _pytree.register_pytree_node(leaf, lambda x: ([], x), lambda _, x: x, flatten_with_keys_fn=lambda x: ([], x))


def mutable(x: Any) -> bool:
    """A list, a dictionary, or an object that is opened."""
    return type(x) is list or type(x) in DICTS or openable(x)


def openable(x: Any) -> bool:
    import torch

    symbols = (torch.SymInt, torch.SymFloat, torch.SymBool)
    if isinstance(x, (*PLAIN, *symbols, torch.Tensor, torch.nn.Module, type, enum.Enum, ModuleType)) or callable(x):
        return False
    return isinstance(getattr(x, "__dict__", None), dict) and _made_anew(type(x))


@cache
def _made_anew(kind: type) -> bool:
    try:
        object.__new__(kind)
    except TypeError:  # of a class of C's
        return False
    return True


@cache
def _fixed() -> tuple[type, ...]:
    import torch

    return (torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum, type, range, slice, bytes, complex)


class Reader:
    """Makes trees of what can be traced. ``known`` has the ways of objects by their ``id``."""

    def __init__(self, known: Mapping[int, Way] | None = None) -> None:
        self.known = dict(known or {})
        self.kept: list[Any] = []  # so that no id is taken twice
        self.tensors = self.special = 0

    def tree(self, x: Any, depth: int = DEEPEST) -> Any:
        import torch
        from torch.utils import _pytree

        if isinstance(x, torch.Tensor):
            self.tensors += 1
            return x
        if type(x) in TRACED:
            return x
        if id(x) in self.known:
            self.special += 1
            return Same(self.known[id(x)])
        known = isinstance(x, torch.Size) and all(type(n) is int for n in x)  # torch's pytrees make a tuple of it
        values, form = _pytree.tree_flatten(x, is_leaf=lambda y: y is not x)
        if not form.is_leaf() and not known:
            return _pytree.tree_unflatten([self.tree(v, depth) for v in values], form)
        if known or isinstance(x, _fixed()):
            self.special += 1
            return Fixed(x)
        if depth and openable(x):
            return self.opened(x, depth)
        return x

    def opened(self, x: Any, depth: int = DEEPEST) -> Opened:
        self.special += 1
        number = len(self.kept)
        self.kept.append(x)
        self.known[id(x)] = (("number", number),)
        parts, rest = {}, {}
        for name, value in vars(x).items():
            before = self.tensors
            found = self.tree(value, depth - 1)
            (rest if self.tensors == before else parts)[name] = found
        return Opened(type(x), parts, rest, number)

    def static(self, x: Any) -> Any:
        """The tree; :class:`Fixed` where it has no tensor."""
        before = self.tensors
        found = self.tree(x)
        return found if self.tensors > before or isinstance(found, (*PLAIN, Same, Fixed)) else Fixed(found)


def opened(value: Any) -> Any:
    """A tree with its objects opened; itself where there are none."""
    register()
    reader = Reader()
    found = reader.tree(value)
    return found if reader.special else value


class Writer:
    """Makes the objects again. ``at`` finds those that have a way."""

    def __init__(self, at: Callable[[Way], Any]) -> None:
        self.at, self.met = at, dict[int, Any]()

    def value(self, x: Any) -> Any:
        import torch
        from torch.utils import _pytree

        if isinstance(x, Same):
            kind, key = x.way[0]
            return self.met[key] if kind == "number" else self.at(x.way)
        if isinstance(x, Fixed):
            return self.value(x.value)
        if isinstance(x, Opened):
            self.met[x.number] = found = object.__new__(x.kind)
            found.__dict__.update({n: self.value(v) for held in (x.parts, x.rest) for n, v in held.items()})
            return found
        if isinstance(x, (*TRACED, torch.Size)):
            return x
        values, form = _pytree.tree_flatten(x, is_leaf=lambda y: y is not x)
        return x if form.is_leaf() else _pytree.tree_unflatten(list(map(self.value, values)), form)


def closed(value: Any) -> Any:
    """The objects again: new ones, in new lists and dictionaries."""
    return Writer(_nowhere).value(value)


def _nowhere(_: Way) -> Any:
    raise AssertionError("arguments hold no way")


def opens(tree: Any) -> bool:
    """Whether the structure of some arguments or results has such objects."""
    return tree.type in (Opened, Same, Fixed) or any(map(opens, tree.children()))
