"""Programs with some operators written otherwise, and the test that this changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np

from fuser.errors import UnsupportedError
from fuser.interpret.field_values import ZeroDenominatorError
from fuser.interpret.fields import Field
from fuser.interpret.fields import evaluate_program
from fuser.interpret.fields import random_inputs
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import bound
from fuser.ir.scalar import tied
from fuser.ir.subprogram import living

Rule = Callable[[Builder, dict[str, Ref]], Ref]
"""What stands for an operator: a tensor of its name, made by a builder of tensors that are made already; inputs that it adds are
added to these."""
ROUNDS = 3
"""Random tests of a rewriting."""


def rebuild(program: TensorProgram, rules: Mapping[str, Rule]) -> TensorProgram:
    """The program with what ``rules`` make of the results that they name, without what nothing reads any more. Inputs that rules
    add come behind the program's."""
    b = Builder(program.name, reserved=frozenset(program.table))
    refs = {n: b.input(n, program[n].shape, program[n].dtype) for n in program.inputs}
    for node in program.nodes:
        if node.output in rules:
            refs[node.output] = rules[node.output](b, refs)
            continue
        refs[node.output] = copied(b, program, node, [refs[i] for i in node.inputs])
    unread = {n for n in program.inputs if not program.consumers[n]}
    return living(b.build(*(refs[n] for n in program.outputs)), unread)


def shared(make: Rule) -> Rule:
    """A tensor that several rules use: the first of them makes it."""
    made: list[Ref] = []

    def rule(b: Builder, refs: dict[str, Ref]) -> Ref:
        if not made:
            made.append(make(b, refs))
        return made[0]

    return rule


def copied(b: Builder, program: TensorProgram, node: Node, inputs: Sequence[Ref]) -> Ref:
    """An operator of a program on other operands, under its name and with its dtype. Constants keep the extents of tensors that
    are there under their names, and take the sizes of others."""
    known = b.names if tied(node.attrs) else frozenset()
    every = bound(node.attrs, lambda e: e if e.tensor in known else program.extent(e))
    attrs = {k: v for k, v in every.items() if k != "dtype"}
    return b.op(node.op, *inputs, name=node.output, dtype=program[node.output].dtype, **attrs)


def equal(one: TensorProgram, other: TensorProgram, numbers: Mapping[str, np.ndarray] | None = None) -> bool:
    """Whether two programs with the same outputs agree in random tests over finite fields (Mirage, section 5). Inputs in
    ``numbers`` are integers, the others random; those of the same name are the same."""
    rng = np.random.default_rng(0)
    left = ROUNDS
    for _ in range(4 * ROUNDS):
        field = Field(rng)
        values = {n: v for p in (one, other) for n, v in random_inputs(p, rng, field).items()}
        values |= {n: field.integers(x) for n, x in (numbers or {}).items()}
        try:
            a, b = (evaluate_program(p, values, field) for p in (one, other))
        except ZeroDenominatorError:
            continue
        except UnsupportedError:
            return False
        if not all(field.equal(x, y) for x, y in zip(a.values(), b.values(), strict=True)):
            return False
        left -= 1
        if not left:
            return True
    return False
