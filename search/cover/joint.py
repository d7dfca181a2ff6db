"""What torch's compiler has one kernel for: operators that read one another, with no library's call between."""

from __future__ import annotations

from collections.abc import Iterator

from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.runtime.joined import apart
from search.cover.shown import moves_only
from search.cover.shown import root

LEFT = ("library", "opaque")
"""Kinds of operators that torch computes."""
JOINT = (*LEFT, "map", "reduce", "composite", "data")
"""Kinds of operators that torch's compiler has kernels for, several in one."""
MOST, WHOLE_KERNEL = 32, 1000
"""Most operators of one part that torch computes, and of one that is all that one kernel of its compiler may be."""


def joins(node: Node) -> bool:
    """Whether torch's compiler may have one kernel for an operator and others."""
    return not node.products and node.entry.kind in JOINT and not apart(f"{node.op} {node.attr.get('callee', '')}")


def joint_kernels(program: TensorProgram) -> Iterator[list[Node]]:
    """Operators that the compiler may have one kernel for: those that read one another, with no library's call between; and each
    such call."""
    level: dict[str, int] = {}
    groups: dict[str, list[Node]] = {}
    readers: dict[tuple[str, int], str] = {}
    for node in program.nodes:
        if moves_only(node):
            continue
        origins = [root(program, i) for i in node.inputs]
        fronts = [f for f in origins if f in level]
        level[node.output] = max((level[f] + (not joins(program.producers[f])) for f in fronts), default=0) + (not joins(node))
        mine = [node]
        if joins(node):
            same = [f for f in fronts if joins(program.producers[f]) and level[f] == level[node.output]]
            beside = [r for f in origins if (r := readers.get((f, level[node.output])))]  # what reads the same is one kernel, too
            for other in {id(g): g for f in (*same, *beside) if (g := groups[f])}.values():
                mine = [*other, *mine]
            readers |= {(f, level[node.output]): node.output for f in origins}
        groups |= {n.output: mine for n in mine}
    yield from {id(g): g for g in groups.values()}.values()
