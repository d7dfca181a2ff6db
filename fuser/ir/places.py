"""Where an element comes from: whole-number expressions of the coordinates of a result, with the range of each.

Sums of multiples of atoms; an atom is a coordinate, a quotient, a remainder, the less or larger of two, or a number that is only
known when a tensor is read. What follows from the ranges is simplified: a reshape that splits what another one joined leaves
nothing behind.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from typing import Literal


@dataclass(frozen=True, eq=False)
class Atom:
    """``kind`` of ``args``; ``number``: the divisor, or which value. Atoms of the same parts are one (:func:`_atom`)."""

    kind: Literal["coordinate", "quotient", "remainder", "least", "most", "value"]
    args: tuple[Place, ...]
    number: int
    low: int
    high: int
    key: str
    """The same text for the same parts: terms are in its order."""


@dataclass(frozen=True)
class Place:
    """``constant`` and the sum of ``terms``, multiples of atoms."""

    terms: tuple[tuple[Atom, int], ...] = ()
    constant: int = 0

    @cached_property
    def low(self) -> int:
        return self.constant + sum(c * (a.low if c > 0 else a.high) for a, c in self.terms)

    @cached_property
    def high(self) -> int:
        return self.constant + sum(c * (a.high if c > 0 else a.low) for a, c in self.terms)

    def __add__(self, other: Place | int) -> Place:
        if isinstance(other, int):
            return Place(self.terms, self.constant + other)
        found = dict(self.terms)
        for atom, c in other.terms:
            found[atom] = found.get(atom, 0) + c
        return _sum(found, self.constant + other.constant)

    def __mul__(self, n: int) -> Place:
        return Place(tuple((a, c * n) for a, c in self.terms), self.constant * n) if n else Place()

    def __neg__(self) -> Place:
        return self * -1

    def __sub__(self, other: Place | int) -> Place:
        return self + -other

    def __floordiv__(self, n: int) -> Place:
        return self._divided(n)[0]

    def __mod__(self, n: int) -> Place:
        return self._divided(n)[1]

    def _divided(self, n: int) -> tuple[Place, Place]:
        """Quotient and remainder, rounded down: multiples of the divisor leave first."""
        if n == 1:
            return self, Place()
        whole = Place(tuple((a, c // n) for a, c in self.terms if c % n == 0), self.constant // n)
        rest = Place(tuple((a, c) for a, c in self.terms if c % n), self.constant % n)
        if rest.low // n == rest.high // n:
            q = rest.low // n
            return whole + q, rest - q * n
        below = -(rest.low // n)
        if below > 0:  # nothing negative is divided: compilers round towards zero
            rest, whole = rest + below * n, whole - below
        common = math.gcd(n, *(c for _, c in rest.terms))
        inner, left = Place(tuple((a, c // common) for a, c in rest.terms), rest.constant // common), rest.constant % common
        n //= common
        if (
            len(inner.terms) == 1
            and inner.constant == 0
            and (atom := inner.terms[0][0]).kind == "quotient"
            and inner.terms[0][1] == 1
        ):
            quotient = _one("quotient", atom.args, atom.number * n, inner.low // n, inner.high // n)
        else:
            quotient = _one("quotient", (inner,), n, inner.low // n, inner.high // n)
        return whole + quotient, _one("remainder", (inner,), n, 0, min(n - 1, inner.high)) * common + left

    def at_least(self, n: int) -> Place:
        if self.low >= n:
            return self
        return fixed(n) if self.high <= n else _one("most", (self, fixed(n)), 0, n, self.high)

    def at_most(self, n: int) -> Place:
        if self.high <= n:
            return self
        return fixed(n) if self.low >= n else _one("least", (self, fixed(n)), 0, self.low, n)

    def magnitude(self) -> Place:
        if self.low >= 0:
            return self
        return -self if self.high <= 0 else _one("most", (self, -self), 0, 0, max(self.high, -self.low))


_ATOMS: dict[Any, Atom] = {}
_MOST = 100_000


def _one(kind: Any, args: tuple[Place, ...], number: int, low: int, high: int) -> Place:
    if len(_ATOMS) > _MOST:
        _ATOMS.clear()
    key = (kind, args, number, low, high)
    if key not in _ATOMS:
        inner = ",".join(f"{'+'.join(f'{c}*{a.key}' for a, c in x.terms)}+{x.constant}" for x in args)
        _ATOMS[key] = Atom(*key, f"{kind[0]}{number}({inner})")
    return Place(((_ATOMS[key], 1),))


def _sum(found: dict[Atom, int], constant: int) -> Place:
    """Without what is multiplied by zero; a quotient times its divisor and the remainder are what was divided."""
    for atom, c in list(found.items()):
        if atom.kind != "remainder" or found.get(atom) != c or not c:
            continue
        (inner,), n = atom.args, atom.number
        quotient = next((a for a in found if a.kind == "quotient" and _undone(a, inner, n) and found[a] == c * n), None)
        if quotient is not None:
            del found[atom], found[quotient]
            return Place(_ordered(found), constant) + inner * c
    return Place(_ordered(found), constant)


def _ordered(found: dict[Atom, int]) -> tuple[tuple[Atom, int], ...]:
    return tuple(sorted(((a, c) for a, c in found.items() if c), key=lambda t: t[0].key))


def _undone(quotient: Atom, inner: Place, n: int) -> bool:
    if quotient.args == (inner,) and quotient.number == n:
        return True
    if len(inner.terms) != 1 or inner.constant or inner.terms[0][1] != 1 or inner.terms[0][0].kind != "quotient":
        return False
    first = inner.terms[0][0]
    return quotient.args == first.args and quotient.number == first.number * n


def fixed(n: int) -> Place:
    return Place((), n)


def coordinate(i: int, extent: int) -> Place:
    """The i-th coordinate of a result."""
    return _one("coordinate", (), i, 0, extent - 1) if extent > 1 else fixed(0)


def value(i: int, low: int, high: int) -> Place:
    """A number that step ``i`` of a tape reads."""
    return _one("value", (), i, low, high)


@dataclass(frozen=True)
class Condition:
    """``kind`` "<" or "==": how the sum compares with zero; "&" and "|" join two."""

    kind: Literal["<", "==", "&", "|"]
    sides: tuple[Any, ...]


Truth = Condition | bool


def below(a: Place, b: Place | int) -> Truth:
    difference = a - b
    always = difference.high < 0
    return always if always or difference.low >= 0 else Condition("<", (difference,))


def inside(a: Place, start: int, stop: int) -> Truth:
    return both(below(fixed(start - 1), a), below(a, stop))


def equal(a: Place, b: Place | int) -> Truth:
    difference = a - b
    if difference.low == difference.high == 0:
        return True
    return Condition("==", (difference,)) if difference.low <= 0 <= difference.high else False


def both(a: Truth, b: Truth) -> Truth:
    if isinstance(a, bool) or isinstance(b, bool):
        return (a if b is True else b) if b is True or a is True else False
    return a if a == b else Condition("&", (a, b))


def either(a: Truth, b: Truth) -> Truth:
    if isinstance(a, bool) or isinstance(b, bool):
        return True if a is True or b is True else b if a is False else a
    return a if a == b else Condition("|", (a, b))


# Tensors row after row


def flat(at: Sequence[Place], shape: Sequence[int]) -> Place:
    found = Place()
    for x, n in zip(at, shape, strict=True):
        found = found * n + x
    return found


def split(at: Place, shape: Sequence[int]) -> tuple[Place, ...]:
    """The coordinates of an element of a tensor by its number."""
    found: list[Place] = []
    for n in reversed(shape):
        found.append(at % n)
        at = at // n
    return tuple(reversed(found))


# What becomes of them

COMPUTED: dict[str, Callable[..., Any]] = {
    "quotient": lambda x, n: x // n,
    "remainder": lambda x, n: x % n,
}


def atoms_of(p: Place | Condition | bool) -> set[Atom]:
    """All atoms, those inside of others too."""
    found = set[Atom]()
    todo: list[Any] = [p]
    while todo:
        x = todo.pop()
        if isinstance(x, Condition):
            todo += x.sides
        elif isinstance(x, Place):
            for a, _ in x.terms:
                if a not in found:
                    found.add(a)
                    todo += a.args
    return found


def evaluated(p: Place, known: Mapping[Atom, Any], numpy: Any) -> Any:
    """Its value where those of coordinates and of what is read are ``known``."""

    def of(a: Atom) -> Any:
        if a in known:
            return known[a]
        xs = [evaluated(x, known, numpy) for x in a.args]
        if a.kind in COMPUTED:
            return COMPUTED[a.kind](xs[0], a.number)
        return (numpy.minimum if a.kind == "least" else numpy.maximum)(*xs)

    return sum((of(a) * c for a, c in p.terms), start=p.constant)


def holds(c: Truth, known: Mapping[Atom, Any], numpy: Any) -> Any:
    if isinstance(c, bool):
        return c
    if c.kind in "&|":
        a, b = (holds(x, known, numpy) for x in c.sides)
        return a & b if c.kind == "&" else a | b
    x = evaluated(c.sides[0], known, numpy)
    return x < 0 if c.kind == "<" else x == 0
