"""Inputs of a check: in the program's domain, and so that what comes out is mostly numbers that its dtype holds.

:mod:`fuser.ir.domain` says what the inputs have to be as far as that can be derived. For the rest there is a ladder of further
ways to draw: weights scaled down, inputs that are all positive, everything smaller or larger. The first whose reference holds is
taken, else the one with most numbers in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import Any

import numpy as np

from fuser.agreement import LARGEST
from fuser.agreement import LEAST
from fuser.ir.domain import input_domains
from fuser.ir.interval import ANY
from fuser.ir.interval import POSITIVE
from fuser.ir.interval import Domain
from fuser.ir.interval import place
from fuser.ir.program import FLOAT_DTYPES
from fuser.ir.program import TensorProgram
from fuser.ir.program import weight_factors

MOST = 0.9
"""Share of numbers that is enough once the first ways were tried."""
SMALLER = tuple(2.0**-e for e in (2, 4, 6, 8, 10, 14, 20))
LARGER = (4.0, 16.0)


@dataclass(frozen=True)
class Draw:
    """One way to draw: a domain and a factor for each input (free, and 1, where there is none)."""

    domains: Mapping[str, Domain] = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)

    def place(self, name: str, x: Any) -> Any:
        """Standard normal numbers as the values of an input."""
        return place(self.domains.get(name, ANY), x, self.factors.get(name, 1.0))


def draws(program: TensorProgram) -> Iterator[Draw]:
    """Ways to draw the inputs, the plainest first."""
    known = input_domains(program)
    weights = weight_factors(program)
    yield Draw(known)
    if weights:
        yield Draw(known, weights)
    floats = [n for n in program.inputs if program[n].dtype in FLOAT_DTYPES]
    positive = dict.fromkeys(floats, POSITIVE) | known
    divisors = {n: 1.0 for n in floats if known.get(n, ANY).nonzero}
    yield Draw(positive, weights)
    for factor in (*SMALLER, *LARGER):
        factors = dict.fromkeys(floats, factor)
        if divisors:  # what is scaled with its divisor stays as large
            yield Draw(known, factors | divisors)
        yield Draw(known, factors)
        if positive != known:
            yield Draw(positive, factors)


def drawn(
    program: TensorProgram,
    attempt: Callable[[Draw], tuple[Any, Mapping[str, Any]]],
    dtypes: Mapping[str, str] | None = None,
) -> tuple[Draw, Any, dict[str, Any]]:
    """The draw that is taken, its inputs, and their reference. ``attempt`` gives inputs and float64 reference of a draw;
    ``dtypes`` of the outputs are the program's where they are not given."""
    dtypes = dtypes or {n: program[n].dtype for n in program.outputs}
    best: tuple[float, Draw, Any, Mapping[str, Any]] | None = None
    for i, draw in enumerate(draws(program)):
        inputs, reference = attempt(draw)
        share = min((held(y, dtypes[n]) for n, y in reference.items()), default=1.0)
        if best is None or share > best[0]:
            best = (share, draw, inputs, reference)
        if share == 1.0 or (i > 1 and best[0] >= MOST):
            break
    assert best is not None
    return best[1], best[2], dict(best[3])


def held(y: Any, dtype: str) -> float:
    """Share of the elements that are numbers well within the range of the dtype; nothing where all of them vanish in it."""
    with np.errstate(all="ignore"):
        size = abs(y)
        fits = size <= LARGEST.get(dtype, math.inf) / 4  # false for NaN
        if bool(fits.all()) and not bool((size >= 2 * LEAST.get(dtype, 0.0)).any()):
            return 0.0
        return float(fits.sum()) / max(math.prod(y.shape), 1)
