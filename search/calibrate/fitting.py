"""From rows to a device file: constants fitted, and how good they are for families of programs that they were not fitted to."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from statistics import fmean
from statistics import geometric_mean
from typing import Any

import numpy as np

from cost_model.calibrate import BOUNDS
from cost_model.calibrate import WRONG
from cost_model.calibrate import Accuracy
from cost_model.calibrate import Each
from cost_model.calibrate import Fitted
from cost_model.calibrate import Sample
from cost_model.calibrate import accuracy
from cost_model.calibrate import fitting
from cost_model.calibrate import held_out
from cost_model.calibrate import table
from cost_model.constants import Constants
from cost_model.constants import constants_of
from cost_model.device_file import fitted
from cost_model.refined import Product
from cost_model.refined import matmul_seconds
from fuser.device import Device
from fuser.errors import UsageError
from search.calibrate.rates import SIDE
from search.calibrate.rates import Rates
from search.calibrate.samples import family

LEAST_ROWS, LEAST_FAMILIES = 60, 3
"""With fewer rows, or rows of fewer families, what is held out would say nothing."""
LIBRARY = (0.5, 3.0)
"""Bounds of the constant of library kernels."""
UNSAID = 0.7 * WRONG
"""Standard error of a logarithm from which on the rows say little of a constant."""


@dataclass(frozen=True)
class Quality:
    """How the model does on the programs of a family, with constants as they were before and with those that were fitted without
    this family: regret (measured time of its choice over the best, geometric mean), and rank correlation (Spearman's)."""

    family: str
    programs: int
    rows: int
    regret_before: float
    regret: float
    correlation_before: float
    correlation: float


@dataclass(frozen=True)
class Calibration:
    """``device`` has the constants; ``overall`` is the quality over all families."""

    device: Device
    before: Constants
    fitted: Fitted
    overall: Quality
    families: tuple[Quality, ...]

    @property
    def unsaid(self) -> tuple[str, ...]:
        """Constants of which the rows say little: they stay near what they were."""
        return tuple(n for n, x in self.fitted.doubt.items() if x > UNSAID)


def started(device: Device, base: Device, rates: Rates) -> Constants:
    """Constants to begin with: those of the base, and what was measured of them by itself."""
    found = constants_of(base)
    reached = [r for r in (rates.copy, rates.read) if r]
    if reached:
        found = replace(found, memory_rate=min(fmean(reached) / device.memory_bandwidth, 1.0))
    if rates.l2:
        low, high = BOUNDS["l2_rate"]
        found = replace(found, l2_rate=min(max(rates.l2 / device.l2_bandwidth, low), high))
    return found


def calibrated(
    device: Device, start: Constants, samples: Sequence[Sample], rates: Rates, source: Mapping[str, str], each: Each = map
) -> Calibration:
    """Constants fitted to samples of a device. Raises :class:`UsageError` where they are too few."""
    families = {family(s.workload) for s in samples}
    if len(samples) < LEAST_ROWS or len(families) < LEAST_FAMILIES:
        raise UsageError(
            f"{len(samples)} correct rows of {len(families)} kinds of programs are too few to fit {len(BOUNDS)} constants: "
            f"{LEAST_ROWS} of {LEAST_FAMILIES} are needed",
            "run mufuser calibrate longer (--budget): it goes on where it ended",
        )
    data = table(samples, device)
    found = fitting(data, start)
    before, after = accuracy(data, data.predict(start)), accuracy(data, held_out(data, family, start, found.prior, each))
    constants = replace(found.constants, library=_library(device, found.constants, rates))
    pairs = list(zip(before, after, strict=True))
    parts = tuple(_quality(f, [p for p in pairs if family(p[0].workload) == f]) for f in sorted(families))
    overall = _quality("all", pairs)
    error = float(np.sqrt(np.mean(np.log(data.predict(found.constants) / data.seconds) ** 2)))
    calibration = Calibration(device, start, replace(found, constants=constants), overall, parts)
    said = {
        **source,
        "rows": f"{len(samples)} of {overall.programs} programs of {len(families)} kinds",
        "error": f"{error:.3f} root mean square of the logarithm of time",
        "on a bound": ", ".join(found.bounded) or "none",
        "the rows say little of": ", ".join(calibration.unsaid) or "none",
        **{f"held out, {q.family}": sentence(q) for q in (overall, *parts)},
    }
    return replace(calibration, device=fitted(device, constants, said))


def sentence(q: Quality) -> str:
    return (
        f"regret {q.regret:.3f} ({q.regret_before:.3f} before), rank correlation {q.correlation:.2f} "
        f"({q.correlation_before:.2f} before), {q.rows} rows of {q.programs} programs"
    )


def _quality(name: str, pairs: Sequence[tuple[Accuracy, Accuracy]]) -> Quality:
    before, after = zip(*pairs, strict=True)
    return Quality(
        name,
        len(pairs),
        sum(a.count for a in after),
        *(geometric_mean(a.regret for a in side) for side in (before, after)),
        *(fmean(a.spearman for a in side) for side in (before, after)),
    )


def _library(device: Device, c: Constants, rates: Rates) -> float:
    """The constant of library kernels with which a large product takes as long as it was measured to."""
    from scipy.optimize import brentq

    rate = rates.products.get("float16")
    if rate is None:
        return c.library
    p = Product(1, SIDE, SIDE, SIDE, "float16")

    def slower(x: float) -> float:
        return matmul_seconds(p, device, replace(c, library=x)) * rate / p.flops - 1.0

    low, high = LIBRARY
    if slower(low) > 0 or slower(high) < 0:
        return c.library
    root: Any = brentq(slower, low, high)
    return float(root)
