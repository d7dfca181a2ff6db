"""Nodes of old versions of ONNX as those of today: what was an attribute, or had another default, or was spread otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fuser.frontends.composed import reshaped
from fuser.frontends.onnx_call import Call
from fuser.ir.builder import Ref
from fuser.ir.ops import Array

SPREAD = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less"})
"""Operators whose second operand was spread from an axis on, before opset 7."""
NUMPY = 7
"""The opset from which on they spread as numpy does."""


def behind(op: str, opset: int, attrs: dict[str, Any], ranks: tuple[int, int]) -> int:
    """How many axes of one element the second operand lacks at its end."""
    first, second = ranks
    if opset >= NUMPY or (op == "PRelu" and second != 1):
        return 0
    axis = 1 if op == "PRelu" else attrs.get("axis", -1) if op in SPREAD else -1
    return max(first - axis - second, 0) if axis >= 0 else 0


def as_today(c: Call) -> Call:
    """The same node with operands and attributes as its rule reads them."""
    attrs = dict(c.attrs)
    if (c.op in SPREAD or c.op == "PRelu") and c.opset < NUMPY:
        return _spread(c, attrs)
    if c.op == "Concat" and c.opset < 4:
        attrs.setdefault("axis", 1)
    elif c.op == "Pad" and "paddings" in attrs:
        attrs["pads"] = attrs["paddings"]
    elif c.op == "Cast" and isinstance(attrs["to"], bytes):
        import onnx

        attrs["to"] = onnx.TensorProto.DataType.Value(attrs["to"].decode())
    elif c.op == "Upsample" and len(c.args) == 1:
        scales = attrs.get("scales") or (1.0, 1.0, attrs["height_scale"], attrs["width_scale"])
        return replace(c, args=(c.args[0], np.array(scales, np.float32)))
    elif c.op == "Tile" and len(c.args) > 2:
        raise c.unsupported("has the form of opset 1", "export with opset 6 or later")
    elif c.op == "BatchNormalization" and not attrs.get("spatial", 1):
        raise c.unsupported("has spatial=0: means of every place", "export with opset 9 or later")
    return replace(c, attrs=attrs)


def _spread(c: Call, attrs: dict[str, Any]) -> Call:
    first, second = (c.args[i].shape for i in (0, 1))
    if attrs.get("axis", -1) < -1:
        raise c.unsupported(f"has the axis {attrs['axis']}", "export with opset 7 or later")
    wanted = (*second, *(1,) * behind(c.op, c.opset, attrs, (len(first), len(second))))
    return replace(c, args=(c.args[0], reshaped_to(c, c.args[1], wanted), *c.args[2:]))


def reshaped_to(c: Call, x: Ref | Array, shape: tuple[int, ...]) -> Ref | Array:
    if isinstance(x, Ref):
        return reshaped(c.b, x, shape)
    return x if x.shape == shape else c.reshape(c.constant(x), shape)
