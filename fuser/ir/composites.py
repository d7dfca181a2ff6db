"""Expansion of composite operators into the primitive ones of the op table (bare exponentials; lowering makes them safe)."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from fuser.errors import UnsupportedError
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import renamed


def expand(program: TensorProgram) -> TensorProgram:
    """The same program with primitive operators only; names of inputs and outputs stay."""
    if not any(n.entry.kind == "composite" for n in program.nodes):
        return program
    b = Builder(program.name, reserved=frozenset(program.table))
    refs: dict[str, Ref] = {n: b.input(n, program[n].shape, program[n].dtype) for n in program.inputs}
    names: dict[str, str] = {n: n for n in program.inputs}
    for node in program.nodes:
        refs[node.output] = _emit(b, node, [refs[i] for i in node.inputs], program, names)
        names[node.output] = refs[node.output].name
    return b.build(**{name: refs[name] for name in dict.fromkeys(program.outputs)})


def alone(op: str, operands: Sequence[tuple[tuple[int, ...], str | None]], attrs: Mapping[str, Any]) -> TensorProgram:
    """One operator as a program, expanded: ``operands`` have shapes and dtypes, the output is y."""
    b = Builder(op)
    return expand(b.build(y=b.op(op, *(b.input(f"x{i}", *x) for i, x in enumerate(operands)), **attrs)))


def _emit(b: Builder, node: Node, inputs: list[Ref], program: TensorProgram, names: dict[str, str]) -> Ref:
    attrs = {k: v for k, v in renamed(node.attrs, names.__getitem__).items() if k != "dtype"}
    entry = node.entry
    if entry.kind == "composite":
        if entry.expansion is None:
            raise UnsupportedError(f"the composite {node.op!r} has no expansion", "give its entry in the op table one")
        return entry.expansion(b, *inputs, **attrs)
    name = node.output if node.output not in b.names else None
    return b.op(node.op, *inputs, name=name, dtype=program[node.output].dtype, **attrs)
