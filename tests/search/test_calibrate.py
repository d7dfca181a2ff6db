"""Fitting: constants that made the times are found again, and the figures of merit are what they say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cost_model.calibrate import BOUNDS
from cost_model.calibrate import PRIOR
from cost_model.calibrate import ROBUST
from cost_model.calibrate import Sample
from cost_model.calibrate import _weighing
from cost_model.calibrate import accuracy
from cost_model.calibrate import fit
from cost_model.calibrate import held_out
from cost_model.calibrate import table
from cost_model.constants import Constants
from cost_model.constants import constants_of
from cost_model.device_file import fitted
from cost_model.device_file import text
from fuser.device import load_device
from fuser.errors import UsageError
from fuser.ir.candidate import Candidate
from fuser.superopt.structures import structures
from fuser.workloads import workload
from search.space.schedules import ScheduleSpace

H200 = load_device("h200")
TRUE = Constants(base=1.1e-6, wait=0.6e-6, trip=0.1e-6, exchange=0.3e-6, arithmetic_cost=3.0)


def samples(names: tuple[str, ...], count: int) -> list[Sample]:
    rng = np.random.default_rng(0)
    found = []
    for name in names:
        for graph in structures(workload(name)):
            space = ScheduleSpace(graph, H200)
            found += [Sample(name, Candidate(graph, space.schedule(r)), 1.0) for r in space.population(count, rng)]
    return found


@pytest.fixture(scope="module")
def made():
    """Times that the model makes with other constants, and 5 % of noise."""
    data = table(samples(("mcfuser/G2", "mcfuser/G5", "mcfuser/S1", "mcfuser/S9"), 16), H200)
    noise = np.exp(0.05 * np.random.default_rng(1).standard_normal(len(data.seconds)))
    return replace(data, seconds=data.predict(TRUE) * noise)


@pytest.fixture(scope="module")
def found(made) -> Constants:
    return fit(made)


def test_constants_are_found_again(made, found) -> None:
    before, after = (np.abs(np.log(made.predict(c) / made.seconds)).mean() for c in (Constants(), found))
    assert after < 0.06 < before
    for name in ("wait", "exchange"):
        true, start, end = (getattr(c, name) for c in (TRUE, Constants(), found))
        assert abs(np.log(end / true)) < 0.5 * abs(np.log(start / true))


def test_odd_rows_do_not_pull(made) -> None:
    seconds = made.seconds.copy()
    seconds[::40] *= 20
    odd = np.zeros(len(seconds), bool)
    odd[::40] = True
    pulled = replace(made, seconds=seconds)
    errors = np.log(pulled.predict(fit(pulled)) / made.seconds)
    assert np.abs(errors[~odd]).mean() < 0.12


def test_held_out_workloads_are_predicted(made) -> None:
    out = held_out(made, lambda w: w)
    scores = accuracy(made, out)
    assert [s.workload for s in scores] == ["mcfuser/G2", "mcfuser/G5", "mcfuser/S1", "mcfuser/S9"]
    assert all(s.spearman > 0.95 and s.regret < 1.15 and s.mape < 0.3 for s in scores)


def test_parts_of_a_table(made) -> None:
    keep = made.workload == "mcfuser/G5"
    part = made.only(keep)
    np.testing.assert_allclose(part.predict(TRUE), made.predict(TRUE)[keep])


def test_no_measurements_is_an_error() -> None:
    with pytest.raises(UsageError, match="no measurements"):
        table([], H200)


@pytest.mark.parametrize("name", ["mine.toml", "mine.json"])
def test_files_give_back_what_was_fitted(name: str, tmp_path: Path) -> None:
    mine = fitted(
        replace(H200, name="mine", title="Mine", aliases=()),
        TRUE,
        {"gpu": 'a "GPU" of mine', "held out, products": "regret 1.04"},
    )
    (tmp_path / name).write_text(text(mine, name))
    back = load_device(str(tmp_path / name))
    assert back == mine
    assert back.fit == mine.fit != ()
    for constant in Constants.__dataclass_fields__:
        assert getattr(constants_of(back), constant) == pytest.approx(getattr(TRUE, constant), rel=1e-3)


def test_accuracy_of_an_oracle_and_its_opposite(made) -> None:
    for s in accuracy(made, made.seconds):
        assert (s.regret, s.regret8, s.mape) == (1.0, 1.0, 0.0)
        assert s.spearman == pytest.approx(1.0)
    assert all(s.spearman == pytest.approx(-1.0) and s.regret > 1.0 for s in accuracy(made, 1 / made.seconds))


def test_a_model_that_says_nothing_ranks_nothing(made) -> None:
    for s in accuracy(made, np.ones(len(made.seconds))):
        assert (s.spearman, s.kendall) == (0.0, 0.0)


def test_the_fit_is_a_minimum(made, found) -> None:
    """No constant can be changed, within its bounds, to the fit's advantage."""

    def loss(c: Constants) -> float:
        z = (_weighing(made)(np.log(made.predict(c) / made.seconds)) / ROBUST) ** 2
        prior = sum(np.log(getattr(c, n) / np.clip(getattr(Constants(), n), *BOUNDS[n])) ** 2 for n in BOUNDS)
        return float(2 * ROBUST**2 * np.sum(np.sqrt(1 + z) - 1) + PRIOR**2 * prior)

    for name, (low, high) in BOUNDS.items():
        for factor in (0.98, 1.02):
            moved = replace(found, **{name: float(np.clip(factor * getattr(found, name), low, high))})
            assert loss(moved) >= loss(found) * (1 - 1e-6), (name, factor)


def test_errors_that_a_workload_has_in_common_may_count_less(made) -> None:
    weighed, rows = _weighing(made, 0.4), len(made.seconds)
    apart = np.where(np.arange(rows) % 2, 0.1, -0.1)
    assert np.square(weighed(np.full(rows, 0.1))).sum() < 0.5 * np.square(weighed(apart)).sum()
