"""Operators that torch computes as kernels of their own."""

from __future__ import annotations

from fuser.ir.opdef import OpDef

LIBRARY: tuple[OpDef, ...] = ()
