"""Layouts of one kernel as a choice: an option for each node, costs of options and of pairs of neighbours, capacities.

Costs are clocks by term. A term that names a unit of an SM (:data:`UNITS`) is how long that unit is busy; what has another name
is waited for by a group, one after the other. A kernel takes as long as its busiest unit, or as its chain of waits and the part
of that unit that other groups of the SM hold while one waits, whichever is longer, and a share (:data:`SEEN`) of all the rest,
since little is hidden wholly. All of it is linear, and so are the capacities; PuLP and HiGHS find the best choice, and
:func:`judged` says what any choice costs.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

from fuser.errors import OutOfResourcesError
from fuser.solver import solve as solve_program

MEANING = {
    "tensor": "tensor cores",
    "shared": "shared memory",
    "copy": "copy engine",
    "device": "from L2 into the SM",
    "memory": "device memory",
    "fp32": "fp32 lanes",
    "special": "special functions",
    "shuffle": "exchanges of lanes",
    "empty": "launch, first and last block",
    "chain": "a group's work, in turn",
    "others": "waits for others and for data",
    "start": "first and last block",
    "fetch": "first loads",
    "products": "products of a group",
    "waits": "waits for products",
    "arithmetic": "arithmetic of a group",
    "hidden": "products beside arithmetic",
    "barriers": "barriers",
    "operands": "operands into registers",
    "staging": "results through buffers",
    "issue": "accesses by pointers",
    "conversion": "conversions of layouts",
    "folds": "folds over lanes",
    "exchange": "folds over warps",
}
"""What terms are, in words."""
UNITS = ("tensor", "shared", "copy", "device", "memory", "fp32", "special", "shuffle")
LATE = "late "
"""Begins the terms of buffers that come too late: of these the longest counts."""
SEEN = 0.05
"""Share of what runs beside something longer that shows nevertheless."""
Clocks = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Option:
    """One way to lay a node out; ``value`` is what a plan takes of it. Bytes of ``shared`` memory a block, 32-bit ``registers`` a
    thread."""

    name: str
    value: Any
    clocks: Clocks = ()
    shared: int = 0
    registers: int = 0


@dataclass(frozen=True)
class Node:
    """``live``: the points of the program at which its registers are held."""

    name: str
    options: tuple[Option, ...]
    live: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Edge:
    """What a pair of options of two nodes costs together, by their numbers; nothing where a pair is not named."""

    first: int
    second: int
    clocks: Mapping[tuple[int, int], Clocks]


@dataclass(frozen=True)
class Problem:
    """``clocks`` and ``held`` are there with every choice; ``shared`` and ``registers`` are the most there is, ``held`` the
    registers of what has no option, by point. ``others``: the part of an SM that is not one group's; ``seen``: the share of the
    rest that shows."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    clocks: Clocks
    shared: int
    registers: int
    held: tuple[int, ...]
    others: float = 0.0
    about: Any = None
    seen: float = SEEN


@dataclass(frozen=True)
class Choice:
    """An option of each node, by number; clocks by term, and the whole; bytes and registers that it takes."""

    options: tuple[int, ...]
    clocks: Clocks
    total: float
    shared: int
    registers: int


def added(*several: Clocks) -> Clocks:
    """Clocks summed by term, in the order of the first to name them."""
    found: dict[str, float] = {}
    for clocks in several:
        for term, amount in clocks:
            found[term] = found.get(term, 0.0) + amount
    return tuple(found.items())


def together(clocks: Clocks) -> float:
    """The chain of waits. Buffers are late side by side (:data:`LATE`)."""
    late = max((amount for term, amount in clocks if term.startswith(LATE)), default=0.0)
    return late + sum(amount for term, amount in clocks if term not in UNITS and not term.startswith(LATE))


def whole(clocks: Clocks, p: Problem) -> float:
    """How long a kernel takes (as :mod:`cost_model.groups`: N groups of an SM are (N - 1) / N of it to each other)."""
    busy = [amount for term, amount in clocks if term in UNITS]
    chain, longest = together(clocks), max([0.0, *busy])
    return max(chain + p.others * longest, longest) + p.seen * (chain + sum(busy))


def judged(p: Problem, options: Sequence[int]) -> Choice | None:
    """What a choice costs; None where it does not fit."""
    chosen = [n.options[o] for n, o in zip(p.nodes, options, strict=True)]
    pairs = [e.clocks.get((options[e.first], options[e.second]), ()) for e in p.edges]
    clocks = added(p.clocks, *(o.clocks for o in chosen), *pairs)
    shared = sum(o.shared for o in chosen)
    points = range(len(p.held))
    held = [p.held[i] + sum(o.registers for n, o in zip(p.nodes, chosen, strict=True) if i in n.live) for i in points]
    if shared > p.shared or max(held, default=0) > p.registers:
        return None
    return Choice(tuple(options), clocks, whole(clocks, p), shared, max(held, default=0))


def fewer(p: Problem) -> Problem:
    """The problem without options that another one of the same node is no worse than in anything, where it has no neighbours."""
    tied = {i for e in p.edges for i in (e.first, e.second)}
    nodes = tuple(n if i in tied else replace(n, options=_undominated(n.options)) for i, n in enumerate(p.nodes))
    return replace(p, nodes=nodes)


def _undominated(options: Sequence[Option]) -> tuple[Option, ...]:
    def no_worse(a: Option, b: Option) -> bool:
        x, y = dict(a.clocks), dict(b.clocks)
        less = a.shared <= b.shared and a.registers <= b.registers
        return less and all(x.get(t, 0.0) <= y.get(t, 0.0) for t in {*x, *y})

    kept: list[Option] = []
    for o in options:
        if not any(no_worse(k, o) for k in kept):
            kept = [k for k in kept if not no_worse(o, k)] + [o]
    return tuple(kept)


def bound(p: Problem) -> float:
    """Clocks that no choice is below; infinite where none fits."""
    if sum(min(o.shared for o in n.options) for n in p.nodes) > p.shared or max(p.held, default=0) > p.registers:
        return float("inf")
    least = [added(*(((t, min(dict(o.clocks).get(t, 0.0) for o in n.options)),) for t in _terms(n))) for n in p.nodes]
    return whole(added(p.clocks, *least), p)


def _terms(n: Node) -> list[str]:
    return list(dict.fromkeys(t for o in n.options for t, _ in o.clocks))


def solve(p: Problem) -> Choice:
    """The choice that takes least. Raises :class:`OutOfResourcesError` where none fits."""
    if all(len(n.options) == 1 for n in p.nodes):
        found = judged(p, [0] * len(p.nodes))
    else:
        picked = _solved(p)
        found = judged(p, picked) if picked else None
    if found is None:
        raise OutOfResourcesError("no choice of layouts fits the registers and shared memory of an SM", "use smaller tiles")
    return found


def _solved(p: Problem) -> list[int] | None:
    import pulp

    asked: Any = pulp.LpProblem("layouts", pulp.LpMinimize)
    x = [[asked.add_variable(f"x_{i}_{j}", cat="Binary") for j in range(len(n.options))] for i, n in enumerate(p.nodes)]
    shares: dict[str, list[Any]] = {}

    def counts(clocks: Clocks, variable: Any) -> None:
        for term, amount in clocks:
            of = term if term in UNITS or term.startswith(LATE) else "chain"
            shares.setdefault(of, []).append(amount * variable)

    counts(p.clocks, 1)
    for variables, n in zip(x, p.nodes, strict=True):
        asked += pulp.lpSum(variables) == 1
        for variable, o in zip(variables, n.options, strict=True):
            counts(o.clocks, variable)
    for k, e in enumerate(p.edges):
        for (i, j), clocks in e.clocks.items():
            both = asked.add_variable(f"y_{k}_{i}_{j}", 0, 1)  # 1 where both options are chosen, since clocks cost
            asked += both >= x[e.first][i] + x[e.second][j] - 1
            counts(clocks, both)
    longest, unit, late = (asked.add_variable(name, 0) for name in ("longest", "unit", "late"))
    for term in [t for t in shares if t.startswith(LATE)]:
        asked += late >= pulp.lpSum(shares.pop(term))
    shares.setdefault("chain", []).append(late)
    for term, several in shares.items():
        if term != "chain":
            asked += unit >= pulp.lpSum(several)
    asked += longest >= unit
    asked += longest >= pulp.lpSum(shares["chain"]) + p.others * unit
    asked += longest + p.seen * pulp.lpSum(v for several in shares.values() for v in several)
    for used, most in _capacities(p, x):
        asked += pulp.lpSum(used) <= most
    solve_program(asked, gapRel=1e-9)
    if asked.sol_status != pulp.LpSolutionOptimal:
        return None
    return [max(range(len(row)), key=lambda j: row[j].value() or 0.0) for row in x]


def _capacities(p: Problem, x: Sequence[Sequence[Any]]) -> Iterable[tuple[list[Any], int]]:
    """Bytes of a block, and registers of a thread at each point."""
    yield [o.shared * v for row, n in zip(x, p.nodes, strict=True) for v, o in zip(row, n.options, strict=True)], p.shared
    for i, held in enumerate(p.held):
        live = [(row, n) for row, n in zip(x, p.nodes, strict=True) if i in n.live]
        yield [o.registers * v for row, n in live for v, o in zip(row, n.options, strict=True)], p.registers - held
