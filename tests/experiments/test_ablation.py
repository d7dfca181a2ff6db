"""The ablation: searches over pools of which everything is measured."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cost_model.names import PAPER
from cost_model.names import REFINED
from experiments.ablation import COLUMNS
from experiments.ablation import Case
from experiments.ablation import correlations
from experiments.ablation import main
from experiments.ablation import measured
from fuser.device import load_device
from fuser.workloads import workload
from search.tune import tune_fast
from tests.paths import ROOT


def test_every_strategy_measures_each_candidate_once() -> None:
    device = load_device("h200")
    tuned = tune_fast(workload("mcfuser/G1"), device)
    every = (tuned.winner, *tuned.runners)
    times = np.array([r.seconds for r in every]) * np.linspace(1.0, 2.0, len(every))[::-1]
    told = np.array([r.seconds for r in every])
    case = Case("mcfuser/G1", device, tuple(r.candidate for r in every), times, {PAPER: times, REFINED: told})
    for title, order, model in COLUMNS:
        asked = list(order(case, model, 1))
        assert sorted(asked) == list(range(len(every))), title
        assert 1 <= measured(case, iter(asked)) <= len(every)
        if title == "ranked, paper":
            assert measured(case, iter(asked)) == 1, "its estimates are the times"
    assert correlations(case)[PAPER]["spearman"] == pytest.approx(1.0)


def test_the_committed_result_is_shown_again(capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "experiments/results/h200-ablation/ablation.json"
    assert main([str(path)]) == 0
    found = capsys.readouterr().out
    assert "within 5 % of the best" in found and "figure 11" in found
    assert len(json.loads(path.read_text())["cases"]) >= 30
