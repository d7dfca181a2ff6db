"""A program, or a result of it, as one kernel of elements."""

from __future__ import annotations

from fuser.errors import FuserError
from fuser.ir.composites import expand
from fuser.ir.elements import Recipe
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import numbers

LONGEST = 64
"""Most operators of a kernel."""


def by_elements(program: TensorProgram) -> tuple[LibraryKernel, ...]:
    """A kernel for each result, which computes it from the inputs; none where an operator has no rule, or a result is an input's
    number of elements alone."""
    if any(n.entry.kind == "composite" and n.entry.degree == "exp" for n in program.nodes):
        return ()  # these are safe in blocks, which keep a maximum
    try:
        whole = expand(program)
    except FuserError:
        return ()
    ends = [n for n in whole.nodes if n.op in RUNS and n.output in program.outputs and not whole.consumers[n.output]]
    if len(whole.nodes) > LONGEST or not all(has_rule(n) or n in ends for n in whole.nodes):
        return ()
    kernels = []
    for name in program.outputs:
        recipe = _recipe(whole, name)
        if not recipe.inputs:
            return ()
        t = program[name]
        attrs = {"program": recipe.text, "shape": t.shape, "dtype": t.dtype}
        kernels.append(LibraryKernel(name, "elements", recipe.inputs, name, tuple(sorted(attrs.items()))))
    return tuple(kernels)


SCANS = frozenset({"cumsum", "cumprod", "logcumsumexp"})
"""Operators whose results are what has been seen so far along an axis."""
RUNS = SCANS | {"argmax", "argmin"}
"""Operators that run along an axis, and may stand behind others in one kernel."""


def moves_elements(program: TensorProgram) -> bool:
    """Whether it does what blocks do not, or not as well: elements change their places, or are whole numbers."""
    kinds = {n.entry.kind for n in program.nodes}
    if len(program.nodes) > 1 and any(n.op in RUNS for n in program.nodes):
        return True
    return bool(program.beyond_float32) or any(map(_moves, program.nodes)) or ("view" in kinds and kinds <= {"view", "map"})


def _moves(node: Node) -> bool:
    return node.entry.element is not None and not node.indexed and not node.entry.strided


def has_rule(node: Node) -> bool:
    """Whether one element of its result follows from a few of its operands."""
    return node.entry.kind in ("map", "reduce") or node.entry.element is not None


def _recipe(program: TensorProgram, output: str) -> Recipe:
    needed, nodes = {output}, []
    for node in reversed(program.nodes):
        if node.output in needed:
            needed.update(node.inputs)
            nodes.append(node)
    made = {n.output: (n.op, n.inputs, numbers(n.attrs, program.extent)) for n in reversed(nodes)}
    inputs = tuple(n for n in program.inputs if n in needed)
    return Recipe(inputs, made, {n: (program[n].shape, program[n].dtype) for n in (*inputs, *made)})
