"""Programmatic dependent launch: a kernel that starts while the one in front of it still runs.

The first kernel of a call is launched normally, so that no call overlaps the one before it. A later kernel does everything that
needs no result of the kernels in front of it (a whole loop over weights, say), then waits for them to end and to be visible, then
does the rest; whatever it stores comes after the wait, since earlier kernels may still read what is overwritten. Every kernel of
a chain waits, so that the last one sees the results of all.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator

from fuser.ir.mugraph import Stmt
from fuser.ir.tiling import Init
from fuser.ir.tiling import Node


def statements(node: Node) -> Iterator[Stmt | Init]:
    """Every statement of a node of the loop tree, in program order."""
    if isinstance(node, Stmt | Init):
        yield node
        return
    for inner in node.body:
        yield from statements(inner)


def divide(body: tuple[Node, ...], earlier: Collection[str]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Nodes that may run before the kernels in front have ended, and the others, each in program order.

    ``earlier`` are the device tensors that those kernels write. A node is late where it loads one of them, stores anything, or
    reads what a late node makes.
    """
    makers: dict[str, int] = {}
    for node in body:
        for value in {s.value for s in statements(node) if not isinstance(s, Init)}:
            makers[value] = makers.get(value, 0) + 1
    late_values: set[str] = set()
    early: list[Node] = []
    late: list[Node] = []
    inits: dict[str, Init] = {}
    for node in body:
        if isinstance(node, Init):
            inits[node.value] = node  # goes with the loop that owns it
            continue
        inside = list(statements(node))
        mine = {s.value for s in inside}
        reads = {a for s in inside if isinstance(s, Stmt) for a in (*s.args, *(r.maximum for r in s.rescale))}
        waits = any(
            isinstance(s, Stmt) and (s.kind == "store" or (s.access is not None and s.access.source in earlier)) for s in inside
        )
        # a value made in several places would be made again too early or too late
        again = any(makers.get(v, 0) > 1 for v in mine)
        # of a deep chain only the first weights: all of them at once would not fit
        deep = isinstance(node, Stmt) and node.kind == "load" and sum(isinstance(n, Stmt) and n.contracts for n in late) > 1
        is_late = waits or deep or bool(reads & late_values) or (bool(late) and again)
        target = late if is_late else early
        target.extend(inits.pop(v) for v in [v for v in inits if v in mine])
        target.append(node)
        if is_late:
            late_values |= mine
    late.extend(inits.values())
    return tuple(early), tuple(late)
