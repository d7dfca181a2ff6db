"""Numpy evaluation of imported models: of the Relay graph, and of programs that hold opaque operators."""

from __future__ import annotations

import json
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser.errors import UsageError
from fuser.ir.program import FLOAT_DTYPES
from fuser.ir.program import Node
from fuser.ir.program import Tensor
from fuser.ir.program import TensorProgram
from tvm_bridge.read.relay_graph import Ref
from tvm_bridge.read.relay_graph import RelayGraph
from tvm_bridge.read.relay_graph import TensorType
from tvm_bridge.read.relay_ops import Array
from tvm_bridge.read.relay_ops import cast
from tvm_bridge.read.relay_ops import evaluate


def held_dtype(dtype: str, compute: Any = None) -> np.dtype[Any]:
    """The numpy dtype in which a tensor of a dtype is evaluated; ``compute`` replaces every floating dtype."""
    if dtype in FLOAT_DTYPES:
        return np.dtype(compute if compute is not None else "float32" if dtype == "bfloat16" else dtype)
    return np.dtype(dtype)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def evaluate_node(program: TensorProgram, node: Node, args: Sequence[Array], compute: Any = None) -> Array:
    """Value of one node. :class:`UnsupportedError` where it is opaque and its operator has no numpy semantics."""
    out: Tensor = program[node.output]
    dtype = held_dtype(out.dtype, compute)
    attrs = program.bound(node)
    if node.op == "opaque":
        kind = dtype.name if out.dtype in FLOAT_DTYPES else out.dtype
        detail = {k: _tuples(v) for k, v in json.loads(attrs["detail"]).items()}
        fields = evaluate(attrs["callee"], args, detail, (TensorType(out.shape, kind),) * (attrs["field"] + 1))
        return fields[attrs["field"]].astype(dtype, copy=False)
    with np.errstate(all="ignore"):
        if node.casts:
            return cast(args[0], dtype.name)
        if node.contracts:
            args = [a.astype(dtype, copy=False) for a in args]
        return np.asarray(node.entry.numpy(*args, **attrs)).astype(dtype, copy=False)


def evaluate_program(
    program: TensorProgram, inputs: Mapping[str, Array], compute: Any = np.float32, keep: Iterable[str] = ()
) -> dict[str, Array]:
    """Outputs (and ``keep``) of a program; floating tensors are computed in ``compute``, the others in their own dtype."""
    missing = [n for n in program.inputs if n not in inputs]
    if missing:
        raise UsageError(
            f"no value for the input {missing[0]!r} of program {program.name!r}", f"inputs: {', '.join(program.inputs[:8])}"
        )
    values = {n: np.asarray(inputs[n]).astype(held_dtype(program[n].dtype, compute), copy=False) for n in program.inputs}
    return program.run(values, lambda node, args: evaluate_node(program, node, args, compute), keep)


def evaluate_graph(graph: RelayGraph, inputs: Mapping[str, Array], compute: Any = np.float32) -> tuple[Array, ...]:
    """Outputs of a Relay graph, operator by operator, with no rewriting: the reference of the importer."""
    values = graph_values(graph, inputs, compute)
    return tuple(values[r] for r in graph.outputs)


def graph_values(graph: RelayGraph, inputs: Mapping[str, Array], compute: Any = np.float32) -> dict[Ref, Array]:
    """Every value of a Relay graph; :class:`UnsupportedError` names an operator without numpy semantics."""
    missing = [v.name for v in graph.inputs if v.name not in inputs]
    if missing:
        raise UsageError(f"no value for the input {missing[0]!r} of the model", "give every input that is not a parameter")
    values: dict[Ref, Array] = {}
    for i, var in enumerate(graph.inputs):
        values[Ref("input", i)] = np.asarray(inputs[var.name]).astype(held_dtype(var.type.dtype, compute), copy=False)
    for i, constant in enumerate(graph.constants):
        values[Ref("const", i)] = constant.value.astype(held_dtype(constant.type.dtype, compute), copy=False)
    for node in graph.nodes:
        held = tuple(TensorType(t.shape, held_dtype(t.dtype, compute).name) for t in node.types)
        attrs = node.attr
        if node.op.startswith("cast"):
            attrs["dtype"] = held[0].dtype
        for k, value in enumerate(evaluate(node.op, [values[a] for a in node.args], attrs, held)):
            values[Ref("node", node.id, k)] = value.astype(held[k].dtype, copy=False)
    return values
