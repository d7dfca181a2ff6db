"""Measuring on the CPU with Triton's interpreter, in the worker's own process: what is correct is timed, what is not is named,
and nothing takes the run down."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

import pytest

from fuser.ir.builder import Builder
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.runtime.plan import Plan
from fuser.superopt.structures import one_kernel
from search.measure.compiling import CompilePool
from search.measure.compiling import build
from search.measure.measurer import Bench
from search.measure.planned import planned
from search.measure.planned import source_hash
from search.measure.records import Records
from search.measure.session import Options
from search.measure.timing import External
from search.measure.timing import spread
from search.measure.worker import Worker
from tests.builders import chain

HERE = "tests.search.measure.test_measure"


PROGRAM = chain(32, 48, 16, 16)
GRAPH = one_kernel(PROGRAM)


def candidate(order: str = "n", graph: KernelGraph = GRAPH, **tiles: int) -> Candidate:
    axes = {a: 16 for b in graph.blocks for a in b.extents} | tiles
    return Candidate(graph, Schedule((KernelSchedule(tuple(sorted(axes.items())), TilingExpr.parse(order), (), 4, 2),)))


def eager(program: TensorProgram, name: str, device: str) -> Any:
    """A peer for the worker: right, wrong, not a number, or worse, as ``name`` says."""
    from fuser.runtime.torch_program import run_program

    def call(inputs: dict[str, Any]) -> dict[str, Any]:
        found = run_program(program, inputs)
        if name == "off":
            return {n: x * 1.1 for n, x in found.items()}
        if name == "nan":
            return {n: x * float("nan") for n, x in found.items()}
        if name == "dies":
            os._exit(9)
        if name == "hangs":
            time.sleep(60)
        if name == "raises":
            raise ValueError("no such thing")
        return found

    return call


def test_right_candidates_are_timed_and_wrong_ones_named(worker: Worker) -> None:
    with Records(":memory:") as records:
        bench = Bench(worker, CompilePool(0), records, Options(), "run")
        misfit = Candidate(GRAPH, Schedule(()))
        items = [candidate(), candidate(m=32), misfit, *(External(f"{HERE}:eager", n) for n in ("fine", "off", "nan", "raises"))]
        rows = bench.measure(PROGRAM, items)
        assert [r.status for r in rows] == ["ok", "ok", "invalid", "ok", "wrong", "nan", "invalid"]
        for r in rows:
            assert r.ok == (r.time_us is not None)
            assert r.workload == "chain"
            assert r.device == "cpu-interpreter"
        assert rows[0].measurement.error_fro is not None
        assert rows[0].measurement.error_fro < 2e-3
        assert rows[4].measurement.error_fro == pytest.approx(0.1, rel=0.02)
        assert "no such thing" in rows[6].detail
        assert [r.kind for r in rows] == ["kernel"] * 3 + ["peer"] * 4
        assert len({r.batch for r in rows if r.batch}) == 1
        assert rows[0].source != rows[1].source


def test_nothing_is_timed_twice_unless_asked(worker: Worker) -> None:
    with Records(":memory:") as records:
        bench = Bench(worker, CompilePool(0), records, Options(), "run")
        first = bench.measure(PROGRAM, [candidate()])[0]
        second = bench.measure(PROGRAM, [candidate()])[0]
        assert second == first
        assert len(records) == 1
        again = bench.measure(PROGRAM, [candidate()], again=True)[0]
        assert again.repeat == "run"
        assert len(records) == 2
        assert bench.known(PROGRAM, candidate(m=32)) is None


@pytest.mark.slow
def test_a_candidate_that_kills_or_stops_the_process_costs_only_itself(worker: Worker) -> None:
    before = worker.restarts
    jobs = [External(f"{HERE}:eager", n) for n in ("fine", "dies", "fine", "hangs", "fine")]
    found = worker.run(PROGRAM, jobs, Options(seed=1))
    assert [m.status for m in found] == ["ok", "crash", "ok", "timeout", "ok"]
    assert worker.restarts == before + 4, "each of the two once more, alone"


def test_deep_chains_get_inputs_that_do_not_overflow(worker: Worker) -> None:
    b = Builder("deep")
    x = b.input("X", (16, 512))
    for i in range(4):
        x = x @ b.input(f"W{i}", (512, 512))
    found = worker.run(b.build(Y=x), [External(f"{HERE}:eager", "fine")], Options())
    assert found[0].status == "ok"


def test_builds_name_what_the_compiler_refuses() -> None:
    made = planned(candidate())
    assert isinstance(made, Plan)
    built = build(made, 90)
    assert built.result.status == "ok"
    assert len(built.artifacts) == 1
    source = made.sources[0]
    assert source is not None
    for there, instead in (("tl.dot(", "tl.no_such_thing("), ("@triton.jit", "if True:\n@triton.jit")):
        broken = replace(made, sources=(replace(source, text=source.text.replace(there, instead)),))
        assert build(broken, 90).result.status == "compile"


def test_a_pool_compiles_in_the_background() -> None:
    made = planned(candidate(m=32))
    assert isinstance(made, Plan)
    with CompilePool(90, 1) as pool:
        pool.submit(made)
        with pytest.raises(TimeoutError):
            pool.result(made, 0.0)
        assert pool.result(made, 60).result.status == "ok"
    with CompilePool(0) as pool:
        assert pool.ready(made)
        assert pool.result(made).artifacts == ()


def test_schedules_that_cannot_be_planned_say_why() -> None:
    made = planned(Candidate(GRAPH, Schedule(())))
    assert not isinstance(made, Plan)
    assert made.status == "invalid"
    assert "schedule" in made.detail
    assert source_hash(Candidate(GRAPH, Schedule(()))) == ""


def test_spread_is_relative_to_the_median() -> None:
    assert spread([2.0] * 11) == 0.0
    assert spread([1.0, *[2.0] * 9, 100.0]) == 0.0
    assert spread([float(i) for i in range(1, 12)]) == pytest.approx((10 - 2) / 6)
