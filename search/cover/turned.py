"""Weights of products of float32 laid along their sums, once, when a model is compiled.

Warp groups multiply tf32 only where both operands lie along the sum; half precision they take either way.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cost_model.dots import WGMMA
from fuser.device import Device
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.ops import Array
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from search.cover.rebuild import Rule
from search.cover.rebuild import rebuild


def turned(program: TensorProgram, params: Mapping[str, Array], device: Device) -> tuple[TensorProgram, dict[str, Array]]:
    """The program with the parameters that are right operands of such products, and nothing else, as the transposes of what is
    kept; the parameters. Both are new where one was turned."""
    values, rules = dict(params), dict[str, Rule]()
    for name in params if device.arch >= WGMMA else ():
        readers = program.consumers.get(name, ())
        if name in program.outputs or not readers or not all(_multiplies(program, n, name) for n in readers):
            continue
        kept = f"{name} along the sum"
        values[kept] = np.ascontiguousarray(values.pop(name).T)
        rules |= {n.output: _product(n, kept, program) for n in readers}
    return (rebuild(program, rules), values) if rules else (program, values)


def _multiplies(program: TensorProgram, node: Node, name: str) -> bool:
    """The node is a product of float32 with the matrix of this name behind it."""
    tensors = [program[n] for n in (*node.inputs, node.output)]
    return node.contracts and node.inputs.index(name) == 1 and len(program[name].shape) == 2 and all(
        t.dtype == "float32" for t in tensors
    )  # fmt: skip


def _product(node: Node, kept: str, program: TensorProgram) -> Rule:
    def rule(b: Builder, refs: dict[str, Ref]) -> Ref:
        x, name = node.inputs
        if kept not in refs:
            refs[kept] = b.input(kept, program[name].shape[::-1], program[name].dtype)
        return b.op("matmul", refs[x], refs[kept].T, name=node.output)

    return rule
