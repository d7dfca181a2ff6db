"""Candidates of a program that are drawn at random, over all of its structures."""

from __future__ import annotations

import itertools
import math

import numpy as np

from cost_model.refined import estimate
from experiments.sampler import sample
from fuser.device import Device
from fuser.errors import UnsupportedError
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.superopt.structures import one_kernel
from fuser.superopt.structures import searched
from fuser.superopt.structures import structures
from search.measure.compiling import planned
from search.measure.measurement import Measurement
from search.measure.rows import schedule_text
from search.measure.timing import External

STRUCTURES = 12
"""Most structures of a program that are sampled; a deep chain has thousands."""

Key = tuple[str, str]
"""Hash of a structure, and a schedule as rows keep it."""


def name_of(item: Candidate | External) -> tuple[str, str]:
    """``(structure or peer, schedule)`` as rows keep them."""
    return (item.name, "") if isinstance(item, External) else (item.graph.stable_hash(), schedule_text(item.schedule))


def graphs_of(program: TensorProgram, which: str) -> tuple[KernelGraph, ...]:
    """``one``: the whole program in a kernel; ``all``: also cut into kernels and with reductions split over the grid;
    ``searched``: also what the superoptimizer finds in a few seconds."""
    if which == "one":
        return (one_kernel(program),)
    return searched(program, 4.0) if which == "searched" else structures(program)


def draw_candidates(
    program: TensorProgram,
    count: int,
    seed: int = 0,
    which: str = "all",
    known: frozenset[Key] = frozenset(),
    device: Device | None = None,
    slowest: float = math.inf,
) -> list[Candidate]:
    """Up to ``count`` sampled candidates that are not ``known``, a third of them in one kernel, the others shared among the other
    structures, mixed. Those that the model estimates ``slowest`` times the fastest of them on ``device`` come last. Raises
    :class:`UnsupportedError` if the program has none that lowers."""
    graphs = graphs_of(program, which)
    rng = np.random.default_rng([seed, len(graphs)])
    if len(graphs) > STRUCTURES:
        others = rng.choice(len(graphs) - 1, STRUCTURES - 1, replace=False) + 1
        graphs = (graphs[0], *(graphs[int(i)] for i in sorted(others)))
    per = math.ceil(count / 3) if len(graphs) > 1 else count
    shares = [per] + [max(4, math.ceil((count - per) / max(1, len(graphs) - 1)))] * (len(graphs) - 1)
    lists = [_draw(g, n, seed, i, known) for i, (g, n) in enumerate(zip(graphs, shares, strict=True))]
    if sum(map(len, lists)) < count:  # a structure whose space is small gives its share to the others
        lists = [_draw(g, count, seed, i, known) for i, g in enumerate(graphs)]
    if not any(lists) and not known:
        raise UnsupportedError(f"{program.name} has no schedule that lowers")
    first = [g[:n] for g, n in zip(lists, shares, strict=True)]
    more = [g[n:] for g, n in zip(lists, shares, strict=True)]
    mixed = [c for group in (*itertools.zip_longest(*first), *itertools.zip_longest(*more)) for c in group if c is not None]
    return (mixed if device is None else _slow_last(mixed, device, slowest))[:count]


def _draw(graph: KernelGraph, count: int, seed: int, number: int, known: frozenset[Key]) -> list[Candidate]:
    """Up to ``count`` candidates of one structure that lower and are not known."""
    digest = graph.stable_hash()
    taken = sum(k[0] == digest for k in known)
    good: list[Candidate] = []
    for schedule in sample(graph, count + count // 8 + taken, np.random.default_rng([seed, number])):
        candidate = Candidate(graph, schedule)
        # the sampler knows less than the generator about what makes sense
        if name_of(candidate) not in known and _lowers(candidate):
            good.append(candidate)
        if len(good) == count:
            break
    return good


def _lowers(candidate: Candidate) -> bool:
    """The plan stays with the candidate, so that the process that measures need not make it again."""
    return not isinstance(planned(candidate), Measurement)


def _slow_last(found: list[Candidate], device: Device, slowest: float) -> list[Candidate]:
    """The same, but what the model estimates ``slowest`` times the fastest comes last, the least slow first."""
    seconds = {c: _seconds(c, device) for c in found}
    limit = slowest * min(seconds.values(), default=0.0)
    return [c for c in found if seconds[c] <= limit] + sorted((c for c in found if seconds[c] > limit), key=lambda c: seconds[c])


def _seconds(candidate: Candidate, device: Device) -> float:
    """The model's estimate."""
    return math.fsum(estimate(block, kernel, device)["seconds"] for block, kernel in candidate.blocks)
