"""Many options of a function as one value, which callers give field by field."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any
from typing import TypeVar

from fuser.errors import ArgumentError

R = TypeVar("R")


def by_fields(function: Callable[..., R]) -> Callable[..., R]:
    """The function whose keyword ``options`` is a dataclass, called with the fields of that as keywords in its place. Arguments
    that it does not have raise :class:`ArgumentError`."""
    own = inspect.signature(function, eval_str=True).parameters
    group: Any = own["options"].annotation
    keyword = inspect.Parameter.KEYWORD_ONLY
    fields = {n: p.replace(kind=keyword) for n, p in inspect.signature(group, eval_str=True).parameters.items()}
    signature = inspect.Signature([p for n, given in own.items() for p in (fields.values() if n == "options" else (given,))])

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> R:
        if unknown := [n for n in keywords if n not in signature.parameters]:
            raise ArgumentError(f"there is no argument {unknown[0]!r}", _those_it_has(unknown[0], signature))
        try:
            given = signature.bind(*args, **keywords).arguments
        except TypeError as error:  # too many, too few, one given twice
            raise ArgumentError(str(error), _those_it_has("", signature)) from None
        options = {n: given.pop(n) for n in fields if n in given}
        return function(**given, options=group(**options))

    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def _those_it_has(name: str, signature: inspect.Signature) -> str:
    close = difflib.get_close_matches(name, signature.parameters, n=1)
    return (f"did you mean {close[0]!r}? " if close else "") + f"arguments: {', '.join(signature.parameters)}"
