"""Softmaxes with the maximum that their definition subtracts.

Composites expand into bare exponentials (:mod:`fuser.ir.composites`), for which :mod:`.stabilize` finds running maxima. Where it
finds none (a slice of a softmax has exponentials of all of a row in its denominator, and of a part of it above), the maximum is
written into the program, and a µGraph that leaves it out is refused: it overflows where the program does not. Exponentials that
the program itself takes of anything stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.composites import expand
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import renamed
from fuser.superopt.rewrite.stabilize import bare_exponentials
from fuser.superopt.rewrite.stabilize import below_maximum


@lru_cache(1 << 8)
def softmaxes(program: TensorProgram) -> dict[str, tuple[int, ...]]:
    """Of the expanded program: exponentials that nothing reads but their sum and a quotient by it, with the axes of the sum."""
    program = expand(program)
    found: dict[str, tuple[int, ...]] = {}
    below = exponents(program)
    for node in program.nodes:
        top = program.producers.get(node.inputs[0]) if node.divides else None
        total = program.producers.get(node.inputs[1]) if node.divides else None
        if top is None or total is None or not (top.exponential and total.sums and total.inputs == (top.output,)):
            continue
        readers = {u.output for u in program.consumers[top.output]}
        if readers == {node.output, total.output} and top.output not in {*below, *program.outputs}:
            found[top.output] = tuple(total.attr["axis"])
    return found


def exponents(program: TensorProgram) -> dict[str, str]:
    """Of exponentials of what lies below a maximum: that from which the maximum is subtracted."""
    found: dict[str, str] = {}
    for node in program.nodes:
        inner = program.producers.get(node.inputs[0]) if node.exponential else None
        top = program.producers.get(inner.inputs[1]) if inner is not None and inner.subtracts else None
        if inner is not None and top is not None and (top.maximizes or top.op == "maximum"):
            found[node.output] = inner.inputs[0]
    return found


def with_maxima(program: TensorProgram, names: Collection[str] | None = None) -> TensorProgram:
    """The expanded program, where the exponentials ``names`` of softmaxes (all, if not given) are of what lies below the maximum
    of their rows."""
    program = expand(program)
    found = {n: axes for n, axes in softmaxes(program).items() if names is None or n in names}
    if not found:
        return program
    b = Builder(program.name, reserved=frozenset(program.table))
    refs: dict[str, Ref] = {n: b.input(n, program[n].shape, program[n].dtype) for n in program.inputs}
    for node in program.nodes:
        args = [refs[i] for i in node.inputs]
        if node.output in found:
            top = b.op("max", args[0], axis=found[node.output], keepdims=True)
            args = [b.op("sub", args[0], top)]
        attrs = {k: v for k, v in renamed(node.attrs, lambda n: n).items() if k != "dtype"}
        refs[node.output] = b.op(node.op, *args, name=node.output, dtype=program[node.output].dtype, **attrs)
    return b.build(**{name: refs[name] for name in dict.fromkeys(program.outputs)})


def without_maximum(program: TensorProgram, graph: KernelGraph) -> dict[str, str]:
    """Exponentials of a µGraph from which no maximum is subtracted, or one of several rows, though the softmaxes of its program
    do so, by their names in the program, and why: kernels of it overflow, or divide by zero, where the program does not. What
    the program itself takes exponentials of is no matter of these."""
    if not (mine := softmaxes(program)):
        return {}
    whole = expand(program)
    own, shifted = {n.output for n in whole.nodes if n.exponential} - mine.keys(), exponents(whole)
    found = {name: text for value, text in bare_exponentials(graph) if (name := named(value)) not in own}
    for block in graph.blocks:
        for s in block.computes:
            if s.exponential and named(s.value) not in own | shifted.keys() and _beyond_rows(block, s):
                found[named(s.value)] = f"{block.name}.{s.value}: the maximum is one of several rows"
    return found


def _beyond_rows(block: BlockGraph, exponential: Stmt) -> bool:
    """Whether the maximum that is subtracted is one of several rows, each of which is summed by itself."""
    inner = block.by_value[exponential.args[0]]
    top = block.by_value[inner.args[1]] if inner.kind == "compute" and inner.subtracts else None
    summed = {a for u in block.users(exponential.value) if u.sums or u.contracts for a in u.reduce}
    return top is not None and top.maximizes and bool(summed) and not set(exponential.axes) - summed <= set(top.axes)


def as_written(program: TensorProgram, graph: KernelGraph) -> TensorProgram:
    """The expanded program with the maxima that a µGraph takes, as it does, of whole rows."""
    mine, taken = softmaxes(program), set[str]()
    for block in graph.blocks if mine else ():
        exponentials = [s for s in block.computes if s.exponential]
        taken |= {named(s.value) for s in exponentials if not block.by_value[s.args[0]].running and below_maximum(block, s.value)}
    return with_maxima(program, taken) if taken else program


def named(value: str) -> str:
    """The tensor of the program of which a value is a box, or all."""
    return value.split("[", maxsplit=1)[0]
