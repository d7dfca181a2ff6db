"""What the arguments of public functions have to be: a wrong type is the caller's error, and named."""

from __future__ import annotations

import math
from numbers import Integral
from numbers import Real

from fuser.errors import UsageError


def require_type(what: str, value: object, *kinds: type) -> None:
    """Raise :class:`UsageError` where an argument is none of ``kinds``."""
    if not isinstance(value, kinds):
        names = " or ".join("None" if k is type(None) else k.__name__ for k in kinds)
        raise UsageError(f"{what} is {value!r:.80}, a {type(value).__name__}", f"pass {names}")


def require_number(what: str, value: object, least: float, *, whole: bool = False) -> None:
    """Raise :class:`UsageError` where an argument is no finite number (``whole``: integer) of at least ``least``."""
    kind = "an integer" if whole else "a finite number"
    fits = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if not (fits and math.isfinite(value) and value >= least):  # type: ignore[arg-type, operator]
        raise UsageError(f"{what} is {value!r:.80}", f"pass {kind} of at least {least:g}")
