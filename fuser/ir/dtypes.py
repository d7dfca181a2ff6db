"""Which dtypes may stand where: what a dtype holds of another one, and which dtypes the result of an operator may have.

A value may stand in the dtype of one of its operands, or that which a cast names, or in one that holds it: fp32 in place of fp16
(accumulators are wider), never int8 in place of fp16, nor fp16 in place of fp32.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuser.ir.opdef import Array
from fuser.ir.ops import op as op_def

MANY = 1 << 16
"""Numbers from which on another library's rounding is worth its call."""

ROUNDS = "rounds"
"""Attribute of a cast that may change values (:func:`fuser.superopt.verify.dtypes.with_casts_marked`)."""


@dataclass(frozen=True)
class Carried:
    """``least``: the dtypes of which one must be held; ``data``: those of the data that a value is made of, which a cast to a
    wider float leaves as they are."""

    least: frozenset[str] = frozenset()
    data: frozenset[str] = frozenset()

    @staticmethod
    def of(dtype: str) -> Carried:
        return Carried(frozenset((dtype,)), frozenset((dtype,)))

    def may_be(self, dtype: str) -> bool:
        """The value may stand in this dtype."""
        return not self.least or any(holds(dtype, d) for d in self.least)

    def changed_by(self, dtype: str) -> bool:
        """A cast to this dtype may change the value."""
        return any(not holds(dtype, d) for d in self.data)


_FLOATS = {"float16": (11, 5), "bfloat16": (8, 8), "float32": (24, 8), "float64": (53, 11)}
"""Bits of significand and of exponent."""


def holds(wide: str, narrow: str) -> bool:
    """Every value of ``narrow`` is one of ``wide``."""
    if wide == narrow or narrow == "bool":
        return True
    if narrow in _FLOATS:
        return wide in _FLOATS and all(x >= y for x, y in zip(_FLOATS[wide], _FLOATS[narrow], strict=True))
    if wide in _FLOATS:
        return _FLOATS[wide][0] >= _bits(narrow)
    return wide != "bool" and _bits(wide) >= _bits(narrow) and (narrow.startswith("u") or not wide.startswith("u"))


def rounded(x: Array, dtype: str) -> Array:
    """Finite numbers in a dtype, halves to even; those of bfloat16, which numpy lacks, are kept in float32."""
    plain = dtype == "float16" and x.size >= MANY and x.dtype == np.float32 and x.flags.forc
    if plain and (torch := sys.modules.get("torch")):  # several at once; numpy takes five times as long for one after the other
        return torch.from_numpy(x).half().numpy()
    if dtype != "bfloat16":
        return x.astype(dtype)
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def _bits(dtype: str) -> int:
    """Bits of an integer's magnitude."""
    return int(dtype.removeprefix("u").removeprefix("int")) - (not dtype.startswith("u"))


def carried(op: str, operands: Sequence[Carried], attrs: Mapping[str, Any]) -> Carried:
    """The dtypes that the result of an operator carries; beside floats, conditions and whole numbers do not count."""
    typed = op_def(op).typed
    if typed == "named":
        dtype = str(attrs["dtype"])
        wider = dtype in _FLOATS and operands[0].data <= _FLOATS.keys() and not operands[0].changed_by(dtype)
        return Carried(frozenset((dtype,)), operands[0].data if wider else frozenset((dtype,)))
    if typed == "truth":
        return Carried.of("bool")
    counted = operands[1:] if typed == "choices" else operands
    return Carried(_joined(c.least for c in counted), _joined(c.data for c in counted))


def result_dtype(op: str, operands: Sequence[str], attrs: Mapping[str, Any]) -> str:
    """The dtype that the result of an operator has where nobody says another."""
    typed = op_def(op).typed
    if "dtype" in op_def(op).attrs and attrs.get("dtype"):
        return str(attrs["dtype"])
    return "bool" if typed == "truth" else operands[-1 if typed == "choices" else 0]


def _joined(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    found = frozenset[str]().union(*sets)
    return found & _FLOATS.keys() or found
