"""ONNX's reference, with pools and lookups as the specification has them: its own pools (of 1.16) give other sizes where the
borders of an axis differ, begin windows behind an axis, and divide means by what lies behind the border where the last window is
cut off; its GatherElements refuses axes of more than 31 elements. Its convolutions add a border where there is to be none, those
that are transposed know no groups and no shape of the result, and a softmax is over one axis, where before opset 13 it is over
all from that axis on. Before opset 14 its batch normalization took the statistics of the batch, and before opset 7 it spreads
operands as numpy does. Its TopK takes any of equal elements."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from functools import cache
from itertools import product
from math import prod
from typing import Any

import numpy as np

from fuser.frontends.onnx_old import NUMPY
from fuser.frontends.onnx_old import behind
from fuser.ir.ops import Array

CONCAT_ALONG = 4
"""The opset from which on tensors are joined along an axis that has no default."""
ONE_AXIS = 13
"""The opset from which on a softmax is over one axis."""
TRAINING_MODE = 14
"""The opset from which on a batch normalization says whether it takes the statistics of its batch; before, the number of its
results does."""
SPREAD: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor,
    "Div": lambda x, y: np.divide(x, y) if x.dtype.kind == "f" else np.trunc(np.divide(x, y)), "Equal": np.equal,
    "Greater": np.greater, "Less": np.less, "Pow": np.power, "PRelu": lambda x, slope: np.where(x < 0, slope * x, x),
}  # fmt: skip
"""Operators that old versions spread otherwise."""


def reference(model: Any) -> Any:
    """An evaluator of a model."""
    from onnx.reference import ReferenceEvaluator

    opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1)
    return ReferenceEvaluator(_explicit(model), new_ops=list(_mended(opset)))


def node_reference(node: Any, opset: int, names: Iterable[str] = ()) -> Any:
    """An evaluator of one node, which reads tensors by these names too. ONNX's of a node alone takes it for one of today, which
    is all that there is of some."""
    from onnx import TypeProto
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    given = [helper.make_value_info(n, TypeProto()) for n in dict.fromkeys((*node.input, *names)) if n]
    results = [helper.make_value_info(n, TypeProto()) for n in node.output if n]
    domains = [helper.make_opsetid(d, opset if not d else 1) for d in dict.fromkeys(("", node.domain))]
    try:
        return reference(helper.make_model(helper.make_graph([node], "node", given, results), opset_imports=domains))
    except RuntimeError:
        return ReferenceEvaluator(node, new_ops=list(_mended(opset)))


def _explicit(model: Any) -> Any:
    """The model with convolutions that say VALID as those that say nothing."""

    def valid(node: Any) -> list[Any]:
        return [a for a in node.attribute if a.name == "auto_pad" and a.s == b"VALID"] if node.op_type == "Conv" else []

    if not any(map(valid, model.graph.node)):
        return model
    found = type(model)()
    found.CopyFrom(model)
    for node in found.graph.node:
        for attribute in valid(node):
            node.attribute.remove(attribute)
    return found


@cache
def _mended(opset: int) -> tuple[Any, ...]:
    from onnx.reference.op_run import OpRun

    class AveragePool(OpRun):
        op_domain = ""

        def _run(self, x: Array, **attrs: Any) -> tuple[Array]:
            return (pooled(x, attrs, mean=True),)

    class MaxPool(OpRun):
        op_domain = ""

        def _run(self, x: Array, **attrs: Any) -> tuple[Array]:
            return (pooled(x, attrs, mean=False),)

    class GatherElements(OpRun):
        op_domain = ""

        def _run(self, x: Array, index: Array, axis: int | None = None) -> tuple[Array]:
            return (gathered(x, index, axis or 0),)

    class Softmax(OpRun):
        op_domain = ""

        def _run(self, x: Array, **_: Any) -> tuple[Array]:
            return (np.exp(log_softmax_of_the_rest(x, named(self.onnx_node))).astype(x.dtype),)

    class LogSoftmax(OpRun):
        op_domain = ""

        def _run(self, x: Array, **_: Any) -> tuple[Array]:
            return (log_softmax_of_the_rest(x, named(self.onnx_node)),)

    def named(node: Any) -> int:
        """The reference fills in what is the default of today."""
        return next((a.i for a in node.attribute if a.name == "axis"), 1)

    class ConvTranspose(OpRun):
        op_domain = ""

        def _run(self, x: Array, w: Array, b: Array | None = None, **attrs: Any) -> tuple[Array]:
            return (transposed(x, w, b, attrs),)

    class BatchNormalization(OpRun):
        op_domain = ""

        def _run(self, x: Array, *vectors: Array, **attrs: Any) -> tuple[Array]:
            if sum(map(bool, self.onnx_node.output)) > 1:
                raise NotImplementedError("a batch normalization that trains")
            gain, bias, mean, variance = (v.reshape(-1, *(1,) * (x.ndim - 2)) for v in vectors)
            return ((gain * (x - mean) / np.sqrt(variance + attrs["epsilon"]) + bias).astype(x.dtype),)

    class Concat(OpRun):
        op_domain = ""

        def _run(self, *xs: Array, **_: Any) -> tuple[Array]:
            return (np.concatenate(xs, named(self.onnx_node)),)

    class TopK(OpRun):
        op_domain = ""

        def _run(self, x: Array, count: Array | None = None, **attrs: Any) -> tuple[Array, Array]:
            given = {k: v for k, v in attrs.items() if v is not None}
            k = given["k"] if count is None else int(count.reshape(-1)[0])
            return first_of(x, k, given.get("axis", -1), bool(given.get("largest", 1)))

    class Spread(OpRun):
        op_domain = ""

        def _run(self, x: Array, y: Array, **_: Any) -> tuple[Array]:
            op, attrs = self.onnx_node.op_type, {a.name: a.i for a in self.onnx_node.attribute}
            ends = (1,) * behind(op, opset, attrs, (x.ndim, y.ndim))
            found = SPREAD[op](x, y.reshape(*y.shape, *ends))
            return (found if found.dtype == bool else found.astype(x.dtype),)

    made: list[Any] = [AveragePool, MaxPool, GatherElements, ConvTranspose, TopK]
    made += [Softmax, LogSoftmax] if opset < ONE_AXIS else []
    made += [BatchNormalization] if opset < TRAINING_MODE else []
    made += [Concat] if opset < CONCAT_ALONG else []
    return (*made, *(type(op, (Spread,), {}) for op in SPREAD if opset < NUMPY))


def transposed(x: Array, w: Array, bias: Array | None, attrs: dict[str, Any]) -> Array:
    """A convolution the other way round: what each element adds to a window, without the borders."""
    given = {k: v for k, v in attrs.items() if v is not None}
    rank, groups = x.ndim - 2, given.get("group", 1)
    strides, dilations, more = (given.get(n) or [d] * rank for n, d in (("strides", 1), ("dilations", 1), ("output_padding", 0)))
    window, places = w.shape[2:], x.shape[2:]
    sizes = zip(places, strides, dilations, window, more, strict=True)
    full = [(n - 1) * s + d * (k - 1) + 1 + o for n, s, d, k, o in sizes]
    out = np.zeros((x.shape[0], w.shape[1] * groups, *full), np.float64)
    xs, ws, ys = np.split(x, groups, 1), np.split(w, groups, 0), np.split(out, groups, 1)
    for place in product(*map(range, window)):
        steps = zip(place, dilations, places, strides, strict=True)
        at = tuple(slice(p * d, p * d + (n - 1) * s + 1, s) for p, d, n, s in steps)
        for v, u, y in zip(xs, ws, ys, strict=True):
            y[(slice(None), slice(None), *at)] += np.einsum("nc...,cm->nm...", v, u[(slice(None), slice(None), *place)])
    auto, pads = given.get("auto_pad", "NOTSET"), given.get("pads") or [0] * 2 * rank
    wanted = given.get("output_shape")
    if wanted is None and auto.startswith("SAME"):
        wanted = [n * s for n, s in zip(places, strides, strict=True)]
    if wanted is not None:
        lacking = [n - m for n, m in zip(full, wanted[-rank:], strict=True)]
        less, rest = [t // 2 for t in lacking], [t - t // 2 for t in lacking]
        pads = less + rest if auto == "SAME_UPPER" else rest + less
    inside = tuple(slice(pads[i], n - pads[rank + i]) for i, n in enumerate(full))
    y = out[(slice(None), slice(None), *inside)]
    return (y if bias is None else y + bias.reshape(-1, *(1,) * rank)).astype(x.dtype)


def log_softmax_of_the_rest(x: Array, axis: int) -> Array:
    """Over all axes from one on."""
    start = axis % x.ndim
    rows = x.reshape(prod(x.shape[:start]), -1)
    shifted = rows - rows.max(1, keepdims=True)
    return (shifted - np.log(np.exp(shifted).sum(1, keepdims=True))).reshape(x.shape)


def gathered(x: Array, index: Array, axis: int) -> Array:
    """Elements along an axis, of either end's count; the index may be smaller along the other axes."""
    axis %= x.ndim
    if not (index.astype(np.int64) + x.shape[axis] >= 0).all() or not (index < x.shape[axis]).all():
        raise IndexError(f"an index lies outside the {x.shape[axis]} elements of axis {axis}")
    held = x[tuple(slice(None) if a == axis else slice(n) for a, n in enumerate(index.shape))]
    return np.take_along_axis(held, index.astype(np.int64) % x.shape[axis], axis)


def first_of(x: Array, k: int, axis: int, largest: bool) -> tuple[Array, Array]:
    """The largest or smallest elements and where they are; of equal ones the one in front comes first."""
    ordered = np.flip(x, axis) if largest else x
    places = np.argsort(ordered, axis, kind="stable")
    places = np.take(np.flip(x.shape[axis] - 1 - places, axis) if largest else places, range(k), axis).astype(np.int64)
    return np.take_along_axis(x, places, axis), places


def pooled(x: Array, attrs: dict[str, Any], *, mean: bool) -> Array:
    """Each place of the result from the elements that its window holds."""
    given = {k: v for k, v in attrs.items() if v is not None}
    window = given["kernel_shape"]
    rank = len(window)
    strides, dilations = (given.get(n) or [1] * rank for n in ("strides", "dilations"))
    pads = given.get("pads") or [0] * 2 * rank
    auto, ceil, counted = (given.get(n, d) for n, d in (("auto_pad", "NOTSET"), ("ceil_mode", 0), ("count_include_pad", 0)))
    axes = [
        _windows(n, w, s, d, _border(auto, n, w, s, d, (pads[i], pads[rank + i])), bool(ceil))
        for i, (n, w, s, d) in enumerate(zip(x.shape[2:], window, strides, dilations, strict=True))
    ]
    out = np.empty((*x.shape[:2], *(len(a) for a in axes)), x.dtype)
    for place in product(*(range(len(a)) for a in axes)):
        inside, within = zip(*(a[p] for a, p in zip(axes, place, strict=True)), strict=True)
        held = x[(slice(None), slice(None), *np.ix_(*inside))].reshape(*x.shape[:2], -1)
        if mean:
            value = held.sum(-1, dtype=np.float64) / (prod(within) if counted else held.shape[-1])
        else:
            value = held.max(-1)
        out[(slice(None), slice(None), *place)] = value
    return out


def _border(auto: str, n: int, window: int, stride: int, dilation: int, pads: tuple[int, int]) -> tuple[int, int]:
    if auto == "NOTSET":
        return pads
    lacking = 0 if auto == "VALID" else max((-(-n // stride) - 1) * stride + dilation * (window - 1) + 1 - n, 0)
    less, more = lacking // 2, lacking - lacking // 2
    return (less, more) if auto == "SAME_UPPER" else (more, less)


def _windows(
    n: int, window: int, stride: int, dilation: int, border: tuple[int, int], ceil: bool
) -> Sequence[tuple[list[int], int]]:
    """Of each window along an axis of ``n`` elements those that it holds, and how many places of it lie on the axis or its
    border. With ``ceil`` the last may reach over the border, if it begins in front of it."""
    front, behind = border
    last = n + front + behind - dilation * (window - 1) - 1
    starts = [s - front for s in range(0, last + (stride if ceil else 1), stride) if s <= last or s < n + front]
    every = [[s + dilation * i for i in range(window)] for s in starts]
    return [([i for i in places if 0 <= i < n], sum(i < n + behind for i in places)) for places in every]
