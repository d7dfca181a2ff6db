"""Constants that keep their meaning.

A :class:`Scalar` is ``coeff * prod(base ** exponent)``. A base is an integer or the extent of a tensor dimension, so 1/sqrt(80)
or 1/N stays exact at any size, and in any field where each irrational power is one unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fuser.files import shown


@dataclass(frozen=True, order=True)
class Extent:
    """The extent of dimension ``dim`` of the program tensor ``tensor``."""

    tensor: str
    dim: int


Base = int | Extent
Place = Callable[[Extent], Base | tuple[Base, ...]]

_LARGEST = 2**1100
"""Numerators and denominators of every float, and of products of a few."""


def _key(item: tuple[Base, Fraction]) -> tuple[int, str]:
    return (isinstance(item[0], Extent), str(item[0]))


@dataclass(frozen=True)
class Scalar:
    """An exact constant; ``powers`` is sorted and free of zero exponents and of integer powers of integers."""

    coeff: Fraction = Fraction(1)
    powers: tuple[tuple[Base, Fraction], ...] = ()

    @staticmethod
    def of(value: int | float | Fraction | Scalar) -> Scalar:
        """Exact value of a number; a float is taken at its binary value."""
        if isinstance(value, Scalar):
            return value
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"a constant of the algebra must be finite, got {value}")
        return Scalar(Fraction(value))

    @staticmethod
    def power(base: Base, exponent: int | Fraction) -> Scalar:
        return Scalar(Fraction(1), ((base, Fraction(exponent)),)).normal()

    def normal(self) -> Scalar:
        coeff, powers = self.coeff, dict[Base, Fraction]()
        for base, exponent in self.powers:
            powers[base] = powers.get(base, Fraction(0)) + exponent
        kept: list[tuple[Base, Fraction]] = []
        for base, exponent in powers.items():
            if isinstance(base, int):
                whole = math.floor(exponent)
                coeff *= Fraction(base) ** whole
                exponent -= whole
                root = math.isqrt(base)
                if exponent == Fraction(1, 2) and root * root == base:
                    coeff, exponent = coeff * root, Fraction(0)
            if exponent:
                kept.append((base, exponent))
        return Scalar(coeff, tuple(sorted(kept, key=_key)))

    def __mul__(self, other: Scalar) -> Scalar:
        return Scalar(self.coeff * other.coeff, self.powers + other.powers).normal()

    def inverse(self) -> Scalar:
        return Scalar(1 / self.coeff, tuple((b, -e) for b, e in self.powers)).normal()

    @property
    def extents(self) -> tuple[Extent, ...]:
        return tuple(b for b, _ in self.powers if isinstance(b, Extent))

    def bind(self, extent: Place) -> Scalar:
        """Replace every extent: by its size, by another extent, or by several whose product it is."""
        powers: list[tuple[Base, Fraction]] = []
        for base, exponent in self.powers:
            found = extent(base) if isinstance(base, Extent) else base
            powers += [(b, exponent) for b in (found if isinstance(found, tuple) else (found,))]
        return Scalar(self.coeff, tuple(powers)).normal()

    def value(self, extent: Place | None = None) -> float:
        bound = self.bind(extent) if extent else self
        result = float(bound.coeff)
        for base, exponent in bound.powers:
            if isinstance(base, Extent):
                raise ValueError(f"the constant {self} depends on the extent of {base.tensor}[{base.dim}], which is not bound")
            result *= float(base) ** float(exponent)
        return result

    def __str__(self) -> str:
        def term(base: Base, exponent: Fraction) -> str:
            text = f"|{base.tensor}.{base.dim}|" if isinstance(base, Extent) else str(base)
            return text if exponent == 1 else f"{text}^({exponent})"

        factors = [term(b, e) for b, e in self.powers]
        if self.coeff != 1 or not factors:
            exact = str(self.coeff) if self.coeff.denominator <= 10**6 else f"{float(self.coeff):.9g}"
            factors.insert(0, exact)
        return "*".join(factors)

    def to_json(self) -> Any:
        return {
            "coeff": [self.coeff.numerator, self.coeff.denominator],
            "powers": [[[b.tensor, b.dim] if isinstance(b, Extent) else b, [e.numerator, e.denominator]] for b, e in self.powers],
        }

    @staticmethod
    def from_json(data: Any) -> Scalar:
        """What :meth:`to_json` wrote. Raises ValueError (or KeyError, TypeError) for anything else."""

        def whole(value: Any, most: int) -> int:
            if isinstance(value, bool) or not isinstance(value, int) or abs(value) > most:
                raise ValueError(f"{shown(value)} cannot be part of a constant")
            return value

        def fraction(pair: Any, most: int) -> Fraction:
            top, bottom = pair
            return Fraction(whole(top, most), whole(bottom, most))

        def base(b: Any) -> Base:
            if isinstance(b, list):
                tensor, dim = b
                if not isinstance(tensor, str):
                    raise ValueError(f"{shown(tensor)} is no name")
                return Extent(tensor, whole(dim, 64))
            if whole(b, 2**62) < 1:
                raise ValueError(f"the base {b} of a constant is not positive")
            return b

        if len(data["powers"]) > 64:
            raise ValueError(f"a constant of {len(data['powers'])} powers")
        return Scalar(fraction(data["coeff"], _LARGEST), tuple((base(b), fraction(e, 64)) for b, e in data["powers"]))


def bound(attrs: Iterable[tuple[str, Any]], extent: Place) -> dict[str, Any]:
    """Attributes with every extent in their constants replaced (:meth:`Scalar.bind`)."""
    return {k: v.bind(extent) if isinstance(v, Scalar) else v for k, v in attrs}


def renamed(attrs: Iterable[tuple[str, Any]], new: Callable[[str], str]) -> dict[str, Any]:
    """Attributes whose constants follow tensors to their new names."""
    return bound(attrs, lambda e: Extent(new(e.tensor), e.dim))


def numbers(attrs: Iterable[tuple[str, Any]], extent: Place | None = None) -> dict[str, Any]:
    """Attributes with constants as floats."""
    return {k: v.value(extent) if isinstance(v, Scalar) else v for k, v in attrs}


def tied(attrs: Iterable[tuple[str, Any]]) -> tuple[Extent, ...]:
    """The extents that constants are made of."""
    return tuple(e for _, v in attrs if isinstance(v, Scalar) for e in v.extents)
