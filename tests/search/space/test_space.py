"""Schedule spaces: what they hold binds and places, each program is enumerated once, and nothing is lost."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import islice
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from cost_model import paper
from cost_model.features import Counts
from cost_model.features import Features
from cost_model.shared_memory import equation1_terms
from fuser.device import load_device
from fuser.errors import NoValidKernelError
from fuser.errors import UsageError
from fuser.ir.builder import Builder
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import KernelGraph
from fuser.ir.placement import place
from fuser.ir.schedule import Schedule
from fuser.ir.schedule import bind
from fuser.superopt.structures import structures
from fuser.workloads import workload
from search.space.kernels import MAX_UNROLL
from search.space.schedules import ScheduleSpace

A100 = load_device("a100")
NAMES = ("mcfuser/G1", "mcfuser/S6", "mirage/rmsnorm", "mirage/ntrans", "graphene/layernorm", "graphene/lstm", "mcfuser/G4")


def model(f: Features) -> Counts:
    return paper.seconds(f, A100)


@lru_cache
def graphs(name: str) -> tuple[KernelGraph, ...]:
    return structures(workload(name))


@lru_cache
def small() -> ScheduleSpace:
    return ScheduleSpace(fuse(workload("mcfuser/G1", M=64, N=48, K=32, H=64)), A100)


def check(space: ScheduleSpace, schedule: Schedule) -> None:
    """A schedule binds, places, and keeps rule 4 and the limit of unrolling."""
    for kernel, s in zip(space.kernels, schedule.kernels, strict=True):
        bound, plans = bind(kernel.block, s)
        tree = place(bound, s.order, plans)
        assert {st_.key for st_ in bound.stmts} == {item.key for item, _ in tree.walk() if not item.key.startswith("I_")}
        assert all(plans[a].trips > 1 for a in s.order.axes), "loops of one trip have left the order"
        assert sum(equation1_terms(kernel.block, s).values()) <= 1.2 * A100.smem_per_block
        for _, loops in tree.walk():
            assert all(x.trips <= MAX_UNROLL for x in loops if x.unrolled)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(NAMES), st.integers(0, 2**32 - 1))
def test_samples_and_mutants_are_in_the_space(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    every = graphs(name)
    space = ScheduleSpace(every[rng.integers(len(every))], A100)
    schedule = space.sample(rng)
    check(space, schedule)
    assert space.schedule(space.row(schedule)) == schedule
    rows = np.array([space.mutate_row(space.row(schedule), rng) for _ in range(32)])
    other = next(s for row in rows[space.runs(rows)] if (s := space.schedule(row)) != schedule)
    check(space, other)
    assert space.schedule(space.row(other)) == other


@pytest.mark.parametrize("name", NAMES)
def test_enumerated_schedules_bind_and_place(name: str) -> None:
    for graph in graphs(name)[:3]:
        space = ScheduleSpace(graph, A100)
        found = list(islice(space.enumerate(), 0, 4000, 100))
        assert found
        for schedule in found:
            check(space, schedule)


def test_enumeration_gives_each_program_once_and_misses_none() -> None:
    """All rows of a small chain, decoded one by one, are the enumerated schedules."""
    space = small()
    rows = np.array(list(product(*(range(k.count) for k in space.knobs))))
    assert len(rows) == space.size
    valid = np.isfinite(space.estimate_rows(rows, lambda f: np.zeros(len(f))))
    decoded = {space.schedule(row) for row in rows[valid]}
    listed = list(space.enumerate())
    assert len(listed) == len(set(listed))
    assert set(listed) == decoded
    assert len(decoded) < valid.sum()


def test_a_part_of_a_split_that_is_one_tile_is_enumerated_once() -> None:
    every = structures(workload("mcfuser/S1", heads=1, M=16, N=32, K=32, H=16))
    graph = next(g for g in every if len(g.kernels) == 2 and g.blocks[0].splits)
    listed = list(islice(ScheduleSpace(graph, A100).enumerate(), 20_000))
    assert len(listed) == len(set(listed))


def test_programs_are_not_repeated_under_other_orders() -> None:
    """Two schedules that place to the same tree with the same tiles differ in warps or stages."""
    seen = set()
    block = small().kernels[0].block
    for schedule in small().enumerate():
        (s,) = schedule.kernels
        bound, plans = bind(block, s)
        key = (str(place(bound, s.order, plans)), s.tiles, s.num_warps, s.num_stages)
        assert key not in seen
        seen.add(key)


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(NAMES), st.integers(0, 2**32 - 1))
def test_rows_are_estimated_as_their_schedules(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    every = graphs(name)
    space = ScheduleSpace(every[rng.integers(len(every))], A100)
    rows = space.population(8, rng)
    times = space.estimate_rows(rows, model)
    for row, t in zip(rows, times, strict=True):
        schedule = space.schedule(row)
        parts = (paper.estimate(k.block, s, A100).seconds for k, s in zip(space.kernels, schedule.kernels, strict=True))
        assert t == pytest.approx(sum(parts), rel=1e-9)


def test_kernels_share_the_count_of_a_split() -> None:
    (graph, *_) = [g for g in graphs("mcfuser/G4") if any(b.splits for b in g.blocks)]
    space = ScheduleSpace(graph, A100)
    (split,) = space.splits
    for seed in range(5):
        schedule = space.sample(np.random.default_rng(seed))
        counts = {dict(k.splits)[split.name] for k in schedule.kernels}
        assert len(counts) == 1 and counts <= set(split.values)


def test_no_part_of_a_split_is_empty() -> None:
    (graph, *_) = [g for g in graphs("mcfuser/G4") if any(b.splits for b in g.blocks)]
    space = ScheduleSpace(graph, A100)
    head = space.kernels[0]
    ((axis, _),) = head.block.splits
    for schedule in islice(space.enumerate(), 0, 20000, 500):
        _, plans = bind(head.block, schedule.kernels[0])
        p = plans[axis]
        assert (p.grid - 1) * p.chunk < p.extent


@pytest.mark.parametrize(("width", "parts"), [(204800, {25, 50, 100, 200}), (3 << 18, {24, 48, 96, 192, 384, 768})])
def test_parts_of_a_row_may_be_one_tile_each(width: int, parts: set[int]) -> None:
    """Of a length that is no power of two as well: nothing is masked, and what a part folds twice is read once."""
    b = Builder("row")
    program = b.build(y=b.softmax(b.input("x", (4, width)), axis=1))
    (split,) = ScheduleSpace(next(g for g in structures(program) if len(g.kernels) == 2), A100).splits
    assert {n for n in split.values if width % n == 0 and n & (n - 1)} == parts


def test_relaxed_rules_are_noted() -> None:
    assert any("extent 2" in n for n in ScheduleSpace(graphs("mirage/rmsnorm")[0], A100).notes)


def test_a_block_that_fits_nowhere_is_an_error_with_a_way_out() -> None:
    space = ScheduleSpace(graphs("mcfuser/G1")[0], A100, slack=1e-3)
    with pytest.raises(NoValidKernelError, match="shared memory"):
        space.sample(np.random.default_rng(0))


def test_loops_of_one_trip_and_depths_without_a_loop_are_spelled_in_any_way() -> None:
    space = ScheduleSpace(graphs("mcfuser/S1")[0], A100)
    found = map(space.schedule, space.population(200, np.random.default_rng(0)))
    (plain,) = (schedule := next(s for s in found if not s.kernels[0].order.axes)).kernels
    whole = {a.name for a in graphs("mcfuser/S1")[0].blocks[0].axes if plain.tile.get(a.name) == a.extent}
    spelled = [e for e in space.kernels[0].order.values if e.axes and set(e.axes) <= whole]
    for order in spelled:
        assert space.schedule(space.row(Schedule((replace(plain, order=order, num_stages=4),)))) == schedule
    assert spelled


def test_a_foreign_schedule_is_refused() -> None:
    schedule = small().sample(np.random.default_rng(0))
    with pytest.raises(UsageError):
        ScheduleSpace(graphs("mcfuser/G4")[1], A100).row(schedule)
