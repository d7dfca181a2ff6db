"""Operators of Relay that dynamic models have: ``dyn.*``, which take as operands what others have as attributes, and what shapes
are computed with. Entered into the table of :mod:`tvm_bridge.read.relay_ops`."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fuser.errors import UnsupportedError
from tvm_bridge.read.relay_graph import RelayNode
from tvm_bridge.read.relay_graph import TensorType
from tvm_bridge.read.relay_ops import TABLE
from tvm_bridge.read.relay_ops import Array
from tvm_bridge.read.relay_ops import Attrs
from tvm_bridge.read.relay_ops import Operands
from tvm_bridge.read.relay_ops import TypeRuleError
from tvm_bridge.read.relay_ops import Types
from tvm_bridge.read.relay_ops import axis_of
from tvm_bridge.read.relay_ops import define
from tvm_bridge.read.relay_ops import same

Outs = tuple[TensorType, ...]
Of = Callable[[Array], Any]


def _whole(value: Array) -> int:
    return int(np.reshape(value, -1)[0])


def _list(value: Array) -> tuple[int, ...]:
    return tuple(int(v) for v in np.ravel(value))


def _pairs(value: Array) -> tuple[tuple[int, ...], ...]:
    return tuple(_list(row) for row in np.reshape(value, (-1, 2)))


GIVEN: Mapping[str, tuple[str, tuple[int, ...], Mapping[str, tuple[int, Of]]]] = {
    "dyn.reshape": ("reshape", (0,), {"newshape": (1, _list)}),
    "dyn.broadcast_to": ("broadcast_to", (0,), {"shape": (1, _list)}),
    "dyn.full": ("full", (0,), {"shape": (1, _list)}),
    "dyn.zeros": ("zeros", (), {"shape": (0, _list)}),
    "dyn.ones": ("ones", (), {"shape": (0, _list)}),
    "dyn.tile": ("tile", (0,), {"reps": (1, _list)}),
    "dyn.squeeze": ("squeeze", (0,), {"axis": (1, _list)}),
    "dyn.expand_dims": ("expand_dims", (0,), {"axis": (1, _whole)}),
    "dyn.strided_slice": ("strided_slice", (0,), {"begin": (1, _list), "end": (2, _list), "strides": (3, _list)}),
    "dyn.one_hot": ("one_hot", (0, 1, 2), {"depth": (3, _whole)}),
    "dyn.topk": ("topk", (0,), {"k": (1, _whole)}),
    "dyn.nn.pad": ("nn.pad", (0, 2), {"pad_width": (1, _pairs)}),
}
"""Of each: the operator that it is, the operands that it has then, and the attributes that others are."""


def with_operands(op: str, operands: Operands) -> Attrs:
    """The attributes of a call, those among them that it has as operands, where their values are known."""
    if op not in GIVEN:
        return operands.attrs
    found = {k: operands.values[i] if i < len(operands.values) else None for k, (i, _) in GIVEN[op][2].items()}
    known = {k: GIVEN[op][2][k][1](value) for k, value in found.items() if value is not None and value.size}
    return {**operands.attrs, **known}


def static_form(call: RelayNode) -> RelayNode:
    """A call whose operands that are attributes elsewhere are known, as the operator that has these."""
    if call.op not in GIVEN:
        return call
    op, kept, _ = GIVEN[call.op]
    return replace(call, op=op, args=tuple(call.args[i] for i in kept if i < len(call.args)))


def _enter(name: str) -> None:
    static, kept, given = GIVEN[name]
    entry = TABLE[static]

    def rule(o: Operands) -> Types:
        attrs = with_operands(name, o)
        if missing := [k for k, (i, _) in given.items() if i < len(o.types) and attrs.get(k) is None]:
            raise TypeRuleError(f"its {missing[0]} depends on values that are only known when the model runs")
        return entry.rule(
            Operands(
                tuple(o.types[i] for i in kept if i < len(o.types)), attrs, tuple(o.values[i] for i in kept if i < len(o.types))
            )
        )

    schema = " ".join(f"{k}:{kind}" for k, kind in entry.schema if k not in given)
    define(name, schema, rule, lambda a, at, out: entry.numpy([a[i] for i in kept if i < len(a)], at, out))


def _ranked(a: Sequence[Array], at: Attrs, out: Outs) -> Any:
    """The largest, or smallest, elements along an axis, and where they are."""
    axis = at.get("axis", -1)
    keys = a[0] if at.get("is_ascend") else -a[0].astype(np.float64 if a[0].dtype.kind == "f" else np.int64)
    where = np.take(np.argsort(keys, axis, kind="stable"), range(out[0].dims[axis]), axis)
    values, kind = np.take_along_axis(a[0], where, axis), at.get("ret_type") or "both"
    return (values, where.astype(out[-1].dtype)) if kind == "both" else values if kind == "values" else where.astype(out[0].dtype)


def _topk_type(o: Operands) -> Types:
    axis, k = axis_of(o.attrs.get("axis", -1), len(o[0])), o.attrs.get("k", 1)
    count = o[0][axis] if not k or k < 1 else k
    if count > o[0][axis]:
        raise TypeRuleError(f"{count} elements of {o[0][axis]}")
    shape = (*o[0][:axis], count, *o[0][axis + 1 :])
    values, where = TensorType(shape, o.dtype), TensorType(shape, o.attrs.get("dtype") or "int32")
    kind = o.attrs.get("ret_type") or "both"
    return (values, where) if kind == "both" else values if kind == "values" else where


def _sorted_type(o: Operands) -> TensorType:
    return TensorType(o[0], o.attrs.get("dtype") or "int32")


_REDUCTIONS: Mapping[str, Any] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def _put(x: Array, places: tuple[Array, ...], values: Array, mode: str) -> Array:
    found = np.array(x)
    places = tuple(np.where(p < 0, p + n, p).astype(np.int64) for p, n in zip(places, x.shape, strict=False))
    if mode in _REDUCTIONS:
        _REDUCTIONS[mode].at(found, places, values)
    elif mode in ("update", ""):
        found[places] = values
    else:
        raise UnsupportedError(f"a scatter by {mode} is not evaluated")
    return found


def _scatter_elements(a: Sequence[Array], at: Attrs, out: Outs) -> Array:
    axis = at.get("axis", 0) % a[0].ndim
    grid = np.indices(a[1].shape, sparse=True)
    return _put(a[0], tuple(a[1] if i == axis else g for i, g in enumerate(grid)), a[2], at.get("reduction") or "update")


define("ndarray_size", "dtype:text", lambda o: TensorType((), o.attrs.get("dtype") or "int32"),
       lambda a, at, out: np.asarray(a[0].size))  # fmt: skip
define("scatter_elements", "axis:ref reduction:text", same, _scatter_elements)
define("scatter_nd", "mode:text", same, lambda a, at, out: _put(a[0], tuple(a[1]), a[2], at.get("mode") or "update"))
define("topk", "k:ref axis:int ret_type:text is_ascend:bool dtype:text", _topk_type, _ranked)
define("argsort", "axis:int is_ascend:bool dtype:text", _sorted_type,
       lambda a, at, out: _ranked(a, {**at, "ret_type": "indices"}, out))  # fmt: skip
define("sort", "axis:int is_ascend:bool", same, lambda a, at, out: _ranked(a, {**at, "ret_type": "values"}, out))
for _name in GIVEN:
    _enter(_name)
