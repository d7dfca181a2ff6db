"""A cover without an integer program, to compare with: the part that gains most is taken first.

What a part gains is what its operators take apart, each in the cheapest part of its own, less what the part takes. Layouts are
chosen for the operators that are together in this way as a cover chooses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from graphlib import CycleError
from graphlib import TopologicalSorter

from fuser.ir.program import TensorProgram
from search.cover.ilp import Cover
from search.cover.ilp import cover
from search.cover.parts import Part
from search.cover.shown import moves_only
from search.cover.shown import root

Together = frozenset[str]
"""Operators of one part, by their results."""


def greedy_cover(program: TensorProgram, parts: Sequence[Part], seconds: Mapping[Part, float]) -> Cover:
    """Parts that compute ``program``, taken by what they gain."""
    best: dict[Together, float] = {}
    for part in parts:
        if part.nodes:
            key = frozenset(part.nodes)
            best[key] = min(best.get(key, float("inf")), seconds[part])
    alone = {name: s for key, s in best.items() if len(key) == 1 for name in key}
    gains = {key: sum(alone.get(n, float("inf")) for n in key) - s for key, s in best.items() if len(key) > 1}
    taken: dict[str, Together] = {n: frozenset((n,)) for n in alone}
    for key in sorted(gains, key=lambda k: -gains[k]):
        if gains[key] <= 0 or any(len(taken.get(n, ())) > 1 for n in key):
            continue
        if not _in_circle(program, taken | dict.fromkeys(key, key)):
            taken |= dict.fromkeys(key, key)
    chosen = set(taken.values())
    return cover(program, [p for p in parts if not p.nodes or frozenset(p.nodes) in chosen], seconds)


def _in_circle(program: TensorProgram, taken: Mapping[str, Together]) -> bool:
    """Whether some parts would wait for each other."""
    waits: dict[Together, set[Together]] = {}
    for node in program.nodes:
        if not moves_only(node) and (mine := taken.get(node.output)) is not None:
            front = (taken.get(root(program, i)) for i in node.inputs)
            waits.setdefault(mine, set()).update(f for f in front if f is not None and f != mine)
    try:
        TopologicalSorter(waits).prepare()
    except CycleError:
        return True
    return False
