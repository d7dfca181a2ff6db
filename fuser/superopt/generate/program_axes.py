"""A program as the generator sees it: one block of statements over axes, and what its composites compute on the way."""

from __future__ import annotations

from dataclasses import replace

from fuser.errors import UnsupportedError
from fuser.ir.axes import Dims
from fuser.ir.axes import axes_of
from fuser.ir.composites import expand
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram


def internal_values(program: TensorProgram) -> frozenset[str]:
    """Tensors of the expanded program that lie inside of a composite: in size limits only the composite's result counts."""
    found: set[str] = set()
    nodes = expand(program).nodes
    start = 0
    for i, node in enumerate(program.nodes):
        end = len(expand(_prefix(program, i + 1)).nodes) if node.entry.kind == "composite" else start + 1
        found |= {n.output for n in nodes[start : end - 1]}
        start = end
    return frozenset(found)


def _prefix(program: TensorProgram, count: int) -> TensorProgram:
    nodes = program.nodes[:count]
    return replace(program, nodes=nodes, outputs=(nodes[-1].output,))


def program_dims(program: TensorProgram) -> dict[str, Dims]:
    """How the program's own results lie in device memory, if a kernel stores them."""
    expanded = expand(program)
    values = axes_of(expanded).values
    return {n.output: values[n.output] for n in expanded.nodes}


def as_block(program: TensorProgram) -> tuple[KernelGraph, BlockGraph, frozenset[str]]:
    """The program fused as it stands, its only block, and the values inside of composites.

    Raises :class:`UnsupportedError` where an operator or a tensor cannot be part of one block.
    """
    graph = fuse(program)
    if len(graph.blocks) != 1:
        raise UnsupportedError(f"{program.name!r} is not one block")
    return graph, graph.blocks[0], internal_values(program)
