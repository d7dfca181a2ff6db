"""The experiment on options: variants beside their base, in the interpreter, and what is said of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.options import Job
from experiments.options import Outcome
from experiments.options import family
from experiments.options import jobs_of
from experiments.options import main
from experiments.options import model_choices
from experiments.options import outcomes
from experiments.options import run
from experiments.options import table
from fuser.device import load_device
from fuser.errors import UsageError
from fuser.ir.builder import Builder
from fuser.ir.candidate import Candidate
from fuser.ir.schedule import Schedule
from fuser.superopt.structures import one_kernel
from fuser.workloads import workload
from search.measure.compiling import CompilePool
from search.measure.measurement import Measurement
from search.measure.measurer import Bench
from search.measure.records import Records
from search.measure.rows import Record
from search.measure.session import Options
from search.measure.worker import Worker
from search.space.variants import Variant
from search.space.variants import variants
from tests.builders import schedule

H200 = load_device("h200")


def test_variants_are_measured_beside_their_base():
    pytest.importorskip("torch")
    b = Builder("small")
    program = b.build(Y=b.input("X", (64, 64)) @ b.input("W", (64, 64)))
    base = Candidate(one_kernel(program), Schedule((schedule("k", m=32, n=32, k=32),)))
    made = tuple(v for v in variants(base, H200) if v.option in ("tma", "tma store", "grid_order"))
    job = Job("small", program, 0, base, made)
    with Worker("cpu") as worker, Records(":memory:") as records:
        bench = Bench(worker, CompilePool(0), records, Options(), "run")
        found = run([job], bench, 60.0)
        assert len(records) == 1 + len(made)
    assert [o.variant.option for o in found] == ["grid_order", "tma", "tma store"]
    assert all(o.status == "ok" and o.ratio for o in found)


def outcome(name: str, option: str, ratio: float | None, status: str = "ok", base: float = 10.0) -> Outcome:
    return Outcome(name, 0, Variant(option, Candidate(one_kernel(workload(name)), Schedule(()))), base, ratio, status)


def test_the_table_has_means_wins_and_failures():
    found = [
        outcome("mcfuser/S1", "tma", 2.0),
        outcome("mcfuser/S2", "tma", 0.5),
        outcome("graphene/gemm", "tma", 1.5, base=300.0),
        outcome("mcfuser/S2", "group=8", None, "wrong"),
    ]
    lines = {tuple(x.split()[:2]): x.split()[2:] for x in table(found).splitlines() if x}
    assert lines["tma", "mcfuser/S"] == ["1.000", "2.000", "1", "2"]
    assert lines["tma", "all"] == ["1.145", "2.000", "2", "3"]
    assert lines["group=8", "mcfuser/S"] == ["-", "-", "0", "0", "1", "wrong"]
    assert lines["graphene/gemm", "300.00"][:2] == ["200.00", "1.500"]


def test_families_are_series_or_suites():
    assert [family(n) for n in ("mcfuser/S4", "mcfuser/G10", "mirage/gqa-spec:8", "graphene/gemm")] == [
        "mcfuser/S",
        "mcfuser/G",
        "mirage",
        "graphene",
    ]


def test_the_models_choices_for_descriptors_have_tiles_of_powers_of_two():
    (choice,) = model_choices("graphene/gemm", "h200", 1)
    assert {tile & (tile - 1) for _, tile in choice.schedule.kernels[0].tiles} == {0}
    jobs = jobs_of({"graphene/gemm": [choice]}, H200)
    assert {v.option for j in jobs for v in j.variants} >= {"tma", "persistent=1"}


def test_a_base_that_failed_gives_no_ratio():
    b = Builder("small")
    program = b.build(Y=b.input("X", (64, 64)) @ b.input("W", (64, 64)))
    base = Candidate(one_kernel(program), Schedule((schedule("k", m=32, n=32, k=32),)))
    row = Record("small", "", "", "", "", "", "", Measurement(time_us=3.0))
    (found,) = outcomes(
        Job("small", program, 0, base, (Variant("tma", base),)),
        [replace(row, measurement=Measurement("wrong", time_us=3.0)), row],
    )
    assert (found.ratio, found.status) == (None, "ok")


def test_an_unknown_workload_is_an_error():
    with pytest.raises(UsageError, match="nowhere"):
        main(["--case", "nowhere/x", "--device", "cpu"])
