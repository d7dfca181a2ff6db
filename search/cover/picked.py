"""A few elements of each row of a softmax, picked before it is computed.

``log_softmax(x).gather(-1, tokens)``, as losses of language models and policies have it, reads one number of each row of a result
as large as the logits. What a softmax is element by element commutes with picking: the maximum and the sum of a row are left by a
kernel of their own, the rest is computed of the elements that are picked.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.ops import op as op_def
from fuser.ir.program import NARROW
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from search.cover.rebuild import Rule
from search.cover.rebuild import rebuild

ROWS = ("softmax", "log_softmax")
"""Composites whose elements follow from one of the operand and a few numbers of its row."""
FEWER, LARGE = 4, 1 << 20
"""Times that more elements than are picked, and bytes, a result has to have."""


def picked(program: TensorProgram) -> TensorProgram:
    """The program with elements of softmaxes picked from their operands."""
    found = {node.output: ends for node in program.nodes if (ends := list(_softmaxes(program, node)))}
    if not found:
        return program
    rules: dict[str, Rule] = {n.output: partial(_taken_apart, program, n) for ends in found.values() for n in ends}
    apart = rebuild(program, rules)
    return rebuild(apart, {name: partial(_from_operands, apart, apart.producers[name]) for name in found})


def _softmaxes(program: TensorProgram, node: Node) -> Iterator[Node]:
    """Those of which a gather picks elements along their rows, through operators element by element, and of which nobody else
    needs all."""
    if not _picks(program, node):
        return
    of = program[node.inputs[0]]
    dim, todo = _along(program, node), [of.name]
    while todo:
        made = program.producers.get(name := todo.pop())
        if made is None or program[name].shape != of.shape:
            continue
        if made.op in ROWS and made.attr.get("axis", -1) % len(of.shape) == dim and _few_are_left(program, name, dim):
            yield made
        elif _by_element(made):
            todo += made.inputs


def _picks(program: TensorProgram, node: Node) -> bool:
    """Whether a gather takes a few elements of each row of a large tensor."""
    if node.op != "gather" or not program[node.inputs[0]].shape:
        return False
    of, result, dim = program[node.inputs[0]], program[node.output], _along(program, node)
    rows = [(a, b) for i, (a, b) in enumerate(zip(of.shape, result.shape, strict=True)) if i != dim]
    return all(a == b for a, b in rows) and of.nbytes >= LARGE and of.elements >= FEWER * result.elements


def _along(program: TensorProgram, node: Node) -> int:
    return node.attr["dim"] % len(program[node.inputs[0]].shape)


def _few_are_left(program: TensorProgram, name: str, dim: int) -> bool:
    """Whether a few elements of each row are all that is left of a tensor: they are picked, or rows are folded."""
    return name not in program.outputs and all(
        (u.inputs[0] == name and _picks(program, u) and _along(program, u) == dim)
        or (u.entry.kind == "reduce" and u.attr.get("axis") == (dim,))
        or (_by_element(u) and program[u.output].shape == program[name].shape and _few_are_left(program, u.output, dim))
        for u in program.consumers[name]
    )


def _by_element(node: Node) -> bool:
    entry = op_def(node.op)
    return entry.kind == "map" and entry.element is None


def _taken_apart(program: TensorProgram, node: Node, b: Builder, refs: dict[str, Ref]) -> Ref:
    """A softmax as the operators that it is made of, between which nothing is rounded to half precision."""
    (x,), dtype = (refs[i] for i in node.inputs), program[node.output].dtype
    expansion = op_def(node.op).expansion
    assert expansion is not None
    narrow = dtype in NARROW
    found = expansion(b, b.op("cast", x, dtype="float32") if narrow else x, axis=node.attr.get("axis", -1))
    return b.op("cast", found, dtype=dtype) if narrow else found


def _from_operands(program: TensorProgram, node: Node, b: Builder, refs: dict[str, Ref]) -> Ref:
    """A gather of what operators element by element make, as these of what is gathered of their operands."""
    of, dim = program[node.inputs[0]], node.attr["dim"] % len(program[node.inputs[0]].shape)

    def picks(name: str) -> bool:
        """Whether elements of an operand are picked, not spread."""
        return program[name].shape == of.shape

    def spread(name: str) -> bool:
        shape = program[name].shape
        return len(shape) < len(of.shape) - dim or shape[dim - len(of.shape)] == 1

    known: dict[str, Ref] = {}

    def taken(name: str, called: str | None = None) -> Ref:
        if name not in known:
            known[name] = made_of(name, called)
        return known[name]

    def made_of(name: str, called: str | None) -> Ref:
        made = program.producers.get(name)
        if made is None or not _by_element(made) or not all(picks(i) or spread(i) for i in made.inputs):
            return b.op("gather", refs[name], refs[node.inputs[1]], name=called, dim=node.attr["dim"])
        attrs = {k: v for k, v in made.attrs if k != "dtype"}
        operands = [taken(i) if picks(i) else refs[i] for i in made.inputs]
        return b.op(made.op, *operands, name=called, dtype=program[name].dtype, **attrs)

    return taken(of.name, node.output)
