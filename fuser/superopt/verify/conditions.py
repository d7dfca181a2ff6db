"""Where conditions come from, and so how a test makes them fail.

A random residue is never zero. So a condition is a random predicate of the residue, which only zero and one (what booleans hold)
decide by themselves. Where every condition is an input, up to operators that are zero exactly where their operand is, that input
is zero in half of its elements instead, and conditions mean what they say.
"""

from __future__ import annotations

from collections.abc import Mapping

from fuser.ir.dtypes import ROUNDS
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.ops import op as op_def
from fuser.ir.program import TensorProgram

Origin = str | None  # an input that is zero where the value is; None for anything else


def conditions(program: TensorProgram, graph: KernelGraph) -> frozenset[str] | None:
    """The inputs that the conditions of both are, or None where some condition is computed."""
    found = _of_program(program) | _of_graph(graph)
    return None if None in found else frozenset(x for x in found if x is not None)


def _of_program(program: TensorProgram) -> set[Origin]:
    origin: dict[str, Origin] = {n: n for n in program.inputs}
    found: set[Origin] = set()
    for node in program.nodes:
        if op_def(node.op).typed == "choices":
            found.add(origin[node.inputs[0]])
        origin[node.output] = origin[node.inputs[0]] if _same_zeros(node.op, node.attr) else None
    return found


def _of_graph(graph: KernelGraph) -> set[Origin]:
    tensors: dict[str, Origin] = {n: n for n in graph.inputs}
    found: set[Origin] = set()
    for k in graph.kernels:
        if isinstance(k, BlockGraph):
            _of_block(k, tensors, found)
            continue
        if op_def(k.op).typed == "choices":
            found.add(tensors[k.args[0]])
        tensors[k.output] = tensors[k.args[0]] if _same_zeros(k.op, dict(k.attrs)) else None
    return found


def _of_block(block: BlockGraph, tensors: dict[str, Origin], found: set[Origin]) -> None:
    values: dict[str, Origin] = {}
    for s in block.stmts:
        if s.access and s.kind == "load":
            values[s.value] = tensors.get(s.access.tensor)
        elif s.access:
            tensors[s.access.tensor] = values[s.value]
        else:
            if op_def(s.op).typed == "choices":
                found.add(values[s.args[0]])
            values[s.value] = values[s.args[0]] if _same_zeros(s.op, s.attr) else None


def _same_zeros(op: str, attrs: Mapping[str, object]) -> bool:
    """The result is zero exactly where the only operand is."""
    entry = op_def(op)
    if entry.typed == "named" and attrs.get(ROUNDS) and "int" in str(attrs.get("dtype")):
        return False
    return entry.linear == (True,) and entry.kind in ("map", "view", "data")
