"""Products and normalizations of Relay: type rules and numpy semantics, entered into the table of
:mod:`tvm_bridge.read.relay_ops`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fuser.errors import UnsupportedError
from fuser.ir.ops import OPS
from tvm_bridge.read.relay_graph import TensorType
from tvm_bridge.read.relay_ops import Array
from tvm_bridge.read.relay_ops import Attrs
from tvm_bridge.read.relay_ops import Operands
from tvm_bridge.read.relay_ops import TypeRuleError
from tvm_bridge.read.relay_ops import axis_of
from tvm_bridge.read.relay_ops import broadcast
from tvm_bridge.read.relay_ops import define
from tvm_bridge.read.relay_ops import numpy_dtype
from tvm_bridge.read.relay_ops import same

# Contractions


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


def _normalised(x: Array, axes: tuple[int, ...], eps: float) -> Array:
    mean = x.mean(axis=axes, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axis=axes, keepdims=True) + np.asarray(eps, x.dtype))


def _affine(x: Array, a: Sequence[Array], at: Attrs, axis: int) -> Array:
    x = x * _along(a[1], axis, x.ndim) if at.get("scale", True) else x
    return x + _along(a[2], axis, x.ndim) if at.get("center", True) else x


_NORM = "axis:int epsilon:float center:bool scale:bool"


def _layer_norm(a: Sequence[Array], at: Attrs, out: tuple[TensorType, ...]) -> Array:
    return _affine(_normalised(a[0], (at.get("axis", -1),), at["epsilon"]), a, at, at.get("axis", -1))


def _instance_norm(a: Sequence[Array], at: Attrs, out: tuple[TensorType, ...]) -> Array:
    axes = tuple(i for i in range(1, a[0].ndim) if i != at["axis"])
    return _affine(_normalised(a[0], axes, at["epsilon"]), a, at, at["axis"])


def _group_norm(a: Sequence[Array], at: Attrs, out: tuple[TensorType, ...]) -> Array:
    if at["axis"] != 1:
        raise UnsupportedError("nn.group_norm along an axis other than 1 is not evaluated")
    x = a[0].reshape(a[0].shape[0], at["num_groups"], -1)
    return _affine(_normalised(x, (2,), at["epsilon"]).reshape(a[0].shape), a, at, 1)


def _batch_norm(a: Sequence[Array], at: Attrs, out: tuple[TensorType, ...]) -> tuple[Array, ...]:
    x, axis = a[0], at.get("axis", 1)
    mean, variance = _along(a[3], axis, x.ndim), _along(a[4], axis, x.ndim)
    return _affine((x - mean) / np.sqrt(variance + np.asarray(at["epsilon"], x.dtype)), a, at, axis), a[3], a[4]


def _log_softmax(a: Sequence[Array], at: Attrs, out: tuple[TensorType, ...]) -> Array:
    shifted = a[0] - a[0].max(axis=at["axis"], keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=at["axis"], keepdims=True))


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
define("nn.softmax nn.fast_softmax", "axis:int", same, lambda a, at, out: OPS["softmax"].numpy(a[0], axis=at.get("axis", -1)))
define("nn.log_softmax", "axis:int", same, _log_softmax)
define("nn.layer_norm", _NORM, same, _layer_norm)
define("nn.instance_norm", _NORM, same, _instance_norm)
define("nn.group_norm", f"{_NORM} num_groups:int", same, _group_norm)
define("nn.batch_norm", _NORM, lambda o: (o.types[0], o.types[3], o.types[4]), _batch_norm)
define("nn.dropout", "rate:float", lambda o: (o.types[0], o.types[0]), lambda a, at, out: (a[0], np.ones_like(a[0])))
define("nn.prelu", "axis:int", same, lambda a, at, out: np.where(a[0] > 0, a[0], a[0] * _along(a[1], at["axis"], a[0].ndim)))
