"""Products whose sums have few terms, as multiplications and additions: points by a rotation, or what has a rank of two.

Tensor cores multiply tiles of 16 along a sum at least; written out, nothing is padded and nothing has to lie along the sum.
"""

from __future__ import annotations

from functools import reduce

from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import renamed

TERMS = 4


def written_out(program: TensorProgram) -> TensorProgram | None:
    """The program with such products written out, computed in float32 as they are; None where it has none."""
    if not any(_few(program, n) for n in program.nodes):
        return None
    b = Builder(program.name, reserved=frozenset(program.table))
    refs: dict[str, Ref] = {n: b.input(n, program[n].shape, program[n].dtype) for n in program.inputs}
    for node in program.nodes:
        if _few(program, node):
            refs[node.output] = _sum(b, program, node, refs)
            continue
        attrs = {k: v for k, v in renamed(node.attrs, lambda n: n).items() if k != "dtype"}
        args = [refs[i] for i in node.inputs]
        refs[node.output] = b.op(node.op, *args, name=node.output, dtype=program[node.output].dtype, **attrs)
    return b.build(**{name: refs[name] for name in dict.fromkeys(program.outputs)})


def _few(program: TensorProgram, node: Node) -> bool:
    if node.op != "matmul" or program[node.output].dtype == "float64":
        return False
    left, right = (program[i].shape for i in node.inputs)
    return min(len(left), len(right)) >= 2 and 1 < left[-1] <= TERMS


def _sum(b: Builder, program: TensorProgram, node: Node, refs: dict[str, Ref]) -> Ref:
    left, right = (
        x if program[i].dtype == "float32" else b.op("cast", x, dtype="float32") for i, x in ((i, refs[i]) for i in node.inputs)
    )
    terms = [
        b.op("slice", left, axis=len(left.shape) - 1, start=i, stop=i + 1)
        * b.op("slice", right, axis=len(right.shape) - 2, start=i, stop=i + 1)
        for i in range(left.shape[-1])
    ]
    *first, last = terms
    head, dtype = reduce(lambda x, y: x + y, first), program[node.output].dtype
    if dtype == "float32":
        return b.op("add", head, last, name=node.output)
    return b.op("cast", head + last, dtype=dtype, name=node.output)
