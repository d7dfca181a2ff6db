"""Kernels of which the compiler's process dies: their candidates are passed over, in whatever process they are compiled, and no
process dies of them again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fuser.device import load_device
from fuser.errors import DiedError
from fuser.ir.program import TensorProgram
from fuser.lower.compile import cache_dir
from fuser.lower.compile import compile_kernel
from fuser.lower.kept_kernels import place
from fuser.lower.triton_source import generate_graph
from fuser.pools import Children
from fuser.runtime.plan import plan
from search import realise as realising
from search.measure import compiling
from search.measure.compiling import CompilePool
from search.ranked import Ranked
from search.ranked import Tuned
from search.realise import realise
from search.tune import tune_fast
from tests import deadly
from tests.builders import chain
from tests.builders import gated_mlp

DEVICE = load_device("h200")


def ranked(program: TensorProgram) -> tuple[Tuned, str]:
    """Its candidates, and what the text of the first alone has."""
    tuned = tune_fast(program, DEVICE)
    first, *others = [_text(c) for c in (tuned.winner, *tuned.runners)]
    mark = next(line for line in first.splitlines() if line.startswith("# schedule"))
    assert not any(mark in text for text in others[:2])
    return tuned, mark


@pytest.fixture
def deaths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many processes have died."""
    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MUFUSER_DEATHS", str(tmp_path / "deaths"))
    return lambda: len((tmp_path / "deaths").read_text().splitlines())


def test_a_candidate_of_which_a_compiling_child_dies_is_passed_over(
    deaths: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned, mark = ranked(chain(48, 40, 32, 16, "relu"))
    other = tune_fast(gated_mlp(100, 200, 72), DEVICE)
    monkeypatch.setenv("MUFUSER_DEADLY", mark)
    monkeypatch.setattr(realising, "_compiled", deadly.job)
    with Children(2) as pool:
        (usual,) = realise([other], DEVICE, pool, checked=False)
        first, second = realise([tuned, other], DEVICE, pool, checked=False)
    assert first.candidate == tuned.runners[0] and first.rejected["the compiler died"] == 1
    assert (second.candidate, second.rejected) == (usual.candidate, usual.rejected) and second.artifacts
    died = deaths()
    assert died == 2  # once, and once to be sure of what it was
    with Children(2) as pool:
        (again,) = realise([tuned], DEVICE, pool, checked=False)
    assert (again.candidate, again.rejected) == (first.candidate, first.rejected)
    assert deaths() == died


def test_several_programs_have_such_a_candidate(deaths: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    several = [ranked(chain(48, 40, 32, 16, name)) for name in ("relu", "gelu")]
    (mark,) = {m for _, m in several}
    monkeypatch.setenv("MUFUSER_DEADLY", mark)
    monkeypatch.setattr(realising, "_compiled", deadly.job)
    with Children(2) as pool:
        done = realise([t for t, _ in several], DEVICE, pool, checked=False)
    assert [r.candidate for r in done] == [t.runners[0] for t, _ in several]
    assert 3 <= deaths() <= 4


def test_a_kernel_of_which_a_process_died_is_compiled_in_another(
    deaths: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a call without children leaves it behind, in the user's own process."""
    tuned, mark = ranked(chain(48, 40, 32, 16, "relu"))
    (source,) = generate_graph(tuned.winner.graph, tuned.winner.schedule)
    (fine,) = generate_graph(tuned.runners[0].graph, tuned.runners[0].schedule)
    monkeypatch.setenv("MUFUSER_DEADLY", mark)
    monkeypatch.setattr("fuser.lower.compile._compiled", deadly.compiled)
    for name in (source, fine):
        path = place(cache_dir("compiled"), name, 90).with_suffix(".begun")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("begun")
    for _ in range(2):
        with pytest.raises(DiedError, match=r"the compiler died of .*: x.cpp:1: Assertion `n % 8 == 0' failed. \(SIGSEGV\)"):
            compile_kernel(source, 90)
    assert deaths() == 1
    assert compile_kernel(fine, 90).cubin
    assert [p.suffix for p in sorted(cache_dir("compiled").iterdir())].count(".begun") == 1


def test_a_region_alone_costs_the_process_of_its_user_nothing(deaths: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    tuned, mark = ranked(chain(48, 40, 32, 16, "relu"))
    monkeypatch.setenv("MUFUSER_DEADLY", mark)
    monkeypatch.setattr("fuser.lower.compile._compiled", deadly.compiled)
    (done,) = realise([tuned], DEVICE, checked=False)
    assert done.candidate == tuned.runners[0] and done.rejected["the compiler died"] == 1
    assert deaths() == 2  # once, and once to be sure of what it was


def test_a_plan_of_which_a_compiling_process_dies_is_a_failure_that_lasts(
    deaths: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned, mark = ranked(chain(48, 40, 32, 16, "relu"))
    monkeypatch.setenv("MUFUSER_DEADLY", mark)
    monkeypatch.setattr(compiling, "build", deadly.build)
    plans = [plan(c.candidate) for c in (tuned.winner, tuned.runners[0])]
    with CompilePool(90, 2) as pool:
        for p in plans:
            pool.submit(p)
        first, second = (pool.result(p, 60).result for p in plans)
    assert (first.status, first.lasting, second.status) == ("compile", True, "ok")
    assert "Assertion" in first.detail


def _text(candidate: Ranked) -> str:
    return "".join(s.text for s in generate_graph(candidate.graph, candidate.schedule))
