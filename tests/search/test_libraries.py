"""Structures in which a library does products: which there are, what they cost, and that they run."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from cost_model.refined import Product
from cost_model.refined import matmul_seconds
from fuser.device import load_device
from fuser.ir.builder import Builder
from fuser.ir.candidate import Candidate
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.ir.serialize import graph_from_json
from fuser.lower.check import check
from fuser.runtime.library import summary
from fuser.superopt.structures import structures
from fuser.workloads import workload
from search.cover.prices import by_library
from search.libraries import with_libraries
from search.library_time import library_seconds
from search.measure.compiling import CompilePool
from search.measure.measurer import Bench
from search.measure.planned import source_hash
from search.measure.records import Records
from search.measure.session import Options
from search.measure.worker import Worker
from search.ranked import INSTANT
from search.realise import realise
from search.space.evolve import STRATEGIES
from search.space.evolve import search
from search.space.schedules import ScheduleSpace
from search.tune import rank_graph
from search.tune import tune_fast
from tests.builders import chain
from tests.builders import gemm

H200 = load_device("h200")


def called(graph: KernelGraph) -> str:
    """L for a product of the library, B for a generated kernel; views are left out."""
    return "".join("B" if not isinstance(k, LibraryKernel) else "L" * (k.op == "matmul") for k in graph.kernels)


def added(program: TensorProgram) -> tuple[KernelGraph, ...]:
    """The structures with a library kernel."""
    found = structures(program)
    every = with_libraries(found)
    assert every[: len(found)] == found
    assert len({g.stable_hash() for g in every}) == len(every)
    return every[len(found) :]


def test_every_subset_of_few_products_may_be_left_to_the_library() -> None:
    assert [called(g) for g in added(gemm(32, 48, 64))] == ["L"]
    assert sorted(called(g) for g in added(chain(32, 48, 16, 16))) == ["BBL", "BL", "LB", "LBB", "LL"]
    assert [called(g) for g in added(workload("mirage/lora"))] == ["LB", "LBB"]  # few rows: the rest split too
    assert added(workload("mcfuser/S1")) == ()
    b = Builder("long")
    x = b.input("X", (16, 16))
    for i in range(4):
        x = x @ b.input(f"W{i}", (16, 16))
    four = [called(g) for g in added(b.build(Y=x)) if len(g.kernels) == 4 and not any(k.splits for k in g.blocks)]
    assert sorted(four) == ["BBBL", "BBLB", "BLBB", "LBBB", "LLLL"]


def test_a_lone_product_of_the_library_has_one_empty_schedule() -> None:
    (graph,) = added(gemm(32, 48, 64))
    space = ScheduleSpace(graph, H200)
    rng = np.random.default_rng(0)
    assert list(space.enumerate()) == [Schedule(())]
    assert space.sample(rng) == space.schedule(space.row(Schedule(()))) == Schedule(())
    for strategy in STRATEGIES:
        found = search(space, lambda f: np.zeros(len(f)), rng, INSTANT, strategy=strategy)
        assert [r.schedule for r in found.top] == [Schedule(())]
    (candidate,), _, _ = rank_graph(graph, H200, rng)
    assert candidate.seconds == library_seconds(graph, graph.kernels[0], H200)  # type: ignore[arg-type]
    assert summary(candidate.graph) == "library"


def test_the_library_wins_a_large_product_and_is_realised() -> None:
    program = workload("graphene/gemm")
    tuned = tune_fast(program, H200, graphs=with_libraries(structures(program)))
    assert called(tuned.winner.graph) == "L"
    (done,) = realise([tuned], H200)
    assert (done.candidate, done.artifacts, done.rejected) == (tuned.winner, (), {})
    assert done.check is not None
    assert dict(done.check.extents) == {"m": 48, "n": 48, "k": 48}


def test_products_of_a_library_cost_what_they_do_and_views_nothing() -> None:
    (graph,) = added(workload("graphene/gemm"))
    (kernel,) = graph.kernels
    assert isinstance(kernel, LibraryKernel)
    flops = 2 * 5376 * 5376 * 2048
    assert flops / H200.matmul_flops("float16") < library_seconds(graph, kernel, H200) < 1.5 * flops / 7e14
    b = Builder("rows")
    x, w = b.input("X", (8, 128, 64)), b.input("W", (256, 64))
    graph = added(b.build(Y=x @ b.op("transpose", w, perm=(1, 0))))[0]
    view, kernel = graph.kernels
    assert isinstance(view, LibraryKernel)
    assert isinstance(kernel, LibraryKernel)
    assert library_seconds(graph, view, H200) == 0.0
    # a batch of one operand alone is further rows
    assert library_seconds(graph, kernel, H200) == matmul_seconds(Product(1, 1024, 256, 64, "float16"), H200)


def test_batches_of_no_single_stride_are_several_calls() -> None:
    pytest.importorskip("torch")

    def seconds(*perm: int) -> float:
        b = Builder("columns", "float32")
        x, w = b.input("X", (8, 32, 32, 64)).transpose(*perm), b.input("W", (8, 32, 64, 32))
        found = by_library(b.build(Y=x @ w), H200)
        assert found is not None
        return found.winner.seconds

    assert seconds(0, 2, 1, 3) > 4 * seconds(0, 1, 2, 3)


def test_an_image_whose_channels_a_call_turns_takes_longer() -> None:
    def seconds(turned: bool) -> float:
        b = Builder("image", "float32")
        x = b.input("X", (4, 64, 32, 32)).transpose(0, 2, 3, 1) if turned else b.input("X", (4, 32, 32, 64))
        found = by_library(b.build(Y=b.op("conv2d_last", x, b.input("W", (64, 3, 3, 64)), padding=(1, 1))), H200)
        assert found is not None
        return found.winner.seconds

    assert seconds(True) > 1.5 * seconds(False)


def test_mixed_structures_hold_at_reduced_sizes() -> None:
    jobs = []
    for name in ("mirage/rmsnorm", "mcfuser/G1", "mirage/lora"):
        program = workload(name)
        for graph in added(program):
            (candidate, *_), _, _ = rank_graph(graph, H200, np.random.default_rng(0))
            jobs.append((program, candidate.candidate))
    for (program, candidate), found in zip(jobs, check(jobs), strict=True):
        assert found.passed, (program.name, called(candidate.graph), found.message)
        largest = max(e for _, e in found.extents)
        assert largest <= 4096
        assert math.prod(e for _, e in found.extents) < math.prod(fuse(program).extents.values())


def test_a_generated_kernel_behind_a_library_waits_for_it() -> None:
    graphs = {called(g): g for g in added(chain(32, 48, 16, 16))}
    options = {k: [bool(s.given) for s in ScheduleSpace(g, H200).kernels] for k, g in graphs.items()}
    assert options == {"LB": [False], "BL": [False], "LL": [], "BBL": [False, True], "LBB": [False, True]}


@pytest.fixture(scope="module")
def worker():
    pytest.importorskip("torch")
    with Worker("cpu", patience=30) as opened:
        yield opened


def test_candidates_with_libraries_are_measured_and_kept(worker: Worker, tmp_path: Path) -> None:
    program = chain(32, 48, 16, 16)
    rng = np.random.default_rng(0)
    items = [Candidate(g, ScheduleSpace(g, H200).sample(rng)) for g in added(program)]
    assert len({source_hash(i) for i in items}) == len(items)
    with Records(tmp_path / "r.db") as records:
        rows = Bench(worker, CompilePool(0), records, Options(), "run").measure(program, items)
        assert [r.status for r in rows] == ["ok"] * len(items)
    with Records(tmp_path / "r.db") as records:
        for item, row in zip(items, rows, strict=True):
            graph = records.structure(row.structure)
            assert graph is not None
            assert Candidate(graph, row.schedule_value()) == item
            assert graph_from_json(graph.to_json()) == graph
