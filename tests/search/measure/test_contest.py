"""Timing goes on for those of whom it is not clear yet whether they are the fastest, and for nobody else."""

from __future__ import annotations

import numpy as np
import pytest

from search.measure.contest import decided
from search.measure.contest import undecided
from search.measure.machine import QUERY
from search.measure.machine import parse_conditions


def rounds(base: float, noise: float, count: int, rng: np.random.Generator, drift: np.ndarray | float = 1.0) -> list[float]:
    return list(base * drift * np.exp(noise * rng.standard_normal(count)))


def test_clear_differences_and_ties_need_no_more(rng: np.random.Generator) -> None:
    times = {0: rounds(10.0, 0.001, 5, rng), 1: rounds(11.0, 0.001, 5, rng), 2: rounds(10.005, 0.0005, 5, rng)}
    assert undecided(times) == []


def test_what_is_not_clear_goes_on_with_the_best(rng: np.random.Generator) -> None:
    times = {0: rounds(10.0, 0.02, 5, rng), 1: rounds(10.05, 0.02, 5, rng), 2: rounds(15.0, 0.02, 5, rng)}
    assert sorted(undecided(times)) == [0, 1]
    times[0] += rounds(10.0, 0.0001, 60, rng)
    times[1] += rounds(10.6, 0.0001, 60, rng)
    assert undecided(times) == []


def test_drift_that_all_share_is_no_noise(rng: np.random.Generator) -> None:
    drift = 1.0 + 0.3 * rng.random(6)
    assert decided(rounds(10.2, 0.001, 6, rng, drift), rounds(10.0, 0.001, 6, rng, drift))
    assert not decided(rounds(10.2, 0.001, 6, rng, 1.0 + 0.3 * rng.random(6)), rounds(10.0, 0.001, 6, rng, drift))


def test_nobody_alone() -> None:
    assert undecided({}) == undecided({3: [1.0, 1.1, 1.3]}) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1980, 3201, 0x0000000000000004, 41, 612.31\n", {"sm_clock_mhz": "1980", "throttled": "0x0000000000000004"}),
        ("1980, [N/A], 0x0, 41, [Not Supported]", {"sm_clock_mhz": "1980", "temperature_c": "41"}),
        ("", {}),
        ("No devices were found", {}),
    ],
)
def test_conditions_are_read(text: str, found: dict[str, str]) -> None:
    got = parse_conditions(text)
    assert found.items() <= got.items()
    assert set(got) <= set(QUERY.values())
    assert bool(got) == bool(found)
