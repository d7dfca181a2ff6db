"""The residual finds what a model misses, says how sure it is, and asks about what it does not know."""

from __future__ import annotations

import numpy as np
import pytest

from search.tuner.residual import NOISE
from search.tuner.residual import PRIOR
from search.tuner.residual import Residual


def features(warps: int, tma: bool, share: float) -> dict[str, float]:
    return {"all:": 1.0, f"warps:0.0 {warps}": 1.0, "term:memory": share} | ({"option:tma True": 1.0} if tma else {})


def test_without_measurements_the_model_stands() -> None:
    mean, deviation = Residual().predict([features(4, False, 0.0), features(4, True, 0.0)])
    assert mean.tolist() == [0.0, 0.0]
    assert deviation[0] == pytest.approx(np.hypot(PRIOR["all"], PRIOR["warps"]))
    assert deviation[1] > deviation[0]


def test_it_learns_what_the_model_misses(rng: np.random.Generator) -> None:
    """Descriptors are 10 % faster than the model says, memory takes 30 % longer."""

    def truth(f: dict[str, float]) -> float:
        return float(np.exp(-0.1 * f.get("option:tma True", 0.0) + 0.3 * f["term:memory"]))

    known = Residual()
    for _ in range(30):
        f = features(int(rng.choice([4, 8])), bool(rng.integers(2)), float(rng.random()))
        known.add(f, truth(f))
    asked = [features(w, t, s) for w in (4, 8) for t in (False, True) for s in (0.1, 0.9)]
    mean, deviation = known.predict(asked)
    assert np.exp(mean) == pytest.approx([truth(f) for f in asked], rel=0.02)
    assert (deviation < 2 * NOISE).all()
    _, unknown = known.predict([features(16, False, 0.5)])
    assert unknown[0] > PRIOR["warps"] / 2


def test_what_tells_the_same_is_asked_once() -> None:
    """Ten candidates that differ in nothing, and one with an option that nobody has tried and that the model sees no gain in."""
    same, other = features(4, False, 0.5), features(4, True, 0.5)
    known = Residual()
    known.add(same, 1.0)
    candidates = [same] * 10 + [other]
    assert 10 in known.choose(candidates, np.full(11, 1e-6), 2, 1.0)
    assert known.choose(candidates, np.array([1e-6] * 10 + [1e-5]), 3, 1.0) == [0, 1, 2], "not at any price"
    assert known.choose(candidates[:2], np.array([2e-6, 1e-6]), 5, 0.0) == [1, 0]
