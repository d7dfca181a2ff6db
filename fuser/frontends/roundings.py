"""Casts of imported programs that round. What a kernel casts to a narrow type stays in fp32 until it is stored, as between
operators of such a type; but who casts a number there and back asks for it to be rounded (``x - x.bfloat16().float()``)."""

from __future__ import annotations

from dataclasses import replace

from fuser.ir.program import NARROW
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram


def with_roundings(program: TensorProgram) -> TensorProgram:
    """The program with a cast of what was float32 to the narrow type that it has already, in front of the one back to float32:
    there a kernel rounds."""
    nodes, tensors = list[Node](), list(program.tensors)
    for node in program.nodes:
        if _there_and_back(program, node):
            (narrow,) = node.inputs
            name = f"{node.output}_rounded"
            while name in program.table:
                name += "_"
            tensors.append(replace(program[narrow], name=name))
            nodes.append(Node("cast", (narrow,), name, (("dtype", program[narrow].dtype),)))
            node = replace(node, inputs=(name,))
        nodes.append(node)
    return replace(program, nodes=tuple(nodes), tensors=tuple(tensors)).validate() if len(nodes) > len(program.nodes) else program


def _there_and_back(program: TensorProgram, node: Node) -> bool:
    """A cast to float32 of what was cast to a narrow type, and before was float32; views may lie between."""
    if not node.casts or program[node.output].dtype != "float32" or program[node.inputs[0]].dtype not in NARROW:
        return False
    narrow = program.producers.get(node.inputs[0])
    while narrow is not None and not narrow.casts and narrow.entry.dims is not None:
        narrow = program.producers.get(narrow.inputs[0])
    return narrow is not None and narrow.casts and program[narrow.inputs[0]].dtype == "float32"
