"""Masks and attention: causal masks given as constants become the operator, others stay tensors."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from fuser.frontends.torch_call import Call
from fuser.frontends.torch_call import number_of
from fuser.frontends.torch_call import to_numpy
from fuser.ir.builder import Ref
from fuser.ir.ops import Array
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar
from fuser.ir.scales import root_of_extent


def causal_offset(keep: Array) -> int | None:
    """The offset of a causal mask ``keep`` (…, rows, columns), leading extents 1: true where column <= row + offset."""
    if keep.ndim < 2 or math.prod(keep.shape[:-2]) != 1:
        return None
    keep = keep.reshape(keep.shape[-2:])
    offset = int(keep[0].sum()) - 1
    rows, cols = np.indices(keep.shape)
    return offset if not keep.all() and np.array_equal(keep, cols <= rows + offset) else None


def masked(c: Call, x: Ref, mask: Any) -> Ref | None:
    """x + mask for a causal mask of 0 and -inf, given as a constant."""
    value = to_numpy(mask)
    if value.dtype == bool or not np.all((value == 0) | (value == -np.inf)):
        return None
    offset = causal_offset(value == 0)
    if offset is None or x.shape[-2:] != value.shape[-2:] or x.shape != c.shape:
        return None
    return c.b.op("causal_mask", x, offset=offset)


def masked_fill(c: Call) -> Ref:
    import torch

    x, mask, number = c.ref(c["self"], c.dtype), c["mask"], number_of(c["value"])
    if number is None:
        return c.b.op("where", c.ref(mask), c.ref(c["value"], c.dtype), x, dtype=c.dtype)
    if number == -math.inf and not isinstance(mask, Ref):
        additive = torch.zeros(mask.shape, dtype=c.result.dtype).masked_fill(mask.cpu(), -math.inf)
        causal = masked(c, x, additive)
        if causal is not None:
            return causal
    return c.b.op("where", c.ref(mask), c.filled(number), x, dtype=c.dtype)


def where(c: Call) -> Ref:
    """where(condition, self, other), numbers included."""
    mask, yes, no = c["condition"], c["self"], c["other"]
    if not isinstance(mask, Ref) and number_of(no) == -math.inf and isinstance(yes, Ref):
        args = {"self": yes, "mask": mask.logical_not(), "value": -math.inf}
        return masked_fill(Call(c.b, c.node, c.aten, c.table, args, c.result, c.constant, c.where))
    values = [c.filled(n) if (n := number_of(v)) is not None else c.ref(v, c.dtype) for v in (yes, no)]
    return c.b.op("where", c.ref(mask), *values, dtype=c.dtype)


def triangle(c: Call) -> Ref:
    return c.b.op(c.table, c.tensor("self"), offset=c["diagonal"] - (c.table == "triu"))


def attention(c: Call) -> Ref:
    import torch

    if c["dropout_p"]:
        raise c.unsupported("has dropout", "call module.eval(), and pass dropout_p=0.0 when not training")
    q, k, v, mask = c.tensor("query"), c.tensor("key"), c.tensor("value"), c["attn_mask"]
    if c["enable_gqa"] and q.shape[-3] != k.shape[-3]:
        k, v = (c.b.op("repeat", t, axis=len(t.shape) - 3, times=q.shape[-3] // t.shape[-3]) for t in (k, v))
    rows, cols, d = q.shape[-2], k.shape[-2], q.shape[-1]
    extent = Extent(q.name, len(q.shape) - 1)
    scale = Scalar.power(extent, Fraction(-1, 2))
    if c["scale"] is not None:
        scale = root_of_extent(c["scale"], extent, d, c.dtype) or Scalar.of(c["scale"])
    offset = 0 if c["is_causal"] else None
    if mask is not None and not isinstance(mask, Ref):
        keep = to_numpy(mask) if mask.dtype == torch.bool else None
        value = to_numpy(mask)
        if keep is None and np.all((value == 0) | (value == -np.inf)):
            keep = value == 0
        offset = causal_offset(keep) if keep is not None and keep.shape[-2:] == (rows, cols) else None
        if offset is not None:
            mask = None
        elif mask.dtype == torch.bool:
            mask = torch.zeros(mask.shape, dtype=c.result.dtype).masked_fill(~mask.cpu(), -math.inf)
    elif mask is not None and mask.tensor.dtype == "bool":
        mask = c.b.op("where", mask, c.filled(0.0), c.filled(-math.inf), dtype=c.dtype)
    mask = None if mask is None else c.ref(mask, c.dtype)
    # the operator's causal mask ends with the last key, torch's begins with the first
    if offset is None or (offset == cols - rows and mask is None):
        return c.b.attention(q, k, v, mask, causal=offset is not None, scale=scale)
    s = c.b.op("scale", q @ k.T, scalar=scale)
    s = s if mask is None else s + mask
    return c.b.softmax(c.b.op("causal_mask", s, offset=offset)) @ v
