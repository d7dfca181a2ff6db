"""Abstract expressions and the pruning question (Mirage section 4.3, tables 1 and 2), decided by normal forms.

None of the equivalence axioms cancels, so every expression has a normal form: a multiset of terms, each a product of factors
over one fully expanded denominator that is a normal form itself. A factor is an input, a constant, a reduction extent, or an
uninterpreted function (``exp`` among them) of normal forms. A reduction commutes with everything that a factor commutes with, so
an extent is a factor too: ``sum(i, x)`` multiplies each term by ``i``, and ``sum(i, sum(j, x)) = sum(i·j, x)`` follows.

The axioms identify exactly the terms of equal normal form, but for the laws of 1 and 0, which are added (``1·x = x/1 = x`` lets
``y·rsqrt(z)`` be ``y/sqrt(z)``). No axiom rewrites ``x/(y/z)``: there ``x`` has the denominator ``y/z``, which has its own.

``e`` is an abstract subexpression of ``t`` (some expression equal to ``t`` contains one equal to ``e``) if and only if

- ``c·e`` is contained in ``t`` for a single term ``c``: adding to, multiplying, dividing, reducing ``e`` gives ``c·e + rest``; or
- ``e`` is a subexpression of an argument of a factor of ``t``, or of the denominator of a term of ``t``.

``c`` is unique for each pair of a term of ``e`` and a term of ``t``: the terms form a cancellative monoid, and the denominators a
semiring without zero divisors, where exact division by leading terms decides. The answer is exact, apart from two cases, in
both of which it is "keep": forms beyond :data:`MAX_TERMS` are not expanded (:data:`TOP`), and division gives up where two leading
terms tie.

Forms are interned: equality is identity. Tables live as long as the process; :func:`clear` empties them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from typing import Literal

from fuser.ir.scalar import Scalar

MAX_TERMS = 256
"""Forms of more distinct terms become :data:`TOP`, which every query keeps."""

Extent = Hashable
"""A reduction extent: a positive int (factorised, so that 4·8 is 32) or any hashable symbol, for example a part of an axis."""

Term = tuple[tuple[int, ...], "NF | None"]
"""Sorted factor numbers with repetition, and the denominator (None for 1)."""

_DENOMINATOR_WEIGHT = 0.7390851332151607  # any generic number: keeps x·y/x apart from y in the order of terms


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

    __slots__ = ("_log", "number", "terms")

    def __init__(self, terms: dict[Term, int], number: int) -> None:
        self.terms = terms
        self.number = number
        self._log: float | None = None

    def __reduce__(self) -> Any:
        if self is TOP:
            return _top, ()
        portable = [([_FACTORS[f] for f in factors], den, count) for (factors, den), count in self.terms.items()]
        return _rebuild, (portable,)

    def __str__(self) -> str:
        if self is TOP:
            return "⊤"

        def text(term: Term, count: int) -> str:
            factors, den = term
            names = sorted(str(_FACTORS[f]) for f in factors)
            body = "·".join([str(count), *names] if count > 1 or not names else names)
            return body if den is None else f"{body}/({den})"

        return " + ".join(sorted(text(t, c) for t, c in self.terms.items())) or "0"

    __repr__ = __str__


_FACTORS: list[Factor] = []
_WEIGHTS: list[float] = []
_FACTOR_NUMBERS: dict[Factor, int] = {}
_EXTENT_FACTORS: dict[tuple[Extent, ...], tuple[int, ...]] = {}
_FORMS: dict[Any, NF] = {}
_PRODUCTS: dict[tuple[NF, NF], NF] = {}
_QUOTIENTS: dict[tuple[NF, NF], NF | bool | None] = {}
_random = random.Random(0)

TOP = NF({}, -1)
"""An expression that was too large to expand; everything made of it is TOP."""


def _form(terms: dict[Term, int]) -> NF:
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


ZERO = _form({})
ONE = _form({((), None): 1})


def clear() -> None:
    """Forget all interned forms. Forms made before must not meet forms made after."""
    for table in (_FACTORS, _WEIGHTS, _FACTOR_NUMBERS, _EXTENT_FACTORS, _FORMS, _PRODUCTS, _QUOTIENTS):
        table.clear()
    _FORMS[frozenset()] = ZERO
    _FORMS[((), None)] = ONE
    _random.seed(0)


def _factor(factor: Factor) -> int:
    number = _FACTOR_NUMBERS.get(factor)
    if number is None:
        number = _FACTOR_NUMBERS[factor] = len(_FACTORS)
        _FACTORS.append(factor)
        _WEIGHTS.append(_random.uniform(0.5, 2.0))
    return number


def _atom(factor: Factor) -> NF:
    return _form({((_factor(factor),), None): 1})


def _top() -> NF:
    return TOP


def _rebuild(portable: list[tuple[list[Factor], NF | None, int]]) -> NF:
    return _form({(tuple(sorted(map(_factor, factors))), den): count for factors, den, count in portable})


def _primes(n: int) -> list[int]:
    found, p = [], 2
    while p * p <= n:
        while n % p == 0:
            found.append(p)
            n //= p
        p += 1
    return [*found, n] if n > 1 else found


def _parts(extents: Iterable[Extent]) -> list[Hashable]:
    """Symbols and prime numbers that multiply to the extents."""
    parts: list[Hashable] = []
    for e in extents:
        if isinstance(e, int):
            if e < 1:
                raise ValueError(f"a reduction needs a positive extent, got {e}")
            parts += _primes(e)
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
    return _form(terms)


def _times(a: Term, b: Term) -> Term | None:
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
            term = _times(x, y)
            if term is None:
                return TOP
            terms[term] = terms.get(term, 0) + m * n
    return _form(terms)


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
    return _form(terms)


def reduce_sum(extents: Iterable[Extent], e: NF) -> NF:
    """``sum(i·j·…, e)`` over every extent given; an extent of 1 does nothing."""
    extents = tuple(extents)
    factors = _EXTENT_FACTORS.get(extents)
    if factors is None:
        factors = tuple(_factor(Factor("extent", part)) for part in _parts(extents))
        _EXTENT_FACTORS[extents] = factors
    if e is TOP or not factors:
        return e
    return _form({(tuple(sorted(f + factors)), den): count for (f, den), count in e.terms.items()})


def fn(name: str, *args: NF, params: tuple[Hashable, ...] = ()) -> NF:
    """An uninterpreted function."""
    return TOP if TOP in args else _atom(Factor("fn", name, args, params))


def exp(e: NF) -> NF:
    return fn("exp", e)


def reduce_max(extents: Iterable[Extent], e: NF) -> NF:
    """Fold by maximum; ``max(i, max(j, x)) = max(i·j, x)``."""
    parts = _parts(extents)
    inner = _single_max(e)
    if inner is not None:
        parts += inner.params
        e = inner.args[0]
    return fn("max", e, params=tuple(sorted(parts, key=lambda p: (str(type(p)), str(p))))) if parts else e


def _single_max(e: NF) -> Factor | None:
    if len(e.terms) == 1:
        (((factors, den), count),) = e.terms.items()
        if den is None and count == 1 and len(factors) == 1:
            factor = _FACTORS[factors[0]]
            if factor.kind == "fn" and factor.name == "max":
                return factor
    return None


def axis(name: Hashable) -> tuple[Extent, Extent, Extent]:
    """The extents of a whole axis that a structure may divide: its grid, loop and tile parts."""
    return (name, "grid"), (name, "loop"), (name, "tile")


# Exact division

_Quotient = NF | bool | None  # a form; None for 1; False: does not divide; True: undecided


def _minus(big: tuple[int, ...], small: tuple[int, ...]) -> tuple[int, ...] | None:
    if len(small) > len(big):
        return None
    rest = list(big)
    for factor in small:
        if factor not in rest:
            return None
        rest.remove(factor)
    return tuple(rest)


def _divide_term(t: Term, e: Term) -> Term | bool:
    """The term q with q·e = t, False if there is none, True if undecided."""
    factors = _minus(t[0], e[0])
    if factors is None:
        return False
    den = _quotient(t[1], e[1])
    return den if isinstance(den, bool) else (factors, den)


def _quotient(t: NF | None, e: NF | None) -> _Quotient:
    if e is None:
        return t
    if t is e:
        return None
    if t is None:
        return False
    key = (t, e)
    if key not in _QUOTIENTS:
        _QUOTIENTS[key] = _long_division(t, e)
    return _QUOTIENTS[key]


def _weight(term: Term) -> float:
    """Log of a generic positive value of the term: an order that multiplication respects."""
    factors, den = term
    total = math.fsum(_WEIGHTS[f] for f in factors)
    return total if den is None else total - _DENOMINATOR_WEIGHT * _log(den)


def _log(e: NF) -> float:
    if e._log is None:
        weights = [(_weight(t), c) for t, c in e.terms.items()]
        top = max(w for w, _ in weights)
        e._log = top + math.log(math.fsum(c * math.exp(w - top) for w, c in weights))
    return e._log


def _leading(terms: dict[Term, int]) -> Term | None:
    """The greatest term; None where two tie."""
    if len(terms) == 1:
        return next(iter(terms))
    first, second = sorted(terms, key=_weight, reverse=True)[:2]
    return None if _weight(first) - _weight(second) < 1e-9 else first


def _long_division(t: NF, e: NF) -> _Quotient:
    if not e.terms or not t.terms:
        return True
    if sum(t.terms.values()) % sum(e.terms.values()):
        return False
    lead = _leading(e.terms)
    rest, quotient = dict(t.terms), dict[Term, int]()
    while rest:
        head = _leading(rest)
        if lead is None or head is None:
            return True
        q = _divide_term(head, lead)
        if isinstance(q, bool):
            return q
        times, remainder = divmod(rest[head], e.terms[lead])
        if remainder:
            return False
        for term, count in e.terms.items():
            product = _times(q, term)
            left = rest.get(product, 0) - times * count if product else -1
            if product is None or left < 0:
                return False
            if left:
                rest[product] = left
            else:
                del rest[product]
        quotient[q] = times
    return None if (form := _form(quotient)) is ONE else form


# The pruning question


class Target:
    """What a search is after: the expressions of the program's outputs. ``keeps(e)`` is cached."""

    def __init__(self, *outputs: NF) -> None:
        self.outputs = outputs
        self.levels: list[NF] = []
        """Every form that occurs: the outputs, the arguments of functions, the denominators, at any depth."""
        self.everything = TOP in outputs
        self._cache: dict[NF, bool] = {}
        self._by_factor: dict[int, list[tuple[NF, Term]]] = {}
        self._maxima: list[Factor] = []
        pending, seen = list(dict.fromkeys(outputs)), set(outputs)
        while pending:
            level = pending.pop(0)
            self.levels.append(level)
            for term in level.terms:
                inner = [] if term[1] is None else [term[1]]
                for number in set(term[0]):
                    self._by_factor.setdefault(number, []).append((level, term))
                    factor = _FACTORS[number]
                    inner += factor.args
                    if factor.kind == "fn" and factor.name == "max" and factor not in self._maxima:
                        self._maxima.append(factor)
                for form in inner:
                    if form not in seen:
                        seen.add(form)
                        pending.append(form)

    def keeps(self, e: NF) -> bool:
        """False only if no expression that is equal to an output contains one that is equal to ``e``."""
        found = self._cache.get(e)
        if found is None:
            found = self._cache[e] = self.everything or e is TOP or self._decide(e)
        return found

    def reaches(self, e: NF) -> bool:
        """Whether ``e`` equals an output (TOP may)."""
        return self.everything or e is TOP or e in self.outputs

    def _decide(self, e: NF) -> bool:
        if not e.terms:
            return True
        # the term of e with the rarest factor has the fewest images to try
        best: list[tuple[NF, Term]] | None = None
        chosen: Term | None = None
        for term in e.terms:
            for number in term[0]:
                places = self._by_factor.get(number)
                if places is None:
                    return self._partial_max(e)
                if best is None or len(places) < len(best):
                    best, chosen = places, term
        if best is None or chosen is None:
            best, chosen = [(level, t) for level in self.levels for t in level.terms], next(iter(e.terms))
        for level, image in best:
            if len(level.terms) < len(e.terms):
                continue
            c = _divide_term(image, chosen)
            if c is True or (c and _contains(level, e, c)):
                return True
        return self._partial_max(e)

    def _partial_max(self, e: NF) -> bool:
        inner = _single_max(e)
        if inner is None:
            return False
        return any(f.args == inner.args and _within(inner.params, f.params) for f in self._maxima)


def _within(small: tuple[Hashable, ...], big: tuple[Hashable, ...]) -> bool:
    return all(small.count(p) <= big.count(p) for p in small)


def _contains(t: NF, e: NF, c: Term) -> bool:
    for term, count in e.terms.items():
        product = _times(c, term)
        if product is None or t.terms.get(product, 0) < count:
            return False
    return True


def is_subexpression(e: NF, *targets: NF) -> bool:
    """Whether ``e`` is an abstract subexpression of one of the targets; for many questions keep a :class:`Target`."""
    return Target(*targets).keeps(e)
