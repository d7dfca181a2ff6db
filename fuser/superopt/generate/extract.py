"""From the value space to operator graphs: one derivation for each value that is needed, shared values once.

Graphs come in order of a cost that knows no sizes: fewest passes (folds over an axis that wait for another fold over the same
axis, so that inputs are walked again), then fewest operators, then fewest axes to iterate. So the result does not depend on
extents.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass

from fuser.superopt.generate.values import Derivation
from fuser.superopt.generate.values import ValueSpace


@dataclass(frozen=True)
class OpGraph:
    """``steps`` in dependency order: value number and how it is computed; ``outputs`` the value of each output tensor."""

    steps: tuple[tuple[int, Derivation], ...]
    outputs: tuple[tuple[str, int], ...]
    passes: int
    ops: int
    width: int

    @property
    def cost(self) -> tuple[int, int, int]:
        return self.passes, self.ops, self.width


def op_graphs(space: ValueSpace, limit: int = 20_000, deadline: float | None = None) -> list[OpGraph]:
    """Every operator graph of at most ``space.max_ops`` operators that computes the outputs, cheapest first."""
    found: dict[tuple[tuple[int, Derivation], ...], OpGraph] = {}
    if own := _finish(space, {v.number: v.derivations[0] for v in space.values if v.derivations}, space.outputs):
        found[own.steps] = own  # the program as it stands, whatever the limits are
    # one choice, but where values are not merged (ablation)
    goals = [dict(zip(space.outputs, ns, strict=True)) for ns in itertools.product(*map(space.alike, space.outputs.values()))]
    for most in range(1, space.max_ops + 1):  # deepening: the smallest graphs first
        for goal, chosen in ((g, c) for g in goals for c in _choices(space, g, most, deadline)):
            graph = _finish(space, chosen, goal)
            if graph and graph.ops == most and not _roundabout(space, graph):
                found.setdefault(graph.steps, graph)
            if len(found) >= limit:
                break
        if len(found) >= limit or (deadline is not None and time.monotonic() > deadline):
            break
    ranked = sorted(found.values(), key=lambda g: (g.cost, [(n, d.op, d.args, d.reduce) for n, d in g.steps]))
    alike: dict[tuple[int, ...], OpGraph] = {}
    table: dict[tuple[object, ...], int] = {}
    for graph in ranked:
        alike.setdefault(_modulo_constants(space, graph, table), graph)
    return list(alike.values())


def _modulo_constants(space: ValueSpace, graph: OpGraph, table: dict[tuple[object, ...], int]) -> tuple[int, ...]:
    """Identity of a graph that ignores factors by constants: of those that differ only in where they scale, the cheapest is
    enough."""
    ids: dict[int, int] = {}

    def number(n: int) -> int:
        return ids[n] if n in ids else -1 - n  # a load

    for n, d in graph.steps:
        if d.op in ("scale", "neg"):
            ids[n] = number(d.args[0])
            continue
        args = [number(a) for a in d.args]
        if d.entry.commutative or d.contracts:
            args.sort()
        op = d.op
        if len(set(args)) == 1 < len(args) and op in ("mul", "matmul"):  # x · (c x) is a square too
            op, args = ("square", args[:1])
            if d.reduce:
                args = [table.setdefault((op, (), (), *args), len(table))]
                op = "sum"
        ids[n] = table.setdefault((op, d.reduce, d.attrs, *args), len(table))
    return tuple(number(n) for _, n in graph.outputs)


def _choices(space: ValueSpace, goal: Mapping[str, int], most: int, deadline: float | None) -> Iterator[dict[int, Derivation]]:
    order = {
        v.number: sorted(v.derivations, key=lambda d: (_size(space, d), d.op, d.args, d.reduce))
        for v in space.values
        if not v.load
    }

    def visit(chosen: dict[int, Derivation], agenda: tuple[int, ...], ops: int) -> Iterator[dict[int, Derivation]]:
        if deadline is not None and time.monotonic() > deadline:
            return
        if not agenda:
            yield chosen
            return
        number, rest = agenda[0], agenda[1:]
        for d in order[number]:
            new = tuple(dict.fromkeys(a for a in d.args if a not in chosen and a != number and not space.values[a].load))
            new = tuple(a for a in new if a not in rest)
            total = ops
            for a in new:
                total |= 1 << a
            if number in d.args or space.size(total) > most:
                continue
            yield from visit({**chosen, number: d}, (*new, *rest), total)

    roots = tuple(dict.fromkeys(goal.values()))
    mask = 0
    for n in roots:
        mask |= 1 << n
    if space.size(mask) <= most:
        yield from visit({}, roots, mask)


def _size(space: ValueSpace, d: Derivation) -> int:
    ops = 0
    for a in d.args:
        ops |= space.values[a].ops
    return space.size(ops)


def _finish(space: ValueSpace, chosen: Mapping[int, Derivation], goal: Mapping[str, int]) -> OpGraph | None:
    """The graph in dependency order, or None where the choice is circular."""
    steps: list[tuple[int, Derivation]] = []
    state: dict[int, int] = {}

    def visit(n: int) -> bool:
        if space.values[n].load or state.get(n) == 2:
            return True
        if state.get(n) == 1:
            return False
        state[n] = 1
        for a in chosen[n].args:
            if not visit(a):
                return False
        state[n] = 2
        steps.append((n, chosen[n]))
        return True

    for n in goal.values():
        if not visit(n):
            return None
    ops = 0
    for n, _ in steps:
        ops |= 1 << n
    return OpGraph(
        tuple(steps),
        tuple(goal.items()),
        _passes(steps),
        space.size(ops),
        sum(len({*space.values[n].axes, *d.reduce}) for n, d in steps),
    )


def _passes(steps: list[tuple[int, Derivation]]) -> int:
    """How often some axis has to be walked more than once: over all axes, the longest chain of folds over it, less one."""
    depth: dict[str, dict[int, int]] = {}
    for n, d in steps:
        axes = {a for m in d.args for a in _at(depth, m)} | set(d.reduce)
        for a in axes:
            before = max((depth.get(a, {}).get(m, 0) for m in d.args), default=0)
            depth.setdefault(a, {})[n] = before + (a in d.reduce)
    return sum(max(by.values()) - 1 for by in depth.values())


def _at(depth: Mapping[str, Mapping[int, int]], n: int) -> list[str]:
    return [a for a, by in depth.items() if n in by]


def _roundabout(space: ValueSpace, graph: OpGraph) -> bool:
    """A sum of a product that a contraction does at once, where nothing else reads the product."""
    how = dict(graph.steps)
    reads: dict[int, int] = {}
    for _, d in graph.steps:
        for a in d.args:
            reads[a] = reads.get(a, 0) + 1
    kept = {n for _, n in graph.outputs}
    for _, d in graph.steps:
        inner = how.get(d.args[0]) if d.sums else None
        if not inner or reads[d.args[0]] > 1 or d.args[0] in kept:
            continue
        if inner.entry.multiplies and inner.args[0] != inner.args[1]:
            shared = set(space.values[inner.args[0]].axes) & set(space.values[inner.args[1]].axes)
            if shared & set(d.reduce):
                return True
        if inner.contracts:
            return True
    return False
