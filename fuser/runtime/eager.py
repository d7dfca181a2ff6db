"""What torch has for an operator of the op table: a function, and a form that writes into a given tensor."""

from __future__ import annotations

import ast
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from functools import cache
from functools import partial
from typing import Any

from fuser.ir.opdef import OpDef
from fuser.ir.opdef import own_attributes
from fuser.ir.scalar import numbers
from fuser.runtime import forms


def eager(entry: OpDef, attrs: Mapping[str, Any]) -> Callable[..., Any] | None:
    """The torch function of an operator with these attributes, of the operands. None where torch has none of this name."""
    name, names, fixed = _column(entry)
    function = _dotted(name) or _dotted(f"nn.functional.{name}") if name else None
    return function and partial(function, **_keywords(entry, attrs, names, fixed))


def writes(entry: OpDef, attrs: Mapping[str, Any]) -> Callable[..., Any] | None:
    """The same with ``out``, a tensor that it writes into without memory of its own."""
    name, names, fixed = _column(entry)
    if not name or entry.kind not in _WRITTEN:
        return None
    given = _keywords(entry, attrs, names, fixed)
    if entry.kind == "library":
        form = _taking(name, frozenset(k for k, v in given.items() if v is not None))
    else:
        form = _writing(name.rsplit(".", 1)[-1])
    if form is None:
        return None
    function = _dotted(name) if fixed or names or name.startswith(".") else form
    return function and partial(function, **given)


_WRITTEN = ("map", "reduce", "composite", "data", "library")
"""Kinds of operators that torch may write into a given tensor."""


@cache
def _column(entry: OpDef) -> tuple[str, Mapping[str, str], Mapping[str, Any]]:
    """The function, what attributes are called there, and what it takes beside."""
    if entry.eager is None:
        return "", {}, {}
    name, *rest = (entry.eager or entry.name).split()
    names = dict(w.split(":") for w in rest if ":" in w)
    return name, names, {k: ast.literal_eval(v) for k, v in (w.split("=") for w in rest if "=" in w)}


def _keywords(entry: OpDef, attrs: Mapping[str, Any], names: Mapping[str, str], fixed: Mapping[str, Any]) -> dict[str, Any]:
    given = {names.get(k, k): v for k, v in own_attributes(entry, attrs) if k != "dtype" or k in names}
    given.pop("", None)
    bound = numbers(given.items())
    # so that integers stay integers; torch takes none beyond 64 bits, as finfo(float32).min in a mask
    whole = {k: int(v) for k, v in bound.items() if isinstance(v, float) and v.is_integer() and -(2.0**63) <= v < 2.0**63}
    return {**fixed, **bound, **whole}


@cache
def _dotted(name: str) -> Callable[..., Any] | None:
    import torch

    if name.startswith("."):
        return getattr(forms, name[1:])
    found: Any = torch
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


@cache
def _writing(name: str) -> Callable[..., Any] | None:
    """The ATen operator of this name that writes into ``out`` without memory of its own: those that torch derives from the
    functional ones allocate and copy."""
    return next(iter(_overloads(name, ("out", "Tensor_out", "IntList_out", "correction_out"))), None)


@cache
def _taking(name: str, given: frozenset[str]) -> Callable[..., Any] | None:
    """The same of an operator of a library: the overload that takes these arguments beside its operand and needs no other."""
    for overload in _overloads(name, ("out", "int_out", "all_out")):
        own = overload._schema.arguments[1:]
        needed = {a.name for a in own if not a.has_default_value() and not a.is_out and a.type.kind() != "OptionalType"}
        if needed <= given <= {a.name for a in own}:
            return overload
    return None


def _overloads(name: str, overloads: Sequence[str]) -> list[Any]:
    import torch

    packet = getattr(torch.ops.aten, name, None)
    known = [o for o in overloads if o in getattr(packet, "overloads", list)()]
    has = torch._C._dispatch_has_kernel_for_dispatch_key  # type: ignore[attr-defined]
    return [getattr(packet, o) for o in known if has(f"aten::{name}.{o}", "CPU")]
