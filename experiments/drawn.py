"""Candidates of a program that are drawn at random, over all of its structures."""

from __future__ import annotations

import itertools
import math

import numpy as np

from experiments.sampler import sample
from fuser.errors import UnsupportedError
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.superopt.structures import structures
from search.measure.measurement import Measurement
from search.measure.planned import planned
from search.measure.timing import External

STRUCTURES = 12
"""Most structures of a program that are sampled; a deep chain has thousands."""


def name_of(item: Candidate | External) -> tuple[str, str]:
    """``(structure or peer, schedule)`` as rows keep them."""
    return (item.name, "") if isinstance(item, External) else (item.graph.stable_hash(), item.schedule.text)


def draw_candidates(program: TensorProgram, count: int, seed: int = 0) -> list[Candidate]:
    """Up to ``count`` sampled candidates, a third of them in one kernel, the others shared among the other structures, mixed.
    Raises :class:`UnsupportedError` if the program has none that lowers."""
    graphs = structures(program)
    rng = np.random.default_rng([seed, len(graphs)])
    if len(graphs) > STRUCTURES:
        others = rng.choice(len(graphs) - 1, STRUCTURES - 1, replace=False) + 1
        graphs = (graphs[0], *(graphs[int(i)] for i in sorted(others)))
    per = math.ceil(count / 3) if len(graphs) > 1 else count
    shares = [per] + [max(4, math.ceil((count - per) / max(1, len(graphs) - 1)))] * (len(graphs) - 1)
    lists = [_draw(g, n, seed, i) for i, (g, n) in enumerate(zip(graphs, shares, strict=True))]
    if sum(map(len, lists)) < count:  # a structure whose space is small gives its share to the others
        lists = [_draw(g, count, seed, i) for i, g in enumerate(graphs)]
    if not any(lists):
        raise UnsupportedError(f"{program.name} has no schedule that lowers")
    first = [g[:n] for g, n in zip(lists, shares, strict=True)]
    more = [g[n:] for g, n in zip(lists, shares, strict=True)]
    groups = (*itertools.zip_longest(*first), *itertools.zip_longest(*more))
    return [c for group in groups for c in group if c is not None][:count]


def _draw(graph: KernelGraph, count: int, seed: int, number: int) -> list[Candidate]:
    """Up to ``count`` candidates of one structure that lower: the sampler knows less than the generator."""
    drawn = sample(graph, count + count // 8, np.random.default_rng([seed, number]))
    found = (c for s in drawn if not isinstance(planned(c := Candidate(graph, s)), Measurement))
    return list(itertools.islice(found, count))
