"""Schedules in clusters among the others of a structure."""

from __future__ import annotations

from fuser.device import load_device
from fuser.ir.builder import Builder
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.lower.triton_source import generate_graph
from fuser.superopt.structures import structures
from search.ranked import QUICK
from search.space.clusters import cluster_space
from search.space.kernels import kernel_space
from search.tune import estimator
from search.tune import tune_fast
from search.tuner.pool import jobs_of
from search.tuner.pool import part

H200 = load_device("h200")


def norm_of(rows: int, columns: int, name: str = "norm") -> TensorProgram:
    b = Builder(name)
    return b.build(Y=b.layer_norm(b.input("X", (rows, columns))))


def test_rows_that_no_block_can_hold_are_shared_out() -> None:
    tuned = tune_fast(norm_of(32, 131072), H200)
    (schedule,) = tuned.winner.schedule.kernels
    assert schedule.cluster
    (source,) = generate_graph(tuned.winner.graph, tuned.winner.schedule)
    assert 2 <= source.cluster <= 8 and source.grid == 32 * source.cluster


def test_short_rows_and_products_stay_whole() -> None:
    assert not any(s.cluster for s in tune_fast(norm_of(4096, 1024), H200).winner.schedule.kernels)
    b = Builder("product")
    product = b.build(Y=b.softmax(b.input("X", (64, 4096)) @ b.input("W", (4096, 512))))
    spaces = [kernel_space(k, H200) for g in structures(product) for k in g.blocks]
    assert all(cluster_space(s) is None for s in spaces if any(x.contracts for x in s.block.computes))
    (space,) = (kernel_space(k, load_device("a100")) for k in structures(norm_of(8, 65536))[0].blocks)
    assert cluster_space(space) is None


def test_every_schedule_of_the_space_has_a_kernel_and_a_price() -> None:
    graph = structures(norm_of(4, 20000))[0]
    space = cluster_space(kernel_space(graph.blocks[0], H200))
    assert space is not None
    for batch in space.batches({}):
        seconds = batch.seconds(estimator(H200))
        for i in range(len(batch)):
            (source,) = generate_graph(graph, Schedule((batch.schedule(i),)))
            assert source.cluster > 1 and source.exchanges == 2
            assert seconds[i] > 1e-6


def test_a_search_by_measurements_has_them_as_a_structure() -> None:
    program = norm_of(16, 65536)
    (job,) = (j for j in jobs_of(program, [structures(program)[0]], H200, QUICK) if j[-1] == "clusters")
    found = part(job)
    assert found is not None
    _, entries = found
    assert entries and all(e.candidate.schedule.kernels[0].cluster for e in entries)


def test_images_with_their_channels_last_are_shared_out_by_places() -> None:
    """So that a block reads whole lines, though channels come first where it writes."""
    b = Builder("images")
    x = b.input("X", (16, 4096, 64)).transpose(0, 2, 1)
    block = structures(b.build(Y=x / b.sum(x * x, 1, 2, keepdims=True)))[0].blocks[0]
    space = cluster_space(kernel_space(block, H200))
    assert space is not None
    assert [block.extents[a] for a in block.stores[0].axes] == [16, 64, 4096]
    assert block.extents[dict(space.always)["cluster"]] == 4096
