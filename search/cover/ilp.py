"""Which parts compute a model, and how tensors lie between them: an integer program (PuLP, solved by HiGHS).

One 0/1 variable for each part and choice of layouts at its border. What a chosen part reads, a chosen part has written in that
layout or the caller has given; a conversion is a part too, which computes no operator. Every result of the model is written row
after row; every operator is computed once; the sum of the predicted times is least. Parts with several results could wait for
each other in a circle; a circle that a solution has is forbidden and the program is solved again.
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
from fuser.solver import solve
from search.cover.parts import Part
from search.cover.parts import Stored
from search.cover.parts import stored_name
from search.cover.shown import moves_only

GAP = 1e-4
"""Relative distance from the optimum at which the solver may stop."""
ROUNDED = 1e-6
"""How far a whole number of the relaxation may be from one."""


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
    asked = _problem(program, usable, seconds)
    if among:
        required = [x for p, x in zip(usable, asked.x, strict=True) if p in among]
        if not required:
            raise NoValidKernelError(f"what {len(among)} parts of {program.name!r} read can not be made", "leave them out")
        asked.add(sum(required) >= 1, "among", f"one of {len(among)} given parts is chosen")
    rounds = 0
    while True:
        rounds += 1
        picked, gap = _solve(asked, limit)
        order, circle = _sorted(program, [usable[i] for i in picked])
        if not circle:
            total = sum(seconds[p] for p in order)
            return Cover(tuple(order), total, gap, rounds, len(usable), time.perf_counter() - start)
        some = sum(asked.x[usable.index(p)] for p in circle)
        asked.add(some <= len(circle) - 1, f"circle_{rounds}", f"{len(circle)} parts do not wait for each other")


def given(program: TensorProgram) -> set[Stored]:
    """What the caller has in memory."""
    return {(n, 0) for n in program.inputs}


def _reachable(program: TensorProgram, parts: Sequence[Part]) -> list[Part]:
    """Parts whose reads can be made at all, in the order in which they can run."""
    known, found = given(program), list[Part]()
    waits = {i: {r for r in p.takes if r not in known} for i, p in enumerate(parts)}
    readers: dict[Stored, list[int]] = {}
    for i, reads in waits.items():
        for name in reads:
            readers.setdefault(name, []).append(i)
    todo = [i for i, reads in waits.items() if not reads]
    while todo:
        part = parts[todo.pop()]
        found.append(part)
        for name in part.leaves:
            if name not in known:
                known.add(name)
                for i in readers.get(name, ()):
                    waits[i].discard(name)
                    if not waits[i]:
                        todo.append(i)
    if missing := [n for n in program.outputs if (n, 0) not in known]:
        raise _not_made(program, missing[0], known)
    return found


def _not_made(program: TensorProgram, missing: str, stored: Collection[Stored]) -> NoValidKernelError:
    """Which operator, or layout of a result, nothing makes."""
    known = {name for name, _ in stored}
    if missing in known:
        there = ", ".join(stored_name(s) for s in stored if s[0] == missing)
        return NoValidKernelError(
            f"the result {missing!r} of {program.name!r} is wanted row after row, and all that makes it leaves {there}",
            "offer a conversion, or a kernel that stores it so",
        )
    for view in (n for n in program.nodes if moves_only(n) and set(n.inputs) <= known):
        known.add(view.output)
    first = next((n for n in program.nodes if n.output not in known and set(n.inputs) <= known), None)
    what = f"{first.output} = {first.op}(…)" if first else missing
    return NoValidKernelError(f"nothing here can compute {what} of {program.name!r}", "leave that operator to torch")


@dataclass
class _Asked:
    """The integer program, its variables in the order of the parts, and what each constraint says."""

    problem: Any
    x: list[Any]
    says: dict[str, str]

    def add(self, constraint: Any, name: str, says: str) -> None:
        self.problem += constraint, name
        self.says[name] = says


def _problem(program: TensorProgram, parts: Sequence[Part], seconds: Mapping[Part, float]) -> _Asked:
    import pulp

    problem = pulp.LpProblem("cover", pulp.LpMinimize)
    x = [problem.add_variable(f"x_{i}", cat="Binary") for i in range(len(parts))]
    asked = _Asked(problem, x, {})
    writers: dict[Stored, list[Any]] = {}
    makers: dict[str, list[int]] = {}
    for i, part in enumerate(parts):
        for stored in part.leaves:
            writers.setdefault(stored, []).append(x[i])
        for name in part.nodes:
            makers.setdefault(name, []).append(i)
    there = given(program)
    problem += pulp.lpSum(seconds[p] * 1e6 * c for p, c in zip(parts, x, strict=True))
    for j, (node, those) in enumerate(makers.items()):
        asked.add(pulp.lpSum(x[i] for i in those) == 1, f"once_{j}", f"{node} is computed once")
        # all parts that compute the node count together: one by one, each of many could have a small fraction of a writer
        reads: dict[Stored, list[int]] = {}
        for i in those:
            for stored in parts[i].takes:
                if stored not in there:
                    reads.setdefault(stored, []).append(i)
        for k, (stored, readers) in enumerate(reads.items()):
            made = pulp.lpSum(x[i] for i in readers) <= pulp.lpSum(writers[stored])
            asked.add(made, f"reads_{j}_{k}", f"{stored_name(stored)} is made for {node}")
    for j, part in enumerate(parts):
        for k, stored in enumerate(part.takes if not part.nodes else ()):
            if stored not in there:
                made = x[j] <= pulp.lpSum(writers[stored])
                asked.add(made, f"copies_{j}_{k}", f"{stored_name(stored)} is made for {stored_name(part.leaves[0])}")
    for j, name in enumerate(program.outputs):
        if name not in program.inputs:
            asked.add(pulp.lpSum(writers[name, 0]) >= 1, f"result_{j}", f"the result {name} is left row after row")
    copied = dict.fromkeys(stored for p in parts if not p.nodes for stored in p.leaves)
    for j, stored in enumerate(copied):  # a copy may cost nothing
        asked.add(pulp.lpSum(writers[stored]) <= 1, f"writer_{j}", f"{stored_name(stored)} has one writer")
    return asked


def _solve(asked: _Asked, limit: float) -> tuple[list[int], float]:
    """The chosen variables, and the gap. By the relaxation where that has whole numbers, as nearly all have: branch and bound
    takes twenty times as long to say so."""
    import pulp

    problem, until = asked.problem, time.perf_counter() + limit
    for whole in (False, True):
        left = max(0.0, until - time.perf_counter())
        solve(problem, mip=whole, gapRel=GAP, timeLimit=left)
        if problem.status == pulp.LpStatusInfeasible:
            raise NoValidKernelError(f"these cannot hold together: {'; '.join(_conflict(asked))}", "leave one of them out")
        # of a relaxation whose time was up, values are those of some step
        solved = problem.sol_status == pulp.LpSolutionOptimal or (whole and problem.sol_status == pulp.LpSolutionIntegerFeasible)
        values = [v.value() or 0.0 for v in asked.x]
        if whole or (solved and all(min(v, 1 - v) < ROUNDED for v in values)):
            break
    if not solved:
        raise NoValidKernelError("the solver found no cover in its time", "give it more time")
    gap = max(0.0, problem.solverModel.getInfo().mip_gap) if whole else 0.0
    return [i for i, v in enumerate(values) if v > 0.5], gap


def _conflict(asked: _Asked) -> list[str]:
    """A few constraints that contradict each other: one after another is left out as long as the rest still does."""
    import pulp

    def holds(names: Collection[str]) -> bool:
        some = pulp.LpProblem("some", pulp.LpMinimize)
        for name in names:
            some += asked.problem.get_constraint_by_name(name)
        solve(some)
        return some.status != pulp.LpStatusInfeasible

    kept = list(asked.says)
    size = max(len(kept) // 2, 1)
    while True:  # halves, quarters, …, single ones
        for start in range(0, len(kept), size):
            fewer = kept[:start] + kept[start + size :]
            if fewer and not holds(fewer):
                kept = fewer
                break
        else:
            if size == 1:
                return [asked.says[n] for n in kept]
            size = max(size // 2, 1)


def _sorted(program: TensorProgram, parts: Sequence[Part]) -> tuple[list[Part], list[Part]]:
    """The parts in an order in which they can run, and, where they cannot, some that wait for each other in a circle."""
    known, left, order = given(program), list(parts), list[Part]()
    while left:
        part = next((p for p in left if set(p.takes) <= known), None)
        if part is None:
            return order, _circle(known, left)
        order.append(part)
        known |= set(part.leaves)
        left.remove(part)
    return order, []


def _circle(known: Collection[Stored], left: Sequence[Part]) -> list[Part]:
    """A circle among parts that wait: each of them waits for the next, and the last one for the first."""
    writer = {stored: p for p in left for stored in p.leaves}
    way = [left[0]]
    while True:
        missing = next(s for s in way[-1].takes if s not in known)
        part = writer[missing]
        if part in way:
            return way[way.index(part) :]
        way.append(part)
