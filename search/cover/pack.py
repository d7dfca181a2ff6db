"""Products of one tensor with several weights as one product with the weights side by side.

Queries, keys and values, or the gate and the other half of a gated MLP, read the same rows: together they are one larger product
that fills the GPU, and its readers see slices of the result. The weights are laid side by side once, when a model is compiled;
biases go along. Only what is given as a parameter can be moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from functools import cached_property

import numpy as np

from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.ops import Array
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Extent
from fuser.ir.scalar import bound
from search.cover.rebuild import copied


@dataclass(frozen=True)
class _Product:
    """A product with a parameter: its weight, whether it is transposed before, and the bias that is added, if there is one."""

    node: Node
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
            groups.setdefault((node.inputs[0], dtype, found.transposed, bool(found.bias), rows), []).append(found)
    chosen = [g for g in groups.values() if len(g) > 1]
    if not chosen:
        return program, dict(params)
    return _Packer(program, params, chosen).run()


def _product(program: TensorProgram, node: Node, params: Mapping[str, Array]) -> _Product | None:
    if node.op != "matmul" or len(program[node.inputs[1]].shape) != 2 or node.output in program.outputs:
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
            return _Product(node, weight, transposed, other, users[0].output)
    return _Product(node, weight, transposed, "", node.output)


class _Packer:
    def __init__(self, program: TensorProgram, params: Mapping[str, Array], groups: Sequence[Sequence[_Product]]) -> None:
        self.program, self.params = program, dict(params)
        self.groups = {g[0].node.output: g for g in groups}
        self.inside = {p.node.output for g in groups for p in g} | {p.end for g in groups for p in g}
        self.b = Builder(program.name, reserved=frozenset(program.table))
        self.refs: dict[str, Ref] = {}

    def run(self) -> tuple[TensorProgram, dict[str, Array]]:
        program = self.program
        gone = self._unused()
        for name in program.inputs:
            if name not in gone:
                self.refs[name] = self.b.input(name, program[name].shape, program[name].dtype)
        for node in program.nodes:
            if node.output in self.groups:
                self._join(self.groups[node.output])
            elif node.output not in self.inside and not self._only_packed(node):
                here = replace(node, attrs=tuple(bound(node.attrs, self._extent).items()))
                self.refs[node.output] = copied(self.b, program, here, [self.refs[i] for i in node.inputs])
        made = self.b.build(**{n: self.refs[n] for n in program.outputs})
        return made, {n: x for n, x in self.params.items() if n not in gone}

    def _unused(self) -> set[str]:
        """Parameters that only joined products read."""
        names = {n for g in self.groups.values() for p in g for n in (p.weight, p.bias) if n}
        return {n for n in names if all(u.output in self.inside or self._only_packed(u) for u in self.program.consumers[n])}

    def _only_packed(self, node: Node) -> bool:
        """A transpose that only joined products read."""
        users = self.program.consumers[node.output]
        return node.op == "transpose" and bool(users) and all(u.output in self.products for u in users)

    @cached_property
    def products(self) -> set[str]:
        return {p.node.output for g in self.groups.values() for p in g}

    def _join(self, group: Sequence[_Product]) -> None:
        first = group[0]
        x, dtype = self.refs[first.node.inputs[0]], self.program[first.node.output].dtype
        axis = 0 if first.transposed else 1
        w = self._constant("+".join(p.weight for p in group), [self.params[p.weight] for p in group], axis, dtype)
        if first.transposed:
            w = self.b.op("transpose", w, perm=(1, 0))
        y = self.b.op("matmul", x, w, dtype=dtype)
        if first.bias:
            bias = self._constant("+".join(p.bias for p in group), [self.params[p.bias] for p in group], 0, dtype)
            y = self.b.op("add", y, bias, dtype=dtype)
        start, last = 0, len(y.shape) - 1
        for p in group:
            stop = start + self.program[p.end].shape[-1]
            self.refs[p.end] = self.b.op("slice", y, axis=last, start=start, stop=stop, name=p.end, dtype=dtype)
            start = stop

    def _constant(self, name: str, values: Sequence[Array], axis: int, dtype: str) -> Ref:
        value = np.concatenate(values, axis)
        self.params[name] = value
        return self.b.input(name, value.shape, dtype)

    def _extent(self, e: Extent) -> Extent | int:
        """A constant tied to a tensor that is gone becomes a number."""
        return e if e.tensor in self.refs else self.program.extent(e)
