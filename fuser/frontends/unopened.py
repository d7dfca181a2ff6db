"""What a call may change that a trace cannot follow: collections of other kinds than lists and dictionaries, objects with slots,
and numbers in classes, closures and global variables. Where a call has, the next one must be the same program."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections import deque
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from types import SimpleNamespace
from typing import Any

import numpy as np

from fuser.frontends.opened import DICTS
from fuser.frontends.opened import PLAIN

COLLECTIONS = (deque, set, bytearray)
MISSING = object()
OF_TORCH = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
Place = tuple[Callable[[], Any], Callable[[Any], None]]
"""Where a value is: what reads it, and what puts another there."""


@dataclass(frozen=True)
class Unopened:
    """Numbers and where they are, collections and what is in them, and the states of random numbers."""

    numbers: tuple[tuple[Place, Any], ...]
    collections: tuple[tuple[Any, Any], ...]
    attributes: tuple[tuple[dict[str, Any], str, Any], ...]
    random: Any

    @staticmethod
    def of(module: Any) -> Unopened:
        kinds = user_classes(module)
        own = [(vars(m), n, x) for m in module.modules() for n, x in vars(m).items() if n not in OF_TORCH]
        functions = [*functions_of(kinds), *(f for _, _, f in own if isinstance(f, FunctionType))]
        places = [*_of_classes(kinds), *_of_functions(functions)]
        numbers = tuple((p, x) for p in places if (x := p[0]()) is MISSING or isinstance(x, PLAIN))
        watched = [x for p in places if isinstance(x := p[0](), COLLECTIONS)]  # a registry may do as it likes when it is read
        watched += [x for _, _, x in own if _watched(x)]
        watched += [x for f in functions for x in f.__defaults__ or () if isinstance(x, (list, dict))]
        held = {id(x): x for x in watched}.values()
        attributes = tuple((at, n, x) for at, n, x in own if _watched(x))
        return Unopened(numbers, tuple((x, _content(x)) for x in held), attributes, _random())

    @property
    def drawn(self) -> bool:
        """Whether random numbers of Python's or of numpy were."""
        return _random() != self.random

    @property
    def changed(self) -> bool:
        numbers = any(type(now := read()) is not type(x) or now != x for (read, _), x in self.numbers)
        return numbers or any(_differ(_content(x), before) for x, before in self.collections)

    def put_back(self) -> None:
        """What a trace has changed is where it was: torch.export puts copies of what was there before into the module."""
        for at, n, x in self.attributes:
            at[n] = x

    def restore(self, whole: bool) -> None:
        """As it was; else only that where tensors of a trace are now."""
        import torch

        self.put_back()
        for x, before in self.collections:
            now = _content(x)
            entries = now.values() if isinstance(now, dict) else now
            if _differ(now, before) and (whole or any(isinstance(e, torch.Tensor) for e in entries)):
                _put(x, before)
        for (read, put), x in self.numbers if whole else ():
            if read() is not x:
                put(x)


def user_classes(module: Any) -> set[type]:
    """The classes of a module's parts that are not torch's."""
    kinds = {k for part in module.modules() for k in type(part).__mro__}
    return {k for k in kinds if not k.__module__.startswith(("torch.", "builtins", "typing", "abc"))}


def functions_of(kinds: Iterable[type]) -> list[FunctionType]:
    """What classes define."""
    return [f for k in kinds for f in vars(k).values() if isinstance(f, FunctionType)]


def _of_classes(kinds: Iterable[type]) -> Iterator[Place]:
    for kind in kinds:
        for n, x in vars(kind).items():
            if not n.startswith("__") and not callable(x):
                yield partial(vars(kind).get, n, MISSING), partial(setattr, kind, n)


def _of_functions(functions: Iterable[FunctionType]) -> Iterator[Place]:
    for f in functions:
        for cell in f.__closure__ or ():
            yield partial(getattr, cell, "cell_contents", MISSING), partial(setattr, cell, "cell_contents")
        for n in f.__code__.co_names:
            yield partial(f.__globals__.get, n, MISSING), partial(_set, f.__globals__, n)


def _set(held: dict[str, Any], name: str, value: Any) -> None:
    if value is MISSING:
        held.pop(name, None)
    else:
        held[name] = value


def _watched(x: Any) -> bool:
    """A collection, or an object, that is no list, dictionary or object as a trace follows them."""
    if isinstance(x, (list, dict)):
        return type(x) not in (list, *DICTS)
    return isinstance(x, (*COLLECTIONS, SimpleNamespace)) or bool(_slots(x))


def _slots(x: Any) -> list[str]:
    import torch

    kind = type(x)
    if isinstance(x, (type, torch.Tensor, torch.nn.Module)) or callable(x) or kind.__module__.startswith(("torch", "builtins")):
        return []
    return [n for k in kind.__mro__ for n in (getattr(k, "__slots__", None) or ()) if isinstance(n, str)]


def _content(x: Any) -> Any:
    if isinstance(x, dict):
        return {n: dict.__getitem__(x, n) for n in dict.keys(x)}
    if isinstance(x, SimpleNamespace):
        return dict(vars(x))
    if isinstance(x, list):
        return [*list.__iter__(x)]
    if isinstance(x, COLLECTIONS):
        return set(x) if isinstance(x, set) else list(x)
    return {n: getattr(x, n) for n in _slots(x) if hasattr(x, n)}


def _put(x: Any, before: Any) -> None:
    """What was in a collection is in it, by its kind's own methods: a class of a user's may do more."""
    if isinstance(x, dict):
        kind: Any = OrderedDict if isinstance(x, OrderedDict) else dict
        kind.clear(x)
        for n, value in before.items():
            kind.__setitem__(x, n, value)
    elif isinstance(x, list):
        list.__setitem__(x, slice(None), before)
    elif isinstance(x, SimpleNamespace):
        vars(x).clear()
        vars(x).update(before)
    elif isinstance(x, set):
        x.clear()
        x.update(before)
    elif isinstance(x, (deque, bytearray)):
        x.clear()
        x.extend(before)
    else:
        for n, value in before.items():
            setattr(x, n, value)


def _differ(now: Any, before: Any) -> bool:
    """Whether other things are in a collection; of tensors, the same ones are."""
    if isinstance(now, set):
        return now != before
    if isinstance(now, dict):
        return now.keys() != before.keys() or _differ([*now.values()], [before[n] for n in now])
    numbers = (*PLAIN, np.number)
    alike = (a is b or (isinstance(a, numbers) and type(a) is type(b) and a == b) for a, b in zip(now, before, strict=False))
    return len(now) != len(before) or not all(alike)


def _random() -> Any:
    kind, keys, *more = np.random.get_state()
    return random.getstate(), kind, bytes(np.asarray(keys)), more
