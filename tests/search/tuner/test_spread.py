"""Searches whose measurements are shared out to workers end as they do alone, and a lost worker's jobs are done again."""

from __future__ import annotations

import os
import signal
from concurrent.futures import Executor
from concurrent.futures import Future
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from fuser.errors import EnvironmentError_
from fuser.pools import SPAWN
from search.measure.measurement import Measurement
from search.measure.measurement import Turn
from search.measure.records import Records
from search.measure.rows import Record
from search.tuner.campaign import Campaign
from search.tuner.cluster import Sees
from search.tuner.cluster import dask_workers
from search.tuner.cluster import shared_out
from search.tuner.cluster import workers_of
from search.tuner.judges import OPTIONS
from search.tuner.shares import Answer
from search.tuner.shares import answer
from search.tuner.simulated import Simulated
from search.tuner.spread import Spread
from search.tuner.spread import Workers
from tests.builders import chain
from tests.search.tuner.cases import H200
from tests.search.tuner.cases import PROGRAM
from tests.search.tuner.cases import hunt
from tests.search.tuner.cases import run

OTHER = chain(512, 128, 64, 64)


class Here(Executor):
    """Does the work at once; every ``loses``-th job loses its worker."""

    def __init__(self, loses: int = 0) -> None:
        self.loses, self.jobs = loses, 0

    def submit(self, work: Any, /, *args: Any, **options: Any) -> Future[Any]:
        self.jobs += 1
        future: Future[Any] = Future()
        if self.loses and self.jobs % self.loses == 0:
            future.set_exception(BrokenProcessPool("a worker is gone"))
            return future
        try:
            future.set_result(work(*args, **options))
        except Exception as error:  # noqa: BLE001 - as executors do
            future.set_exception(error)
        return future


def spread(executor: Executor, workers: int, compilers: Executor | None = None) -> Spread:
    return Spread(Workers(executor, workers, compilers), H200, None, OPTIONS, simulated=3)


@pytest.mark.parametrize(("loses", "compilers"), [(0, None), (3, None), (5, Here(4))])
def test_shared_out_a_search_finds_as_good_a_winner(loses: int, compilers: Here | None) -> None:
    alone, shared, truth = hunt(generations=4), hunt(generations=4), Simulated(H200, 3)
    run([alone], Simulated(H200, 3))
    executor = Here(loses)
    judge = spread(executor, 3, compilers)
    Campaign([shared], judge).run()
    assert alone.best and shared.best
    assert truth.seconds(shared.best.candidate) <= 1.05 * truth.seconds(alone.best.candidate)
    assert len(shared.times) == sum(g.measured for g in shared.history)
    assert executor.jobs >= 3 * len(shared.history)
    assert (judge.lost > 0) == (loses > 0)
    assert shared.failures["crash"] < 8
    assert compilers is None or compilers.jobs >= len(shared.times)


class Later(Executor):
    """Jobs wait until nobody has anything else to do; the last comes first."""

    def __init__(self) -> None:
        self.waiting, self.most = list[Any](), 0

    def submit(self, work: Any, /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, work, args))
        self.most = max(self.most, len(self.waiting))
        return future

    def sweep(self) -> None:
        while self.waiting:
            future, work, args = self.waiting.pop()
            future.set_result(work(*args))


def test_every_worker_has_a_search_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generations of several searches are under way at once, whole ones; they end as they do alone."""
    monkeypatch.setattr("search.tuner.spread.SLICE", 0.01)
    programs = [PROGRAM, OTHER, PROGRAM]
    searches = [hunt(p, generations=2) for p in programs]
    executor = Later()
    Campaign(searches, spread(executor, 2)).run()
    assert executor.most == 3, "as many as there are searches, at most two for each worker"
    for p, shared in zip(programs, searches, strict=True):
        alone = hunt(p, generations=2)
        Campaign([alone], spread(Here(), 1)).run()
        assert [str(r.schedule) for r in alone.top(3)] == [str(r.schedule) for r in shared.top(3)]


def test_a_worker_keeps_its_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where workers have names: the inputs of a program lie in one of them. When that is gone, another takes over."""
    monkeypatch.setattr("search.tuner.spread.SLICE", 0.01)

    class Named(Later):
        there: tuple[str, ...] = ("a", "b")

        def __init__(self) -> None:
            super().__init__()
            self.done: list[tuple[str, str]] = []

        def places(self) -> tuple[str, ...]:
            return self.there

        def submit_at(self, place: str, work: Any, *args: Any) -> Future[Any]:
            self.done.append((place, args[0].turn.program.stable_hash()))
            return self.submit(work, *args)

    executor = Named()
    judge = spread(executor, 2)
    searches = [hunt(p, generations=2) for p in (PROGRAM, OTHER)]
    Campaign(searches, judge).run()
    assert sorted(p for p, _ in set(executor.done)) == ["a", "b"]
    executor.there = ("b",)
    assert {judge.home(h.program) for h in searches} == {"b"}
    assert not judge.at_work


def test_what_is_compiled_is_measured_first() -> None:
    """The GPU does not wait for one search's compilers while another's are done."""
    searches = [hunt(p) for p in (PROGRAM, OTHER)]
    slow = {e.candidate.graph for e in searches[0].pool.entries.values()}

    class Slow(Here):
        def submit(self, work: Any, /, *args: Any, **options: Any) -> Future[Any]:
            return Future() if args[0].graph in slow else super().submit(work, *args, **options)

    campaign = Campaign(searches, judge := spread(Here(), 1, Slow()))
    for number, search in enumerate(searches):
        campaign._pending[number] = search.ask()
        judge.ahead([e.candidate for e in campaign._pending[number]])
    assert campaign._next() == 1
    del campaign._pending[1]
    assert campaign._next() == 0


@pytest.mark.parametrize("compilers", [None, Here(1)])
def test_where_all_workers_are_lost_nothing_hangs_and_nothing_is_kept(compilers: Here | None) -> None:
    search = hunt(generations=2)
    judge = spread(Here(0 if compilers else 1), 2, compilers)
    Campaign([search], judge).run()
    assert search.best is None
    assert search.failures["compile" if compilers else "crash"] == len(search.times)
    assert not judge.known


def test_ctrl_c_keeps_what_workers_have_sent() -> None:
    """Of the parts of a generation some are done when it is given up: their rows are kept."""
    kept: list[Any] = []

    class Interrupting(Here):
        def submit(self, work: Any, /, *args: Any, **options: Any) -> Future[Any]:
            if work is answer and self.jobs == 4:
                self.jobs += 1
                return Future()  # never done
            return super().submit(work, *args, **options)

        def sweep(self) -> None:
            raise KeyboardInterrupt

    class Keeping(Spread):
        def keep(self, part: Any, done: Any) -> None:
            kept.append(part.turn.items)

    search = hunt()
    campaign = Campaign([search], Keeping(Workers(Interrupting(), 3), H200, None, OPTIONS, simulated=3))
    campaign.run()
    assert campaign.why == "interrupted"
    assert search.best is not None
    assert len(kept) == 5, "of two generations of three parts one was not measured"


def test_rows_of_workers_are_kept_but_for_what_the_machine_did() -> None:
    """By workers that measure: the rows that they send go to the records, one by one."""
    best, other = (e.candidate for e in hunt().ask()[:2])
    made = [Measurement(time_us=3.0), Measurement("crash", "killed", lasting=False)]
    rows = tuple(Record("chain", "p", c.graph.stable_hash(), str(i), "", "d", "c", made[i]) for i, c in enumerate((best, other)))
    with Records(":memory:") as records:
        judge = Spread(Workers(Here(), 2), H200, records, OPTIONS)
        part = judge.part(Turn(PROGRAM, (best, other)), ())
        judge.keep(part, Answer(tuple(made), (), rows))
        assert [r.time_us for r in records.rows()] == [3.0]
        assert records.structure(best.graph.stable_hash()) == best.graph


def test_time_that_is_up_does_not_wait_for_compilers() -> None:
    class Never(Here):
        def submit(self, work: Any, /, *args: Any, **options: Any) -> Future[Any]:
            return Future()

    search = hunt()
    campaign = Campaign([search], spread(Here(), 2, Never()), seconds=0.2)
    campaign.run()
    assert campaign.why == "budget"
    assert not search.times, "nobody failed"


def test_an_error_of_ours_is_no_lost_worker() -> None:
    def broken(part: Any) -> Any:
        raise EnvironmentError_("no GPU on the worker")

    class Broken(Here):
        def submit(self, work: Any, /, *args: Any, **options: Any) -> Future[Any]:
            return super().submit(broken if work is answer else work, *args, **options)

    with pytest.raises(EnvironmentError_, match="no GPU on the worker"):
        Campaign([hunt()], spread(Broken(), 2)).run()


@pytest.mark.slow
def test_processes_are_workers_too() -> None:
    search = hunt(generations=2)
    with ProcessPoolExecutor(2, SPAWN) as pool:
        Campaign([search], spread(pool, 2, pool)).run()
    assert search.best is not None
    assert len(search.times) == 16


A, B = ("0", "1"), ("0",)


@pytest.mark.parametrize(
    ("seen", "taken", "given"),
    [
        ({"a": A, "b": A, "c": A}, {}, {"a": "0", "b": "1", "c": ""}),
        ({"a": A, "b": B}, {}, {"a": "1", "b": "0"}),
        ({"a": B, "b": B, "c": ()}, {}, {"a": "0", "b": "", "c": ""}),
        ({"b": A}, {"a": ("h", "0")}, {"b": "1"}),
        ({"b": A}, {"a": ("elsewhere", "0")}, {"b": "0"}),
    ],
)
def test_no_two_workers_of_a_host_share_a_gpu(
    seen: dict[str, tuple[str, ...]], taken: dict[str, tuple[str, str]], given: dict[str, str]
) -> None:
    assert shared_out({a: Sees("h", gpus, None, "", 1) for a, gpus in seen.items()}, taken) == given


def test_workers_that_declare_a_gpu_measure() -> None:
    found = {"a": Sees("h", A, None, "", 1), "b": Sees("h", A, 1.0, "", 1), "c": Sees("i", A, 1.0, "", 1)}
    assert shared_out(found, {}) == {"a": "", "b": "0", "c": "0"}


def test_dask_that_is_missing_or_away_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("search.tuner.cluster.TIMEOUT", 0.2)
    with pytest.raises(EnvironmentError_, match="Dask"):
        dask_workers("tcp://127.0.0.1:9")


def test_a_dask_cluster_measures_compiles_and_loses_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed")
    monkeypatch.chdir(tmp_path)
    spec = {n: {"cls": distributed.Nanny, "options": {"nthreads": 1, "resources": {"GPU": 1} if n != "c" else {}}} for n in "abc"}
    scheduler = {"cls": distributed.Scheduler, "options": {"dashboard": False, "host": "127.0.0.1"}}
    with distributed.SpecCluster(spec, scheduler, silence_logs=50) as cluster, distributed.Client(cluster) as client:
        workers = workers_of(client, simulated=True)
        assert workers.count == 2 and workers.compilers is not None
        searches = [hunt(generations=3), hunt(OTHER, generations=3)]
        judge = Spread(workers, H200, None, OPTIONS, simulated=3)
        campaign = Campaign(searches, judge)
        lost = cluster.workers["a"]

        def lose(_: Any) -> None:
            if sum(len(h.history) for h in searches) == 1:
                os.kill(lost.process.process.pid, signal.SIGKILL)

        campaign.watch = lose
        campaign.run()
    for search in searches:
        assert search.best is not None
        crashes = [e for e in search.times if Simulated(H200, 3).measure(e.candidate).status == "crash"]
        assert len(search.times) == 24 and search.failures["crash"] == len(crashes)
