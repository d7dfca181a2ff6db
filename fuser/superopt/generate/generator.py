"""The µGraph generator (Mirage, section 4): from a program to kernel graphs, streamed in one fixed order under a budget.

Three steps. :mod:`.values` enumerates every useful value over the program's axes, pruned by abstract expressions;
:mod:`.extract` lists the operator graphs that compute the outputs, cheapest first; :mod:`.kernels` cuts each of them into
kernels and splits reductions over the grid. Axes stand for grids and loops: a contraction with a loop part is an accumulator,
what follows it an epilogue, so that one µGraph stands for all of its grids, loop orders and tile sizes.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field

from fuser.ir.axes import Dims
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.superopt.generate.extract import OpGraph
from fuser.superopt.generate.extract import op_graphs
from fuser.superopt.generate.kernels import Plan
from fuser.superopt.generate.kernels import as_statements
from fuser.superopt.generate.kernels import build
from fuser.superopt.generate.kernels import crossing
from fuser.superopt.generate.kernels import largest
from fuser.superopt.generate.kernels import plans
from fuser.superopt.generate.program_axes import as_block
from fuser.superopt.generate.program_axes import program_dims
from fuser.superopt.generate.signature import signature
from fuser.superopt.generate.values import Counts
from fuser.superopt.generate.values import ValueSpace
from fuser.superopt.rewrite.variants import concatenated
from fuser.superopt.rewrite.variants import with_libraries

SLACK = 2
"""Operators that a whole graph may have beyond the program's own, where its kernels together may have more than one kernel."""


EARLY = 4
"""Structures that are handed on before the search goes beyond the program's own number of operators."""


@dataclass(frozen=True)
class Limits:
    """Sizes of the search. ``kernels`` and ``block_ops`` are Mirage's defaults (5 and 7; a composite counts as one operator).
    ``expressions`` and ``canonical`` are for ablations: without them nothing is pruned by abstract expressions, or a value is
    enumerated once for each way to compute it, commuted operands included. ``breadth[k]`` is the number of cheapest operator
    graphs that are cut into k + 1 kernels; ``values`` bounds memory, ``budget`` is in seconds."""

    kernels: int = 5
    block_ops: int = 7
    budget: float = 60.0
    breadth: tuple[int, ...] = (64, 32, 8, 2, 1)
    graphs: int = 2000
    values: int = 40_000
    expressions: bool = True
    canonical: bool = True
    seed: int = 0


@dataclass(frozen=True)
class Candidate:
    """A µGraph and where it comes from: the cost of its operator graph, its operators, and the axis that each kernel splits."""

    graph: KernelGraph
    cost: tuple[int, int, int]
    splits: tuple[str, ...]


@dataclass
class Report:
    """What a generator did; complete when the stream has ended. ``stopped`` says why: ``exhausted``, ``budget``, or which
    limit cut."""

    counts: Counts = field(default_factory=Counts)
    op_graphs: int = 0
    kernel_graphs: int = 0
    seconds: float = 0.0
    stopped: str = ""


def generate(program: TensorProgram, limits: Limits | None = None, report: Report | None = None) -> Iterator[Candidate]:
    """µGraphs whose outputs have the program's fingerprints, each structure once, the program's own among them; exponentials
    are bare.

    Raises :class:`~fuser.errors.UnsupportedError` where the program cannot be written over axes (see :mod:`.partition`).
    """
    limits, report = limits or Limits(), report or Report()
    started = time.monotonic()
    deadline = started + limits.budget
    graph, block, internal = as_block(program)
    known = program_dims(program)
    own = sum(1 for s in block.computes if s.value not in internal)
    most = max(limits.block_ops, own + SLACK)
    seen: set[str] = set()
    stopped = ""
    # deepening: what takes no more operators than the program comes first, at once
    for max_ops in dict.fromkeys((own, most)):
        space = ValueSpace(
            block,
            internal,
            max_ops,
            expressions=limits.expressions,
            canonical=limits.canonical,
            most=limits.values,
            seed=limits.seed,
        )
        report.counts = space.counts
        for _ in space.grow(started + 0.6 * limits.budget):
            pass
        found = op_graphs(space, limits.graphs, started + 0.8 * limits.budget)
        report.op_graphs = len(found)
        stopped = "exhausted" if space.complete else "budget"
        if len(space.values) > limits.values:
            stopped = f"the first {limits.values} values"
        if space.complete and len(found) >= limits.graphs:
            stopped = f"the {limits.graphs} cheapest operator graphs"
        structures = _structures(graph, space, found, internal, known, limits, started + 0.9 * limits.budget)
        for candidate in structures if max_ops == most else itertools.islice(structures, EARLY):
            key = signature(candidate.graph).text
            if key in seen:
                continue
            seen.add(key)
            report.kernel_graphs += 1
            report.seconds = time.monotonic() - started
            report.stopped = "the caller"
            yield candidate
            if time.monotonic() > deadline:
                break
        if time.monotonic() > deadline:
            stopped = "budget"
            break
    report.seconds = time.monotonic() - started
    report.stopped = stopped


def _structures(
    graph: KernelGraph,
    space: ValueSpace,
    found: list[OpGraph],
    internal: frozenset[str],
    known: Mapping[str, Dims],
    limits: Limits,
    deadline: float,
) -> Iterator[Candidate]:
    """All plans of the cheapest operator graphs, by a score without sizes: passes over inputs, kernels and the tensors between
    them, operators."""
    least = min((ops.ops for ops in found), default=0)
    ranked: list[tuple[tuple[int, ...], int, Plan]] = []
    bodies: list[BlockGraph] = []
    for i, ops in enumerate(found[: max(limits.breadth)]):
        bodies.append(as_statements(space, ops))
        for kernels in range(1, limits.kernels + 1):
            if i >= limits.breadth[min(kernels, len(limits.breadth)) - 1] or (ranked and time.monotonic() > deadline):
                break
            for plan in plans(bodies[i], kernels):
                if largest(bodies[i], plan, internal) <= limits.block_ops:
                    between = crossing(bodies[i], plan)
                    score = ops.passes + 2 * (kernels - 1) + between + ops.ops - least
                    ranked.append(((score, kernels, i, len(ranked)), i, plan))
    for _, i, plan in sorted(ranked, key=lambda r: r[0]):
        structure = build(graph, bodies[i], plan, known)
        yield Candidate(structure, found[i].cost, plan.splits)
        for form in (concatenated(structure), with_libraries(structure)):
            if form:
                yield Candidate(form, found[i].cost, plan.splits)
