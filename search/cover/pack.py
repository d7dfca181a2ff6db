"""Products of one tensor with several weights as one product with the weights side by side.

Queries, keys and values, or the gate and the other half of a gated MLP, read the same rows: together they are one larger product
that fills the GPU, and its readers see slices of the result. The weights are laid side by side once, when a model is compiled;
biases go along. Only what is given as a parameter can be moved.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.ops import Array
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from search.cover.rebuild import Rule
from search.cover.rebuild import rebuild
from search.cover.rebuild import shared


@dataclass(frozen=True)
class _Product:
    """A product with a parameter: its weight, whether it is transposed before, the bias that is added, if there is one, and the
    result of it all."""

    x: str
    weight: str
    transposed: bool
    bias: str
    end: str


def packed(program: TensorProgram, params: Mapping[str, Array]) -> tuple[TensorProgram, dict[str, Array]]:
    """The program with products of one tensor joined, and its parameters. Both are new where something was joined; parameters
    that are used elsewhere too stay as they are."""
    groups: dict[tuple[str, str, bool, bool, int], list[_Product]] = {}
    for node in program.nodes:
        if (found := _product(program, node, params)) is not None:
            rows = program[node.inputs[1]].shape[-2]
            dtype = program[node.output].dtype
            groups.setdefault((found.x, dtype, found.transposed, bool(found.bias), rows), []).append(found)
    values, joined = dict(params), dict[tuple[tuple[str, ...], int], str]()
    rules: dict[str, Rule] = {}
    for group in groups.values():
        if len(group) > 1:
            rules |= _slices(program, group, values, joined)
    if not rules:
        return program, values
    made = rebuild(program, rules)
    return made, {n: x for n, x in values.items() if n in made.inputs or n not in program.table}


def _product(program: TensorProgram, node: Node, params: Mapping[str, Array]) -> _Product | None:
    if not node.contracts or len(program[node.inputs[1]].shape) != 2 or node.output in program.outputs:
        return None
    weight, transposed = node.inputs[1], False
    maker = program.producers.get(weight)
    if maker is not None and maker.op == "transpose" and maker.attr["perm"] == (1, 0):
        weight, transposed = maker.inputs[0], True
    if weight not in params or program[weight].dtype != program[node.output].dtype:
        return None
    users = program.consumers[node.output]
    if len(users) == 1 and users[0].op == "add":
        (other,) = [i for i in users[0].inputs if i != node.output] or [""]
        fits = other in params and program[other].shape == (program[node.output].shape[-1],)
        if fits and users[0].output not in program.outputs:
            return _Product(node.inputs[0], weight, transposed, other, users[0].output)
    return _Product(node.inputs[0], weight, transposed, "", node.output)


def _slices(
    program: TensorProgram,
    group: Sequence[_Product],
    params: dict[str, Array],
    joined: dict[tuple[tuple[str, ...], int], str],
) -> dict[str, Rule]:
    """Each result as its columns of the one product, whose operands are added to ``params``; ``joined`` has the names of those
    that are there, for layers that share theirs."""
    first = group[0]
    dtype = program[first.end].dtype

    def name_of(names: tuple[str, ...], axis: int) -> str:
        if (names, axis) not in joined:
            name = "+".join(names)
            while name in params or name in program.table:
                name += "'"
            params[name] = np.concatenate([params[n] for n in names], axis)
            joined[names, axis] = name
        return joined[names, axis]

    weight = name_of(tuple(p.weight for p in group), 0 if first.transposed else 1)
    bias = name_of(tuple(p.bias for p in group), 0) if first.bias else ""

    def given(b: Builder, refs: dict[str, Ref], name: str) -> Ref:
        if name not in refs:
            refs[name] = b.input(name, params[name].shape, dtype)
        return refs[name]

    @shared
    def join(b: Builder, refs: dict[str, Ref]) -> Ref:
        w = given(b, refs, weight)
        y = b.op("matmul", refs[first.x], b.op("transpose", w, perm=(1, 0)) if first.transposed else w, dtype=dtype)
        return b.op("add", y, given(b, refs, bias), dtype=dtype) if bias else y

    def columns(end: str, start: int, stop: int) -> Rule:
        def rule(b: Builder, refs: dict[str, Ref]) -> Ref:
            y = join(b, refs)
            return b.op("slice", y, axis=len(y.shape) - 1, start=start, stop=stop, name=end, dtype=dtype)

        return rule

    stops = list(itertools.accumulate(program[p.end].shape[-1] for p in group))
    return {p.end: columns(p.end, start, stop) for p, start, stop in zip(group, [0, *stops], stops, strict=False)}
