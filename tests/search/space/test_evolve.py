"""Search strategies: the exhaustive one is exact, the others come close, all are deterministic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from functools import partial

import numpy as np
import pytest

from cost_model import paper
from cost_model.features import Counts
from cost_model.features import Features
from cost_model.floor import least_seconds
from fuser.device import load_device
from fuser.errors import NoValidKernelError
from fuser.errors import UsageError
from fuser.ir.fuse import fuse
from fuser.ir.schedule import Schedule
from fuser.superopt.structures import structures
from fuser.workloads import workload
from search.ranked import EFFORTS
from search.ranked import INSTANT
from search.ranked import QUICK
from search.space.estimates import estimator
from search.space.evolve import LOOKED
from search.space.evolve import STRATEGIES
from search.space.evolve import rank
from search.space.evolve import search
from search.space.schedules import ScheduleSpace
from tests.builders import gemm
from tests.work import at_most

A100, H200 = load_device("a100"), load_device("h200")


def model(f: Features) -> Counts:
    return paper.seconds(f, A100)


@lru_cache
def space(name: str = "mcfuser/G1") -> ScheduleSpace:
    return ScheduleSpace(fuse(workload(name)), A100)


def seconds(schedule: Schedule) -> float:
    """The paper's model on one schedule, standing in for a device."""
    return paper.estimate(space().kernels[0].block, schedule.kernels[0], A100).seconds


def test_rank_is_the_minimum_over_the_enumeration() -> None:
    small = ScheduleSpace(fuse(workload("mcfuser/G1", M=64, N=48, K=32, H=64)), A100)
    block = small.kernels[0].block
    every = sorted(paper.estimate(block, s.kernels[0], A100).seconds for s in small.enumerate())
    found = rank(small, model, 5)
    assert [r.estimate for r in found.top] == pytest.approx(every[:5], rel=1e-12)
    assert found.estimated == len(every)


def test_kernels_of_a_graph_are_ranked_together() -> None:
    """The best sum over kernels and splits, against every pair of a cut and split chain."""
    graph = next(
        g for g in structures(workload("mcfuser/G1", M=32, N=64, K=16, H=16)) if len(g.blocks) == 2 and g.blocks[0].splits
    )
    s = ScheduleSpace(graph, A100)
    best = {}
    for schedule in s.enumerate():
        for number, (k, part) in enumerate(zip(s.kernels, schedule.kernels, strict=True)):
            key = (number, dict(part.splits)[s.splits[0].name])
            t = paper.estimate(k.block, part, A100).seconds
            best[key] = min(best.get(key, np.inf), t)
    expected = min(best[0, v] + best[1, v] for v in s.splits[0].values)
    assert rank(s, model, 3).best.estimate == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["mcfuser/G1", "mcfuser/S1", "mirage/rmsnorm", "graphene/layernorm"])
def test_no_schedule_is_expected_below_the_bound(name: str) -> None:
    for graph in structures(workload(name)):
        mine, rng = ScheduleSpace(graph, H200), np.random.default_rng(0)
        rows = mine.sample_rows(64, rng)
        for number, batch in enumerate(mine.batches(rows)):
            block, counts = mine.kernels[number].block, [dict(mine.schedule(r).kernels[number].splits) for r in rows[:4]]
            seconds = batch.seconds(estimator(H200))[:4]
            assert all(s >= least_seconds(block, c, H200) for s, c in zip(seconds, counts, strict=True))


def test_parts_that_cannot_win_are_not_ranked() -> None:
    """The same schedules are found with fewer estimates."""
    graph = next(g for g in structures(gemm(512, 1024, 768)) if g.blocks[0].splits)
    least = partial(least_seconds, device=H200)
    every, fewer = (rank(ScheduleSpace(graph, H200, least=x), estimator(H200), 8) for x in (None, least))
    assert fewer.top == every.top and 0 < fewer.estimated < every.estimated
    some = rank(ScheduleSpace(graph, H200, least=least), estimator(H200), 8, each=1)
    assert some.estimated == every.estimated  # some of each are wanted


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies_are_deterministic(strategy: str) -> None:
    def run() -> object:
        return search(space(), model, np.random.default_rng(0), INSTANT, strategy=strategy)

    assert run() == run()


def test_evolution_finds_nearly_the_best_with_fewer_estimates() -> None:
    exact = rank(space("mcfuser/G4"), model, 1)
    found = search(space("mcfuser/G4"), model, np.random.default_rng(0), INSTANT, strategy="evolution")
    assert found.best.estimate <= 1.1 * exact.best.estimate
    assert found.estimated < exact.estimated
    assert found.why == "converged"


def test_evolution_starts_from_the_best_of_a_sample_that_is_at_hand() -> None:
    exact = rank(space("mcfuser/G4"), model, 1).best
    few = replace(INSTANT, population=4, generations=1)

    def first(worth: float) -> float:
        found = search(space("mcfuser/G4"), model, np.random.default_rng(0), few, strategy="evolution", worth=worth)
        return found.best.estimate / exact.estimate

    assert first(exact.seconds) < 1.02 < first(np.inf)


def test_algorithm_1_measures_the_top_n_of_each_generation_once() -> None:
    asked: list[Schedule] = []

    def measure(schedules: Sequence[Schedule]) -> list[float]:
        asked.extend(schedules)
        return [1.3 * seconds(s) for s in schedules]

    found = search(space(), model, np.random.default_rng(0), QUICK, measure)
    assert found.strategy == "evolution" and found.why == "converged"
    assert len(asked) == len(set(asked)) == found.measured <= QUICK.top * len(found.history)
    assert found.best.measured == min(1.3 * seconds(s) for s in asked)
    assert all(a.best_so_far >= b.best_so_far for a, b in zip(found.history, found.history[1:], strict=False))


def test_measurement_overrules_the_model() -> None:
    """A device that runs anything with 8 warps ten times faster."""

    def measure(schedules: Sequence[Schedule]) -> list[float]:
        return [seconds(s) * (0.1 if s.kernels[0].num_warps == 8 else 1.0) for s in schedules]

    for strategy in STRATEGIES:
        patient = replace(QUICK, patience=6)
        found = search(space(), model, np.random.default_rng(0), patient, measure, strategy)
        assert found.best.schedule.kernels[0].num_warps == 8, strategy


@pytest.mark.parametrize("odd", [float("nan"), 0.0, -1.0])
def test_what_is_no_time_never_wins(odd: float) -> None:
    def measure(schedules: Sequence[Schedule]) -> list[float]:
        return [odd if i % 2 == 0 else seconds(s) for i, s in enumerate(schedules)]

    found = search(space(), model, np.random.default_rng(0), QUICK, measure)
    assert found.best.measured is not None
    assert 0 < found.best.measured < np.inf
    with pytest.raises(NoValidKernelError):
        search(space(), model, np.random.default_rng(0), QUICK, lambda s: [odd] * len(s))


def test_failed_measurements_never_win() -> None:
    def measure(schedules: Sequence[Schedule]) -> list[float]:
        return [np.inf if s.kernels[0].num_stages == 2 else seconds(s) for s in schedules]

    found = search(space(), model, np.random.default_rng(0), replace(QUICK, patience=6), measure)
    assert found.best.schedule.kernels[0].num_stages != 2
    with pytest.raises(NoValidKernelError, match="measured"):
        search(space(), model, np.random.default_rng(0), QUICK, lambda schedules: [np.inf] * len(schedules))


def test_interruption_returns_the_best_so_far() -> None:
    calls = []

    def measure(schedules: Sequence[Schedule]) -> list[float]:
        if calls:
            raise KeyboardInterrupt
        calls.append(1)
        return [seconds(s) for s in schedules]

    found = search(space(), model, np.random.default_rng(0), replace(QUICK, patience=9), measure)
    assert found.why == "interrupted" and found.best.measured is not None


def test_what_the_model_refuses_is_never_chosen() -> None:
    def refuse(f: Features) -> Counts:
        return np.where(f.warps == 4, np.inf, model(f))

    for strategy in STRATEGIES:
        found = search(space(), refuse, np.random.default_rng(0), INSTANT, strategy=strategy)
        assert all(r.schedule.kernels[0].num_warps != 4 for r in found.top)
    with pytest.raises(NoValidKernelError):
        rank(space(), lambda f: np.full(len(f), np.inf))


def test_what_will_not_pay_is_not_searched() -> None:
    whole = search(space("mcfuser/G12"), model, np.random.default_rng(0))
    little = search(space("mcfuser/G12"), model, np.random.default_rng(0), worth=whole.best.seconds / 2)
    assert little.why == "hopeless"
    assert little.estimated < whole.estimated
    assert whole.best.seconds <= little.best.seconds < np.inf
    least = search(space("mcfuser/G12"), model, np.random.default_rng(0), worth=whole.best.seconds / 1e3)
    assert least.why == "hopeless" and least.estimated == LOOKED[0][0]
    slow = whole.best.seconds / (LOOKED[1][1] + 1)  # the first stage lets more pass
    assert search(space("mcfuser/G12"), model, np.random.default_rng(0), worth=slow).estimated in [n for n, _ in LOOKED]
    same = search(space("mcfuser/G12"), model, np.random.default_rng(0), worth=whole.best.seconds)
    assert same.best.schedule == whole.best.schedule


def test_unknown_strategy() -> None:
    with pytest.raises(UsageError, match="annealing"):
        search(space(), model, np.random.default_rng(0), strategy="annealing")


@pytest.mark.parametrize("name", ["mcfuser/G6", "mcfuser/S8", "mcfuser/S1", "graphene/gemm"])
def test_instant_search_is_instant(name: str) -> None:
    """Candidates are estimated in arrays: a few calls of the model, and little work beside them for each of thousands."""
    batches: list[int] = []

    def counted(f: Features) -> Counts:
        batches.append(len(f))
        return model(f)

    with at_most(100_000):
        found = search(ScheduleSpace(fuse(workload(name)), A100), counted, np.random.default_rng(0), EFFORTS["instant"])
    assert sum(batches) == found.estimated > 1000
    assert len(batches) < 20
