"""Normal forms of abstract expressions: interned values and their constructors; what they mean stands in :mod:`.expressions`."""

from __future__ import annotations

import random
from collections.abc import Hashable
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from typing import Literal

from fuser.interpret.modular import prime_factors
from fuser.ir.ops import OPS
from fuser.ir.scalar import Scalar

MAX_TERMS = 256
"""Forms of more distinct terms become :data:`TOP`, which every query keeps."""

Extent = Hashable
"""A reduction extent: a positive int (factorised, so that 4·8 is 32) or any hashable symbol, for example a part of an axis."""

Term = tuple[tuple[int, ...], "NF | None"]
"""Sorted factor numbers with repetition, and the denominator (None for 1)."""


@dataclass(frozen=True)
class Factor:
    """What a factor number stands for. ``args`` are normal forms; ``name`` an input, a constant, an extent or a function."""

    kind: Literal["var", "const", "extent", "fn"]
    name: Hashable
    args: tuple[NF, ...] = ()
    params: tuple[Hashable, ...] = ()

    def __str__(self) -> str:
        if self.kind != "fn":
            return f"Σ{self.name}" if self.kind == "extent" else str(self.name)
        params = f"[{','.join(map(str, self.params))}]" if self.params else ""
        return f"{self.name}{params}({', '.join(map(str, self.args))})"


class NF:
    """A normal form: ``terms`` maps each term to its multiplicity. Made by the constructors below only; compare with ``is``."""

    __slots__ = ("log", "number", "terms")

    def __init__(self, terms: dict[Term, int], number: int) -> None:
        self.terms = terms
        self.number = number
        self.log: float | None = None

    def __reduce__(self) -> Any:
        if self is TOP:
            return _top, ()
        portable = [([FACTORS[f] for f in factors], den, count) for (factors, den), count in self.terms.items()]
        return _rebuild, (portable,)

    def __str__(self) -> str:
        if self is TOP:
            return "⊤"

        def text(term: Term, count: int) -> str:
            factors, den = term
            names = sorted(str(FACTORS[f]) for f in factors)
            body = "·".join([str(count), *names] if count > 1 or not names else names)
            return body if den is None else f"{body}/({den})"

        return " + ".join(sorted(text(t, c) for t, c in self.terms.items())) or "0"

    __repr__ = __str__


FACTORS: list[Factor] = []
WEIGHTS: list[float] = []
_FACTOR_NUMBERS: dict[Factor, int] = {}
_EXTENT_FACTORS: dict[tuple[Extent, ...], tuple[int, ...]] = {}
_FORMS: dict[Any, NF] = {}
_PRODUCTS: dict[tuple[NF, NF], NF] = {}
_random = random.Random(0)

TOP = NF({}, -1)
"""An expression that was too large to expand; everything made of it is TOP."""


def intern(terms: dict[Term, int]) -> NF:
    """The one form of these terms; :data:`TOP` if they are too many."""
    if len(terms) == 1:
        ((key, count),) = terms.items()
        if count != 1:
            key = (key, count)
    else:
        if len(terms) > MAX_TERMS:
            return TOP
        key = frozenset(terms.items())
    found = _FORMS.get(key)
    if found is None:
        found = _FORMS[key] = NF(terms, len(_FORMS))
    return found


ZERO = intern({})
ONE = intern({((), None): 1})


def _factor(factor: Factor) -> int:
    number = _FACTOR_NUMBERS.get(factor)
    if number is None:
        number = _FACTOR_NUMBERS[factor] = len(FACTORS)
        FACTORS.append(factor)
        WEIGHTS.append(_random.uniform(0.5, 2.0))
    return number


def _atom(factor: Factor) -> NF:
    return intern({((_factor(factor),), None): 1})


def _top() -> NF:
    return TOP


def _rebuild(portable: list[tuple[list[Factor], NF | None, int]]) -> NF:
    return intern({(tuple(sorted(map(_factor, factors))), den): count for factors, den, count in portable})


def _parts(extents: Iterable[Extent]) -> list[Hashable]:
    """Symbols and prime numbers that multiply to the extents."""
    parts: list[Hashable] = []
    for e in extents:
        if isinstance(e, int):
            if e < 1:
                raise ValueError(f"a reduction needs a positive extent, got {e}")
            parts += prime_factors(e)
        else:
            parts.append(e)
    return parts


# Constructors


def var(name: Hashable) -> NF:
    """An input tensor."""
    return _atom(Factor("var", name))


def const(value: Hashable) -> NF:
    """A constant: an atom for each distinct value, which moves freely but is neither made nor lost; 0 and 1 obey their laws."""
    if isinstance(value, Scalar | int | float):
        value = Scalar.of(value).normal()
        if value == Scalar():
            return ONE
        if not value.coeff:
            return ZERO
    return _atom(Factor("const", value))


def add(a: NF, b: NF) -> NF:
    if a is TOP or b is TOP:
        return TOP
    if len(a.terms) < len(b.terms):
        a, b = b, a
    terms = dict(a.terms)
    for term, count in b.terms.items():
        terms[term] = terms.get(term, 0) + count
    return intern(terms)


def times_term(a: Term, b: Term) -> Term | None:
    """Product of two terms; None where a denominator outgrows MAX_TERMS."""
    (fa, da), (fb, db) = a, b
    den = da if db is None else db if da is None else mul(da, db)
    if den is TOP:
        return None
    return tuple(sorted(fa + fb)) if fa and fb else fa or fb, den


def mul(a: NF, b: NF) -> NF:
    if a is TOP or b is TOP:
        return TOP
    if a.number > b.number:
        a, b = b, a
    key = (a, b)
    found = _PRODUCTS.get(key)
    if found is None:
        found = _PRODUCTS[key] = _mul(a, b)
    return found


def _mul(a: NF, b: NF) -> NF:
    if len(a.terms) * len(b.terms) > MAX_TERMS**2:
        return TOP
    terms: dict[Term, int] = {}
    for x, m in a.terms.items():
        for y, n in b.terms.items():
            term = times_term(x, y)
            if term is None:
                return TOP
            terms[term] = terms.get(term, 0) + m * n
    return intern(terms)


def div(a: NF, b: NF) -> NF:
    if a is TOP or b is TOP:
        return TOP
    if b is ONE:
        return a
    if b is ZERO:
        return TOP
    terms: dict[Term, int] = {}
    for (factors, den), count in a.terms.items():
        den = b if den is None else mul(den, b)
        if den is TOP:
            return TOP
        terms[factors, den] = terms.get((factors, den), 0) + count
    return intern(terms)


def reduce_sum(extents: Iterable[Extent], e: NF) -> NF:
    """``sum(i·j·…, e)`` over every extent given; an extent of 1 does nothing."""
    extents = tuple(extents)
    factors = _EXTENT_FACTORS.get(extents)
    if factors is None:
        factors = tuple(_factor(Factor("extent", part)) for part in _parts(extents))
        _EXTENT_FACTORS[extents] = factors
    if e is TOP or not factors:
        return e
    return intern({(tuple(sorted(f + factors)), den): count for (f, den), count in e.terms.items()})


def fn(name: str, *args: NF, params: tuple[Hashable, ...] = ()) -> NF:
    """An uninterpreted function."""
    return TOP if TOP in args else _atom(Factor("fn", name, args, params))


def exp(e: NF) -> NF:
    return fn("exp", e)


def fold(name: str, extents: Iterable[Extent], e: NF) -> NF:
    """A fold that adds nothing, such as by maximum; ``max(i, max(j, x)) = max(i·j, x)``."""
    parts = _parts(extents)
    inner = single_fold(e)
    if inner is not None and inner.name == name:
        parts += inner.params
        e = inner.args[0]
    return fn(name, e, params=tuple(sorted(parts, key=lambda p: (str(type(p)), str(p))))) if parts else e


def is_fold(factor: Factor) -> bool:
    """It is one of :func:`fold`."""
    return factor.kind == "fn" and factor.name in OPS and OPS[str(factor.name)].kind == "reduce"


def single_fold(e: NF) -> Factor | None:
    """The fold that the form consists of, if it does."""
    if len(e.terms) == 1:
        (((factors, den), count),) = e.terms.items()
        if den is None and count == 1 and len(factors) == 1:
            factor = FACTORS[factors[0]]
            if is_fold(factor):
                return factor
    return None


def axis(name: Hashable) -> tuple[Extent, Extent, Extent]:
    """The extents of a whole axis that a structure may divide: its grid, loop and tile parts."""
    return (name, "grid"), (name, "loop"), (name, "tile")
