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
from collections.abc import Hashable
from collections.abc import Iterator

from fuser.superopt.expressions.normal_form import FACTORS
from fuser.superopt.expressions.normal_form import NF
from fuser.superopt.expressions.normal_form import ONE
from fuser.superopt.expressions.normal_form import TOP
from fuser.superopt.expressions.normal_form import WEIGHTS
from fuser.superopt.expressions.normal_form import Factor
from fuser.superopt.expressions.normal_form import Term
from fuser.superopt.expressions.normal_form import intern
from fuser.superopt.expressions.normal_form import is_fold
from fuser.superopt.expressions.normal_form import single_fold
from fuser.superopt.expressions.normal_form import times_term

_DENOMINATOR_WEIGHT = 0.7390851332151607  # any generic number: keeps x·y/x apart from y in the order of terms

_QUOTIENTS: dict[tuple[NF, NF], NF | bool | None] = {}


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
    total = math.fsum(WEIGHTS[f] for f in factors)
    return total if den is None else total - _DENOMINATOR_WEIGHT * _log(den)


def _log(e: NF) -> float:
    if e.log is None:
        weights = [(_weight(t), c) for t, c in e.terms.items()]
        top = max(w for w, _ in weights)
        e.log = top + math.log(math.fsum(c * math.exp(w - top) for w, c in weights))
    return e.log


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
            product = times_term(q, term)
            left = rest.get(product, 0) - times * count if product else -1
            if product is None or left < 0:
                return False
            if left:
                rest[product] = left
            else:
                del rest[product]
        quotient[q] = times
    return None if (result := intern(quotient)) is ONE else result


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
        self._folds: list[Factor] = []
        pending, seen = list(dict.fromkeys(outputs)), set(outputs)
        while pending:
            level = pending.pop(0)
            self.levels.append(level)
            for term in level.terms:
                inner = [] if term[1] is None else [term[1]]
                for number in set(term[0]):
                    self._by_factor.setdefault(number, []).append((level, term))
                    factor = FACTORS[number]
                    inner += factor.args
                    if is_fold(factor) and factor not in self._folds:
                        self._folds.append(factor)
                for inside in inner:
                    if inside not in seen:
                        seen.add(inside)
                        pending.append(inside)

    def keeps(self, e: NF) -> bool:
        """False only if no expression that is equal to an output contains one that is equal to ``e``."""
        found = self._cache.get(e)
        if found is None:
            found = self.everything or e is TOP or next(self.images(e), None) is not None or self._partial_fold(e)
            self._cache[e] = found
        return found

    def images(self, e: NF) -> Iterator[tuple[NF, Term | None]]:
        """Every place where a multiple of ``e`` is contained, with the multiplier (None: division left it open)."""
        if not e.terms:
            yield from ((level, None) for level in self.levels[:1])
            return
        # the term of e with the rarest factor has the fewest images to try
        places: list[tuple[NF, Term]] | None = None
        chosen = next(iter(e.terms))
        for term in e.terms:
            for number in term[0]:
                found = self._by_factor.get(number)
                if found is None:
                    return
                if places is None or len(found) < len(places):
                    places, chosen = found, term
        if places is None:
            places = [(level, t) for level in self.levels for t in level.terms]
        for level, image in places:
            if len(level.terms) < len(e.terms):
                continue
            c = _divide_term(image, chosen)
            if c is True:
                yield level, None
            elif c and _contains(level, e, c):
                yield level, c

    def _partial_fold(self, e: NF) -> bool:
        inner = single_fold(e)
        if inner is None:
            return False
        return any((f.name, f.args) == (inner.name, inner.args) and _within(inner.params, f.params) for f in self._folds)


def _within(small: tuple[Hashable, ...], big: tuple[Hashable, ...]) -> bool:
    return all(small.count(p) <= big.count(p) for p in small)


def _contains(t: NF, e: NF, c: Term) -> bool:
    for term, count in e.terms.items():
        product = times_term(c, term)
        if product is None or t.terms.get(product, 0) < count:
            return False
    return True
