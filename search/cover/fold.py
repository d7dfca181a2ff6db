"""What parameters alone decide is computed once, when a model is compiled: rotary tables, scaled weights, masks.

Views of parameters stay: a kernel reads them where they lie. What is computed here may as well lie as its only reader sees it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fuser.errors import FuserError
from fuser.ir.dtypes import rounded
from fuser.ir.ops import Array
from fuser.ir.program import NARROW
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram


def folded(program: TensorProgram, params: Mapping[str, Array]) -> tuple[TensorProgram, dict[str, Array]]:
    """The program without operators on parameters alone, and its parameters. Values are rounded to the dtype of each result, as
    the model itself rounds them."""
    known = dict(params)
    views: set[str] = set()
    kept = []
    for node in program.nodes:
        value = _value(program, node.output, known) if all(i in known for i in node.inputs) else None
        if value is None or node.output in program.outputs:
            kept.append(node)
            continue
        known[node.output] = value
        if node.entry.kind != "view":
            continue
        if node.inputs[0] in params or node.inputs[0] in views or not _turned(program, node):
            views.add(node.output)
            kept.append(node)
        else:
            known[node.output] = np.asarray(value, order="C")
    reads = {i for n in kept for i in n.inputs}
    while True:  # views that only folded operators read are gone too
        unread = {n.output for n in kept if n.output in views and n.output not in reads}
        if not unread:
            break
        kept = [n for n in kept if n.output not in unread]
        reads = {i for n in kept for i in n.inputs}
    made = {n.output for n in kept}
    user = [n for n in program.inputs if n not in params]
    inputs = (*user, *(n for n in known if n in reads and n not in made and n not in user))
    inside = {*inputs, *made}
    tensors = tuple(t for t in program.tensors if t.name in inside)
    small = replace(program, inputs=inputs, nodes=tuple(kept), tensors=tensors).validate()
    return small, {n: known[n] for n in inputs if n in known}


def _turned(program: TensorProgram, view: Node) -> bool:
    """Whether a view alone reads its operand, has the same elements, and is not multiplied: a product takes its operands as well
    with their rows as columns."""
    (source,) = view.inputs
    todo = [view]
    while todo:
        users = program.consumers[todo.pop().output]
        if any(u.products for u in users):
            return False
        todo += [u for u in users if u.entry.kind == "view"]
    return len(program.consumers[source]) == 1 and program[source].elements == program[view.output].elements


def _value(program: TensorProgram, name: str, known: Mapping[str, Array]) -> Array | None:
    node = program.producers[name]
    if node.entry.kind == "view":  # of the numbers as they lie
        return np.asarray(node.entry.numpy(*(known[i] for i in node.inputs), **program.bound(node)))
    arrays = [np.asarray(known[i], np.float32) if program[i].dtype in NARROW else known[i] for i in node.inputs]
    try:
        value = np.asarray(node.entry.numpy(*arrays, **program.bound(node)))
    except FuserError:
        return None
    dtype = program[name].dtype
    return value if value.dtype == dtype else rounded(value, dtype)
