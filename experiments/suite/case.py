"""How modules of the suite are written down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch import nn

N = Callable[[int, int], int]
"""``n(real, small)``: one of two sizes."""
Made = tuple[nn.Module, tuple[Any, ...]]
Case = Callable[[bool], Made]


class Keywords(dict[str, Any]):
    """Keyword arguments, as the last of a module's inputs."""


class Fn(nn.Module):
    """A function of modules and inputs; parameters and buffers by name."""

    def __init__(self, run: Callable[..., Any], *modules: nn.Module, **parameters: Tensor) -> None:
        super().__init__()
        self.run, self.inner = run, nn.ModuleList(modules)
        for name, value in parameters.items():
            self.register_parameter(name, nn.Parameter(value))
        self.names = tuple(parameters)

    def forward(self, *inputs: Any) -> Any:
        return self.run(*self.inner, *(getattr(self, n) for n in self.names), *inputs)


def of(make: Callable[[], nn.Module], *shapes: tuple[int, ...], small: tuple[tuple[int, ...], ...] | None = None) -> Case:
    """A module that is the same for all sizes, on random numbers."""

    def case(little: bool) -> Made:
        mine = small if little and small else tuple(tuple(min(n, 12) for n in s) for s in shapes) if little else shapes
        return make(), tuple(torch.randn(s) for s in mine)

    return case


def fn(run: Callable[..., Any], *shapes: tuple[int, ...], small: tuple[tuple[int, ...], ...] | None = None) -> Case:
    """A function of random numbers."""
    return of(lambda: Fn(run), *shapes, small=small)


def scaled(make: Callable[[Callable[[int, int], int]], Made]) -> Case:
    """A case written with ``n(real, small)`` in place of sizes."""
    return lambda little: make(lambda real, small: small if little else real)


def images(n: Callable[[int, int], int], size: int = 64, small: int = 16, channels: int = 3, batch: int = 8) -> Tensor:
    """Random images; a check has smaller ones."""
    return torch.randn(n(batch, 1), channels, n(size, small), n(size, small))


def further(run: Callable[..., Any], more: Callable[[Any], tuple[Any, ...]]) -> Callable[..., Any]:
    """``run`` with further arguments, which follow from all that it is given."""
    return lambda *given: run(*given, *more(given))
