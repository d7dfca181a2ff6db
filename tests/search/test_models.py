"""Which model ranks: the refined one, or MCFuser's equations."""

from __future__ import annotations

from dataclasses import replace
from json import loads

import pytest

from cost_model import paper
from fuser.cli import main
from fuser.device import load_device
from search.ranked import INSTANT
from search.tune import tune_fast
from search.tuner.efforts import effort_of
from search.tuner.pool import jobs_of
from search.tuner.pool import part
from tests.builders import chain

H200 = load_device("h200")
PAPER = replace(INSTANT, model="paper")


def test_the_papers_model_ranks_by_its_equations() -> None:
    program = chain(128, 64, 64, 64)
    chosen = tune_fast(program, H200, PAPER)
    every = (chosen.winner, *chosen.runners)
    for r in every:
        told = sum(paper.estimate(b, s, H200).seconds for b, s in r.candidate.blocks)
        assert r.estimate == pytest.approx(told)
    assert [r.estimate for r in every] == sorted(r.estimate for r in every)
    assert tune_fast(program, H200).winner.candidate != chosen.winner.candidate


def test_a_pool_is_estimated_by_the_model_of_its_effort() -> None:
    program = chain(128, 64, 64, 64)
    job = next(j for j in jobs_of(program, [tune_fast(program, H200).winner.graph], H200, effort_of("quick", "paper")))
    found = part(job)
    assert found is not None
    for e in found[1][:5]:
        assert e.estimate == pytest.approx(sum(paper.estimate(b, s, H200).seconds for b, s in e.candidate.blocks))
        assert not any(name.startswith("term:") for name in e.features), "terms are those of another model"


def test_explain_shows_the_equations_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "mcfuser/G1", "--model", "paper", "--json"]) == 0
    found = loads(capsys.readouterr().out)
    assert found["model"] == "paper"
    for term in found["workloads"][0]["candidates"][0]["terms"]:
        assert term["seconds"] == pytest.approx((term["t_mem"] + term["t_comp"]) * term["alpha"])
        assert term["alpha"] == pytest.approx(1 + term["n_sm"] / term["n_block"])
    assert main(["explain", "mcfuser/G1", "--model", "paper"]) == 0
    assert "MCFuser's model, equations 2 to 5" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["tune", "explain"])
def test_an_unknown_model_is_refused(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "mcfuser/G1", "--model", "guess"]) == 2
    assert "there is no model 'guess'" in capsys.readouterr().err
