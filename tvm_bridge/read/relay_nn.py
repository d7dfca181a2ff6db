"""Products and normalizations of Relay: type rules and numpy semantics, entered into the table of
:mod:`tvm_bridge.read.relay_ops`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser.ir.ops import OPS
from tvm_bridge.read.relay_graph import TensorType
from tvm_bridge.read.relay_ops import Array
from tvm_bridge.read.relay_ops import Attrs
from tvm_bridge.read.relay_ops import Numpy
from tvm_bridge.read.relay_ops import Operands
from tvm_bridge.read.relay_ops import TypeRuleError
from tvm_bridge.read.relay_ops import axis_of
from tvm_bridge.read.relay_ops import broadcast
from tvm_bridge.read.relay_ops import define
from tvm_bridge.read.relay_ops import numpy_dtype
from tvm_bridge.read.relay_ops import same

# Contractions


def _softmax(a: Sequence[Array], attrs: Attrs, _: Any) -> Array:
    return OPS["softmax"].numpy(a[0], axis=attrs.get("axis", -1), strict=True)


def _out_dtype(o: Operands) -> str:
    return o.attrs.get("out_dtype") or o.dtype


def _contract(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        raise TypeRuleError(f"the contracted extents of {a} and {b} differ")
    return (*broadcast(a[:-2], b[:-2]), a[-2], b[-1])


def _swap(shape: tuple[int, ...], on: bool) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2]) if on else shape


def _flip(x: Array, on: bool) -> Array:
    return np.swapaxes(x, -1, -2) if on else x


def _dense_type(o: Operands) -> TensorType:
    ta, tb = o.attrs.get("transpose_a", False), o.attrs.get("transpose_b", "transpose_a" not in o.attrs)
    if len(o[1]) != 2:
        raise TypeRuleError(f"the weight has shape {o[1]}, not two dimensions")
    return TensorType(_contract(_swap(o[0], ta), _swap(o[1], tb)), _out_dtype(o))


def _product(a: Array, b: Array, out: TensorType) -> Array:
    dtype = numpy_dtype(out.dtype)
    return np.matmul(a.astype(dtype, copy=False) if dtype.itemsize > a.dtype.itemsize else a, b)


_DENSE = "units:ref out_dtype:text"
_MATMUL = "transpose_a:bool transpose_b:bool out_dtype:text"


def _matmul(a: Sequence[Array], at: Attrs, out: tuple[TensorType, ...]) -> Array:
    return _product(_flip(a[0], at.get("transpose_a", False)), _flip(a[1], at.get("transpose_b", False)), out[0])


def _batch_matmul_type(o: Operands) -> TensorType:
    # before 0.8 there were no transpose attributes and the second operand was always transposed
    a, b = _swap(o[0], o.attrs.get("transpose_a", False)), _swap(o[1], o.attrs.get("transpose_b", True))
    return TensorType(_contract(a, b), _out_dtype(o))


def _batch_matmul(a: Sequence[Array], at: Attrs, out: tuple[TensorType, ...]) -> Array:
    return _matmul(a, {"transpose_a": at.get("transpose_a", False), "transpose_b": at.get("transpose_b", True)}, out)


# Normalisations


def _along(x: Array, axis: int, rank: int) -> Array:
    """A vector shaped so that it broadcasts along ``axis``."""
    return x.reshape([-1 if i == axis % rank else 1 for i in range(rank)])


_NORM = "axis:int epsilon:float center:bool scale:bool"


def _norm(op: str, channels: int, axis: int) -> Numpy:
    """A normalization of the op table, whose channels are there on the axis ``channels`` and here, by default, on ``axis``."""

    def call(a: Sequence[Array], at: Attrs, out: tuple[TensorType, ...]) -> Any:
        own = at.get("axis", axis)
        x = np.moveaxis(a[0], own, channels)
        gain = a[1] if at.get("scale", True) else np.ones_like(a[1])
        shift = a[2] if at.get("center", True) else np.zeros_like(a[2])
        more: dict[str, Any] = {"groups": at["num_groups"]} if op == "group_norm" else {}
        y = OPS[op].numpy(x, *a[3:], gain, shift, eps=at["epsilon"], **more)
        return (np.moveaxis(y, channels, own), *a[3:]) if len(a) > 3 else np.moveaxis(y, channels, own)

    return call


def _bias_add(a: Sequence[Array], at: Attrs, out: tuple[TensorType, ...]) -> Array:
    return a[0] + _along(a[1], at.get("axis", 1), a[0].ndim)


def _bias_type(o: Operands) -> TensorType:
    axis = axis_of(o.attrs.get("axis", 1), len(o[0]))
    if o[1] != (o[0][axis],):
        raise TypeRuleError(f"a bias of shape {o[1]} on axis {axis} of {o[0]}")
    return same(o)


define("nn.dense", _DENSE, _dense_type, lambda a, at, out: _product(a[0], a[1].T, out[0]))
define("nn.matmul", f"{_DENSE} {_MATMUL}", _dense_type, _matmul)
define("nn.batch_matmul", _MATMUL, _batch_matmul_type, _batch_matmul)
define("nn.bias_add", "axis:int", _bias_type, _bias_add)
define("nn.softmax nn.fast_softmax", "axis:int", same, _softmax)
define("nn.log_softmax", "axis:int", same, lambda a, at, out: OPS["log_softmax"].numpy(a[0], axis=at["axis"]))
define("nn.layer_norm", _NORM, same, _norm("layer_norm", -1, -1))
define("nn.instance_norm", _NORM, same, _norm("instance_norm", 1, 1))
define("nn.group_norm", f"{_NORM} num_groups:int", same, _norm("group_norm", 1, 1))
define("nn.batch_norm", _NORM, lambda o: (o.types[0], o.types[3], o.types[4]), _norm("batch_norm", 1, 1))
define("nn.dropout", "rate:float", lambda o: (o.types[0], o.types[0]), lambda a, at, out: (a[0], np.ones_like(a[0])))
define("nn.prelu", "axis:int", same, lambda a, at, out: np.where(a[0] > 0, a[0], a[0] * _along(a[1], at["axis"], a[0].ndim)))
