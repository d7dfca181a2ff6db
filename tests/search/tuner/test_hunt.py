"""Algorithm 1 over structures, schedules and options together, measured on a device that does not exist."""

from __future__ import annotations

import math
import pickle
from collections import Counter
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from fuser.ir.candidate import Candidate
from fuser.ir.schedule import Schedule
from fuser.lower.options import OPTIONS
from search.measure.measurement import Found
from search.measure.measurement import Measurement
from search.measure.measurement import Turn
from search.tuner.campaign import Campaign
from search.tuner.hunt import FAR
from search.tuner.live import caption
from search.tuner.simulated import Simulated
from tests.builders import chain
from tests.search.tuner.cases import H200
from tests.search.tuner.cases import PROGRAM
from tests.search.tuner.cases import hunt
from tests.search.tuner.cases import pool
from tests.search.tuner.cases import run


def test_a_pool_has_the_best_of_several_structures() -> None:
    known = pool()
    assert len({number for number, _ in known.entries}) > 2
    for e in list(known.entries.values())[::20]:
        s = known.structures[e.structure]
        assert s.space.schedule(list(e.row)) == e.candidate.schedule
        assert e.estimate > 0


def test_a_pools_parts_come_from_other_processes() -> None:
    known = pool()
    again = pickle.loads(pickle.dumps(known))
    assert again.entries.keys() == known.entries.keys()
    option = next(x for s in again.structures.values() for k in s.space.kernels for x in k.settings).option
    assert option is OPTIONS[option.name], "options are themselves there, and not copies"


def test_the_winner_was_measured_and_is_better_than_the_models_first_choice() -> None:
    judge = Simulated(H200, 1)
    search = hunt(seed=1)
    first = min(search.pool.entries.values(), key=lambda e: e.estimate)
    campaign = run([search], judge)
    assert campaign.why == "converged"
    assert search.best is not None
    assert judge.seconds(search.best.candidate) <= judge.seconds(first.candidate)
    assert search.best.candidate in judge.measured
    assert len(search.times) == sum(g.measured for g in search.history)


def test_options_are_searched_with_tiles() -> None:
    """A device on which descriptors make everything a third faster, of which the model knows nothing."""

    class Tma(Simulated):
        def seconds(self, candidate: Candidate) -> float:
            names = [n for _, k in candidate.blocks for n, _ in k.knobs]
            return super().seconds(candidate) * (0.67 if any(n.startswith("tma") for n in names) else 1.0)

    search = hunt()
    run([search], Tma(H200, spread=0.0, noise=0.0, failing=0.0))
    assert search.best is not None
    assert any(n.startswith("tma") for _, k in search.best.candidate.blocks for n, _ in k.knobs)


def test_what_is_near_a_candidate_differs_in_one_choice() -> None:
    """But that a tile may come with another number of stages: a larger one needs their shared memory."""
    search = hunt()
    for entry in list(search.pool.entries.values())[::60]:
        structure = search.pool.structures[entry.structure]
        rows = structure.near(entry.row).tolist()
        apart = [[i for i, (a, b) in enumerate(zip(r, entry.row, strict=True)) if a != b] for r in rows]
        with_stages = [{at, place} for at, place in structure.stages.items()]
        assert all(len(p) == 1 or set(p) in with_stages or any(set(p) <= set(t) for t in structure.together) for p in apart)
        assert all(
            any(set(p) == both for p in apart) for both in with_stages if all(structure.space.knobs[i].count > 1 for i in both)
        )
        assert {p[0] for p in apart if len(p) == 1} == {i for i, k in enumerate(structure.space.knobs) if k.count > 1}
        near = search.pool.around(entry)
        assert entry not in near
        assert all(search.pool.entries[e.key] is e for e in near)


def test_what_somebody_knows_is_measured_whatever_the_space_has() -> None:
    """A value that no search tries, on a device on which it is twice as fast."""
    search = hunt()
    first = min(search.pool.entries.values(), key=lambda e: e.estimate)
    assert search.pool.include([first.candidate]) == [first]
    known = replace(first.candidate, schedule=Schedule(tuple(k.with_knobs(room=4096) for k in first.candidate.schedule.kernels)))

    class Knows(Simulated):
        def seconds(self, candidate: Candidate) -> float:
            return super().seconds(candidate) * (0.5 if candidate == known else 1.0)

    (entry,) = search.pool.include([known])
    run([search], Knows(H200))
    assert search.best is entry and not search.pool.around(entry)


def test_a_search_climbs_to_its_neighbours() -> None:
    """A device on which each further step from the model's first choice, in one knob at a time, is faster by a tenth."""
    search = hunt(generations=6)
    first = min(search.pool.entries.values(), key=lambda e: e.estimate)
    search.tell([(first, Measurement("ok", time_us=1.0))])
    asked = search.ask(8)
    assert list(search.near) == [first]
    assert sum(e in search.near[first] for e in asked) >= 8 // 3


def test_what_wins_by_luck_shrinks_nothing() -> None:
    """Noise of a twentieth on a device without drift: times are those of the device, however often the best was a lucky one."""
    off: list[float] = []
    for seed in (2, 3, 4):  # all times of a search are told by one candidate's, which has been lucky or not
        search, judge = hunt(patience=9, generations=5), Simulated(H200, seed, noise=0.05, failing=0.0)
        run([search], judge)
        off += [math.log(s / judge.seconds(e.candidate)) for e, s in search.times.items()]
        assert search.beside[0] is search.anchor is next(iter(search.times))
    assert abs(fmean(off)) < 0.05


def test_each_form_has_its_chance() -> None:
    """Of every number of parts that may be the best some are measured, whatever the model ranks in front of them."""
    search = hunt(chain(512, 512, 128, 128), patience=9, generations=7)
    best: dict[Any, float] = {}
    for e in search.pool.entries.values():
        best[e.form] = min(best.get(e.form, math.inf), e.estimate)
    run([search], Simulated(H200, spread=0.0, noise=0.0, failing=0.0))
    counts = Counter(e.form for e in search.times)
    likely = [form for form, s in best.items() if s < FAR * search.seconds]
    assert any(form[1] for form in likely)
    assert all(counts[form] for form in likely)


def test_the_same_seed_gives_the_same_winner() -> None:
    def once(seed: int) -> list[tuple[str, float]]:
        search, judge = hunt(seed=seed), Simulated(H200, 5)
        run([search], judge)
        return [(str(r.schedule), r.seconds) for r in search.top(8)]

    assert once(1) == once(1)


def test_the_residual_saves_measurements() -> None:
    """Of the time lost beside the best that either finds, the corrected search loses less, over several devices."""
    lost = {True: 0.0, False: 0.0}
    for seed in range(3):
        found = {}
        for corrected in (True, False):
            search, judge = hunt(seed=seed, generations=4), Simulated(H200, seed, spread=0.03)
            search.corrected = corrected
            run([search], judge)
            assert search.best is not None
            found[corrected] = judge.seconds(search.best.candidate)
        for corrected, seconds in found.items():
            lost[corrected] += math.log(seconds / min(found.values()))
    assert lost[True] < lost[False]


@pytest.mark.parametrize("broken", ["wrong", "timeout", "crash", "compile", "resources"])
def test_what_fails_is_counted_by_class_and_never_wins(broken: str) -> None:
    class Odd(Simulated):
        def measure(self, candidate: Candidate) -> Measurement:
            found = super().measure(candidate)
            return replace(found, status=broken) if self.bad(candidate) else found

        def bad(self, candidate: Candidate) -> bool:
            return self.draw("bad", candidate.schedule.stable_hash(), candidate.graph.stable_hash()) < 0

    search, judge = hunt(generations=3), Odd(H200, failing=0.0)
    run([search], judge)
    assert search.best is not None
    assert search.failures[broken] == sum(math.isinf(s) for s in search.times.values()) > 3
    assert not judge.bad(search.best.candidate)


def test_where_everything_fails_nothing_wins() -> None:
    search = hunt(generations=3)
    run([search], Simulated(H200, failing=1.0))
    assert search.best is None
    assert sum(search.failures.values()) == len(search.times) == 3 * 8


def test_drift_between_generations_is_no_gain() -> None:
    """A clock that slows down by a tenth with every batch: times are told beside what all batches have."""

    class Slowing(Simulated):
        batches = 0

        def compare(self, turn: Turn[Candidate]) -> Found:
            self.batches += 1
            found, others = super().compare(turn)
            slow = [replace(m, time_us=(m.time_us or 0.0) * 1.1**self.batches) for m in (*found, *others)]
            return slow[: len(found)], tuple(slow[len(found) :])

    search, judge = hunt(), Slowing(H200, noise=0.0, failing=0.0)
    run([search], judge)
    assert search.best is not None
    assert judge.measured.index(search.best.candidate) >= 8, "later generations are slower by the clock, and win"
    true = {e: judge.seconds(e.candidate) for e in search.times}
    assert true[search.best] == min(true.values())


def test_time_goes_to_where_most_can_be_gained() -> None:
    """Of two programs the one that a model runs fifty times gets the measurements that a budget allows."""
    now = [0.0]

    class Slow(Simulated):
        def measure(self, candidate: Candidate) -> Measurement:
            now[0] += 1.0
            return super().measure(candidate)

    often, once = hunt(chain(512, 128, 64, 64), patience=99), hunt(PROGRAM, patience=99)
    often.weight = 50
    campaign = run([once, often], Slow(H200), seconds=30.0, clock=lambda: now[0])
    assert campaign.why == "budget"
    assert len(often.times) > 2 * len(once.times)


@pytest.mark.parametrize("at", [3, 20, "finals"])
def test_ctrl_c_at_any_stage_of_several_searches_keeps_what_was_measured(at: int | str) -> None:
    class Stopped(Simulated):
        def compare(self, turn: Turn[Candidate]) -> Found:
            if at == "finals" and turn.again:
                raise KeyboardInterrupt
            return super().compare(turn)

        def measure(self, candidate: Candidate) -> Measurement:
            if len(self.measured) == at:
                raise KeyboardInterrupt
            return super().measure(candidate)

    searches = [hunt(generations=2), hunt(generations=2, seed=1)]
    campaign = run(searches, Stopped(H200, failing=0.0))
    assert campaign.why == "interrupted"
    told = {3: 0, 20: 16, "finals": 32}[at]
    assert sum(len(h.times) for h in searches) == told == sum(g.measured for h in searches for g in h.history)
    assert all((h.best is not None) == bool(h.history) for h in searches)


def test_ctrl_c_keeps_the_best_so_far() -> None:
    class Stopped(Simulated):
        def measure(self, candidate: Candidate) -> Measurement:
            if len(self.measured) == 13:
                raise KeyboardInterrupt
            return super().measure(candidate)

    search = hunt()
    campaign = run([search], Stopped(H200))
    assert campaign.why == "interrupted"
    assert search.best is not None
    assert len(search.times) == 8


def test_what_is_shown_names_stage_failures_and_time() -> None:
    now = [0.0]
    said: list[str] = []

    class Slow(Simulated):
        def measure(self, candidate: Candidate) -> Measurement:
            now[0] += 1.0
            return super().measure(candidate)

    search = hunt(generations=2)
    campaign = Campaign([search], Slow(H200, failing=0.3), 30.0, clock=lambda: now[0])
    campaign.watch = lambda _: said.append(caption([search], campaign, now[0]))
    campaign.run()
    assert said[0].startswith("searching: 0 of 1 done, 8 measured, ") and said[0].endswith("22 s left")
    parts = sorted(search.failures.items(), key=lambda x: (-x[1], x[0]))
    assert f"{sum(search.failures.values())} failed ({', '.join(f'{what} {n}' for what, n in parts)})" in said[-1]
    assert search.first in search.times, "the model's first choice is measured"
