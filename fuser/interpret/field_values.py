"""Elements of Z_p × Z_q, as arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuser.ir.ops import Array


class ZeroDenominatorError(ArithmeticError):
    """A denominator is zero in the field: the draw says nothing, draw again."""


@dataclass(frozen=True)
class Value:
    """Residues mod p and, where they exist, mod q (int64); ``minus_inf`` marks elements that a mask has removed."""

    p: Array
    q: Array | None = None
    minus_inf: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.p.shape

    def map(self, f: Callable[[Array], Array]) -> Value:
        """Apply a function that only moves elements."""
        return lift(f, self)

    def __getitem__(self, index: Any) -> Value:
        return self.map(lambda x: x[index])


def hidden(x: Value) -> Array:
    """Which elements a mask has removed."""
    return np.zeros(x.shape, bool) if x.minus_inf is None else np.asarray(x.minus_inf)


def lift(f: Callable[..., Array], *xs: Value) -> Value:
    """Apply a function that only moves elements, of one array or of several, to each of the arrays that make up values."""
    qs = [x.q for x in xs if x.q is not None]
    masked = f(*map(hidden, xs)) if any(x.minus_inf is not None for x in xs) else None
    return Value(f(*(x.p for x in xs)), f(*qs) if len(qs) == len(xs) else None, masked)
