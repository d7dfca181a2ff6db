"""Slices behind the reshapes that read them: heads of a packed projection are boxes of it, and so are the halves of each that a
rotary embedding turns."""

from __future__ import annotations

import math
from dataclasses import replace

from fuser.ir.program import Node
from fuser.ir.program import Tensor
from fuser.ir.program import TensorProgram
from fuser.ir.subprogram import living


def with_late_slices(program: TensorProgram) -> TensorProgram:
    """The program with ``reshape(x[..., 128:256], (..., 2, 64))`` as ``reshape(x, (..., 8, 64))[..., 2:4, :]``, for the first of
    the dimensions that a reshape makes of the sliced one; ``program`` itself where no slice is read so."""
    nodes: list[Node] = []
    tensors = dict(program.table)
    for node in program.nodes:
        nodes += _late(program, node, tensors) or [node]
    if len(nodes) == len(program.nodes):
        return program
    defined = (*program.inputs, *(n.output for n in nodes))
    return living(replace(program, nodes=tuple(nodes), tensors=tuple(tensors[n] for n in defined)), program.inputs)


def _late(program: TensorProgram, node: Node, tensors: dict[str, Tensor]) -> list[Node]:
    """The reshape of all, whose tensor is entered in ``tensors``, and the slice of it; empty where there is no such pair."""
    cut = program.producers.get(node.inputs[0]) if node.regroups else None
    if cut is None or cut.op != "slice":
        return []
    source, result = program[cut.inputs[0]], program[node.output]
    axis = cut.attr["axis"] % len(source.shape)
    behind, rows = math.prod(source.shape[axis + 1 :]), math.prod(result.shape[axis + 1 :])
    if len(result.shape) <= axis or result.shape[:axis] != source.shape[:axis] or not rows * behind or rows % behind:
        return []
    ends = [cut.attr["start"], cut.attr["stop"], source.shape[axis]]
    if any(end * behind % rows for end in ends):
        return []
    start, stop, size = (end * behind // rows for end in ends)
    whole = replace(result, name=f"{node.output}_of_all", shape=(*result.shape[:axis], size, *result.shape[axis + 1 :]))
    if whole.name in tensors:
        return []
    tensors[whole.name] = whole
    attrs = {**node.attr, "shape": whole.shape}
    return [
        Node(node.op, (source.name,), whole.name, tuple(sorted(attrs.items()))),
        Node(
            "slice", (whole.name,), node.output, tuple(sorted({**cut.attr, "axis": axis, "start": start, "stop": stop}.items()))
        ),
    ]
