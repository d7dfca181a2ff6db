"""Loads of one place under several conditions as one load, where what it takes in place of them is the same.

Parts of a tensor that are written one after the other read much of it in each part: ``y[k:] += f(y[:-k])`` is the first elements
of ``y`` as they are, and a sum with the others. Both parts load the same element of ``y`` where each of them is; without the
conditions it is one load, and the steps behind it are shared as well. Nobody sees the difference: a value is chosen under the
condition under which it was loaded, or a narrower one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import replace
from typing import TYPE_CHECKING

from fuser.ir.places import Condition
from fuser.ir.places import Place
from fuser.ir.places import Truth
from fuser.ir.places import atoms_of
from fuser.ir.places import below
from fuser.ir.places import both
from fuser.ir.places import fixed

if TYPE_CHECKING:
    from fuser.ir.elements import Step

Spans = dict[Place, tuple[int, int]]
"""Places, without their constants, with the first and the last number that each may be."""


@dataclass(frozen=True)
class _Under:
    """A condition: all of ``spans``, and of ``others``."""

    spans: Spans
    others: frozenset[Condition]


def loaded_once(steps: list[Step], last: int) -> tuple[list[Step], int]:
    """The steps with as few loads as the conditions allow, each step once, and the number of the ``last`` one among them."""
    several: dict[tuple[str, Place], list[Truth]] = {}
    for s in steps:
        if s.kind == "load":
            several.setdefault((s.op, s.at), []).append(s.under)
    ways = {key: wider(unders) for key, unders in several.items() if len(unders) > 1}
    if all(u == w for way in ways.values() for u, w in way.items()) or any(map(_reads_places, steps)):
        return steps, last
    made: dict[Step, int] = {}
    numbers: list[int] = []
    for s in steps:
        args = tuple(numbers[i] for i in s.args)
        if s.kind == "load":
            s = replace(s, under=ways.get((s.op, s.at), {}).get(s.under, s.under))
        if s.kind == "choose" and args[0] == args[1]:
            numbers.append(args[0])
            continue
        numbers.append(made.setdefault(replace(s, args=args), len(made)))
    return list(made), numbers[last]


def for_all(s: Step) -> Truth:
    """The condition of a load without what says nothing of its place: a block whose elements share what is loaded has it once."""
    mine = atoms_of(s.at)
    if isinstance(s.under, bool) or s.under.kind == "|":
        return s.under
    found: Truth = True
    for c in _conjuncts(s.under):
        if atoms_of(c) & mine:
            found = both(found, c)
    return found


def _reads_places(s: Step) -> bool:
    """Whether a step's place is a number that another one reads."""
    return any(a.kind == "value" for p in (s.at, s.under) for a in atoms_of(p))


def wider(unders: Iterable[Truth]) -> dict[Truth, Truth]:
    """For each condition the one that stands for it and others: these together, no more."""
    left = {u: _apart(u) for u in unders}
    found = {u: u for u in left}
    while (pair := _joined(left)) is not None:
        a, b, both_of_them = pair
        del left[a], left[b]
        new = _condition(both_of_them)
        left[new] = both_of_them
        found = {u: new if w in (a, b) else w for u, w in found.items()}
    return found


def _joined(left: dict[Truth, _Under]) -> tuple[Truth, Truth, _Under] | None:
    """Two of the conditions, and the one that holds where either does, where there is such."""
    every = list(left.items())
    for i, (a, x) in enumerate(every):
        for b, y in every[i + 1 :]:
            if x.others != y.others:
                if (x.spans == y.spans) and (x.others < y.others or y.others < x.others):
                    return a, b, min(x, y, key=lambda u: len(u.others))
                continue
            if (together := _together(x.spans, y.spans)) is not None:
                return a, b, replace(x, spans=together)
    return None


def _together(x: Spans, y: Spans) -> Spans | None:
    """Where either of two holds: they differ in one place, whose numbers follow on each other, or one holds wherever the other
    does."""
    every = {p: (p.low, p.high) for p in (*x, *y)}
    x, y = every | x, every | y
    apart = [p for p in every if x[p] != y[p]]
    for narrow, wide in ((x, y), (y, x)):
        if all(wide[p][0] <= narrow[p][0] and narrow[p][1] <= wide[p][1] for p in every):
            return wide
    if len(apart) != 1:
        return None
    (p,) = apart
    first, second = sorted((x[p], y[p]))
    return {**x, p: (first[0], max(first[1], second[1]))} if second[0] <= first[1] + 1 else None


def _apart(under: Truth) -> _Under:
    spans: Spans = {}
    others: set[Condition] = set()
    for c in _conjuncts(under):
        if c.kind != "<" or not c.sides[0].terms:
            others.add(c)
        else:
            (d,) = c.sides  # below zero
            if d.terms[0][1] > 0:
                p, low, high = Place(d.terms), d.low - d.constant, -d.constant - 1
            else:
                p = Place((-d).terms)
                low, high = d.constant + 1, p.high
            before = spans.get(p, (p.low, p.high))
            spans[p] = max(before[0], low), min(before[1], high)
    return _Under(spans, frozenset(others))


def _conjuncts(under: Truth) -> list[Condition]:
    """Conditions all of which are to hold."""
    if isinstance(under, bool):
        assert under, "what holds nowhere is not loaded"
        return []
    return [under] if under.kind != "&" else [c for side in under.sides for c in _conjuncts(side)]


def _condition(under: _Under) -> Truth:
    found: Truth = True
    for p, (low, high) in sorted(under.spans.items(), key=lambda s: [(a.key, c) for a, c in s[0].terms]):
        found = both(found, both(below(fixed(low - 1), p), below(p, high + 1)))
    for c in sorted(under.others, key=repr):
        found = both(found, c)
    return found
