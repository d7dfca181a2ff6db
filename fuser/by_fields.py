"""Many options of a function as one value, which callers give field by field."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any
from typing import TypeVar

R = TypeVar("R")


def by_fields(function: Callable[..., R]) -> Callable[..., R]:
    """The function whose keyword ``options`` is a dataclass, called with the fields of that as keywords in its place."""
    own = inspect.signature(function, eval_str=True).parameters
    group: Any = own["options"].annotation
    keyword = inspect.Parameter.KEYWORD_ONLY
    fields = {n: p.replace(kind=keyword) for n, p in inspect.signature(group, eval_str=True).parameters.items()}
    signature = inspect.Signature([p for n, given in own.items() for p in (fields.values() if n == "options" else (given,))])

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> R:
        given = signature.bind(*args, **keywords).arguments
        options = {n: given.pop(n) for n in fields if n in given}
        return function(**given, options=group(**options))

    call.__signature__ = signature  # type: ignore[attr-defined]
    return call
