"""What torch has for an operator of the op table: a function, and a form that writes into a given tensor."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from fuser.ir.opdef import OpDef


def eager(entry: OpDef) -> Callable[..., Any] | None:
    """The torch function of an operator: operands, and attributes by name. None where torch has none of this name."""
    if entry.eager is None:
        return None
    if entry.eager:
        return _dotted(entry.eager)
    return _dotted(entry.name) or _dotted(f"nn.functional.{entry.name}")


@cache
def _dotted(name: str) -> Callable[..., Any] | None:
    import torch

    found: Any = torch
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


@cache
def writing(name: str) -> Callable[..., Any] | None:
    """The ATen operator of this name that writes into ``out`` without memory of its own: those that torch derives from the
    functional ones allocate and copy."""
    import torch

    packet = getattr(torch.ops.aten, name, None)
    for overload in ("out", "Tensor_out"):
        full = f"aten::{name}.{overload}"
        if overload in getattr(packet, "overloads", list)() and torch._C._dispatch_has_kernel_for_dispatch_key(full, "CPU"):  # type: ignore[attr-defined]
            return getattr(packet, overload)
    return None


def writes(entry: OpDef) -> Callable[..., Any] | None:
    """The form of an element-wise operator that takes ``out``."""
    return writing((entry.eager or entry.name).rsplit(".", 1)[-1]) if entry.kind == "map" else None
