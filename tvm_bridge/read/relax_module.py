"""A live module of Relax (TVM 0.27) as the graph that Relay models are read into, so that everything behind it is the same.

Operators get their names and attributes in Relay. Those that Relay lacks are written out in operators that it has (attention,
GELU, RMS norms); what is in neither table keeps its name and stays opaque.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from importlib import import_module
from typing import Any

import numpy as np

from fuser.errors import UnsupportedError
from tvm_bridge.read.relay_graph import Array
from tvm_bridge.read.relay_graph import Ref
from tvm_bridge.read.relay_graph import RelayConstant
from tvm_bridge.read.relay_graph import RelayGraph
from tvm_bridge.read.relay_graph import RelayNode
from tvm_bridge.read.relay_graph import RelayVar
from tvm_bridge.read.relay_graph import TensorType

ENTRY = "main"
SAME = frozenset(
    {"add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "negative", "abs", "where", "full_like"}
    | {"exp", "log", "sqrt", "rsqrt", "erf", "tanh", "sigmoid", "sin", "cos", "floor", "ceil", "round", "nn.relu"}
    | {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or", "logical_not"}
    | {"reshape", "broadcast_to", "squeeze", "expand_dims"}
)
"""Operators that have the same name in Relay, and no attributes that the types do not give."""


def is_relax(mod: Any) -> bool:
    """Whether an object is a module of Relax. Imports nothing."""
    return any(type(f).__module__.startswith("tvm.relax") for f in getattr(mod, "functions", {}).values())


def _main(mod: Any) -> Any:
    found = {g.name_hint: f for g, f in mod.functions.items() if type(f).__module__.startswith("tvm.relax")}
    if ENTRY not in found:
        raise UnsupportedError(f"the Relax module has no function {ENTRY} (its functions: {', '.join(found)})", "name it so")
    return found[ENTRY]


def open_places(mod: Any) -> dict[str, tuple[tuple[str, int], ...]]:
    """The dimensions of inputs that are a symbolic variable, by its name."""
    found: dict[str, tuple[tuple[str, int], ...]] = {}
    for var in _main(mod).params:
        for i, extent in enumerate(getattr(var.ty, "shape", None) or ()):
            if type(extent).__name__ == "Var":
                found[str(extent.name)] = (*found.get(str(extent.name), ()), (_name(var), i))
    return found


def bound(mod: Any, sizes: Mapping[str, int]) -> Any:
    """The module with numbers for its symbolic variables."""
    transform: Any = import_module("tvm.relax.transform")
    return transform.BindSymbolicVars(dict(sizes), ENTRY)(mod)


def read_relax(mod: Any) -> RelayGraph:
    """The function ``main`` of a module of Relax, of operators on tensors with static shapes.

    Raises :class:`UnsupportedError` naming what is no such operator: control flow, calls of other functions, shapes that are
    known at run time alone.
    """
    function = _main(mod)
    graph = _Graph()
    for i, var in enumerate(function.params):
        graph.inputs.append(RelayVar(_name(var), graph.type_of(var.ty, _name(var))))
        graph.known[var] = (Ref("input", i),)
    body = function.body
    for block in getattr(body, "blocks", ()):
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            if value is None or type(binding).__name__ != "VarBinding":
                raise UnsupportedError(f"{_name(binding.var)} of the Relax module is a {type(binding).__name__}", _WAY_OUT)
            graph.known[binding.var] = graph.read(value, binding.var)
    result = getattr(body, "body", body)
    outputs = graph.read(result, result)
    kind = type(getattr(result, "ty", None)).__name__
    return RelayGraph(
        tuple(graph.inputs),
        tuple(graph.constants),
        tuple(graph.nodes),
        outputs,
        tuple_output=kind == "TupleType",
        version="Relax",
    )


_WAY_OUT = "import the model without it, or give a file of torch.export or ONNX"


def _name(var: Any) -> str:
    return str(getattr(var, "name_hint", None) or getattr(var, "name", "value"))


def _plain(value: Any) -> Any:
    """A number, text or tuple of them, of what TVM has for it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "value"):
        return _plain(value.value)
    if isinstance(value, list | tuple) or hasattr(value, "__iter__"):
        return tuple(_plain(v) for v in value)
    return str(value)


@dataclass
class _Graph:
    """A graph under construction; ``known`` has the fields of each value that was read."""

    inputs: list[RelayVar] = field(default_factory=list)
    constants: list[RelayConstant] = field(default_factory=list)
    nodes: list[RelayNode] = field(default_factory=list)
    known: dict[Any, tuple[Ref, ...]] = field(default_factory=dict)

    def type_of(self, ty: Any, what: str) -> TensorType:
        try:
            return TensorType(tuple(int(n) for n in ty.shape), str(ty.dtype))
        except (TypeError, ValueError, AttributeError):
            raise UnsupportedError(f"{what} of the Relax module has no static shape: {ty}", "bind its dimensions first") from None

    def types_of(self, ty: Any, what: str) -> tuple[TensorType, ...]:
        fields = getattr(ty, "fields", None)
        return tuple(self.type_of(t, what) for t in fields) if fields is not None else (self.type_of(ty, what),)

    def of(self, ref: Ref) -> TensorType:
        if ref.kind == "node":
            return self.nodes[ref.index].types[ref.field]
        return self.inputs[ref.index].type if ref.kind == "input" else self.constants[ref.index].type

    def constant(self, value: Array, dtype: str) -> Ref:
        self.constants.append(RelayConstant(value, TensorType(value.shape, dtype)))
        return Ref("const", len(self.constants) - 1)

    def number(self, value: float, like: Ref) -> Ref:
        dtype = self.of(like).dtype
        return self.constant(np.asarray(value, np.float32 if dtype == "bfloat16" else dtype), dtype)

    def node(self, op: str, args: tuple[Ref, ...], *types: TensorType, **attrs: Any) -> Ref:
        i = len(self.nodes)
        self.nodes.append(RelayNode(i, op, args, tuple(sorted(attrs.items())), types, "", i))
        return Ref("node", i)

    def same(self, op: str, *args: Ref) -> Ref:
        """An operator element by element, with the type of its first operand."""
        return self.node(op, args, self.of(args[0]))

    def read(self, value: Any, var: Any) -> tuple[Ref, ...]:
        """The fields of an expression."""
        kind = type(value).__name__
        if value in self.known:
            return self.known[value]
        if kind == "Tuple":
            return tuple(r for f in value.fields for r in self.read(f, f))
        if kind == "TupleGetItem":
            return (self.read(value.tuple_value, value.tuple_value)[int(value.index)],)
        if hasattr(getattr(value, "value", None), "numpy"):
            dtype, found = str(value.value.dtype), value.value.numpy()
            return (self.constant(found.astype(np.float32) if dtype == "bfloat16" else found, dtype),)
        if kind == "Call" and type(value.op).__name__ == "Op":
            return self.call(value, var)
        raise UnsupportedError(f"{_name(var)} of the Relax module is a {kind}, no operator on tensors", _WAY_OUT)

    def call(self, value: Any, var: Any) -> tuple[Ref, ...]:
        name = str(value.op.name).removeprefix("relax.")
        types = self.types_of(getattr(var, "ty", None) or value.ty, _name(var))
        if name in _RULES:
            made = _RULES[name](self, value, types)
            return made if isinstance(made[0], Ref) else (made,)  # type: ignore[return-value]
        args = tuple(r for a in value.args if not _is_shape(a) for r in self.read(a, a))
        made = self.node(name if name in SAME else f"relax.{name}", args, *types)
        return tuple(made._replace(field=k) for k in range(len(types)))


def _is_shape(value: Any) -> bool:
    return type(value).__name__ in ("ShapeExpr", "PrimValue", "DataTypeImm", "StringImm")


Rule = Callable[[_Graph, Any, tuple[TensorType, ...]], Any]


def _renamed(op: str, **names: str) -> Rule:
    """An operator of another name; ``names`` of its attributes, as Relay has them, and as Relax has."""

    def rule(graph: _Graph, value: Any, types: tuple[TensorType, ...]) -> tuple[Ref, ...]:
        args = tuple(r for a in value.args if not _is_shape(a) for r in graph.read(a, a))
        attrs = {theirs: _plain(getattr(value.attrs, ours)) for theirs, ours in names.items()}
        made = graph.node(op, args, *types, **attrs)
        return tuple(made._replace(field=k) for k in range(len(types)))

    return rule


def _folded(op: str) -> Rule:
    """A reduction, which over an empty list of axes is none (in Relay it is over all)."""
    over = _renamed(op, axis="axis", keepdims="keepdims")

    def rule(graph: _Graph, value: Any, types: tuple[TensorType, ...]) -> tuple[Ref, ...]:
        return graph.read(value.args[0], value.args[0]) if _plain(value.attrs.axis) == () else over(graph, value, types)

    return rule


def _matmul(graph: _Graph, value: Any, types: tuple[TensorType, ...]) -> Ref:
    (a,), (b,) = graph.read(value.args[0], None), graph.read(value.args[1], None)
    return graph.node("nn.matmul", (a, b), *types, transpose_a=False, transpose_b=False)


def _norm(graph: _Graph, value: Any, types: tuple[TensorType, ...]) -> Ref:
    at, args = value.attrs, tuple(graph.read(a, a)[0] for a in value.args)
    axes = _plain(at.axes)
    rank = len(types[0].shape)
    if len(axes) != 1 or axes[0] % rank != rank - 1:
        return graph.node("relax.nn.layer_norm", args, *types)
    flags = {"center": bool(at.center), "scale": bool(at.scale)}
    return graph.node("nn.layer_norm", args, *types, axis=rank - 1, epsilon=float(_plain(at.epsilon)), **flags)


def _rms_norm(graph: _Graph, value: Any, types: tuple[TensorType, ...]) -> Ref:
    x, gain = (graph.read(a, a)[0] for a in value.args)
    axes = tuple(a % len(types[0].shape) for a in _plain(value.attrs.axes))
    kept = TensorType(tuple(1 if i in axes else n for i, n in enumerate(types[0].dims)), types[0].dtype)
    square = graph.same("multiply", x, x)
    mean = graph.node("mean", (square,), kept, axis=axes, keepdims=True, exclude=False)
    root = graph.same("rsqrt", graph.same("add", mean, graph.number(float(_plain(value.attrs.epsilon)), x)))
    return graph.same("multiply", graph.same("multiply", x, root), gain)


def _gelu(graph: _Graph, value: Any, types: tuple[TensorType, ...]) -> Ref:
    (x,) = graph.read(value.args[0], None)
    inner = graph.same("erf", graph.same("multiply", x, graph.number(math.sqrt(0.5), x)))
    outer = graph.same("add", inner, graph.number(1.0, x))
    return graph.same("multiply", graph.same("multiply", x, graph.number(0.5, x)), outer)


def _silu(graph: _Graph, value: Any, types: tuple[TensorType, ...]) -> Ref:
    (x,) = graph.read(value.args[0], None)
    return graph.same("multiply", x, graph.same("sigmoid", x))


def _attention(graph: _Graph, value: Any, types: tuple[TensorType, ...]) -> Ref:
    """Queries, keys and values are [batch, rows, heads, size] in Relax."""
    q, k, v, *bias = (graph.read(a, a)[0] for a in value.args)
    at = value.attrs
    (b, m, heads, size), (_, n, _, _), width = graph.of(q).dims, graph.of(k).dims, graph.of(v).dims[-1]
    dtype = graph.of(q).dtype
    if at.window_size is not None or graph.of(k).dims[2] != heads:
        return graph.node("relax.nn.attention", (q, k, v, *bias), *types)

    def batches(x: Ref, rows: int, last: int) -> Ref:
        turned = graph.node("transpose", (x,), TensorType((b, heads, rows, last), dtype), axes=(0, 2, 1, 3))
        return graph.node("reshape", (turned,), TensorType((b * heads, rows, last), dtype))

    kind = TensorType((b * heads, m, n), dtype)
    flags = {"transpose_a": False, "transpose_b": True}
    scores = graph.node("nn.batch_matmul", (batches(q, m, size), batches(k, n, size)), kind, **flags)
    scale = size**-0.5 if at.scale is None else float(_plain(at.scale))
    scores = graph.same("multiply", scores, graph.number(scale, q))
    causal = _plain(at.causal_mask)
    if bias or causal:
        whole = TensorType((b, heads, m, n), dtype)
        scores = graph.node("reshape", (scores,), whole)
        if bias:
            scores = graph.same("add", scores, bias[0])
        if causal:
            keep = np.tril(np.ones((m, n), bool), n - m if causal == "BottomRight" else 0)
            mask = np.where(keep, 0.0, -np.inf).astype(np.float32 if dtype == "bfloat16" else dtype)
            scores = graph.same("add", scores, graph.constant(mask, dtype))
        scores = graph.node("reshape", (scores,), kind)
    chances = graph.node("nn.softmax", (scores,), kind, axis=-1)
    flags["transpose_b"] = False
    found = graph.node("nn.batch_matmul", (chances, batches(v, n, width)), TensorType((b * heads, m, width), dtype), **flags)
    apart = graph.node("reshape", (found,), TensorType((b, heads, m, width), dtype))
    return graph.node("transpose", (apart,), *types, axes=(0, 2, 1, 3))


def _transpose(graph: _Graph, value: Any, types: tuple[TensorType, ...]) -> Ref:
    (x,) = graph.read(value.args[0], None)
    axes = _plain(value.attrs.axes)
    return graph.node("transpose", (x,), *types, axes=tuple(reversed(range(len(types[0].shape)))) if axes is None else axes)


def _slice(graph: _Graph, value: Any, types: tuple[TensorType, ...]) -> Ref:
    (x,) = graph.read(value.args[0], None)
    axes, begin, end, *more = (_plain(tuple(a.fields)) for a in value.args[1:])
    strides = more[0] if more else (1,) * len(axes)
    return graph.node("strided_slice", (x,), *types, axes=axes, begin=begin, end=end, strides=strides, slice_mode="end")


def _cast(graph: _Graph, value: Any, types: tuple[TensorType, ...]) -> Ref:
    """Indices keep their type: another one would be an operator of its own."""
    (x,) = graph.read(value.args[0], None)
    whole = all(t.dtype.startswith("int") for t in (graph.of(x), types[0]))
    return x if whole else graph.node("cast", (x,), *types, dtype=types[0].dtype)


_RULES: Mapping[str, Rule] = {
    "matmul": _matmul, "permute_dims": _transpose, "strided_slice": _slice, "astype": _cast, "nn.layer_norm": _norm,
    "nn.rms_norm": _rms_norm, "nn.gelu": _gelu, "nn.silu": _silu, "nn.attention": _attention,
    "nn.attention_bias": _attention,
    "nn.softmax": _renamed("nn.softmax", axis="axis"), "nn.log_softmax": _renamed("nn.log_softmax", axis="axis"),
    "concat": _renamed("concatenate", axis="axis"),
    "split": _renamed("split", indices_or_sections="indices_or_sections", axis="axis"),
    "take": _renamed("take", axis="axis", mode="mode"),
    **{n: _folded(n) for n in ("sum", "mean", "max", "min")},
}  # fmt: skip
