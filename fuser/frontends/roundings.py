"""Casts of imported programs that round. What a kernel casts to a narrow type stays in fp32 until it is stored, as between
operators of such a type; but who casts a number there and back asks for it to be rounded (``x - x.bfloat16().float()``), and
who compares it or takes its sign sees whether it was (``x.half().isinf()``)."""

from __future__ import annotations

from dataclasses import replace

from fuser.ir.program import NARROW
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram

EXACT = ("bool", "int8", "uint8")
"""What both narrow types hold."""

STEPS = frozenset({"sign", "floor", "ceil", "round", "trunc", "remainder", "fmod", "floor_div", "trunc_div"})
"""Operators that make very different numbers of ones that are nearly the same."""


def with_roundings(program: TensorProgram) -> TensorProgram:
    """The program with a cast of what was cast to a narrow type to that type again, in front of what tells the rounded number
    from the one before: there a kernel rounds."""
    nodes, tensors = list[Node](), list(program.tensors)
    taken = set(program.table)
    for node in program.nodes:
        for narrow in [i for i in dict.fromkeys(node.inputs) if _tells(program, node) and _was_cast(program, i)]:
            name = f"{node.output}_rounded"
            while name in taken:
                name += "_"
            taken.add(name)
            tensors.append(replace(program[narrow], name=name))
            nodes.append(Node("cast", (narrow,), name, (("dtype", program[narrow].dtype),)))
            node = replace(node, inputs=tuple(name if i == narrow else i for i in node.inputs))
        nodes.append(node)
    return replace(program, nodes=tuple(nodes), tensors=tuple(tensors)).validate() if len(nodes) > len(program.nodes) else program


def _tells(program: TensorProgram, node: Node) -> bool:
    """What tells a rounded number from the one before: a cast to another type, a condition, or an operator that steps."""
    made = program[node.output].dtype
    return made != program[node.inputs[0]].dtype if node.casts else made == "bool" or node.op in STEPS


def _was_cast(program: TensorProgram, name: str) -> bool:
    """Whether a tensor is the cast of one whose numbers its narrow type does not all hold, or a view of that."""
    if program[name].dtype not in NARROW:
        return False
    made = program.producers.get(name)
    while made is not None and not made.casts and made.entry.dims is not None:
        made = program.producers.get(made.inputs[0])
    return made is not None and made.casts and program[made.inputs[0]].dtype not in (program[name].dtype, *EXACT)
