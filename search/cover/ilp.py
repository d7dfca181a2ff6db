"""Which parts compute a model: an integer program (PuLP, solved by HiGHS).

One 0/1 variable for each part. What a chosen part reads, a chosen part has written or the caller has given; every result of the
model is written; every operator is computed once; the sum of the predicted times is least. Parts with several results could wait
for each other in a circle; a circle that a solution has is forbidden and the program is solved again.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fuser.errors import NoValidKernelError
from fuser.ir.program import TensorProgram
from search.cover.parts import Part
from search.cover.parts import moves_only

GAP = 1e-4
"""Relative distance from the optimum at which the solver may stop."""


@dataclass(frozen=True)
class Cover:
    """The chosen parts in an order in which they can run, their summed ``seconds``, and how far below them the optimum may be
    (``gap``, relative, as the solver says); ``rounds`` is how often the program was solved, once more for each circle, and
    ``solving`` the seconds that it took; ``candidates``: how many parts there were to choose from."""

    parts: tuple[Part, ...]
    seconds: float
    gap: float
    rounds: int
    candidates: int
    solving: float = 0.0


def cover(
    program: TensorProgram,
    parts: Sequence[Part],
    seconds: Mapping[Part, float],
    limit: float = 60.0,
    among: Collection[Part] = (),
) -> Cover:
    """The cheapest parts that compute ``program``; where ``among`` is given, with at least one of those. ``limit``: seconds for
    the solver. Raises :class:`NoValidKernelError` naming a result that no part can make."""
    start = time.perf_counter()
    usable = _reachable(program, [p for p in parts if seconds[p] < float("inf")])
    problem, chosen = _problem(program, usable, seconds)
    if among:
        required = [x for p, x in zip(usable, chosen, strict=True) if p in among]
        if not required:
            raise NoValidKernelError(f"what {len(among)} parts of {program.name!r} read can not be made", "leave them out")
        problem += sum(required) >= 1, "among"
    rounds = 0
    while True:
        rounds += 1
        picked, gap = _solve(problem, chosen, limit)
        order, circle = _sorted(program, [usable[i] for i in picked])
        if not circle:
            total = sum(seconds[p] for p in order)
            return Cover(tuple(order), total, gap, rounds, len(usable), time.perf_counter() - start)
        problem += sum(chosen[usable.index(p)] for p in circle) <= len(circle) - 1, f"circle_{rounds}"


def _reachable(program: TensorProgram, parts: Sequence[Part]) -> list[Part]:
    """Parts whose reads can be made at all, in the order in which they can run."""
    known, found = set(program.inputs), list[Part]()
    waits = {i: {r for r in p.reads if r not in known} for i, p in enumerate(parts)}
    readers: dict[str, list[int]] = {}
    for i, reads in waits.items():
        for name in reads:
            readers.setdefault(name, []).append(i)
    todo = [i for i, reads in waits.items() if not reads]
    while todo:
        part = parts[todo.pop()]
        found.append(part)
        for name in part.writes:
            if name not in known:
                known.add(name)
                for i in readers.get(name, ()):
                    waits[i].discard(name)
                    if not waits[i]:
                        todo.append(i)
    if missing := [n for n in program.outputs if n not in known]:
        for view in (n for n in program.nodes if moves_only(n) and set(n.inputs) <= known):
            known.add(view.output)
        first = next((n for n in program.nodes if n.output not in known and set(n.inputs) <= known), None)
        what = f"{first.output} = {first.op}(…)" if first else missing[0]
        raise NoValidKernelError(f"nothing here can compute {what} of {program.name!r}", "leave that operator to torch")
    return found


def _problem(program: TensorProgram, parts: Sequence[Part], seconds: Mapping[Part, float]) -> tuple[Any, list[Any]]:
    import pulp

    problem = pulp.LpProblem("cover", pulp.LpMinimize)
    x = [problem.add_variable(f"x_{i}", cat="Binary") for i in range(len(parts))]
    writers: dict[str, list[Any]] = {}
    makers: dict[str, list[int]] = {}
    for i, part in enumerate(parts):
        for name in part.writes:
            writers.setdefault(name, []).append(x[i])
        for name in part.nodes:
            makers.setdefault(name, []).append(i)
    problem += pulp.lpSum(seconds[p] * 1e6 * c for p, c in zip(parts, x, strict=True))
    for j, those in enumerate(makers.values()):
        problem += pulp.lpSum(x[i] for i in those) == 1, f"once_{j}"
        # all parts that compute the node count together: one by one, each of many could have a small fraction of a writer
        reads: dict[str, list[int]] = {}
        for i in those:
            for name in parts[i].reads:
                if name not in program.inputs:
                    reads.setdefault(name, []).append(i)
        for k, (name, readers) in enumerate(reads.items()):
            problem += pulp.lpSum(x[i] for i in readers) <= pulp.lpSum(writers[name]), f"reads_{j}_{k}"
    for j, part in enumerate(parts):
        for k, name in enumerate(part.reads if not part.nodes else ()):
            if name not in program.inputs:
                problem += x[j] <= pulp.lpSum(writers[name]), f"copies_{j}_{k}"
    for j, name in enumerate(program.outputs):
        if name not in program.inputs:
            problem += pulp.lpSum(writers[name]) >= 1, f"result_{j}"
    copied = dict.fromkeys(name for p in parts if not p.nodes for name in p.writes)
    for j, name in enumerate(copied):  # a copy may cost nothing
        problem += pulp.lpSum(writers[name]) <= 1, f"writer_{j}"
    return problem, x


def _solve(problem: Any, x: Sequence[Any], limit: float) -> tuple[list[int], float]:
    import pulp

    problem.solve(pulp.HiGHS(msg=False, gapRel=GAP, timeLimit=limit, threads=1))
    if problem.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        raise NoValidKernelError("the solver found no cover in its time", "give it more time")
    gap = max(0.0, problem.solverModel.getInfo().mip_gap)
    return [i for i, v in enumerate(x) if (v.value() or 0.0) > 0.5], gap


def _sorted(program: TensorProgram, parts: Sequence[Part]) -> tuple[list[Part], list[Part]]:
    """The parts in an order in which they can run, and those that wait for each other."""
    known, left, order = set(program.inputs), list(parts), list[Part]()
    while left:
        part = next((p for p in left if set(p.reads) <= known), None)
        if part is None:
            return order, left
        order.append(part)
        known |= set(part.writes)
        left.remove(part)
    return order, []
