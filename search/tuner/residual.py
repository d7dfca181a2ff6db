"""What the model misses of one program, learned from the measurements so far: Bayesian ridge regression of the logarithm of
measured over estimated time on named features.

A feature says how far a weight may be off before anything was measured (:data:`PRIOR`, by its kind: the word in front of the
colon). Where two candidates differ in features that no measurement has told apart, the deviation of the prediction is as large as
that; what was measured often is known to the noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

PRIOR: Mapping[str, float] = {
    "all": 0.25,
    "structure": 0.15,
    "term": 0.3,
    "tile": 0.05,
    "size": 0.06,
    "order": 0.05,
    "split": 0.05,
    "warps": 0.06,
    "stages": 0.06,
    "option": 0.05,
    "its": 0.03,
}
"""Standard deviations of weights, of logarithms of time: of all candidates alike, those of a structure, a part of the model's
time, a tile size by value and by its logarithm, …; ``its`` is an option of one kernel, beside what it is for all."""
NOISE = 0.03
"""Standard deviation of what no feature explains."""


FARTHEST = 0.4
"""Largest logarithm of a ratio that is believed."""


@dataclass
class Residual:
    """``seen`` are features of measured candidates, ``ratios`` the logarithms of measured over estimated time."""

    seen: list[Mapping[str, float]] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    _columns: dict[str, int] = field(default_factory=dict, repr=False)
    _rows: dict[int, tuple[Mapping[str, float], NDArray[np.int64], Floats]] = field(default_factory=dict, repr=False)
    """Of features that were asked about, by their identity: themselves, their columns, and values there."""

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_rows": {}}

    def add(self, features: Mapping[str, float], ratio: float) -> None:
        """A measurement, ``ratio`` times as long as the model's estimate. What is far off is so for a reason that no feature has,
        and tells little about others."""
        self.seen.append(features)
        self.ratios.append(float(np.clip(np.log(ratio), -FARTHEST, FARTHEST)))

    def predict(self, candidates: Sequence[Mapping[str, float]]) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the logarithm of measured over estimated time."""
        posterior = _Posterior.of(self, candidates)
        return posterior.mean, np.sqrt(posterior.variance)

    def choose(self, candidates: Sequence[Mapping[str, float]], estimates: Floats, count: int, boldness: float) -> list[int]:
        """Which ``count`` candidates are worth measuring, one after the other: the least logarithm of predicted time less
        ``boldness`` deviations. What is chosen tells about its like, which is counted before the next is chosen."""
        posterior, chosen = _Posterior.of(self, candidates), list[int]()
        score = np.log(estimates) + posterior.mean
        for _ in range(min(count, len(candidates))):
            lower = score - boldness * np.sqrt(posterior.variance)
            lower[chosen] = np.inf
            chosen.append(int(np.argmin(lower)))
            posterior = posterior.after(chosen[-1])
        return chosen

    def matrices(self, new: Sequence[Mapping[str, float]]) -> tuple[Floats, Floats]:
        """Features times the deviation of their weights, of what was measured and of ``new``: a row for each candidate, a column
        for each feature that any has."""
        rows = [self._row(features) for features in (*self.seen, *new)]
        if not rows:
            return np.zeros((0, 0)), np.zeros((0, 0))
        used, columns = np.unique(np.concatenate([at for at, _ in rows]), return_inverse=True)
        found = np.zeros((len(rows), len(used)))
        found[np.repeat(np.arange(len(rows)), [len(at) for at, _ in rows]), columns] = np.concatenate([x for _, x in rows])
        return found[: len(self.seen)], found[len(self.seen) :]

    def _row(self, features: Mapping[str, float]) -> tuple[NDArray[np.int64], Floats]:
        known = self._rows.get(id(features))
        if known is None or known[0] is not features:  # identities change where a search is copied
            at = np.array([self._columns.setdefault(n, len(self._columns)) for n in features], np.int64)
            values = np.array([v * PRIOR[n.partition(":")[0]] for n, v in features.items()])
            self._rows[id(features)] = known = features, at, values
        return known[1:]


@dataclass(frozen=True)
class _Posterior:
    """What is known of some candidates: ``rows`` are their features times the deviation of the weights, ``told`` what measured
    candidates have in common with them, so that the covariance of two is that of the prior less their product there."""

    rows: Floats
    told: Floats
    mean: Floats
    variance: Floats

    @staticmethod
    def of(known: Residual, candidates: Sequence[Mapping[str, float]]) -> _Posterior:
        seen, new = known.matrices(candidates)
        variance = (new**2).sum(1)
        if not len(seen):
            return _Posterior(new, np.zeros((len(new), 0)), np.zeros(len(new)), variance)
        root = np.linalg.cholesky(seen @ seen.T + NOISE**2 * np.eye(len(seen)))
        told = new @ np.linalg.solve(root, seen).T
        mean = told @ np.linalg.solve(root, np.array(known.ratios))
        return _Posterior(new, told, mean, np.maximum(variance - (told**2).sum(1), 0.0))

    def after(self, i: int) -> _Posterior:
        """When candidate ``i`` will have been measured; the mean is as it is."""
        common = self.rows @ self.rows[i] - self.told @ self.told[i]
        common /= np.sqrt(self.variance[i] + NOISE**2)
        return _Posterior(self.rows, np.c_[self.told, common], self.mean, np.maximum(self.variance - common**2, 0.0))
