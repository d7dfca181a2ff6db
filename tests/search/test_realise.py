"""Nothing becomes a kernel without a verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fuser
from fuser.device import load_device
from fuser.errors import NoValidKernelError
from fuser.errors import UsageError
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.lower.checker import Check
from fuser.lower.pace import pace
from fuser.superopt.structures import structures
from fuser.superopt.verify.verdicts import kept_verdict
from fuser.workloads import workload
from search import realise as realising
from search.ranked import Ranked
from search.realise import NOT_VERIFIED
from search.realise import kept_check
from search.realise import realise
from search.tune import tune_fast
from tests.builders import chain
from tests.builders import negated


@pytest.mark.parametrize("where", [{"device": "cpu"}, {"target": "h200"}])
def test_a_wrong_graph_of_ones_own_is_refused(where: dict[str, str]) -> None:
    for graph in structures(chain(48, 40, 32, 16, "relu")):
        with pytest.raises(UsageError, match="rejected: output 'E' differs"):
            fuser.compile(chain(48, 40, 32, 16, "relu"), graph=negated(graph), checked=False, **where)


def test_the_verdict_stays_with_the_compiled_program() -> None:
    made = fuser.compile(chain(48, 40, 32, 16, "relu"), target="h200", checked=False)
    assert made.verdict == kept_verdict(chain(48, 40, 32, 16, "relu"), made.graph)
    assert made.verdict.accepted
    assert str(made.verdict) in made.explain()


def test_a_candidate_that_is_not_verified_is_never_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong structure with the best estimate: the next structure takes its place, however many schedules the wrong one has."""
    tuned = tune_fast(chain(48, 40, 32, 16, "relu"), fuser.load_device("h200"))
    bad = negated(tuned.winner.graph)
    mistaken = replace(
        tuned,
        winner=Ranked(Candidate(bad, tuned.winner.schedule), 0.0),
        runners=(*(Ranked(Candidate(bad, c.schedule), 0.0) for c in tuned.runners), tuned.winner),
    )
    lowered: list[KernelGraph] = []
    real = realising.compile_candidate

    def compiled(candidate: Candidate, *rest: Any) -> Any:
        lowered.append(candidate.graph)
        return real(candidate, *rest)

    monkeypatch.setattr(realising, "compile_candidate", compiled)
    (done,) = realise([mistaken], fuser.load_device("h200"), checked=False)
    assert lowered == [tuned.winner.graph]
    assert done.rejected == {NOT_VERIFIED: 1 + len(tuned.runners)}
    assert done.verdict.accepted
    with pytest.raises(NoValidKernelError, match="no µGraph of 'chain' is verified: rejected"):
        realise([replace(mistaken, runners=())], fuser.load_device("h200"), checked=False)
    assert lowered == [tuned.winner.graph]


def test_products_on_fragments_have_a_pace() -> None:
    """Of a compiled kernel the assembler's order of its products is read; here it costs less than the model says anyway."""
    tuned = tune_fast(chain(48, 40, 32, 16, "relu"), fuser.load_device("h200"))
    made = realising.compile_candidate(tuned.winner.candidate, fuser.load_device("h200"))
    assert all(pace(a.cubin).products > 0 for a in made)
    assert realising.as_made(tuned.winner, made, fuser.load_device("h200")) == pytest.approx(tuned.winner.seconds, rel=0.5)


@pytest.mark.parametrize(("slow", "expected"), [((1.0,), 0), ((1.05,), 0), ((3.0,), 1), ((3.0, 2.0, 3.0), 1), ((3.0, 3.0), 2)])
def test_slow_code_is_left_for_a_candidate_that_is_expected_to_be_faster(
    slow: tuple[float, ...], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three candidates of 1.0, 1.1 and 1.3 µs that are made so many times slower than that: the fastest as made is taken, and
    none is compiled that is not expected to be faster than what there is."""
    tuned = tune_fast(chain(48, 40, 32, 16, "relu"), fuser.load_device("h200"))
    three = [replace(r, estimate=x) for r, x in zip((tuned.winner, *tuned.runners), (1.0, 1.1, 1.3), strict=False)]
    compiled: list[Candidate] = []
    real = realising.compile_candidate

    def noted(candidate: Candidate, *rest: Any) -> Any:
        compiled.append(candidate)
        return real(candidate, *rest)

    def as_made(ranked: Ranked, *_: object) -> float:
        times = dict(zip((r.candidate for r in three), slow, strict=False))
        return ranked.estimate * times.get(ranked.candidate, 1.0)

    monkeypatch.setattr(realising, "compile_candidate", noted)
    monkeypatch.setattr(realising, "as_made", as_made)
    (done,) = realise([replace(tuned, winner=three[0], runners=tuple(three[1:]))], fuser.load_device("h200"), checked=False)
    assert done.candidate is three[expected]
    assert compiled == [r.candidate for r in three[: len(compiled)]]
    assert sum(done.rejected.values()) == max(len(compiled) - 1, 0)


@pytest.mark.parametrize(
    ("order", "spills", "compiled", "expected"),
    [
        ("AAAB", {"A": 700, "B": 0}, "AB", "B"),
        ("ABAB", {"A": 700, "B": 300}, "AB", "B"),
        ("AABBAC", {"A": 300, "B": 700, "C": 300}, "ABC", "A"),
        ("AAAAAAAB", {"A": 700, "B": 0}, "AB", "B"),
        ("ABCDEFG", {**dict.fromkeys("ABCDEF", 700), "G": 0}, "ABCDEFG", "G"),
        ("ABCDEFG", {**dict.fromkeys("ABCDEF", 300), "G": 0}, "ABCDEF", "A"),
    ],
)
def test_what_is_known_to_spill_is_not_compiled_again(
    order: str, spills: dict[str, int], compiled: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it use up what may be compiled; a later call compiles of those that spill the chosen one alone, with the same
    choice."""
    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path))
    tuned = tune_fast(chain(48, 40, 32, 16, "relu"), fuser.load_device("h200"))
    named = dict(zip("ABCDEFG", (tuned.winner, *tuned.runners), strict=False))
    letters = {r.candidate: x for x, r in named.items()}
    done: list[str] = []
    real = realising.compile_candidate

    def noted(candidate: Candidate, *rest: Any) -> Any:
        done.append(letters[candidate])
        return tuple(replace(a, spills=spills[letters[candidate]]) for a in real(candidate, *rest))

    monkeypatch.setattr(realising, "compile_candidate", noted)
    monkeypatch.setattr(realising, "_at_hand", lambda job: None)
    monkeypatch.setattr(realising, "as_made", lambda ranked, *_: ranked.seconds)
    several = [named[x] for x in order]
    one = replace(tuned, winner=several[0], runners=tuple(several[1:]))
    for calls in (compiled, expected):
        (found,) = realise([one], fuser.load_device("h200"), checked=False)
        assert letters[found.candidate.candidate] == expected
        assert max(a.spills for a in found.artifacts) == spills[expected]
        assert "".join(done) == calls
        done.clear()


def test_every_structure_can_follow_a_winner_that_falls() -> None:
    program = workload("mirage/qknorm")
    tuned = tune_fast(program, fuser.load_device("h200"))
    ranked = (tuned.winner, *tuned.runners)
    assert len({c.graph.stable_hash() for c in ranked}) == tuned.structures
    assert all(isinstance(k, BlockGraph) for c in ranked for k in c.graph.kernels)


def test_a_check_that_was_passed_is_kept_and_one_that_failed_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path))
    program = workload("mcfuser/G1")
    winner = tune_fast(program, load_device("h200")).winner.candidate
    good, bad = Check(1e-3, 1e-4, (("m", 64),), "triton"), Check(1.0, 1.0, (), "triton", "it differs")
    answers = [bad, good]
    monkeypatch.setattr("fuser.lower.check.begun", lambda *_: lambda: answers.pop(0))
    assert kept_check(program, winner, 0)() == bad
    assert kept_check(program, winner, 0)() == good
    assert kept_check(program, winner, 0)() == good, "it is not asked for again"
    answers.append(bad)
    assert kept_check(program, winner, 1)() == bad, "of another seed it is"


def test_behind_a_wrong_result_another_structure_is_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many schedules of the wrong one are ranked before it."""
    program = workload("mirage/qknorm")
    tuned = tune_fast(program, load_device("h200"))
    first = tuned.winner.graph
    other = next(r for r in tuned.runners if r.graph != first)
    ranked = replace(tuned, runners=(*(r for r in tuned.runners if r.graph == first), *[tuned.winner] * realising.TRIES, other))
    asked: list[KernelGraph] = []

    def checked(_: Any, candidate: Candidate, seed: int) -> Callable[[], Check]:
        asked.append(candidate.graph)
        return lambda: Check(0.0, 0.0, (), "triton", "wrong" if candidate.graph == first else "")

    monkeypatch.setattr(realising, "kept_check", checked)
    (found,) = realise([ranked], load_device("h200"))
    assert (asked, found.candidate.graph) == ([first, other.graph], other.graph)
