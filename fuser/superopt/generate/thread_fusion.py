"""Thread graphs by rule (Mirage, section 4.2): element-wise chains of a block that stay in registers.

Element-wise operators over the same axes, one reading the other, are one thread graph: between them nothing goes through
shared memory. Any fold ends a chain, because it exchanges data between threads.
"""

from __future__ import annotations

from dataclasses import dataclass

from fuser.disjoint import DisjointSets
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Stmt


@dataclass(frozen=True)
class ThreadGraph:
    """``stmts`` in order over the elements of ``axes``; ``outputs`` are the values that anything outside reads."""

    axes: tuple[str, ...]
    stmts: tuple[Stmt, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        body = "; ".join(f"{s.value} = {s.op}({', '.join(s.args)})" for s in self.stmts)
        return f"thread [{','.join(self.axes)}] {', '.join(self.inputs)} -> {', '.join(self.outputs)}: {body}"


def thread_graphs(block: BlockGraph) -> tuple[ThreadGraph, ...]:
    """The maximal element-wise chains of a block, in the order of their first statements."""
    chains = DisjointSets(s.value for s in block.computes if s.entry.kind == "map")
    barred = _waiting(block, set(chains.parent))
    for s in block.computes:
        for a in s.args:
            if s.value in chains and a in chains and block.by_value[a].axes == s.axes:
                left, right = chains.root(a), chains.root(s.value)
                together = {v for v in chains.parent if chains.root(v) in (left, right)}
                if left != right and not any(barred[v] & together for v in together):
                    chains.join(left, right)
    return tuple(_thread(block, [block.by_value[v] for v in chain]) for chain in chains.sets())


def _waiting(block: BlockGraph, maps: set[str]) -> dict[str, set[str]]:
    """For each element-wise value, those others that it depends on through something that is not element-wise."""
    direct: dict[str, set[str]] = {s.value: set() for s in block.stmts if s.kind == "load"}
    through: dict[str, set[str]] = {v: set() for v in direct}
    for s in block.computes:
        direct[s.value] = {s.value}.union(*(direct[a] for a in s.args)) if s.value in maps else set()
        through[s.value] = set().union(*(through[a] for a in s.args))
        if s.value not in maps:
            through[s.value] |= set().union(*(direct[a] for a in s.args))
    return through


def _thread(block: BlockGraph, stmts: list[Stmt]) -> ThreadGraph:
    inside = {s.value for s in stmts}
    inputs = dict.fromkeys(a for s in stmts for a in s.args if a not in inside)
    outputs = [s.value for s in stmts if any(u.kind == "store" or u.value not in inside for u in block.users(s.value))]
    return ThreadGraph(stmts[0].axes, tuple(stmts), tuple(inputs), tuple(outputs))
