"""Relay calls as operators of the op table, one by one and with no clean-up; what the table lacks becomes ``opaque``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np

from fuser.errors import ModelFileError
from fuser.errors import ProgramError
from fuser.frontends.quotients import strictly
from fuser.ir.opdef import OpDef
from fuser.ir.opdef import is_number
from fuser.ir.ops import op as op_def
from fuser.ir.program import FLOAT_DTYPES
from fuser.ir.program import Node
from fuser.ir.program import Tensor
from fuser.ir.program import TensorProgram
from fuser.ir.program import infer_shape
from fuser.ir.scalar import Scalar
from tvm_bridge.read.relay_dynamic import static_form
from tvm_bridge.read.relay_graph import Ref
from tvm_bridge.read.relay_graph import RelayGraph
from tvm_bridge.read.relay_graph import RelayNode
from tvm_bridge.read.relay_ops import Array
from tvm_bridge.read.relay_ops import TypeRuleError
from tvm_bridge.read.relay_ops import numpy_dtype
from tvm_bridge.read.relay_ops import reduced_axes
from tvm_bridge.read.relay_ops import table_entries
from tvm_bridge.read.relay_shapes import layout_permutation
from tvm_bridge.read.relay_shapes import permutation
from tvm_bridge.read.relay_shapes import sections
from tvm_bridge.read.relay_shapes import slice_like
from tvm_bridge.read.relay_shapes import slices
from tvm_bridge.to_program.relay_library import EXACT
from tvm_bridge.to_program.relay_library import LIBRARY
from tvm_bridge.to_program.relay_library import WHOLE
from tvm_bridge.to_program.relay_library import take
from tvm_bridge.to_program.relay_library import within


@dataclass
class Lowering:
    """A program under construction; ``names`` maps a Relay value to its tensor, ``literals`` holds the constants of the model."""

    graph: RelayGraph
    source: str
    tensors: dict[str, Tensor] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    literals: dict[str, Array] = field(default_factory=dict)
    names: dict[Ref, str] = field(default_factory=dict)
    origin: dict[str, Ref] = field(default_factory=dict)

    @cached_property
    def used(self) -> set[Ref]:
        """The values that some call or output reads."""
        return {*self.graph.outputs, *(r for n in self.graph.nodes for r in n.args)}

    @cached_property
    def table(self) -> dict[str, tuple[OpDef, dict[str, str]]]:
        return table_entries()

    def fresh(self, name: str) -> str:
        while name in self.tensors:
            name += "_"
        return name

    def define(self, name: str, shape: tuple[int, ...], dtype: str) -> str:
        self.tensors[name] = Tensor(name, shape, dtype)
        return name

    def literal(self, value: Array, dtype: str, name: str) -> str:
        name = self.define(self.fresh(name), value.shape, dtype)
        self.inputs.append(name)
        self.literals[name] = value
        return name

    def bind(self, ref: Ref, name: str) -> None:
        self.names[ref] = name
        self.origin.setdefault(name, ref)

    def value(self, ref: Ref) -> str:
        """The tensor of a value. What shapes alone decide becomes one where something else reads it."""
        if ref not in self.names:
            value = self.graph.constants[ref.index].value if ref.kind == "const" else self.graph.known[ref]
            stem = f"const_{ref.index}" if ref.kind == "const" else f"{self.graph.nodes[ref.index].op}_{ref.index}"
            self.bind(ref, self.literal(value, self.graph.type_of(ref).dtype, stem))
        return self.names[ref]

    def emit(self, call: RelayNode, op: str, *args: str, dtype: str = "", step: str = "", **attrs: Any) -> str:
        """Append an operator; ``step`` tells an intermediate of the call from its result."""
        name = self.fresh(f"{call.op.removeprefix('nn.')}_{call.id}{step and '.'}{step}")
        shape = infer_shape(op, [self.tensors[a].shape for a in args], attrs)
        self.define(name, shape, dtype or self.tensors[args[0]].dtype)
        attrs |= {"dtype": dtype} if dtype and "dtype" in op_def(op).attrs else {}
        self.nodes.append(Node(op, args, name, tuple(sorted(attrs.items()))))
        return name

    def opaque(self, call: RelayNode, args: tuple[str, ...], k: int) -> str:
        stem = f"{call.op.removeprefix('nn.')}_{call.id}"
        name = self.fresh(stem if len(call.types) == 1 else f"{stem}.{k}")
        self.define(name, call.types[k].dims, call.types[k].dtype)
        kind, detail = call.types[k], json.dumps(call.attr, sort_keys=True)
        attrs = {"callee": call.op, "shape": kind.dims, "detail": detail, "dtype": kind.dtype, "field": k}
        self.nodes.append(Node("opaque", args, name, tuple(sorted(attrs.items()))))
        return name

    def is_float(self, name: str) -> bool:
        return self.tensors[name].dtype in FLOAT_DTYPES

    def scalar(self, name: str) -> float | None:
        """The value of a constant of one element."""
        value = self.literals.get(name)
        return float(value.reshape(())) if value is not None and value.size == 1 else None


KNOWN = frozenset((*WHOLE, *FLOAT_DTYPES))
Result = str | tuple[str, ...] | None
Lower = Callable[[Lowering, RelayNode, tuple[str, ...]], Result]


def _by_entry(lo: Lowering, call: RelayNode, a: tuple[str, ...]) -> Result:
    """The element-wise operator of the op table, or the fold, with this name in Relay."""
    found = lo.table.get(call.op)
    if found is None:
        return None
    entry, theirs = found
    if entry.over_axes:
        axes = reduced_axes(call.attr, len(lo.tensors[a[0]].shape))
        return lo.emit(call, entry.name, a[0], axis=axes, keepdims=bool(call.attr.get("keepdims"))) if axes else a[0]
    attrs = {ours: call.attr[t] for ours in entry.attrs if (t := theirs.get(ours, ours)) in call.attr}
    numbers: dict[str, Any] = {k: Scalar.of(v) if is_number(k) else v for k, v in attrs.items()}
    return lo.emit(call, entry.name, *a, dtype=call.types[0].dtype, **numbers)


def _seen_as(op: str) -> Lower:
    """In the shape of the result."""
    return lambda lo, call, a: lo.emit(call, op, a[0], shape=call.types[0].dims)


def _along(op: str, axis: int, **attrs: Any) -> Lower:
    """Of all operands along an axis, by default ``axis``."""
    return lambda lo, call, a: lo.emit(call, op, *a, axis=call.attr.get("axis", axis) % len(lo.tensors[a[0]].shape), **attrs)


def _swap(lo: Lowering, call: RelayNode, x: str) -> str:
    n = len(lo.tensors[x].shape)
    return lo.emit(call, "transpose", x, step="t", perm=(*range(n - 2), n - 1, n - 2))


def _matmul(lo: Lowering, call: RelayNode, a: tuple[str, ...]) -> Result:
    ta, tb = call.attr.get("transpose_a", False), call.attr.get("transpose_b", call.op != "nn.matmul")
    left = _swap(lo, call, a[0]) if ta else a[0]
    right = _swap(lo, call, a[1]) if tb else a[1]
    return lo.emit(call, "matmul", left, right, dtype=call.types[0].dtype)


def _bias_add(lo: Lowering, call: RelayNode, a: tuple[str, ...]) -> Result:
    rank = len(lo.tensors[a[0]].shape)
    axis = call.attr.get("axis", 1) % rank
    bias = a[1]
    if axis != rank - 1:
        bias = lo.emit(call, "reshape", bias, step="bias", shape=(*lo.tensors[bias].shape, *(1,) * (rank - 1 - axis)))
    return lo.emit(call, "add", a[0], bias)


def _power(lo: Lowering, call: RelayNode, a: tuple[str, ...]) -> Result:
    exponent = lo.scalar(a[1])
    if exponent is None or call.types[0].dims != lo.tensors[a[0]].shape:
        return None
    if exponent == 3:
        return lo.emit(call, "mul", lo.emit(call, "square", a[0], step="square"), a[0])
    op = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt"}.get(exponent)
    if exponent == 1 or op:
        return lo.emit(call, op, a[0]) if op else a[0]
    return lo.emit(call, "pow", a[0], exponent=Scalar.of(exponent)) if math.isfinite(exponent) else None


def _layer_norm(lo: Lowering, call: RelayNode, a: tuple[str, ...]) -> Result:
    at, rank = call.attr, len(lo.tensors[a[0]].shape)
    if at.get("axis", -1) % rank != rank - 1:
        return None
    gain, bias = at.get("scale", True), at.get("center", True)
    operands = (a[0], *((a[1],) if gain else ()), *((a[2],) if gain and bias else ()))
    y = lo.emit(
        call, "layer_norm", *operands, step="norm" if bias and not gain else "", eps=Scalar.of(float(at.get("epsilon", 1e-5)))
    )
    return lo.emit(call, "add", y, a[2]) if bias and not gain else y


def _by_channels(op: str) -> Lower:
    """A normalization with a gain and a bias for each channel, of the second axis alone."""

    def lower(lo: Lowering, call: RelayNode, a: tuple[str, ...]) -> Result:
        at = call.attr
        if at.get("axis", 1) != 1 or not (at.get("scale", True) and at.get("center", True)):
            return None
        groups = {"groups": at["num_groups"]} if op == "group_norm" else {}
        operands = (a[0], a[3], a[4], a[1], a[2]) if op == "batch_norm" else a
        y = lo.emit(call, op, *operands, eps=Scalar.of(float(at.get("epsilon", 1e-5))), **groups)
        return (y, a[3], a[4]) if op == "batch_norm" else y

    return lower


def _variance(lo: Lowering, call: RelayNode, a: tuple[str, ...]) -> Result:
    shape = lo.tensors[a[0]].shape
    axes = reduced_axes(call.attr, len(shape))
    if call.attr.get("unbiased") or not axes or np.broadcast_shapes(shape, lo.tensors[a[1]].shape) != shape:
        return None
    centred = lo.emit(call, "square", lo.emit(call, "sub", a[0], a[1], step="sub"), step="square")
    return lo.emit(call, "mean", centred, axis=axes, keepdims=bool(call.attr.get("keepdims")))


def _round(lo: Lowering, call: RelayNode, a: tuple[str, ...]) -> Result:
    """To the nearest whole number; of two, to the one that is farther from zero (the op table's: to the even one)."""
    half = lo.literal(np.asarray(0.5), lo.tensors[a[0]].dtype, f"half_{call.id}")
    whole = lo.emit(call, "trunc", a[0], step="whole")
    rest = lo.emit(call, "abs", lo.emit(call, "sub", a[0], whole, step="rest"), step="distance")
    next_one = lo.emit(call, "add", whole, lo.emit(call, "sign", a[0], step="sign"), step="next")
    far = lo.emit(call, "ge", rest, half, dtype="bool", step="far")
    return lo.emit(call, "where", far, next_one, whole, dtype=call.types[0].dtype)


def _layout(lo: Lowering, call: RelayNode, a: tuple[str, ...]) -> Result:
    try:
        perm = layout_permutation(call.attr["src_layout"], call.attr["dst_layout"])
    except TypeRuleError:
        return None
    return lo.emit(call, "transpose", a[0], perm=perm)


def _repeat(lo: Lowering, call: RelayNode, a: tuple[str, ...]) -> Result:
    axis, rank = call.attr.get("axis"), len(lo.tensors[a[0]].shape)
    return None if axis is None else lo.emit(call, "repeat", a[0], axis=axis % rank, times=call.attr["repeats"])


def _tile(lo: Lowering, call: RelayNode, a: tuple[str, ...]) -> Result:
    shape, reps = lo.tensors[a[0]].shape, tuple(call.attr["reps"])
    rank = max(len(shape), len(reps))
    shape, reps = (1,) * (rank - len(shape)) + shape, (1,) * (rank - len(reps)) + reps
    x = lo.emit(call, "reshape", a[0], step="apart", shape=tuple(e for n in shape for e in (1, n)))
    x = lo.emit(call, "broadcast", x, step="wide", shape=tuple(e for r, n in zip(reps, shape, strict=True) for e in (r, n)))
    return lo.emit(call, "reshape", x, shape=call.types[0].dims)


def _stack(lo: Lowering, call: RelayNode, a: tuple[str, ...]) -> Result:
    shape = lo.tensors[a[0]].shape
    axis = (call.attr.get("axis") or 0) % (len(shape) + 1)
    parts = [lo.emit(call, "reshape", x, shape=(*shape[:axis], 1, *shape[axis:])) for x in a]
    return lo.emit(call, "concat", *parts, axis=axis)


def _slice(lo: Lowering, call: RelayNode, x: str, axis: int, start: int, stop: int) -> str:
    return lo.emit(call, "slice", x, axis=axis, start=start, stop=stop)


def _split(lo: Lowering, call: RelayNode, a: tuple[str, ...]) -> Result:
    shape = lo.tensors[a[0]].shape
    axis = call.attr["axis"] % len(shape)
    return tuple(_slice(lo, call, a[0], axis, i, j) for i, j in sections(call.attr, shape[axis]))


def _strided_slice(lo: Lowering, call: RelayNode, a: tuple[str, ...]) -> Result:
    shape = lo.tensors[a[0]].shape
    try:
        attrs = slice_like(call.attr, shape, lo.tensors[a[1]].shape) if call.op == "slice_like" else call.attr
        cuts = slices(attrs, shape)
    except TypeRuleError:
        return None
    if any(c.step != 1 for c in cuts):
        return None
    x = a[0]
    for axis, cut in enumerate(cuts):
        if (cut.start, cut.stop) != (0, shape[axis]):
            x = _slice(lo, call, x, axis, cut.start, cut.stop)
    return x


def _take(lo: Lowering, call: RelayNode, a: tuple[str, ...]) -> Result:
    """One row of an axis by a constant index is a slice."""
    axis, index = call.attr.get("axis"), lo.scalar(a[1])
    if axis is None or index is None or lo.tensors[a[1]].shape or call.attr.get("batch_dims"):
        return take(lo, call, a)
    shape = lo.tensors[a[0]].shape
    start = int(within(call, int(index), shape[axis % len(shape)]))
    return lo.emit(call, "reshape", _slice(lo, call, a[0], axis % len(shape), start, start + 1), shape=call.types[0].dims)


def _filled_like(value: int) -> Lower:
    def lower(lo: Lowering, call: RelayNode, a: tuple[str, ...]) -> Result:
        kind = call.types[0]
        return lo.literal(
            np.broadcast_to(np.asarray(value, numpy_dtype(kind.dtype)), kind.dims), kind.dtype, f"{call.op}_{call.id}"
        )

    return lower


# Views keep any dtype; of the arithmetic of whole numbers and truths, what differs from that of real numbers stays opaque.
_VIEWS: dict[str, Lower] = {
    **LIBRARY,
    **dict.fromkeys(("reshape", "contrib_reshape", "reshape_like", "squeeze", "expand_dims", "nn.batch_flatten"),
                    _seen_as("reshape")),
    **dict.fromkeys(("broadcast_to", "broadcast_to_like"), _seen_as("broadcast")),
    **dict.fromkeys(("copy", "annotation.stop_fusion", "annotation.cast_hint", "device_copy"), lambda lo, call, a: a[0]),
    "transpose": lambda lo, call, a: lo.emit(call, "transpose", a[0], perm=permutation(call.attr, len(lo.tensors[a[0]].shape))),
    "layout_transform": _layout, "repeat": _repeat, "tile": _tile, "concatenate": _along("concat", 0), "stack": _stack,
    "split": _split, "strided_slice": _strided_slice, "slice_like": _strided_slice, "take": _take,
    "zeros_like": _filled_like(0), "ones_like": _filled_like(1),
    # at inference the first field is the operand; the mask is hardly ever used
    "nn.dropout": lambda lo, call, a: a[0] if Ref("node", call.id, 1) not in lo.used else None,
}  # fmt: skip
_ARITHMETIC: dict[str, Lower] = {
    **EXACT, "power": _power, "nn.bias_add": _bias_add, "nn.dense": _matmul, "nn.matmul": _matmul, "nn.batch_matmul": _matmul,
    **dict.fromkeys(("nn.softmax", "nn.fast_softmax"), _along("softmax", -1, strict=True)),
    "nn.log_softmax": _along("log_softmax", -1),
    "nn.layer_norm": _layer_norm, **{f"nn.{n}": _by_channels(n) for n in ("group_norm", "instance_norm", "batch_norm")},
    "variance": _variance, "round": _round,
}  # fmt: skip


def lower_graph(graph: RelayGraph, name: str, source: str) -> tuple[TensorProgram, dict[str, Array], dict[str, Ref]]:
    """The program of a graph, its constants by tensor name, and the Relay value of each tensor.

    Model inputs keep their names. A tensor without an origin is an intermediate step of one Relay call.
    """
    lo = Lowering(graph, source)
    try:
        for i, var in enumerate(graph.inputs):
            lo.bind(Ref("input", i), lo.define(lo.fresh(var.name), var.type.dims, var.type.dtype))
            lo.inputs.append(lo.names[Ref("input", i)])
        for i, constant in enumerate(graph.constants):
            if constant.value.size:
                lo.bind(Ref("const", i), lo.literal(constant.value, constant.type.dtype, f"const_{i}"))
        for call in graph.nodes:
            if Ref("node", call.id) not in graph.known:
                _lower_call(lo, static_form(call))
        outputs = tuple(lo.value(r) for r in graph.outputs)
        made = TensorProgram(name, tuple(lo.inputs), tuple(lo.nodes), outputs, tuple(lo.tensors.values()))
        program = strictly(made.validate())
    except ProgramError as error:
        raise ModelFileError(f"{source}: {error.message}", error.hint or "the model is not well typed") from error
    return program, lo.literals, lo.origin


def _lower_call(lo: Lowering, call: RelayNode) -> None:
    args = tuple(lo.value(a) for a in call.args)
    lower = _VIEWS.get(call.op)
    found = lo.table.get(call.op) if call.op not in _VIEWS and call.types[0].dtype == "bool" else None
    truth = found is not None and found[0].typed == "truth"
    if lower is None and (truth or all(t.dtype in FLOAT_DTYPES for t in call.types)) and _real(lo, call, args):
        lower = _ARITHMETIC.get(call.op, _by_entry)
    elif lower is None and all(t in KNOWN for t in (*(lo.tensors[x].dtype for x in args), *(t.dtype for t in call.types))):
        lower = _by_entry if truth else EXACT.get(call.op)
    where = f"{lo.source}: {call.op} (call {call.call}{', ' if call.span else ''}{call.span})"
    try:
        made = lower(lo, call, args) if lower else None
    except ProgramError as error:
        raise ModelFileError(f"{where}: {error.message}", "the model is not well typed") from None
    except (TypeRuleError, KeyError, IndexError, TypeError, ValueError) as error:
        raise ModelFileError(
            f"{where}: its attributes {call.attr} do not fit its operands ({error})", "the file is damaged"
        ) from None
    if made is None:
        made = tuple(lo.opaque(call, args, k) for k in range(len(call.types)))
    names = (made,) if isinstance(made, str) else made
    for k, tensor in enumerate(names):
        if k >= len(call.types) or lo.tensors[tensor].shape != call.types[k].dims:
            wanted = call.types[k] if k < len(call.types) else "no such field"
            raise ModelFileError(f"{where}: gives {lo.tensors[tensor]}, but the file says {wanted}", "the file is damaged")
        lo.bind(Ref("node", call.id, k), tensor)


def _real(lo: Lowering, call: RelayNode, args: tuple[str, ...]) -> bool:
    """Operands are floating, but for the condition of a where and what a cast reads."""
    return call.op in ("cast", "cast_like") or all(lo.is_float(a) for a in args[call.op == "where" :])
