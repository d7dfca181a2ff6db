"""Inputs on which a model is compared with what was made of it: random, but for what an index or a divisor may be."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fuser.ir.ops import Array
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.program import FLOAT_DTYPES
from fuser.ir.program import Node
from fuser.ir.program import Tensor
from fuser.ir.program import TensorProgram

NARROW = ("int8", "uint8", "int16")
"""Whole numbers that are drawn from all that there are: their sums and products are taken modulo these."""
DIVIDENDS = 100
"""Largest magnitude of wide whole numbers that are divided."""
DIVISORS = 9
"""Largest magnitude of what divides them."""
FEW = 2
"""How many numbers others are drawn from: they may be indices, masks, kinds of tokens."""


def drawn_input(program: TensorProgram, name: str, rng: np.random.Generator) -> Array:
    """Values of an input: indices below the size of each table that they look up in, divisors unlike 0."""
    t = program[name]
    if t.dtype == "bool":
        return rng.integers(0, 2, t.shape).astype(bool)
    if t.dtype in FLOAT_DTYPES:
        return rng.standard_normal(t.shape).astype(np.float32 if t.dtype == "bfloat16" else t.dtype)
    if _names_places(program, name):
        return rng.integers(0, min(_tables(program, name), default=FEW), t.shape).astype(t.dtype)
    low, high = _range(program, name)
    x = rng.integers(low, high + 1, t.shape)
    if any(i == 1 for _, i in _quotients(program, name)):
        x = np.where(x == 0, 1, x)
    return x.astype(t.dtype)


def zero_divisors(program: TensorProgram, values: Mapping[str, Array]) -> list[str]:
    """What the program itself computes, divides whole numbers by, and is zero somewhere: there every library has something else,
    or ends."""
    divisors = {n.inputs[1] for n in program.nodes if _divides_whole(program, n)} & program.producers.keys()
    needed, nodes = set(divisors), list[Node]()
    for node in reversed(program.nodes):
        if node.output in needed:
            needed.update(node.inputs)
            nodes.append(node)
    inputs = tuple(n for n in program.inputs if n in needed)
    part = replace(program, inputs=inputs, nodes=tuple(nodes[::-1]), outputs=tuple(sorted(divisors)))
    found = part.evaluate(values)
    return [n for n, x in found.items() if (np.mod(x, 2.0 ** (8 * DTYPE_BYTES[program[n].dtype])) == 0).any()]


def _divides_whole(program: TensorProgram, node: Node) -> bool:
    domain = node.entry.domain
    return len(domain) > 1 and domain[1].nonzero and _whole(program[node.output])


def _range(program: TensorProgram, name: str) -> tuple[int, int]:
    """The least and the largest number."""
    dtype = program[name].dtype
    if dtype in NARROW:
        info = np.iinfo(dtype)
        return info.min, info.max
    places = {i for _, i in _quotients(program, name)}
    largest = DIVISORS if 1 in places else DIVIDENDS if places else FEW - 1
    return (-largest if places and not dtype.startswith("u") else 0), largest


def _tables(program: TensorProgram, name: str) -> list[int]:
    same = {name, *(n.output for n in program.nodes if n.op == "where" and name in n.inputs)}  # counted from either end
    return [program[n.inputs[0]].shape[0] for n in program.nodes if n.op == "embedding" and n.inputs[1] in same]


def _names_places(program: TensorProgram, name: str) -> bool:
    """Whether whole numbers that follow from an input are read by what may look up in places by them."""
    made = {name}
    for node in program.nodes:
        if made.isdisjoint(node.inputs):
            continue
        whole = any(_whole(program[n]) for n in made.intersection(node.inputs))
        if whole and node.entry.kind in ("library", "opaque"):
            return True
        made.add(node.output)
    return False


def _quotients(program: TensorProgram, name: str) -> Iterator[tuple[Node, int]]:
    """Quotients and remainders of whole numbers that read an input, or views and casts of it, and as which operand."""
    same = {name}
    for node in program.nodes:
        if node.entry.relabels and node.inputs[0] in same:
            same.add(node.output)
        if _divides_whole(program, node):
            yield from ((node, i) for i, n in enumerate(node.inputs) if n in same)


def _whole(tensor: Tensor) -> bool:
    return tensor.dtype not in FLOAT_DTYPES and tensor.dtype != "bool"
