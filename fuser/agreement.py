"""Does this output agree with its float64 reference? The one answer that every check gives.

The reference counts as the dtype of the output holds it: where it is too large there, the output has to be infinite, with its
sign; NaN and infinity stand exactly where the reference has them; and the numbers are compared as a whole, by the Frobenius norm
of their difference, and one by one beside the largest of them: a single wrong element of a million does not show in a norm. (Of
22,444 measured kernels six wrong ones had passed by their norm; their elements are at least twice beyond that limit, those of the
others below a fifteenth of it.) Next to the largest number of the dtype, a rounding decides whether a result is infinite: either
is right.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

TOLERANCE = {"float16": 1e-2, "bfloat16": 2e-2, "float32": 1e-3, "float64": 1e-6}
"""Largest accepted relative Frobenius error by the narrowest dtype of what is computed with; integers and booleans are exact."""
SINGLE = 4.0
"""So many times that a single element may be off, beside the largest element."""
LARGEST = {
    "float16": 65504.0,
    "bfloat16": (2 - 2.0**-7) * 2.0**127,
    "float32": (2 - 2.0**-23) * 2.0**127,
    "float64": float(np.finfo(np.float64).max),
}
"""Largest number of each dtype."""
LEAST = {"float16": 2.0**-24, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}
"""By dtype, what may be lost of any number: half of the numbers below are not kept, or all of them (flushed to zero)."""
BAND = 1 / 8
"""So far from the largest number, relative to it, a result may be finite or infinite."""


@dataclass(frozen=True)
class Agreement:
    """``status``: ``ok``, ``wrong``, or ``nan`` for NaN or infinity in place of a number. ``error`` is the Frobenius norm of the
    difference over that of the reference, ``max_error`` the largest difference over the largest element, both over what is
    finite; ``message`` says what is wrong."""

    status: str
    error: float
    max_error: float
    message: str = ""

    @property
    def ok(self) -> bool:
        return self.status == "ok"


def tolerance(dtypes: Iterable[str]) -> float:
    """The tolerance of what is computed with tensors of these dtypes."""
    return max((TOLERANCE[d] for d in dtypes if d in TOLERANCE), default=0.0)


def agreement(out: Any, reference: Any, dtype: str, limit: float) -> Agreement:
    """Compare an output, which has the dtype ``dtype``, with its reference in float64; both are numpy arrays, or both torch
    tensors. ``limit`` is the largest accepted Frobenius error."""
    if tuple(out.shape) != tuple(reference.shape):
        return Agreement(
            "wrong", math.inf, math.inf, f"the result has the shape {tuple(out.shape)}, not {tuple(reference.shape)}"
        )
    xp: Any = np
    if not isinstance(out, np.ndarray):
        import torch

        xp = torch
        out, reference = out.double(), reference.double()
    else:
        out, reference = out.astype(np.float64), reference.astype(np.float64)
    top = LARGEST.get(dtype, math.inf)
    with np.errstate(all="ignore"):
        size = abs(reference)
        beyond = size > top * (1 + BAND) if top < LARGEST["float64"] else size == math.inf
        same_sign = (out > 0) == (reference > 0)
        infinite = (abs(out) == math.inf) & same_sign
        either = infinite & (size >= top * (1 - BAND)) & ~beyond
        held = ~(xp.isnan(reference) | beyond | either)
        for status, where, message in (
            ("nan", xp.isnan(out) & ~xp.isnan(reference), "NaN where the reference is not"),
            ("nan", held & ~xp.isfinite(out), "infinite where the reference is not, or has the other sign"),
            ("wrong", xp.isnan(reference) & ~xp.isnan(out), "a number where the reference is NaN"),
            ("wrong", beyond & ~infinite, f"not infinite, or of the wrong sign, where the reference overflows {dtype}"),
        ):
            if bool(where.any()):
                return Agreement(status, math.inf, math.inf, _where(where, message))
        ours = xp.where(held, out, 0.0)
        theirs = xp.where(held, reference, 0.0).clip(-top, top)
        if not held.any():
            return Agreement("ok", 0.0, 0.0)
        least = LEAST.get(dtype, 0.0)
        difference = (abs(ours - theirs) - least).clip(0.0, None)
        largest = max(float(abs(theirs).max()), least, 1e-300)
        max_error = float(difference.max()) / largest
        # both are divided before they are squared, so that nothing overflows
        norm = max(float(((theirs / largest) ** 2).sum()) ** 0.5, 1e-150)
        error = float(((difference / largest) ** 2).sum()) ** 0.5 / norm
    single = SINGLE * limit
    if error <= limit and max_error <= single:
        return Agreement("ok", error, max_error)
    if error > limit:
        return Agreement("wrong", error, max_error, f"relative Frobenius error {error:.3g}, of {limit:g} accepted")
    says = f"off by more than {single:g} of the largest (by {max_error:.3g} at most)"
    return Agreement("wrong", error, max_error, _where(difference > single * largest, says))


def _where(mask: Any, message: str) -> str:
    count, total = int(mask.sum()), math.prod(mask.shape)
    (first, *_) = mask.reshape(-1).nonzero()
    place = np.unravel_index(int(first[0]), tuple(mask.shape)) if mask.shape else ()
    return f"{count} of {total} elements are {message}; the first is at {tuple(int(i) for i in place)}"


def worst(outcomes: Iterable[Agreement]) -> Agreement:
    """The worst of several outputs: the first that does not agree with the largest errors of all."""
    found = list(outcomes)
    error = max((a.error for a in found), default=0.0)
    max_error = max((a.max_error for a in found), default=0.0)
    bad = next((a for a in found if not a.ok), None)
    return Agreement(bad.status if bad else "ok", error, max_error, bad.message if bad else "")


def agreements(outputs: Mapping[str, Any], references: Mapping[str, Any], dtypes: Mapping[str, str], limit: float) -> Agreement:
    """:func:`agreement` of all outputs by name, with the name in the message where there are several."""
    found = []
    for name, reference in references.items():
        out = outputs[name]
        a = agreement(out.reshape(reference.shape), reference, dtypes[name], limit)
        if a.message and len(references) > 1:
            a = Agreement(a.status, a.error, a.max_error, f"{name}: {a.message}")
        found.append(a)
    return worst(found)


def poison(references: Mapping[str, Any]) -> float:
    """What outputs are filled with before a check, so that an element that is not written shows: NaN, or a number where the
    reference itself has NaN."""
    return ODD if any(bool((x != x).any()) for x in references.values()) else math.nan


ODD = 12344.0
"""A number that no result has by accident and that every float dtype can hold nearly."""
