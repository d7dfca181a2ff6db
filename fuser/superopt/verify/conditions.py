"""Where conditions come from, and so how a test makes them fail.

A random residue is never zero. So a condition is a random predicate of the residue, which only zero and one (what booleans hold)
decide by themselves. Where every condition is an input, up to operators that are zero exactly where their operand is, that input
is zero in half of its elements instead, and conditions mean what they say.
"""

from __future__ import annotations

from collections.abc import Mapping

from fuser.ir.dtypes import ROUNDS
from fuser.ir.flow import through
from fuser.ir.mugraph import KernelGraph
from fuser.ir.ops import op as op_def
from fuser.ir.program import TensorProgram

Origin = str | None  # an input that is zero where the value is; None for anything else


def conditions(program: TensorProgram, graph: KernelGraph) -> frozenset[str] | None:
    """The inputs that the conditions of both are, or None where some condition is computed."""
    found: set[Origin] = set()

    def apply(op: str, xs: list[Origin], attrs: Mapping[str, object]) -> Origin:
        if op_def(op).typed == "choices":
            found.add(xs[0])
        return xs[0] if _same_zeros(op, attrs) else None

    inputs: dict[str, Origin] = {n: n for n in (*program.inputs, *graph.inputs)}
    program.run(inputs, lambda node, xs: apply(node.op, xs, node.attr))
    through(graph, inputs, lambda _, s, xs: apply(s.op, xs, s.attr), lambda k, xs: apply(k.op, xs, dict(k.attrs)))
    return None if None in found else frozenset(x for x in found if x is not None)


def _same_zeros(op: str, attrs: Mapping[str, object]) -> bool:
    """The result is zero exactly where the only operand is."""
    entry = op_def(op)
    if entry.typed == "named" and attrs.get(ROUNDS) and "int" in str(attrs.get("dtype")):
        return False
    return entry.linear == (True,) and entry.kind in ("map", "view", "data")
