"""Fit the constants of the refined model to measured schedules, and say how well a model ranks schedules that it was not fitted
on.

Least squares of the logarithms of times over the logarithms of constants, robust against single odd rows (soft L1), with bounds
that keep every constant physical. What matters is the order among the good schedules of a workload: one that takes ten times as
long as the best counts a fifth, and a workload by the root of its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import fields
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_model import paper
from cost_model.constants import Constants
from cost_model.features import Counts
from cost_model.features import features
from cost_model.refined import times
from cost_model.work import Work
from cost_model.work import concatenate
from cost_model.work import work
from fuser.device import Device
from fuser.errors import UsageError
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import BlockGraph
from fuser.ir.schedule import KernelSchedule

BOUNDS: Mapping[str, tuple[float, float]] = {
    "base": (0.1e-6, 2e-6),
    "overlap": (0.05e-6, 1.5e-6),
    "wait": (0.2e-6, 1.5e-6),
    "rewait": (0.01e-6, 1.5e-6),
    "fetch": (0.2e-6, 1.5e-6),
    "block": (2e-9, 0.3e-6),
    "streamed": (1e-9, 1e-6),
    "trip": (0.5e-9, 1e-6),
    "contraction": (0.5e-9, 1e-6),
    "fold": (2e-9, 1e-6),
    "exchange": (5e-9, 1e-6),
    "group_cost": (0.9, 4.0),
    "flat_cost": (1.0, 64.0),
    "special_cost": (0.3, 4.0),
    "arithmetic_cost": (0.5, 8.0),
    "move_cost": (0.2, 8.0),
    "operand_cost": (0.1, 4.0),
    "issue_cost": (0.2, 20.0),
    "descriptor": (0.01e-6, 1.0e-6),
    "merged": (0.05, 0.95),
    "l2_rate": (0.3, 1.0),
    "spill_groups": (0.02, 8.0),
    "spill": (0.01, 8.0),
    "slivers": (0.01, 2.0),
    "pieces": (0.01, 2.0),
    "parts": (0.005, 2.0),
    "norm": (0.7, 8.0),
}
"""Least and largest value of each fitted constant; those not named are left alone."""
EMPHASIS = 0.7
"""Weight of a row is (best time of its workload / its time) to this power."""
ROBUST = 0.3
"""Error of the logarithm beyond which a row counts linearly instead of by its square."""
PRIOR = 0.1
"""Pull of each constant's logarithm towards where the fit started, so that what the data do not show stays plausible."""


@dataclass(frozen=True)
class Sample:
    """A measured candidate; seconds of one call."""

    workload: str
    candidate: Candidate
    seconds: float


@dataclass(frozen=True, eq=False)
class Table:
    """Samples as arrays: the work of all their kernels, and ``row`` that says which sample a kernel belongs to. ``paper`` is the
    estimate of MCFuser's model for each sample."""

    device: Device
    work: Work
    row: NDArray[np.int64]
    seconds: Counts
    workload: NDArray[np.str_]
    paper: Counts

    def predict(self, c: Constants) -> Counts:
        """Seconds of each sample: the sum of its kernels, which run one after the other."""
        out = np.zeros(len(self.seconds))
        np.add.at(out, self.row, times(self.work, self.device, c)["seconds"])
        return out

    def only(self, keep: NDArray[np.bool_]) -> Table:
        """The samples that are kept."""
        new = np.cumsum(keep) - 1
        mine = keep[self.row]
        part = Work(*(getattr(self.work, f.name)[mine] for f in fields(Work)))
        return Table(self.device, part, new[self.row[mine]], self.seconds[keep], self.workload[keep], self.paper[keep])


def table(samples: Sequence[Sample], device: Device) -> Table:
    """Count the work of every sample; kernels of one block and order are counted together."""
    if not samples:
        raise UsageError("there are no measurements to fit", "give files of tuning records with rows of this device")
    groups: dict[tuple[int, str, str, tuple[tuple[str, object], ...]], list[tuple[int, BlockGraph, KernelSchedule]]] = {}
    for i, sample in enumerate(samples):
        for block, kernel in sample.candidate.blocks:
            named = ",".join((*kernel.tile, *(a for a, _ in kernel.splits)))
            groups.setdefault((id(block), str(kernel.order), named, kernel.knobs), []).append((i, block, kernel))
    parts: list[Work] = []
    rows: list[NDArray[np.int64]] = []
    estimates = np.zeros(len(samples))
    for members in groups.values():
        _, block, first = members[0]
        at = np.array([i for i, _, _ in members])
        kernels = [k for _, _, k in members]
        tiles = {a: np.array([k.tile[a] for k in kernels]) for a in first.tile}
        splits = {a: np.array([dict(k.splits)[a] for k in kernels]) for a, _ in first.splits}
        warps, stages = np.array([k.num_warps for k in kernels]), np.array([k.num_stages for k in kernels])
        for f in features(block, first.order, tiles, splits, warps, stages, first.knob):
            parts.append(work(f, device))
            rows.append(at[f.index])
            np.add.at(estimates, at[f.index], paper.seconds(f, device))
    names = np.array([s.workload for s in samples])
    return Table(device, concatenate(parts), np.concatenate(rows), np.array([s.seconds for s in samples]), names, estimates)


# -- fitting ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fitted:
    """Constants, the standard error of the logarithm of each that was fitted, those that rest on a bound, and the pull towards
    the start that the noise of the rows called for."""

    constants: Constants
    doubt: Mapping[str, float]
    bounded: tuple[str, ...]
    prior: float


def fit(data: Table, start: Constants | None = None, prior: float = PRIOR, common: float = 1.0) -> Constants:
    """Constants that explain the measured times; deterministic. ``common``: what counts of the error that the rows of a workload
    have in common, where there are so many rows that the order among them is enough to tell constants apart."""
    from scipy.optimize import least_squares

    first = start or Constants()
    low, high = np.log(list(BOUNDS.values())).T
    origin: Counts = np.clip(np.log([getattr(first, n) for n in BOUNDS]), low, high)
    weighed, count = _weighing(data, common), len(data.seconds)

    def constants(x: Counts) -> Constants:
        return replace(first, **dict(zip(BOUNDS, map(float, np.exp(x)), strict=True)))

    def errors(x: Counts) -> Counts:
        return np.concatenate([weighed(np.log(data.predict(constants(x)) / data.seconds)), prior * (x - origin)])

    def loss(z: Counts) -> Counts:
        """Soft L1 of the rows, the square of the prior; with both derivatives."""
        t, pull = 1 + z[:count], z[count:]
        robust = np.stack([2 * (np.sqrt(t) - 1), t**-0.5, -0.5 * t**-1.5])
        return np.concatenate([robust, [pull, np.ones_like(pull), np.zeros_like(pull)]], axis=1)

    robust_loss: Any = loss  # scipy has no types, and its default is a text
    return constants(least_squares(errors, origin, bounds=(low, high), loss=robust_loss, f_scale=ROBUST).x)


def fitting(data: Table, start: Constants) -> Fitted:
    """The same for a GPU whose constants may well differ from the start's, with what is to be known of them."""

    def noise(c: Constants) -> float:
        """What errors count as in a fit where odd ones count less."""
        errors = weighed(np.log(data.predict(c) / data.seconds))
        slope = 1.0 + (errors / ROBUST) ** 2
        return max(float(np.sqrt(np.mean(errors**2 / slope)) / np.mean(slope**-1.5)), 1e-3)

    weighed = _weighing(data)
    prior = noise(fit(data, start)) / WRONG
    found = fit(data, start, prior)
    told = np.stack([weighed(x) for x in slopes(data, found).T], axis=1)
    covariance = np.linalg.inv(told.T @ told + prior**2 * np.eye(len(BOUNDS)))
    doubt = dict(zip(BOUNDS, (noise(found) * np.sqrt(np.diag(covariance))).tolist(), strict=True))
    ends = {n: min(abs(np.log(getattr(found, n) / end)) for end in pair) for n, pair in BOUNDS.items()}
    return Fitted(found, doubt, tuple(n for n, away in ends.items() if away < AT), prior)


WRONG = 0.35
"""Deviation of the logarithms of constants of another GPU from where its fit starts."""
AT = 0.005
"""Distance of logarithms at which a constant rests on its bound."""
STEP = 0.02
"""Change of the logarithm of a constant over which a slope is taken."""


def slopes(data: Table, c: Constants) -> NDArray[np.float64]:
    """How the logarithm of each sample's time follows the logarithm of each constant that is fitted; [samples, constants]."""
    found = []
    for name in BOUNDS:
        low, high = (replace(c, **{name: getattr(c, name) * np.exp(x)}) for x in (-STEP, STEP))
        found.append(np.log(data.predict(high) / data.predict(low)) / (2 * STEP))
    return np.stack(found, axis=1)


def _weighing(data: Table, common: float = 1.0) -> Callable[[Counts], Counts]:
    """What errors of logarithms count as, in the order of the samples."""
    _, which, rows = np.unique(data.workload, return_inverse=True, return_counts=True)
    best = np.full(len(rows), np.inf)
    np.minimum.at(best, which, data.seconds)
    near = (best[which] / data.seconds) ** EMPHASIS
    share = rows[which] ** -0.5
    weight = near * share / np.sqrt(np.mean(share**2))

    def weighed(errors: Counts) -> Counts:
        shared = np.bincount(which, near**2 * errors) / np.bincount(which, near**2)
        return weight * (errors - (1.0 - common) * shared[which])

    return weighed


# -- how good a model is ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Accuracy:
    """How a model does on the samples of one workload: rank correlations, measured time of its choice over the best measured
    (``regret``), the same for the best of its first eight, and the mean relative error of times (``mape``)."""

    workload: str
    count: int
    spearman: float
    kendall: float
    regret: float
    regret8: float
    mape: float


def _correlation(of: Callable[[Counts, Counts], Any], x: Counts, y: Counts) -> float:
    """A rank correlation of scipy; 0 where one side says nothing."""
    return float(of(x, y).statistic) if np.ptp(x) and np.ptp(y) else 0.0


def accuracy(data: Table, predicted: Counts) -> tuple[Accuracy, ...]:
    """One entry for each workload; ``predicted`` are seconds of each sample."""
    from scipy.stats import kendalltau
    from scipy.stats import spearmanr

    found = []
    for name in np.unique(data.workload):
        t, p = data.seconds[data.workload == name], predicted[data.workload == name]
        first = np.argsort(p, kind="stable")[:8]
        found.append(
            Accuracy(
                str(name),
                len(t),
                _correlation(spearmanr, p, t),
                _correlation(kendalltau, p, t),
                float(t[first[0]] / t.min()),
                float(t[first].min() / t.min()),
                float(np.mean(np.abs(p / t - 1))),
            )
        )
    return tuple(found)


Each = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
"""What calls a function for each of some values, in processes of its own maybe; results in order."""


def held_out(
    data: Table,
    group: Callable[[str], str],
    start: Constants | None = None,
    prior: float = PRIOR,
    each: Each = map,
    common: float = 1.0,
) -> Counts:
    """Predictions for each sample by constants that were fitted without the group of workloads that it belongs to."""
    names = np.array([group(str(w)) for w in data.workload])
    out = np.zeros(len(names))
    groups = np.unique(names)
    for name, c in zip(groups, each(_fit, [(data.only(names != n), start, prior, common) for n in groups]), strict=True):
        out[names == name] = data.only(names == name).predict(c)
    return out


def _fit(job: tuple[Table, Constants | None, float, float]) -> Constants:
    return fit(*job)
