"""Numbers that stand for the size of a tensor: 1/sqrt(d) next to a product over d."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar

_PRECISION = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Relative rounding error of a number; float32's elsewhere."""


def root_of_extent(number: float, extent: Extent, size: int, dtype: str) -> Scalar | None:
    """size^(-1/2) or size^(-1/4) as a power of ``extent`` where ``number`` is that to the precision of ``dtype``."""
    for exponent in (Fraction(-1, 2), Fraction(-1, 4)):
        exact = size ** float(exponent)
        if size > 1 and abs(number - exact) <= _PRECISION.get(dtype, 2.0**-23) * exact:
            return Scalar.power(extent, exponent)
    return None


def tie_scales(program: TensorProgram) -> TensorProgram:
    """Tie each ``scale`` of a product's result or operand to the contracted extent d where its number is d^(-1/2) or d^(-1/4).

    Reshapes, transposes and casts may stand between a product and the scale of its result, transposes and casts between the scale
    of an operand and its product.
    """
    nodes: list[Node] = []
    for node in program.nodes:
        if node.op == "scale" and not node.attr["scalar"].powers:
            extent = _extent_before(program, node.inputs[0]) or _extent_after(program, node)
            if extent is not None:
                size, number = program[extent.tensor].shape[extent.dim], float(node.attr["scalar"].coeff)
                tied = root_of_extent(number, extent, size, program[node.output].dtype)
                node = replace(node, attrs=(("scalar", tied),)) if tied is not None else node
        nodes.append(node)
    return replace(program, nodes=tuple(nodes)).validate()


def _extent_before(program: TensorProgram, name: str) -> Extent | None:
    node = program.producers.get(name)
    while node is not None and node.op in ("reshape", "transpose", "cast"):
        node = program.producers.get(node.inputs[0])
    if node is None or not node.contracts:
        return None
    return Extent(node.inputs[0], len(program[node.inputs[0]].shape) - 1)


def _extent_after(program: TensorProgram, scale: Node) -> Extent | None:
    """The extent as a dimension of the scale's own operand, followed to the product."""
    name, dims = scale.output, list(range(len(program[scale.output].shape)))
    while len(users := program.consumers[name]) == 1:
        user = users[0]
        if user.contracts:
            return Extent(scale.inputs[0], dims[-1] if user.inputs[0] == name else dims[-2])
        if user.op == "transpose":
            dims = [dims[i] for i in user.attr["perm"]]
        elif not user.casts:
            return None
        name = user.output
    return None
