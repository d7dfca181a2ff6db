"""What torch has for an operator of the op table: a function, and a form that writes into a given tensor."""

from __future__ import annotations

import ast
from collections.abc import Callable
from collections.abc import Mapping
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
    form = _writing(name.rsplit(".", 1)[-1]) if name and entry.kind in _WRITTEN else None
    if form is None:
        return None
    function = _dotted(name) if fixed or names else form
    return function and partial(function, **_keywords(entry, attrs, names, fixed))


_WRITTEN = ("map", "reduce", "composite", "data")
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
    bound = numbers(given.items())
    whole = {k: int(v) for k, v in bound.items() if isinstance(v, float) and v.is_integer()}  # so that integers stay integers
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
    import torch

    packet = getattr(torch.ops.aten, name, None)
    for overload in ("out", "Tensor_out", "IntList_out", "correction_out"):
        full = f"aten::{name}.{overload}"
        if overload in getattr(packet, "overloads", list)() and torch._C._dispatch_has_kernel_for_dispatch_key(full, "CPU"):  # type: ignore[attr-defined]
            return getattr(packet, overload)
    return None
