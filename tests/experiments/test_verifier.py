"""The verifier on random rewritings and mutants of right µGraphs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from experiments.mirage.edit import NotApplicable
from experiments.mirage.mutations import MUTATIONS
from experiments.mirage.mutations import mutate
from experiments.mirage.oracle import NotComputableError
from experiments.mirage.oracle import difference
from experiments.mirage.programs import correct
from experiments.mirage.programs import programs
from experiments.mirage.rewrites import random_schedule
from experiments.mirage.rewrites import rewrite
from fuser.ir.fuse import fuse
from fuser.ir.schedule import bind
from fuser.superopt.verify.checking import checking_schedules
from fuser.superopt.verify.reduced import reduction
from fuser.superopt.verify.verdict import Accepted
from fuser.superopt.verify.verifier import verify

PROGRAMS = {p.name: p for p in programs()}


def test_checking_sizes_exercise_grid_loops_and_splits() -> None:
    """Every divided axis has two tiles, every loop three trips, one ragged; splits three parts."""
    rng = np.random.default_rng(0)
    for program in PROGRAMS.values():
        for graph in correct(program):
            case = reduction(program, graph).draw(rng)
            schedule = next(checking_schedules(case.graph))
            ragged = False
            for small, chosen in zip(case.graph.blocks, schedule.kernels, strict=True):
                block, plans = bind(small, chosen)
                counts = {g for _, g in block.splits}
                for axis, plan in plans.items():
                    if axis in counts:
                        assert plan.grid >= 3
                    elif axis in chosen.order.axes:
                        assert plan.trips >= 3, f"{axis} of {graph}"
                        ragged |= plan.ragged
                    elif axis in block.spatial and axis not in block.reduced:
                        assert plan.grid >= 2, f"{axis} of {graph}"
            assert ragged or not any(k.order.axes for k in schedule.kernels)


@settings(max_examples=14, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(PROGRAMS)), st.integers(0, 10**6), st.booleans())
def test_true_rewritings_are_accepted(name: str, seed: int, scheduled: bool) -> None:
    rng = np.random.default_rng(seed)
    program = PROGRAMS[name]
    steps, graph = rewrite(fuse(program), rng, 3)
    verdict = verify(program, graph, random_schedule(graph, rng) if scheduled else None, rng=rng, rounds=1)
    assert isinstance(verdict, Accepted), f"{steps}: {verdict}\n{graph}"


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(PROGRAMS)), st.integers(0, 10**6))
def test_mutants_are_refused(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    program = PROGRAMS[name]
    graphs = correct(program)
    try:
        mutation, mutant = mutate(graphs[int(rng.integers(len(graphs)))], rng)
    except NotApplicable:
        return
    try:
        if not difference(program, mutant, rng):
            return
    except NotComputableError:
        pass
    assert mutation in MUTATIONS
    assert not verify(program, mutant, rng=rng, float_rounds=0).accepted, f"{mutation}\n{mutant}"
