"""Quotients of imported programs. Products with a reciprocal are quotients: x·rsqrt(v) is x/sqrt(v), x·(1/y) is x/y.

The composites of the op table divide, and the search moves a division behind a product; the forms that models write meet here.
The value changes by the rounding of one operation.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Container
from dataclasses import replace
from typing import Any

from fuser.ir.program import Node
from fuser.ir.program import Tensor
from fuser.ir.program import TensorProgram


def as_quotients(program: TensorProgram, ones: Container[str] = ()) -> TensorProgram:
    """Divide where a reciprocal is only multiplied with; ``ones`` are inputs of one element that hold 1.

    A member of ``ones`` that nothing reads any more is no input of the result.
    """
    roots: dict[str, str] = {}
    quotients: dict[str, str] = {}
    for node in program.nodes:
        users = program.consumers[node.output]
        if node.output in program.outputs or not users or any(not u.multiplies or u.inputs[0] == u.inputs[1] for u in users):
            continue
        if any(_other(u, node.output) in {*roots, *quotients} for u in users):
            continue  # a product of two reciprocals keeps one of them
        if node.op == "rsqrt":
            roots[node.output] = _root_name(program, node.output)
        elif node.divides and node.inputs[0] in ones and program[node.inputs[1]].shape == program[node.output].shape:
            quotients[node.output] = node.inputs[1]
    divisors = {**roots, **quotients}
    nodes: list[Node] = []
    for node in program.nodes:
        if node.output in roots:
            nodes.append(Node("sqrt", node.inputs, roots[node.output]))
        elif node.output not in quotients:
            for name in node.inputs:
                if node.multiplies and name in divisors:
                    node = Node("div", (_other(node, name), divisors[name]), node.output)
                    break
            nodes.append(node)
    read = {n for node in nodes for n in node.inputs}
    inputs = tuple(n for n in program.inputs if n in read or n not in ones or n in program.outputs)
    gone = {*quotients, *program.inputs} - {*inputs}
    tensors = tuple(_renamed(t, roots) for t in program.tensors if t.name not in gone)
    return replace(program, inputs=inputs, nodes=tuple(nodes), tensors=tensors).validate()


def strictly(program: TensorProgram) -> TensorProgram:
    """The program with quotients of sums of exponentials, and differences to maxima, as the model's framework has them: NaN where
    everything is masked."""
    made, summed, nodes = set[str](), set[str](), list[Node]()
    for node in program.nodes:
        of_made, of_summed = not made.isdisjoint(node.inputs), not summed.isdisjoint(node.inputs)
        if node.entry.has_exponential or of_made:
            made.add(node.output)
        if of_summed or (node.folds and of_made):
            summed.add(node.output)
        if node.divides and node.inputs[0] in made and node.inputs[1] in summed:
            node = replace(node, attrs=(("strict", True),))
        nodes.append(node)
    found = replace(program, nodes=tuple(nodes))
    strict = (("strict", True),)
    alone = _differences(found)
    return replace(found, nodes=tuple([replace(n, attrs=strict) if n.output in alone else n for n in nodes]))


def _differences(program: TensorProgram) -> set[str]:
    """Differences to maxima of which more is made than quotients. What is written twice counts as one."""
    same: dict[str, str] = {}
    first: dict[Any, str] = {}
    for node in program.nodes:
        same[node.output] = first.setdefault((node.op, tuple(same.get(i, i) for i in node.inputs), node.attrs), node.output)
    found: dict[str, set[str]] = {}
    for node in program.nodes:
        if node.subtracts and _of_maximum(program, node.inputs[1]):
            found.setdefault(same[node.output], set()).add(node.output)
    return {n for alike in found.values() if not _in_quotients(program, alike) for n in alike}


def _of_maximum(program: TensorProgram, name: str) -> bool:
    """A value is the maximum of something, the larger of such, or a view of one."""
    node = program.producers.get(name)
    if node is None:
        return False
    if node.maximizes or node.op == "maximum":
        return True
    return (node.entry.relabels or node.regroups or node.entry.dims is not None) and _of_maximum(program, node.inputs[0])


def _in_quotients(program: TensorProgram, names: Collection[str]) -> bool:
    """All that is made of a difference are strict quotients of values which are zero where its exponential is, so that these are
    NaN (0 / 0) where it would be: it need not be NaN itself, and may be computed part by part."""
    below, zero, quotients = set(names), set[str](), list[Node]()
    for node in program.nodes:
        if below.isdisjoint(node.inputs) and zero.isdisjoint(node.inputs):
            continue
        same = node.op == "scale" or node.entry.relabels
        if node.divides and node.attr.get("strict") and node.inputs[1] in zero:
            quotients.append(node)
        elif not below.isdisjoint(node.inputs):
            if not (same or node.exponential):
                return False
            (zero if node.exponential else below).add(node.output)
        elif same or node.multiplies or (node.folds and node.adds):
            zero.add(node.output)
        else:
            return False
    read = {n for q in quotients for n in q.inputs}
    return bool(read) and read <= zero and zero.isdisjoint(program.outputs) and below.isdisjoint(program.outputs)


def _other(product: Node, name: str) -> str:
    return product.inputs[1] if product.inputs[0] == name else product.inputs[0]


def _root_name(program: TensorProgram, name: str) -> str:
    root = name.replace("rsqrt", "sqrt")
    return root if root not in program.table else name


def _renamed(tensor: Tensor, names: dict[str, str]) -> Tensor:
    return replace(tensor, name=names.get(tensor.name, tensor.name))
