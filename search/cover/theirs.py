"""A program as torch's compiler would do all of it: what is left to libraries by calls, one kernel or a few of what lies between.

Where our plan is not clearly better by its prices, which see less than a GPU does, that is what is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from cost_model.models import CHAINED
from fuser.device import Device
from fuser.errors import FuserError
from fuser.ir.library_ops import CONVOLUTIONS
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.ir.subprogram import subprogram
from fuser.runtime.library import WHOLE
from search.cover.parts import joins
from search.cover.parts import moves_only
from search.cover.parts import root
from search.cover.prices import DOUBT
from search.cover.prices import by_library
from search.cover.prices import joint_seconds
from search.tune import Tuned
from search.tune import library_seconds

CLEAR = 0.93
"""A plan of ours is taken where it takes less than so many times as long."""
LARGEST = 200
"""Most operators of a program that torch's compiler is given as a whole."""


def wholly(program: TensorProgram, device: Device) -> Tuned | None:
    """All of it by torch's compiler; None where that has no honest price: images may lie otherwise than we know, and attention is
    one kernel of a library or several."""
    inner = [n for n in program.nodes if not moves_only(n)]
    if not inner or len(inner) > LARGEST or any(n.op in CONVOLUTIONS or n.products > 1 for n in inner):
        return None
    try:
        return by_library(program, device, _seconds(program, device), WHOLE)
    except FuserError:
        return None


def _seconds(program: TensorProgram, device: Device) -> float:
    found = []
    for nodes in _kernels(program):
        views = {v for n in nodes for i in n.inputs for v in _views(program, i)}
        part = subprogram(program, {*(n.output for n in nodes), *views}, "part")
        joint = joint_seconds(part, device, doubted=True) if all(map(joins, nodes)) else None
        found.append(_called(part, device) if joint is None else joint / DOUBT)
    return math.fsum(found)


def _kernels(program: TensorProgram) -> Iterator[list[Node]]:
    """Operators that the compiler may have one kernel for: those that read one another, with no library's call between; and each
    such call."""
    level: dict[str, int] = {}
    groups: dict[str, list[Node]] = {}
    for node in program.nodes:
        if moves_only(node):
            continue
        fronts = [f for i in node.inputs if (f := root(program, i)) in level]
        level[node.output] = max((level[f] + (not joins(program.producers[f])) for f in fronts), default=0) + (not joins(node))
        mine = [node]
        if joins(node):
            same = [f for f in fronts if joins(program.producers[f]) and level[f] == level[node.output]]
            for other in {id(g): g for f in same if (g := groups[f])}.values():
                mine = [*other, *mine]
        groups |= {n.output: mine for n in mine}
    yield from {id(g): g for g in groups.values()}.values()


def _views(program: TensorProgram, name: str) -> Iterator[str]:
    while (node := program.producers.get(name)) is not None and moves_only(node):
        yield name
        (name,) = node.inputs


def _called(part: TensorProgram, device: Device) -> float:
    kernels = tuple(LibraryKernel(n.output, n.op, n.inputs, n.output, tuple(sorted(part.bound(n).items()))) for n in part.nodes)
    ends = (*part.inputs, *part.outputs)
    graph = KernelGraph(part.name, part.inputs, kernels, part.outputs, tuple(part[n] for n in ends)).validate()
    return math.fsum(library_seconds(graph, k, device, CHAINED) for k in kernels)
