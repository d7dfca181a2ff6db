"""The pruning question with axes: an abstract expression says what is still to come, and so which axes can still go away.

A value whose expression ``e`` is contained as ``c·e`` in an expression of the program
(:mod:`fuser.superopt.expressions.question`) is useful only if ``c`` still sums over every axis that the value has and that place
lacks: nothing else removes an axis. That is exact for expressions without maxima, and rejects most of what abstract expressions
alone let pass, such as (Σₖ x)·w[k].
"""

from __future__ import annotations

from collections.abc import Mapping

from fuser.superopt.expressions.normal_form import FACTORS
from fuser.superopt.expressions.normal_form import NF
from fuser.superopt.expressions.normal_form import TOP
from fuser.superopt.expressions.normal_form import Term
from fuser.superopt.expressions.question import Target


class AxisTarget(Target):
    """``axes`` gives the axes of each expression that the program computes; extents are named by their axes."""

    def __init__(self, outputs: Mapping[NF, frozenset[str]], axes: Mapping[NF, frozenset[str]], divisors: frozenset[str]) -> None:
        super().__init__(*outputs)
        self.axes = {**axes, **outputs}
        self.divisors = divisors
        self._keeps: dict[tuple[NF, frozenset[str]], bool] = {}
        self._images: dict[NF, tuple[tuple[NF, Term], ...] | None] = {}

    def useful(self, e: NF, axes: frozenset[str]) -> bool:
        """False only if no value with expression ``e`` and these axes can be part of the program's outputs."""
        key = (e, axes)
        found = self._keeps.get(key)
        if found is None:
            found = self._keeps[key] = self.everything or e is TOP or self._useful(e, axes)
        return found

    def _useful(self, e: NF, axes: frozenset[str]) -> bool:
        if e not in self._images:
            places = list(self.images(e))
            undecided = any(c is None for _, c in places)
            self._images[e] = None if undecided else tuple((level, c) for level, c in places if c is not None)
        images = self._images[e]
        if images is None or not images:
            # undecided, or a partial maximum, of which the expressions say no more
            return images is None or self._partial_fold(e)
        return any(self._place(level, c, axes) for level, c in images)

    def _place(self, level: NF, c: Term, axes: frozenset[str]) -> bool:
        factors, den = c
        if den is not None and all(FACTORS[f].kind == "extent" for fs, _ in den.terms for f in fs):
            return False  # something would have to divide by a bare extent
        left = axes - self.axes.get(level, self.divisors)
        return not left or left <= {FACTORS[f].name for f in factors if FACTORS[f].kind == "extent"}
