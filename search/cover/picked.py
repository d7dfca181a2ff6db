"""A few elements of each row of a softmax, picked before it is computed.

``log_softmax(x).gather(-1, tokens)``, as losses of language models and policies have it, reads one number of each row of a result
as large as the logits. What a softmax is element by element commutes with picking: the maximum and the sum of a row are left by a
kernel of their own, the rest is computed of the elements that are picked.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
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
    left = {n.output: ends for n in program.nodes if _picks(program, n) and (ends := frozenset(_softmaxes(program, n)))}
    few = _few_are_left(program) if left else frozenset[str]()
    found = {name: mine for name, ends in left.items() if (mine := ends & few)}
    if not found:
        return program
    rules: dict[str, Rule] = {n: partial(_taken_apart, program, program.producers[n]) for ends in found.values() for n in ends}
    apart = rebuild(program, rules)
    return rebuild(apart, {name: partial(_from_operands, apart, apart.producers[name]) for name in found})


def _softmaxes(program: TensorProgram, node: Node) -> Iterator[str]:
    """Those of which a gather picks elements along their rows, through operators element by element."""
    of = program[node.inputs[0]]
    dim, todo, seen = _along(program, node), [of.name], set[str]()
    while todo:
        made = program.producers.get(name := todo.pop())
        if name in seen or made is None or program[name].shape != of.shape:
            continue
        seen.add(name)
        if made.op in ROWS and made.attr.get("axis", -1) % len(of.shape) == dim:
            yield name
        elif _by_element(made):
            todo += made.inputs


def _few_are_left(program: TensorProgram) -> frozenset[str]:
    """Of which results a few elements of each row are all that is left: they are picked, or rows are folded; of half precision,
    which would be converted in memory for several folds, they are picked alone."""
    found: dict[str, tuple[int, bool]] = {}
    for node in reversed(program.nodes):
        name = node.output
        ways = [_left(program, u, name, found) for u in program.consumers[name]]
        axes, folded = {way[0] for way in ways if way}, any(way[1] for way in ways if way)
        if all(ways) and len(axes) == 1 and name not in program.outputs and not (folded and program[name].dtype in NARROW):
            found[name] = axes.pop(), folded
    return frozenset(found)


def _left(program: TensorProgram, user: Node, name: str, found: Mapping[str, tuple[int, bool]]) -> tuple[int, bool] | None:
    """The axis along which a few elements of each row of a tensor are all that is left of it where one operator reads it, and
    whether they are folded."""
    if user.inputs[0] == name and _picks(program, user):
        return _along(program, user), False
    if user.entry.kind == "reduce" and len(user.attr.get("axis") or ()) == 1:
        return user.attr["axis"][0] % len(program[name].shape), True
    return found.get(user.output) if _by_element(user) and program[user.output].shape == program[name].shape else None


def _picks(program: TensorProgram, node: Node) -> bool:
    """Whether a gather takes a few elements of each row of a large tensor."""
    if node.op != "gather" or not program[node.inputs[0]].shape:
        return False
    of, result, dim = program[node.inputs[0]], program[node.output], _along(program, node)
    rows = [(a, b) for i, (a, b) in enumerate(zip(of.shape, result.shape, strict=True)) if i != dim]
    return all(a == b for a, b in rows) and of.nbytes >= LARGE and of.elements >= FEWER * result.elements


def _along(program: TensorProgram, node: Node) -> int:
    return node.attr["dim"] % len(program[node.inputs[0]].shape)


def _by_element(node: Node) -> bool:
    entry = op_def(node.op)
    return entry.kind == "map" and entry.element is None


def _taken_apart(program: TensorProgram, node: Node, b: Builder, refs: dict[str, Ref]) -> Ref:
    """A softmax as the operators that its logarithm is made of, between which nothing is rounded to half precision, and nothing
    overflows: the parts may be in different kernels."""
    (x,), dtype = (refs[i] for i in node.inputs), program[node.output].dtype
    expansion = op_def("log_softmax").expansion
    assert expansion is not None
    narrow = dtype in NARROW
    found = expansion(b, b.op("cast", x, dtype="float32") if narrow else x, axis=node.attr.get("axis", -1))
    found = b.op("exp", found) if node.op == "softmax" else found
    return b.op("cast", found, dtype=dtype) if narrow else found


def _from_operands(program: TensorProgram, node: Node, b: Builder, refs: dict[str, Ref]) -> Ref:
    """A gather of what operators element by element make, as these of what is gathered of their operands."""
    of, dim = program[node.inputs[0]], _along(program, node)

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
