"""Verdicts that are kept, and that nothing becomes a kernel without one."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fuser
from fuser.errors import NoValidKernelError
from fuser.errors import UsageError
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.superopt.structures import structures
from fuser.superopt.verify import verdicts
from fuser.superopt.verify.verdicts import kept_verdict
from fuser.superopt.verify.verifier import Rejected
from fuser.superopt.verify.verifier import Unknown
from fuser.superopt.verify.verifier import Verified
from fuser.workloads import workload
from search import realise as realising
from search.realise import NOT_VERIFIED
from search.realise import realise
from search.space.evolve import Ranked
from search.tune import tune_fast
from tests.runtime.kernels import chain


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own, and nothing known in this process."""
    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path))
    monkeypatch.setattr(verdicts, "_KNOWN", {})
    return tmp_path / "verdicts"


def wrong(graph: KernelGraph) -> KernelGraph:
    """The same with one of its kernels' results negated."""
    block = graph.blocks[0]
    store = block.stores[0]
    made = block.by_value[store.value]
    minus = replace(made, value="minus", op="neg", args=(made.value,), attrs=(), reduce=(), rescale=())
    stmts = (*(s for s in block.stmts if s is not store), minus, replace(store, value="minus"))
    return replace(graph, kernels=(replace(block, stmts=stmts), *graph.kernels[1:])).validate()


def test_a_verdict_is_found_once(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = workload("mcfuser/S1")
    graph = structures(program)[0]
    first = kept_verdict(program, graph)
    assert isinstance(first, Verified)
    (path,) = fresh.iterdir()

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("verified again")

    monkeypatch.setattr(verdicts, "verify", fail)
    assert kept_verdict(program, graph) is first
    monkeypatch.setattr(verdicts, "_KNOWN", {})
    start = time.perf_counter()
    assert kept_verdict(program, graph) == first
    assert time.perf_counter() - start < 0.1
    for text in ("", path.read_text()[:-30], path.read_text().replace("Verified", "Unknown"), "x\n[]"):
        path.write_text(text)
        monkeypatch.setattr(verdicts, "_KNOWN", {})
        with pytest.raises(AssertionError, match="verified again"):
            kept_verdict(program, graph)


def test_every_kind_of_verdict_is_kept_as_it_is(fresh: Path) -> None:
    program = workload("mcfuser/G1")
    sizes = (("m", 3), ("n", 5))
    for i, verdict in enumerate(
        (kept_verdict(program, structures(program)[0]), Rejected("differs", 7, True, sizes), Unknown("it has no meaning"))
    ):
        path = fresh / f"{i}.json"
        verdicts._write(path, verdict)
        assert verdicts._read(path) == verdict


def test_a_folder_that_cannot_be_written_costs_only_the_cache(fresh: Path) -> None:
    fresh.parent.mkdir(exist_ok=True)
    fresh.write_text("a file where the folder would be")
    program = workload("mcfuser/G1")
    assert kept_verdict(program, structures(program)[0]).accepted


@pytest.mark.parametrize("where", [{"device": "cpu"}, {"target": "h200"}])
def test_a_wrong_graph_of_ones_own_is_refused(where: dict[str, str]) -> None:
    for graph in structures(chain()):
        with pytest.raises(UsageError, match="rejected: output 'E' differs"):
            fuser.compile(chain(), graph=wrong(graph), checked=False, **where)


def test_the_verdict_stays_with_the_compiled_program() -> None:
    made = fuser.compile(chain(), target="h200", checked=False)
    assert made.verdict == kept_verdict(chain(), made.graph)
    assert made.verdict.accepted
    assert str(made.verdict) in made.explain()


def test_a_candidate_that_is_not_verified_is_never_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong structure with the best estimate: the next structure takes its place, however many schedules the wrong one has."""
    tuned = tune_fast(chain(), fuser.load_device("h200"))
    bad = wrong(tuned.winner.graph)
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


def test_every_structure_can_follow_a_winner_that_falls() -> None:
    program = workload("mirage/qknorm")
    tuned = tune_fast(program, fuser.load_device("h200"))
    ranked = (tuned.winner, *tuned.runners)
    assert len({c.graph.stable_hash() for c in ranked}) == tuned.structures
    assert all(isinstance(k, BlockGraph) for c in ranked for k in c.graph.kernels)
