"""What a call may change beside the plain attributes of a module, as it was before: parameters, buffers, parts, classes, hooks,
and what is kept outside of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fuser.frontends.unopened import functions_of
from fuser.frontends.unopened import user_classes

HOOKS = ("_hooks", "_hooks_with_kwargs", "_hooks_always_called")
"""Ends of the names of torch's dictionaries of hooks."""
CACHED = type(lru_cache(int))
"""What ``functools.lru_cache`` makes of a function."""


@dataclass(frozen=True)
class Part:
    """A part of a module, its class, and what torch knows of it."""

    name: str
    module: Any
    kind: type
    training: bool
    held: tuple[tuple[str, dict[str, Any]], ...]

    @staticmethod
    def of(name: str, module: Any) -> Part:
        held = tuple((n, dict(vars(module)[n])) for n in ("_parameters", "_buffers", "_modules"))
        return Part(name, module, type(module), module.training, held)

    @property
    def remade(self) -> str:
        """The name of what is another than it was; a buffer may have another value."""
        if type(self.module) is not self.kind:
            return f"{self.name or 'itself'} (another class)"
        for own, before in self.held:
            now = vars(self.module)[own]
            for n in (*before, *now):
                if (n in before) != (n in now) or (now[n] is not before[n] and (own != "_buffers" or before[n] is None)):
                    return f"{self.name}.{n}".lstrip(".")
        return ""

    def restore(self) -> None:
        if self.remade:
            self.module.__class__ = self.kind
            for own, before in self.held:
                now = vars(self.module)[own]
                kept = {n: now.get(n, x) if own == "_buffers" and x is not None else x for n, x in before.items()}
                now.clear()
                now.update(kept)
        self.module.training = self.training


@dataclass(frozen=True)
class Hooks:
    """Torch's dictionaries of hooks of a module's parts, and what was in them."""

    before: tuple[tuple[dict[Any, Any], dict[Any, Any]], ...]

    @staticmethod
    def of(module: Any) -> Hooks:
        every = (x for part in module.modules() for n, x in vars(part).items() if n.endswith(HOOKS) and isinstance(x, dict))
        return Hooks(tuple((x, dict(x)) for x in every))

    @property
    def changed(self) -> bool:
        return any(hooks != own for hooks, own in self.before)

    def restore(self) -> None:
        for hooks, own in self.before:
            if hooks != own:
                hooks.clear()
                hooks.update(own)


@contextmanager
def kept_outside(module: Any) -> Iterator[None]:
    """What the module's functions cache meanwhile is forgotten, and tensors that they put into classes and global variables are
    not there afterwards: a trace has tensors without values, which no other call must find."""
    import torch

    kinds = user_classes(module)
    seen = [(f.__globals__, n) for f in functions_of(kinds) for n in f.__code__.co_names]
    cached = [f for k in kinds for f in vars(k).values() if isinstance(f, CACHED)]
    cached += [x for held, n in seen if isinstance(x := held.get(n), CACHED)]
    sizes = [f.cache_info().currsize for f in cached]
    classes = [(k, dict(vars(k))) for k in kinds]
    before = [(held, n, held.get(n)) for held, n in seen]
    try:
        yield
    finally:
        for f, size in zip(cached, sizes, strict=True):
            if f.cache_info().currsize != size:
                f.cache_clear()
        for kind, own in classes:
            for n, x in list(vars(kind).items()):
                if isinstance(x, torch.Tensor) and x is not own.get(n):
                    setattr(kind, n, own[n]) if n in own else delattr(kind, n)
        for held, n, x in before:
            if isinstance(held.get(n), torch.Tensor) and held[n] is not x:
                held[n] = x
