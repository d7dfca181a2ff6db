"""Running maxima as marks in a µGraph: finding them, taking them out, and checking their degrees where no other test can."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fuser.ir.flow import through
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import Rescale
from fuser.ir.mugraph import live
from fuser.ir.ops import op as op_def
from fuser.superopt.verify.degrees import measured_degrees


def stabilized(graph: KernelGraph) -> bool:
    """Some value is shifted by a running maximum, or an accumulator is rescaled by one."""
    return any(s.running or s.rescale or is_shift(k, s.value) for k in graph.blocks for s in k.computes)


def is_shift(block: BlockGraph, value: str) -> bool:
    """``value`` is x − max x and is only read by exponentials: a shift, not a difference that the program asks for."""
    s = block.by_value.get(value)
    if s is None or not s.subtracts:
        return False
    top = block.by_value[s.args[1]]
    if not top.maximizes or top.args != s.args[:1]:
        return False
    users = block.users(value)
    return bool(users) and all(u.exponential for u in users)


def unstabilize(graph: KernelGraph) -> KernelGraph:
    """The same µGraph with bare exponentials: no shift by a maximum, nothing rescaled; what only served that is gone.

    Shifts across kernels (partial results that a later kernel rescales by exponentials of partial maxima) are operators, not
    marks, and stay.
    """
    kernels = tuple(_bare(k) if isinstance(k, BlockGraph) else k for k in graph.kernels)
    return replace(graph, kernels=kernels).validate()


def _bare(block: BlockGraph) -> BlockGraph:
    alias: dict[str, str] = {}
    stmts = []
    for s in block.stmts:
        if s.kind == "compute" and s.running and s.subtracts and is_shift(block, s.value):
            alias[s.value] = s.args[0]
            continue
        stmts.append(replace(s, args=tuple(alias.get(a, a) for a in s.args), rescale=()))
    axes: dict[str, tuple[str, ...]] = {}
    out = []
    for s in stmts:
        if s.kind == "compute":
            # without the maximum of its part, a value no longer depends on the part until it is reduced
            have = block.axes_of(s.reduce, *(axes[v] for v in s.args))
            s = replace(s, axes=tuple(a for a in s.axes if a in have))
        if s.kind != "store":
            axes[s.value] = s.axes
        out.append(s)
    return replace(block, stmts=live(out))


def rescaled_by_degrees(graph: KernelGraph, plain: KernelGraph, rng: np.random.Generator) -> bool:
    """Every fold is rescaled by its measured degree in each exponential that is shifted by a running maximum, and no output has
    a degree.

    ``plain`` is :func:`unstabilize` of the µGraph.
    """
    for block in graph.blocks:
        wanted: dict[str, set[Rescale]] = {s.value: set() for s in block.computes if s.folds}
        for s in block.computes:
            if not s.exponential or not is_shift(block, s.args[0]):
                continue
            top = block.by_value[block.by_value[s.args[0]].args[1]]
            found = measured_degrees(plain, block.name, s.value, rng, top.reduce)
            if not found.invariant:
                return False
            for value in set(wanted) & {v for k, v in found.values if k == block.name}:
                degree = found.values[block.name, value]
                if degree is None:
                    return False
                wanted[value] |= {Rescale(top.value, degree)} if degree else set()
        if any(set(block.by_value[v].rescale) != w for v, w in wanted.items()):
            return False
    return True


def nested(graph: KernelGraph) -> bool:
    """Some exponential depends on another one."""
    found: list[str] = []

    def inside(op: str, xs: list[bool]) -> bool:
        exponential = op_def(op).has_exponential
        found.extend([op] if exponential and any(xs) else [])
        return exponential or any(xs)

    through(graph, dict.fromkeys(graph.inputs, False), lambda _, s, xs: inside(s.op, xs), lambda k, xs: inside(k.op, xs))
    return bool(found)
