"""Gathering schedules: how many are missing, which are drawn, and in what order they are measured."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from typing import cast

import pytest

from experiments import drawn
from experiments import gather
from experiments.drawn import draw_candidates
from experiments.gather import CHUNK
from experiments.gather import chunks
from experiments.gather import make_works
from experiments.gather import parse
from experiments.gather import table
from fuser.device import load_device
from fuser.errors import EnvironmentError_
from fuser.ir.candidate import Candidate
from fuser.workloads import workload
from search.measure.compiling import planned
from search.measure.measurer import Bench
from search.measure.records import Records
from search.measure.rows import Record
from search.measure.turns import Work
from search.measure.turns import first_ready
from tests.experiments.rows import draw
from tests.experiments.rows import kernel

G1 = "mcfuser/G1"
H200 = load_device("h200")


class FakePool:
    """Compiles nothing; says that some plans are not ready yet."""

    def __init__(self) -> None:
        self.slow: set[int] = set()

    def ready(self, planned: Any) -> bool:
        return id(planned) not in self.slow


class FakeBench:
    """A device on which every schedule is right, or none is."""

    def __init__(self, status: str = "ok") -> None:
        self.pool, self.records, self.batches, self.status = FakePool(), Records(":memory:"), 0, status
        self.worker = SimpleNamespace(restarts=0)
        self.measured: list[str] = []

    def submit(self, items: Any) -> None:
        pass

    def measure(self, program: Any, items: Any, **_: Any) -> list[Record]:
        self.measured.append(program.name)
        return [kernel(program.name, 5.0, c, repeat="", status=self.status) for c in items if isinstance(c, Candidate)]


def works(**wanted: float) -> list[Work]:
    names = {"a": G1, "b": "mcfuser/G2"}
    return [Work(names[k], workload(names[k]), draw(names[k], 3 * CHUNK), wanted=v) for k, v in wanted.items()]


def test_candidates_are_spread_over_structures_and_differ_by_seed() -> None:
    program = workload("mcfuser/G4")
    found = draw_candidates(program, 60)
    structures = {c.graph.stable_hash() for c in found}
    assert len(found) == len(set(found)) == 60
    assert len(structures) >= 4
    shares = [sum(c.graph.stable_hash() == s for c in found) for s in structures]
    assert min(shares) >= 5
    assert draw_candidates(program, 60) == found
    assert len(set(draw_candidates(program, 60, seed=1)) - set(found)) > 20


def test_what_is_known_is_not_drawn_again() -> None:
    program = workload(G1)
    first = draw_candidates(program, 40)
    known = frozenset(drawn.name_of(c) for c in first)
    assert not set(draw_candidates(program, 40, known=known)) & set(first)


def test_absurdly_slow_schedules_come_last() -> None:
    found = draw_candidates(workload("mcfuser/G4"), 40, device=H200, slowest=3.0)
    times = [drawn._seconds(c, H200) for c in found]
    slow = [t > 3.0 * min(times) for t in times]
    assert any(slow)
    assert slow == sorted(slow)


def test_records_count_towards_the_target() -> None:
    known = draw(G1, 6)
    with Records(":memory:") as records:
        for c in known[:5]:
            records.add(kernel(G1, 5.0, c))
        records.add(kernel(G1, 5.0, known[0], repeat="again"))  # the same schedule once more
        records.add(kernel(G1, 0.0, known[5], status="wrong"))
        args = parse(["--to", "15", "--workers", "1"])
        (work,) = make_works([G1], args, (records,), H200, ())
        assert (work.have, work.wanted) == (5, 10)
        assert len(work.candidates) == math.ceil(10 * gather.SPARE)
        assert not set(work.candidates) & set(known), "the wrong one neither counts nor comes again"
        (full,) = make_works([G1], parse(["--to", "5", "--workers", "1"]), (records,), H200, ())
        assert (full.wanted, full.candidates) == (0, [])


def test_workloads_take_turns_until_they_have_enough() -> None:
    fake = FakeBench()
    both = works(a=math.inf, b=CHUNK)
    assert [c.work.name for c in chunks(both)] == [G1, "mcfuser/G2"] * 3
    gather.run(both, cast(Bench, fake), 100.0)
    assert fake.measured == [G1, "mcfuser/G2", G1, G1], "the second had what it wanted after its first chunk"
    assert both[1].done


def test_what_is_compiled_goes_first() -> None:
    fake = FakeBench()
    both = works(a=math.inf, b=math.inf)
    fake.pool.slow = {id(planned(both[0].candidates[3]))}
    first = first_ready(chunks(both), cast(Bench, fake), 10.0)
    assert first.work.name == "mcfuser/G2"


def test_a_machine_on_which_nothing_works_is_said_to_be_at_fault() -> None:
    with pytest.raises(EnvironmentError_, match="nothing works here"):
        gather.run(works(a=math.inf, b=math.inf), cast(Bench, FakeBench("crash")), 100.0)


def test_the_time_is_kept(capsys: pytest.CaptureFixture) -> None:
    fake = FakeBench()
    gather.run(works(a=math.inf), cast(Bench, fake), 2.0)
    assert fake.measured == []
    assert "3 are left" in capsys.readouterr().err


def test_the_table_says_what_came_of_it() -> None:
    (work,) = works(a=math.inf)
    work.rows = [kernel(G1, us, c, repeat="") for us, c in zip((3.0, 9.0, 5.0), work.candidates, strict=False)]
    line = table([work]).splitlines()[1].split()
    assert line[:8] == [G1, "0", "3", "0", "1", "3.00", "5.00", "9.00"]


def test_a_real_run_in_the_interpreter_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(gather, "_drawn", _small)
    monkeypatch.setattr(gather, "workload", lambda name: workload(name, M=32, N=32, K=16, H=16))
    monkeypatch.setattr(gather, "ProcessPoolExecutor", Inline)
    args = [G1, "--to", "2", "--device", "cpu", "--out", str(tmp_path), "--budget", "100"]
    args += ["--known", str(tmp_path / "none.jsonl")]
    (tmp_path / "none.jsonl").write_text("")
    assert gather.main(args) == 0
    assert len((tmp_path / "gather.jsonl").read_text().splitlines()) >= 4
    with Records(tmp_path / "gather.sqlite") as records:
        assert len(gather.correct(records, G1)) >= 2
        before = len(records)
    assert gather.main(args) == 0, "nothing is left to do"
    with Records(tmp_path / "gather.sqlite") as records:
        assert len(records) == before


def _small(name: str, count: int, seed: int, which: str, known: frozenset, *_: Any) -> list[Candidate]:
    return draw_candidates(workload(name, M=32, N=32, K=16, H=16), count, seed, "one", known) if count else []


class Inline:
    """An executor that has no processes."""

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, function: Any, *args: Any) -> Any:
        return SimpleNamespace(result=lambda: function(*args))
