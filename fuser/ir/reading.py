"""Typed access to the JSON of programs, µGraphs and schedules: every value has the type that it stands for, or a
:class:`~fuser.errors.ProgramError` says where it has not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from typing import Any

from fuser.errors import ProgramError
from fuser.files import BAD_VALUE
from fuser.files import shown
from fuser.ir.opdef import NOTES
from fuser.ir.opdef import TYPES
from fuser.ir.opdef import is_number
from fuser.ir.ops import OPS
from fuser.ir.scalar import Scalar
from fuser.ir.shapes import folded

MOST = 100_000
"""Most entries of any list."""
NAME = 1000
"""Most characters of a name."""
NUMBER = 2**62
"""No extent, index or count is beyond this."""
_HINT = "write it again, or regenerate it"


def wrong(where: str, value: Any, wanted: str) -> ProgramError:
    return ProgramError(f"{where} is {shown(value)}, not {wanted}", _HINT)


def table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise wrong(where, value, "a table")
    return value


def items(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > MOST:
        raise wrong(where, value, f"a list of at most {MOST} entries")
    return value


def get(data: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in data:
        raise ProgramError(f"{where} lacks {key!r}", _HINT)
    return data[key]


def text(value: Any, where: str) -> str:
    """A name: UTF-8 has it, and it fits a line."""
    if not isinstance(value, str) or len(value) > NAME or any("\ud800" <= c <= "\udfff" for c in value):
        raise wrong(where, value, "a name")
    return value


def integer(value: Any, where: str, low: int = -NUMBER, high: int = NUMBER) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise wrong(where, value, f"a whole number of {low} or more" if low in (0, 1) else "a whole number")
    return value


def names(value: Any, where: str) -> tuple[str, ...]:
    return tuple(text(v, where) for v in items(value, where))


def integers(value: Any, where: str, low: int = -NUMBER) -> tuple[int, ...]:
    return tuple(integer(v, where, low) for v in items(value, where))


def only(data: Mapping[str, Any], where: str, known: tuple[str, ...]) -> None:
    """No other keys than these."""
    if unknown := [k for k in data if k not in known]:
        raise ProgramError(f"{where} has the unknown field {shown(unknown[0])}", f"known are {', '.join(known)}")


def operator(value: Any, where: str) -> str:
    name = text(value, where)
    if name not in OPS:
        raise ProgramError(f"{where} has the unknown operator {shown(name)}", f"known are {', '.join(sorted(OPS))}")
    return name


_DEFAULTS = ("keepdims", "causal", "offset", "dtype", "detail", "field")


def attributes(data: Any, where: str, op: str, free: tuple[str, ...] = ()) -> tuple[tuple[str, Any], ...]:
    """The attributes of an operator, sorted by name: those that it has, each of its type. None is missing but those in ``free``
    and those that have a default everywhere."""
    known = (*OPS[op].attrs, *(("rows", "cols") if OPS[op].indexed else ()), *NOTES)
    if unknown := [k for k in table(data, where) if k not in known]:
        raise ProgramError(f"{where}: {op} has no attribute {shown(unknown[0])}", f"it has {', '.join(OPS[op].attrs) or 'none'}")
    if missing := [k for k in OPS[op].attrs if k not in data and k not in (*_DEFAULTS, *free, *OPS[op].optional)]:
        raise ProgramError(f"{where}: {op} lacks the attribute {missing[0]}", _HINT)
    several = OPS[op].kind == "reduce" or OPS[op].shape is folded
    return tuple(sorted((k, _attribute(k, v, f"{where}, attribute {k}", several)) for k, v in data.items()))


def _attribute(key: str, value: Any, where: str, several: bool) -> Any:
    if isinstance(value, dict) and (is_number(key) or key == "offset"):
        return Scalar.from_json(get(value, "scalar", where))
    kind = TYPES.get(key, "number")
    if kind == "integers" or (key == "axis" and several):
        return integers(value, where)
    fits = {
        "integer": isinstance(value, int) and not isinstance(value, bool),
        "text": isinstance(value, str),
        "number": isinstance(value, int | float) and not isinstance(value, bool),
        "flag": isinstance(value, bool),
        "note": isinstance(value, bool | str),
    }
    if not fits[kind]:
        raise wrong(where, value, "of its type")
    if isinstance(value, int | float) and not (math.isfinite(value) and abs(value) <= NUMBER):
        raise wrong(where, value, "a number that can be held")
    return value


@contextmanager
def reading(what: str) -> Iterator[None]:
    """What Python raises for values that fit their types and not each other, as an error of the document."""
    try:
        yield
    except BAD_VALUE as error:
        raise ProgramError(f"{what} is damaged: {type(error).__name__}: {shown(str(error), 200)}", _HINT) from error
