"""Which cases and candidates a bench takes, and what it measures again when it goes on."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any
from typing import cast

import pytest

from experiments import candidates as module
from experiments.candidates import Case
from experiments.candidates import Request
from experiments.candidates import best_known
from experiments.candidates import cases_of
from experiments.candidates import plan
from experiments.compare import measured
from experiments.compare import run
from experiments.drawn import draw_candidates
from experiments.peers import peers_of
from fuser.errors import UsageError
from fuser.ir.candidate import Candidate
from fuser.workloads import workload
from search.measure.known import PACKAGED
from search.measure.known import load
from search.measure.measurer import Bench
from search.measure.records import Records
from search.measure.rows import Record
from search.measure.timing import External
from tests.experiments.rows import DEVICE
from tests.experiments.rows import draw
from tests.experiments.rows import kernel
from tests.experiments.rows import peer

G1 = "mcfuser/G1"


class FakeBench:
    """A bench whose device is a table: every candidate takes 5 µs, every peer 6, and each question is noted."""

    def __init__(self, records: Records, generator: str = "g1") -> None:
        self.records, self.run, self.generator, self.batches = records, "bench", generator, 0
        self.worker = SimpleNamespace(info={"device": DEVICE}, slow_patience=0.0)
        self.asked: list[tuple[str, int]] = []

    def submit(self, items: Any) -> None:
        pass

    def measure(self, program: Any, items: Any, again: bool = False, compile_timeout: float | None = None) -> list[Record]:
        self.asked.append((program.name, len(items)))
        rows = []
        for item in items:
            common = {"batch": f"bench/{self.batches}", "repeat": "bench" if again or isinstance(item, External) else ""}
            if isinstance(item, Candidate):
                self.records.add_structure(item.graph)
                rows.append(kernel(program.name, 5.0, item, generator=self.generator, **common))
            else:
                rows.append(peer(program.name, item.name, 6.0, **common))
            self.records.add(rows[-1], again=bool(rows[-1].repeat))
        self.batches += 1
        return rows


def case(name: str, peers: tuple[str, ...] = ("eager",), count: int = 2, drawn: int = 0) -> Case:
    found = draw(name, count + drawn)
    return Case(name, workload(name), None, tuple(found[:count]), (), tuple(found[count:]), peers_of(workload(name), peers))


def go(records: Records, cases: list[Case], seconds: float = math.inf, **options: Any) -> tuple[list[Any], FakeBench]:
    fake = FakeBench(records, **options)
    return list(run(cast(Bench, fake), cases, seconds)), fake


@pytest.mark.parametrize(
    ("suites", "cases", "wanted"),
    [
        (["mcfuser"], ["S[12]"], ["mcfuser/S1", "mcfuser/S2"]),
        (["mirage"], ["gqa-*:8"], ["mirage/gqa-inc:8", "mirage/gqa-spec:8", "mirage/gqa-prefill:8", "mirage/gqa-repeat:8"]),
        (["mirage/rms*", "graphene"], ["rmsnorm", "l*"], ["mirage/rmsnorm", "graphene/lstm", "graphene/layernorm"]),
        (["mirage/lora:8"], [], ["mirage/lora:8"]),
    ],
)
def test_cases_by_globs(suites: list[str], cases: list[str], wanted: list[str]) -> None:
    assert list(cases_of(suites, cases)) == wanted


def test_unknown_suites_and_cases_name_what_there_is() -> None:
    with pytest.raises(UsageError, match="no workload fits 'mlperf/"):
        cases_of(["mlperf"])
    with pytest.raises(UsageError, match="no case of mcfuser is called Z9") as caught:
        cases_of(["mcfuser"], ["Z9"])
    assert "G1, G2" in (caught.value.hint or "")


def test_the_fastest_recorded_schedules_that_never_failed() -> None:
    """By the latest run of each."""
    good, better, failed = draw(G1, 3)
    with Records(":memory:") as records:
        for c, us in ((good, 4.0), (better, 3.0), (failed, 1.0)):
            records.add_structure(c.graph)
            records.add(kernel(G1, us, c, timestamp="2026-01-02"))
        records.add(kernel(G1, 0.0, failed, status="wrong", repeat="later"))
        records.add(kernel(G1, 2.0, good, repeat="lucky", timestamp="2026-01-01"))
        assert [(r.candidate, r.us) for r in best_known(records, G1, DEVICE, 5)] == [(better, 3.0), (good, 4.0)]
        assert len(best_known(records, G1, DEVICE, 1)) == 1
        assert best_known(records, G1, "NVIDIA A100", 5) == ()


UNMEASURED = {"mirage/gqa-repeat", "mirage/gqa-repeat:8"}
"""Cases that were added after the last measurements."""


def test_the_package_knows_schedules_of_every_case_of_both_papers() -> None:
    with Records(":memory:") as records:
        load(records, [PACKAGED])
        unknown = {n for n in cases_of(["mcfuser", "mirage"]) if not best_known(records, n, DEVICE, 2)}
        assert unknown <= UNMEASURED


def test_random_schedules_where_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RANDOM", 5)
    first = draw("graphene/gemm", 1)[0]
    with Records(":memory:") as none, Records(":memory:") as some:
        some.add_structure(first.graph)
        some.add(kernel("graphene/gemm", 200.0, first))

        def planned(source: Records, **fields: Any) -> Case:
            return plan(["graphene/gemm"], Request(top=0, **fields), (source,), DEVICE, ())[0]

        assert len(planned(none).drawn) == 5
        assert planned(some).drawn == ()
        assert planned(some).candidates == (first,)
        assert len(planned(some, random=2).drawn) == 2
        assert planned(none).drawn == planned(none).drawn, "the same seed draws the same"
        # a few that a person would try come first, whatever the seed
        assert planned(none, random=20, seed=1).drawn != planned(none, random=20).drawn


def test_the_model_chooses_and_says_why_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    with Records(":memory:") as none:
        found = plan(["graphene/layernorm"], Request(top=2, random=0), (none,), DEVICE, ("eager",))[0]
        assert len(found.candidates) == 2
        assert found.choice is not None
        monkeypatch.setattr(module, "choose_all", lambda names, target: dict.fromkeys(names, "no structure lowers"))
        found = plan(["graphene/layernorm"], Request(top=2, random=0), (none,), DEVICE, ("eager",))[0]
        assert (found.candidates, found.note) == ((), "no structure lowers")


class TestGoingOn:
    def test_a_second_run_measures_what_is_missing(self) -> None:
        with Records(":memory:") as records:
            results, fake = go(records, [case(G1)])
            assert [r.speedup for r in results] == [pytest.approx(1.2)]
            assert fake.asked == [(G1, 3)]
            results, fake = go(records, [case(G1), case("mcfuser/G2")])
            assert fake.asked == [("mcfuser/G2", 3)]
            assert [r.program.name for r in results] == [G1, "mcfuser/G2"]
            assert len(results[0].rows) == 3

    def test_another_peer_or_generator_measures_all_of_a_case(self) -> None:
        with Records(":memory:") as records:
            go(records, [case(G1)])
            assert go(records, [case(G1, ("eager", "inductor"))])[1].asked == [(G1, 4)]
            assert go(records, [case(G1)])[1].asked == []
            assert go(records, [case(G1)], generator="g2")[1].asked == [(G1, 3)]

    def test_rows_of_two_comparisons_are_never_mixed(self) -> None:
        with Records(":memory:") as records:
            go(records, [case(G1, count=3)])
            (result,), fake = go(records, [case(G1, ("eager", "inductor"), count=1)])
            assert fake.asked == [(G1, 3)]
            again = measured(cast(Bench, FakeBench(records)), case(G1, ("eager", "inductor")))
            assert {r.batch for r in again} == {r.batch for r in result.rows}
            assert len(again) == 3

    def test_no_case_begins_when_the_time_is_up(self, capsys: pytest.CaptureFixture) -> None:
        with Records(":memory:") as records:
            results, fake = go(records, [case(G1)], 0.0)
            assert (results, fake.asked) == ([], [])
        assert "time is up before 1 case:" in capsys.readouterr().err

    def test_random_schedules_win_their_place_first(self) -> None:
        with Records(":memory:") as records:
            (result,), fake = go(records, [case(G1, drawn=10)])
            assert fake.asked == [(G1, 8), (G1, 2), (G1, 5)], "in chunks; then two of them beside two others and the peer"
            assert all(r.repeat == "bench" for r in result.rows)

    def test_what_is_left_of_the_time_bounds_the_compilers_of_peers(self) -> None:
        with Records(":memory:") as records:
            _, fake = go(records, [case(G1)], 200.0)
            assert 45 < fake.worker.slow_patience <= 50
            _, fake = go(records, [case("mcfuser/G2")])
            assert fake.worker.slow_patience == 420


def test_a_kernel_that_failed_to_compile_stays_with_its_comparison() -> None:
    with Records(":memory:") as records:
        go(records, [case(G1)])
        bad = draw(G1, 4)[3]
        stamp = next(records.rows(workload=G1)).timestamp
        records.add(kernel(G1, 0.0, bad, status="compile", batch="", time_us=None, timestamp=stamp))
        rows = measured(cast(Bench, FakeBench(records)), case(G1))
        assert {r.status for r in rows} == {"ok", "compile"}


def test_the_best_structure_with_a_library_is_measured_too() -> None:
    choice = module.choose("mirage/lora", "h200")
    assert choice.library is not None
    assert choice.tuned.winner.graph.blocks == choice.tuned.winner.graph.kernels
    *generated, mixed = choice.candidates(1)
    assert len(generated) == 2
    assert (mixed.graph, mixed.schedule) == (choice.library.graph, choice.library.schedule)
    assert len(mixed.graph.blocks) < len(mixed.graph.kernels)
    alone = module.choose("graphene/gemm", "h200")
    assert alone.library == alone.tuned.winner
    assert len(alone.candidates(2)) == 3
    assert module.choose("mcfuser/S1", "h200").library is None


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
