"""Searches whose measurements are shared out to workers end as they do alone, and a lost worker's jobs are done again."""

from __future__ import annotations

from concurrent.futures import Executor
from concurrent.futures import Future
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import pytest

from fuser.errors import EnvironmentError_
from fuser.pools import SPAWN
from search.tuner.campaign import Campaign
from search.tuner.judges import OPTIONS
from search.tuner.simulated import Simulated
from search.tuner.spread import Spread
from search.tuner.spread import answer
from search.tuner.spread import dask_executor
from tests.search.tuner.cases import H200
from tests.search.tuner.cases import hunt
from tests.search.tuner.cases import run


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


def spread(executor: Executor, workers: int) -> Spread:
    return Spread(executor, workers, H200, None, OPTIONS, simulated=3)


@pytest.mark.parametrize("loses", [0, 3])
def test_shared_out_a_search_finds_as_good_a_winner(loses: int) -> None:
    alone, shared, truth = hunt(), hunt(), Simulated(H200, 3)
    run([alone], Simulated(H200, 3))
    executor = Here(loses)
    judge = spread(executor, 3)
    Campaign([shared], judge).run()
    assert alone.best and shared.best
    assert truth.seconds(shared.best.candidate) <= 1.05 * truth.seconds(alone.best.candidate)
    assert len(shared.times) == sum(g.measured for g in shared.history)
    assert executor.jobs >= 3 * len(shared.history)
    assert (judge.lost > 0) == (loses > 0)
    assert shared.failures["crash"] < 8


def test_where_all_workers_are_lost_nothing_hangs_and_nothing_is_kept() -> None:
    search = hunt(generations=2)
    judge = spread(Here(1), 2)
    Campaign([search], judge).run()
    assert search.best is None
    assert search.failures["crash"] == len(search.times)
    assert not judge._known


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
        Campaign([search], spread(pool, 2)).run()
    assert search.best is not None
    assert len(search.times) == 16


def test_dask_that_is_missing_or_away_is_said() -> None:
    with pytest.raises(EnvironmentError_, match="Dask"):
        dask_executor("tcp://127.0.0.1:9")


@pytest.mark.slow
def test_a_local_dask_cluster_measures_and_may_lose_a_worker() -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        executor, workers = dask_executor(cluster.scheduler_address)
        assert workers == 2
        search, judge = hunt(generations=3), spread(executor, workers)
        campaign = Campaign([search], judge)
        campaign.watch = lambda _: cluster.scale(1) if len(search.history) == 1 else None
        campaign.run()
        executor._client.close()  # type: ignore[attr-defined]
    assert search.best is not None
    assert len(search.times) == 24
