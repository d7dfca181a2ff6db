"""What was measured is taken at once where it would be the same, by every effort that asks for no more, and nowhere else."""

from __future__ import annotations

import sqlite3
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuser.errors import NoValidKernelError
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.lower.assembler import compiler
from fuser.superopt.structures import structures
from fuser.workloads import workload
from search.libraries import with_libraries
from search.measure import versions
from search.measure.careful import Careful
from search.measure.measurement import Measurement
from search.measure.planned import source_hash
from search.measure.planned import within_limits
from search.measure.records import STRUCTURES
from search.measure.records import Records
from search.measure.rows import Record
from search.measure.rows import read_rows
from search.measure.store import Table
from search.measure.winners import Winner
from search.ranked import EFFORTS
from search.ranked import FULL
from search.ranked import INSTANT
from search.ranked import QUICK
from search.ranked import Effort
from search.ranked import Tuned
from search.tune import tune_fast
from search.tuner import memory as memories
from search.tuner.measured import tune_measured
from search.tuner.memory import GENERATED
from search.tuner.memory import LIBRARY
from search.tuner.memory import Memory
from search.tuner.memory import open_memory
from search.tuner.memory import program_key
from search.tuner.simulated import Simulated
from search.tuner.tasks import Task
from search.tuner.tuning import Tuning
from tests.builders import chain
from tests.search.tuner.cases import H200
from tests.search.tuner.cases import PROGRAM
from tests.work import at_most

SHORT = replace(QUICK, population=16, top=8, generations=2)


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Memory:
    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path))
    return open_memory(None, "7")


def task(**options: Any) -> Task:
    return Task(PROGRAM, lambda: structures(PROGRAM), **options)


def searched(memory: Memory, effort: Effort = SHORT, judge: type[Simulated] = Simulated, **options: Any) -> Tuned:
    (found,) = tune_measured([task(**options)], H200, effort, memory, lambda: nullcontext(judge(H200, 7)))
    assert found is not None
    return found


class Nobody(Simulated):
    def measure(self, candidate: Candidate) -> Measurement:
        pytest.fail("it was measured again")


def test_the_same_seed_and_store_give_the_same_winner_twice(tmp_path: Path) -> None:
    """Each of two searches in a store of its own, with the same rows in it."""

    def once(name: str) -> tuple[str, tuple[Candidate, ...], str]:
        with Records(tmp_path / f"{name}.sqlite") as records:
            row, graph = known_row()
            records.add_structure(graph, row.structure)
            records.add(row)
            found = searched(Memory(records, simulated="7"))
            (won,) = records.winners(program=program_key(PROGRAM))
            return won.schedule, (found.winner.candidate, *(r.candidate for r in found.runners)), won.source

    assert once("first") == once("second")


def known_row() -> tuple[Record, KernelGraph]:
    """What somebody has measured on the simulated device."""
    chosen = tune_fast(PROGRAM, H200).runners[-1].candidate
    what = (chosen.graph.stable_hash(), chosen.schedule.text, source_hash(chosen))
    device = Memory(simulated="7").device_name(H200)
    row = Record(PROGRAM.name, program_key(PROGRAM), *what, device, compiler(), Measurement("ok", time_us=3.0, min_us=3.0))
    return row, chosen.graph


def test_a_second_call_measures_nothing_and_finds_the_same(memory: Memory) -> None:
    first = searched(memory)
    assert first.searched and first.searched.origin == "measured"
    again = open_memory(None, "7")
    with at_most(60_000):
        second = searched(again, judge=Nobody)
    assert second.winner.candidate == first.winner.candidate
    assert second.winner.measured == pytest.approx(first.winner.measured)
    assert second.searched and second.searched.origin.endswith("records.sqlite")


@pytest.mark.parametrize("effort", EFFORTS)
def test_a_winner_serves_every_effort_that_asks_for_no_more(memory: Memory, effort: str) -> None:
    searched(memory)
    known = memory.find(PROGRAM, H200, GENERATED, EFFORTS[effort])
    assert (known is not None) == (effort != "full")
    if known is None:
        assert "quick" in memory.misses[0]
    assert memory.find(chain(256, 128, 64, 32), H200, GENERATED, INSTANT) is None


def test_a_further_search_takes_the_place_of_the_winner(memory: Memory) -> None:
    searched(memory)
    searched(memory, replace(FULL, population=16, generations=3))
    assert memory.records is not None
    (winner,) = memory.records.winners()
    assert winner.effort == "full"


def test_a_larger_budget_searches_further_than_a_smaller_one_did(memory: Memory) -> None:
    """The budget counts from the start of the search, making candidates included; of several programs each has its part of it."""
    real = replace(memory, simulated="", files=())
    assert real.records is not None
    candidate = tune_fast(PROGRAM, H200).winner.candidate
    for stored, seconds in (("full:4", 4.0), ("full", 3.9)):  # the second as earlier versions wrote it
        won = replace(winner_of(candidate, 3.0, stored), why="budget", seconds=3.9)
        real.records.add_winner(won, candidate.graph)
        assert real.find(PROGRAM, H200, GENERATED, replace(FULL, seconds=seconds))
        assert real.find(PROGRAM, H200, GENERATED, replace(FULL, seconds=40.0)) is None
        assert f"effort full for {seconds} s" in real.misses[0].replace("4 s", "4.0 s")
        real.keep(winner_of(candidate, 2.0, ""), candidate)  # faster, stopped: no further than the one before
        assert real.find(PROGRAM, H200, GENERATED, replace(FULL, seconds=40.0)) is None
    tasks, twice = [task(), task()], replace(FULL, seconds=8.0)  # 4 s each
    real.records.add_winner(replace(winner_of(candidate, 3.0, "full:4"), why="budget"), candidate.graph)
    assert all(tune_measured(tasks, H200, twice, real, lambda: pytest.fail("it is searched again")))
    real.records.add_winner(replace(winner_of(candidate, 3.0, "full"), why="converged"), candidate.graph)
    assert real.find(PROGRAM, H200, GENERATED, replace(FULL, seconds=1e6))
    searched(memory, replace(FULL, population=16, seconds=1e-9))  # over before anything is measured
    assert memory.records is not None
    assert not list(memory.records.winners(device=memory.device_name(H200)))


def test_another_device_compiler_or_generator_is_a_miss_that_says_why(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    searched(memory)
    assert memory.find(PROGRAM, replace(H200, title="Other"), GENERATED, QUICK) is None
    assert "it is of simulated NVIDIA H200 7" in memory.misses[0]
    with monkeypatch.context() as patch:
        for module in (memories, versions):
            patch.setattr(module, "compiler", lambda: "triton 9.9")
        assert memory.find(PROGRAM, H200, GENERATED, QUICK) is None
        assert "here is triton 9.9" in memory.misses[0]
    with monkeypatch.context() as patch:
        patch.setattr("search.measure.planned.source_hash", lambda c: "other")
        assert memory.find(PROGRAM, H200, GENERATED, QUICK) is None
        assert "generated in another way" in memory.misses[0]
    assert memory.find(PROGRAM, H200, LIBRARY, QUICK) is None, "what a library could do was not tried"
    assert memory.find(PROGRAM, H200, GENERATED, QUICK)


def test_what_was_not_searched_to_the_end_serves_instant_alone(memory: Memory) -> None:
    class Stopped(Simulated):
        def measure(self, candidate: Candidate) -> Measurement:
            if len(self.measured) == 10:
                raise KeyboardInterrupt
            return super().measure(candidate)

    found = searched(memory, judge=Stopped)
    assert found.searched and found.searched.why == "interrupted"
    assert found.winner.measured
    assert memory.find(PROGRAM, H200, GENERATED, QUICK) is None
    known = memory.find(PROGRAM, H200, GENERATED, INSTANT)
    assert known and known.ranked.candidate == found.winner.candidate


def row_of(candidate: Candidate, us: float, **options: Any) -> Record:
    what = (candidate.graph.stable_hash(), candidate.schedule.text, source_hash(candidate))
    found = Record(
        PROGRAM.name,
        program_key(PROGRAM),
        *what,
        H200.title,
        memories.compiler(),
        Measurement(time_us=us),
        timestamp="2026-01-01",
    )
    return replace(found, **options)


def test_instant_takes_the_fastest_row_that_never_failed(memory: Memory) -> None:
    tuned = tune_fast(PROGRAM, H200)
    candidates = [r.candidate for r in (tuned.winner, *tuned.runners)][:4]
    real = replace(memory, simulated="", files=())
    assert real.records is not None
    rows = [row_of(c, 9.0 - i) for i, c in enumerate(candidates)]
    bad = replace(row_of(candidates[3], 1.0), repeat="again", measurement=Measurement("wrong"))
    other = replace(row_of(candidates[1], 2.0), compiler="triton 2.0")
    for c in candidates:
        real.records.add_structure(c.graph)
    for r in (*rows, bad, other):
        real.records.add(r)
    known = real.find(PROGRAM, H200, GENERATED, INSTANT)
    assert known and known.ranked.candidate == candidates[2]
    assert known.ranked.us == pytest.approx(7.0)
    assert "triton 2.0" in real.misses[0]
    assert real.find(PROGRAM, H200, GENERATED, QUICK) is None, "rows are no search"
    (found,) = Tuning(INSTANT, real).tune([task()], H200)
    assert found and found.winner.candidate == candidates[2]


def test_instant_takes_the_fastest_of_all_sources_as_far_as_it_is_right_here(memory: Memory, tmp_path: Path) -> None:
    """A row or an interrupted search of one's own hides nothing faster that is shipped; what failed here is not taken."""
    slow, best = (r.candidate for r in tune_fast(PROGRAM, H200).runners[:2])
    with Records(":memory:") as theirs:
        theirs.add_structure(best.graph)
        theirs.add(row_of(best, 3.0))
        theirs.export_lines(tmp_path / "ours.jsonl")
    real = replace(memory, simulated="", files=(tmp_path / "ours.jsonl",))
    assert real.records is not None

    def chosen() -> Candidate:
        known = real.find(PROGRAM, H200, GENERATED, INSTANT)
        assert known
        return known.ranked.candidate

    real.records.add_structure(slow.graph)
    real.records.add(row_of(slow, 9.0))
    assert chosen() == best
    real.keep(winner_of(slow, 9.0, ""), slow)
    assert chosen() == best
    real.records.add(row_of(best, 0.0, measurement=Measurement("wrong")))
    assert chosen() == slow


def winner_of(candidate: Candidate, us: float, effort: str) -> Winner:
    r = row_of(candidate, us)
    return Winner(r.program, r.device, r.compiler, GENERATED, r.workload, r.structure, r.schedule, r.source, effort, us, us)


def test_a_winner_that_failed_since_is_not_taken(memory: Memory) -> None:
    real, candidate = replace(memory, simulated="", files=()), tune_fast(PROGRAM, H200).winner.candidate
    assert real.records is not None
    real.keep(winner_of(candidate, 3.0, "full"), candidate)
    assert real.find(PROGRAM, H200, GENERATED, QUICK)
    real.records.add(row_of(candidate, 0.0, repeat="again", measurement=Measurement("wrong")))
    assert real.find(PROGRAM, H200, GENERATED, QUICK) is None
    assert "failed when it was measured again (wrong)" in real.misses[0]


@pytest.mark.parametrize("text", ["n [h=32", "{}", "[]", "[{}]"])
def test_a_winner_whose_schedule_is_none_is_passed_over(memory: Memory, text: str) -> None:
    """Its checksum is right: another program wrote it."""
    real, candidate = replace(memory, simulated="", files=()), tune_fast(PROGRAM, H200).winner.candidate
    assert real.records is not None
    real.records.add_winner(replace(winner_of(candidate, 3.0, "full"), schedule=text), candidate.graph)
    assert real.find(PROGRAM, H200, GENERATED, QUICK) is None
    assert "is not used" in real.misses[0]


ABSURD = {
    "an option": ({"knobs": (("evil", True),)}, "has no kernels today: 'evil'"),
    "stages": ({"num_stages": 400}, "no schedule has so many warps or stages"),
    "warps": ({"num_warps": 64}, "no schedule has so many warps or stages"),
    "odd warps": ({"num_warps": 3}, "no schedule has so many warps or stages"),
}


@pytest.mark.parametrize(("change", "why"), ABSURD.values(), ids=ABSURD)
def test_what_no_search_would_have_asked_for_is_passed_over(memory: Memory, change: dict[str, Any], why: str) -> None:
    """A winner and a row whose kernels, or times of the compiler, nobody has seen: their checksums are right."""
    real, good = replace(memory, simulated="", files=()), tune_fast(PROGRAM, H200).winner.candidate
    first, *rest = good.schedule.kernels
    bad = Candidate(good.graph, replace(good.schedule, kernels=(replace(first, **change), *rest)))
    source = "" if "evil" in why else "h"  # what has no kernels had the hash of none
    assert real.records is not None
    real.records.add_winner(replace(winner_of(good, 3.0, "full"), schedule=bad.schedule.text, source=source), good.graph)
    real.records.add(replace(row_of(good, 1.0), schedule=bad.schedule.text, source=source))
    assert real.find(PROGRAM, H200, GENERATED, INSTANT) is None
    assert len(real.misses) == 2
    assert all(why in m for m in real.misses)
    if "evil" not in why:
        assert not real.candidates(PROGRAM, H200, 8)


@pytest.mark.parametrize("us", [0.0, -1.0])
def test_what_took_no_time_is_passed_over(memory: Memory, us: float) -> None:
    real, candidate = replace(memory, simulated="", files=()), tune_fast(PROGRAM, H200).winner.candidate
    assert real.records is not None
    real.records.add_winner(winner_of(candidate, us, "full"), candidate.graph)
    real.records.add(row_of(candidate, us))
    assert real.find(PROGRAM, H200, GENERATED, INSTANT) is None
    assert "its time is none" in real.misses[0]


@pytest.mark.parametrize("text", ["", "[]", '{"mugraph": 1}'])
def test_a_structure_that_is_none_is_lost(memory: Memory, text: str, tmp_path: Path) -> None:
    real, candidate = replace(memory, simulated="", files=()), tune_fast(PROGRAM, H200).winner.candidate
    assert real.records is not None
    real.keep(winner := winner_of(candidate, 3.0, "full"), candidate)
    STRUCTURES.insert(real.records.db, (winner.structure, text), replace=True)
    again = replace(real, records=Careful(real.records.path))
    assert again.find(PROGRAM, H200, GENERATED, QUICK) is None
    assert "its structure is lost" in again.misses[0]
    assert again.records is not None and again.records.export_lines(tmp_path / "rows.jsonl", winners=True) == 0


def test_a_search_that_is_stopped_voids_no_earlier_one(memory: Memory) -> None:
    tuned = tune_fast(PROGRAM, H200)
    first, faster = tuned.winner.candidate, tuned.runners[0].candidate
    real = replace(memory, simulated="", files=())
    real.keep(winner_of(first, 3.0, "quick"), first)
    for candidate, us in ((faster, 4.0), (faster, 2.0)):
        real.keep(winner_of(candidate, us, ""), candidate)
        known = real.find(PROGRAM, H200, GENERATED, QUICK)
        assert known and known.ranked.us == pytest.approx(min(us, 3.0))


def test_a_winner_of_a_machine_with_another_assembler_is_taken_where_nothing_runs(memory: Memory) -> None:
    real, candidate = replace(memory, simulated="", files=()), tune_fast(PROGRAM, H200).winner.candidate
    for compiled, hit in (("triton 2.0, ptxas 13.0", False), (f"{compiler().partition(',')[0]}, ptxas 13.0", True)):
        real.keep(replace(winner_of(candidate, 3.0, "quick"), compiler=compiled), candidate)
        assert (real.find(PROGRAM, H200, GENERATED, QUICK) is not None) == hit


def test_flags_of_the_compiler_make_another_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = compiler()
    monkeypatch.setenv("PTXAS_OPTIONS", "-O1, -v")
    assert versions.same_compiler(compiler())
    assert not versions.same_compiler(plain)
    flagged = compiler()
    monkeypatch.delenv("PTXAS_OPTIONS")
    assert not versions.same_compiler(flagged)
    assert not versions.same_compiler(flagged.replace(plain, f"{plain}, ptxas 13.0"))


def beside(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    for module in (memories, versions):
        monkeypatch.setattr(module, "libraries", lambda: text)


def test_versions_of_libraries_are_in_the_keys_of_what_they_have_a_part_in(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a library calculates is known by its version; a winner among such candidates too, whatever it is itself."""
    real = replace(memory, simulated="", files=())
    graph = next(g for g in with_libraries(structures(PROGRAM)) if any(isinstance(k, LibraryKernel) for k in g.kernels))
    library, generated = (tune_fast(PROGRAM, H200, graphs=[g]).winner.candidate for g in (graph, structures(PROGRAM)[0]))
    beside(monkeypatch, "torch 2.11.0, cublas 13.1")
    assert versions.made_with(generated) == compiler()
    assert versions.made_with(library) == f"{compiler()} beside torch 2.11.0, cublas 13.1"
    assert memories.made_for(GENERATED) == compiler()
    for candidate in (library, generated):
        real.keep(replace(winner_of(candidate, 3.0, "quick"), scope=LIBRARY, compiler=memories.made_for(LIBRARY)), candidate)
        assert real.find(PROGRAM, H200, LIBRARY, QUICK)
        for other in ("torch 2.12.0, cublas 13.1", "torch 2.11.0, cublas 13.2"):
            with monkeypatch.context() as patch:
                beside(patch, other)
                assert real.find(PROGRAM, H200, LIBRARY, QUICK) is None
                assert f"beside torch 2.11.0, cublas 13.1, here are {other}" in real.misses[0]
                assert (real.find(PROGRAM, H200, GENERATED, QUICK) is not None) == (candidate is generated)
        beside(monkeypatch, "torch 2.11.0+cu130")  # installers that leave out the rest
        assert real.find(PROGRAM, H200, LIBRARY, QUICK)
        beside(monkeypatch, "torch 2.11.0, cublas 13.1")


def test_what_was_kept_without_versions_holds_where_no_library_has_a_part_in_it(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = replace(memory, simulated="", files=())
    assert real.records is not None
    graph = next(g for g in with_libraries(structures(PROGRAM)) if any(isinstance(k, LibraryKernel) for k in g.kernels))
    library, generated = (tune_fast(PROGRAM, H200, graphs=[g]).winner.candidate for g in (graph, structures(PROGRAM)[0]))
    beside(monkeypatch, "torch 2.11.0, cublas 13.1")
    for candidate, hit in ((generated, True), (library, False)):
        real.records.add_winner(replace(winner_of(candidate, 3.0, "quick"), scope=LIBRARY), candidate.graph)
        assert (real.find(PROGRAM, H200, LIBRARY, QUICK) is not None) == hit
    real.records.add(replace(row_of(library, 3.0), environment='{"torch": "2.11.0+cu130"}'))  # its row says enough
    assert real.find(PROGRAM, H200, LIBRARY, QUICK)
    beside(monkeypatch, "torch 2.12.0")
    assert real.find(PROGRAM, H200, LIBRARY, QUICK) is None
    assert real.find(PROGRAM, H200, LIBRARY, INSTANT) is None, "nor does the row"
    assert any("it was timed with torch 2.11.0+cu130, here are torch 2.12.0" in m for m in real.misses)


def test_an_application_ships_its_own(memory: Memory, tmp_path: Path) -> None:
    best = tune_fast(PROGRAM, H200).runners[2].candidate
    with Records(":memory:") as mine:
        mine.add_structure(best.graph)
        mine.add(row_of(best, 3.0))
        mine.export_lines(tmp_path / "ours.jsonl.xz")
    shipped = open_memory(tmp_path / "ours.jsonl.xz")
    known = shipped.find(PROGRAM, H200, GENERATED, INSTANT)
    assert known and known.ranked.candidate == best
    assert known.origin.endswith("ours.jsonl.xz")
    assert open_memory(False).find(PROGRAM, H200, GENERATED, INSTANT) is None


def test_the_package_knows_its_workloads() -> None:
    program = workload("mcfuser/S2")
    known = open_memory(False)
    assert known.find(program, H200, GENERATED, INSTANT) is None
    known = Memory(None, (memories.PACKAGED,))
    found = known.find(program, H200, GENERATED, INSTANT)
    assert found and found.origin == memories.PACKAGE
    assert 5 < found.ranked.us < 8
    assert found.ranked.estimate * 1e6 == pytest.approx(found.ranked.us, rel=0.3)


@pytest.mark.parametrize("trouble", ["removed", "busy", "full", "readonly", "corrupt"])
def test_trouble_with_the_records_costs_no_search(
    memory: Memory, trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "records" / "records.sqlite"
    if trouble == "removed":
        path.unlink()
    else:
        code = getattr(sqlite3, f"SQLITE_{trouble.upper()}")

        def refuse(*_: Any, **__: Any) -> bool:
            error = sqlite3.OperationalError(f"the database is {trouble}")
            error.sqlite_errorcode = code
            raise error

        monkeypatch.setattr(Table, "insert", refuse)
    found = searched(memory)
    assert found.winner.measured
    assert "the search goes on" in capsys.readouterr().err


def test_records_that_cannot_be_opened_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path))
    (tmp_path / "records").write_text("a file where a folder should be")
    assert open_memory().records is None
    assert "nothing is remembered" in capsys.readouterr().err
    (tmp_path / "records").unlink()
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "records.sqlite").write_bytes(b"not SQLite" * 4096)
    assert open_memory().records is None
    assert "damaged" in capsys.readouterr().err
    assert open_memory().records is not None, "the damaged file is put aside"


def test_where_nothing_runs_that_is_said_by_class(memory: Memory) -> None:
    class Failing(Simulated):
        def measure(self, candidate: Candidate) -> Measurement:
            return Measurement("wrong", "odd")

    with pytest.raises(NoValidKernelError, match=r"none of \d+ measured candidates of 'chain' is right and runs: \d+ wrong"):
        searched(memory, judge=Failing)
    (nothing,) = tune_measured([task(optional=True)], H200, SHORT, memory, lambda: nullcontext(Failing(H200)))
    assert nothing is None


def test_a_row_with_a_wrong_element_is_no_longer_right(memory: Memory) -> None:
    tuned = tune_fast(PROGRAM, H200)
    real = replace(memory, simulated="", files=())
    assert real.records is not None
    for c, us, off in ((tuned.winner.candidate, 5.0, 0.09), (tuned.runners[0].candidate, 6.0, 0.002)):
        real.records.add_structure(c.graph)
        real.records.add(row_of(c, us, measurement=Measurement(time_us=us, error_fro=0.005, error_max=off)))
    known = real.find(PROGRAM, H200, GENERATED, INSTANT)
    assert known and known.ranked.candidate == tuned.runners[0].candidate


def test_what_the_package_brings_is_within_what_records_may_ask_for() -> None:
    """Groups of four warps come in threes, too."""
    graphs: dict[str, KernelGraph] = {}
    rows = []
    for item in read_rows(Path(memories.__file__).parents[1] / "known" / "h200.jsonl.xz"):
        if isinstance(item, tuple):
            graphs.setdefault(*item)
        elif isinstance(item, Record):
            rows.append(item)
    found = [Candidate(graphs[r.structure], r.schedule_value()) for r in rows if r.structure in graphs]
    assert any(k.num_warps == 12 for c in found for k in c.schedule.kernels)
    assert all(map(within_limits, found))
