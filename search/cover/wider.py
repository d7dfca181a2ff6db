"""Convolutions along lines that make more channels than are asked for, where a library is slow with so few: it has tensor cores
for float32 in tiles of 64 results, and of 65 to 128 along a line it makes a choice that takes three times as long."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.ops import Array
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from search.cover.images import rebuilt
from search.cover.rebuild import Rule

SLOW, WIDE = range(65, 129), 160
"""Channels of which a library makes lines slowly, and what it makes of more: of 64 channels to 128 by windows of three an H100
took 398 µs, 176 with 160 results; of 128 by five 335 and 200, by eight in steps of four 65 and 38."""
LEAST = 2e9
"""Operations of a convolution from which that pays: of 0.8 · 10⁹ it took 20 µs, and 24 with more results."""


def widened(program: TensorProgram, params: Mapping[str, Array]) -> tuple[TensorProgram, dict[str, Array]]:
    """The program with such convolutions by weights with zeros behind them, of whose results the first are read; and its
    parameters. Both are new where something changed."""
    values, rules = dict(params), dict[str, Rule]()
    for node in program.nodes:
        weight = values.get(node.inputs[1]) if node.op == "conv1d_last" and len(node.inputs) == 2 else None
        to = program[node.output]
        if weight is None or to.dtype != "float32" or node.attr.get("groups", 1) != 1 or len(weight) not in SLOW:
            continue
        if 2 * to.elements * weight[0].size < LEAST:
            continue
        kept = f"{node.output} and more"
        values[kept] = np.pad(weight, ((0, WIDE - len(weight)), (0, 0), (0, 0)))
        rules[node.output] = partial(_first, program, node, kept, values[kept].shape)
    return rebuilt(program, values, rules)


def _first(program: TensorProgram, node: Node, kept: str, shape: tuple[int, ...], b: Builder, refs: dict[str, Ref]) -> Ref:
    to = program[node.output]
    weight = b.input(kept, shape, to.dtype)
    y = b.op(node.op, refs[node.inputs[0]], weight, dtype=to.dtype, **program.bound(node))
    return b.op("slice", y, name=node.output, dtype=to.dtype, axis=len(to.shape) - 1, start=0, stop=to.shape[-1])
