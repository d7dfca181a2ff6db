"""Views and slices: places to load from, for a kernel that reads them."""

from __future__ import annotations

from fuser.ir.applied import Applied
from fuser.ir.program import TensorProgram


def moves_only(node: Applied) -> bool:
    """The operator is a place to load from, for a kernel that reads it."""
    return node.entry.kind == "view" or node.op == "slice"


def root(program: TensorProgram, name: str) -> str:
    """The result, or input, that a view shows."""
    while (node := program.producers.get(name)) is not None and moves_only(node):
        (name,) = node.inputs
    return name


def views_to(program: TensorProgram, name: str) -> list[str]:
    """Views that lead to ``name`` from what is none, the last first."""
    found = []
    while (node := program.producers.get(name)) is not None and moves_only(node):
        found.append(name)
        (name,) = node.inputs
    return found
