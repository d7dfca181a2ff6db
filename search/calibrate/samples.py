"""Rows of tuning records as samples of the fit."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable

import numpy as np

from cost_model.calibrate import Sample
from cost_model.features import schedule_features
from fuser.ir.candidate import Candidate
from fuser.ir.candidate import scheduled
from fuser.ir.mugraph import KernelGraph
from search.calibrate.programs import SUITES
from search.measure.rows import Record
from search.space.groups import by_warp_groups
from search.space.hazards import unwieldy

UNKNOWN = frozenset({"unroll", "specialize", "pad"})
"""Options of the lowering that change a time and of which the model knows nothing."""


def samples(rows: Iterable[Record], graph_of: Callable[[str], KernelGraph | None]) -> list[Sample]:
    """Of the correct rows of kernels; what was measured several times has its median."""
    found: dict[tuple[str, str, str], list[Record]] = {}
    for row in rows:
        if row.kind == "kernel" and row.ok and row.time_us:
            found.setdefault((row.workload, row.structure, row.schedule), []).append(row)
    made = []
    for (workload, structure, _), same in found.items():
        graph = graph_of(structure)
        candidate = Candidate(graph, same[0].schedule_value()) if graph else None
        if candidate and _of_the_model(candidate):
            made.append(Sample(workload, candidate, 1e-6 * float(np.median([r.time_us or np.nan for r in same]))))
    return made


def _of_the_model(candidate: Candidate) -> bool:
    """Whether the constants price it: nothing of it is a library's or by warp groups (:mod:`cost_model.group_costs`), has options
    that the model does not know, or is never chosen."""
    if by_warp_groups(candidate.schedule):
        return False
    if any(k is None or set(k.knob) & UNKNOWN for _, k in scheduled(candidate.graph, candidate.schedule)):
        return False
    return not any(unwieldy(schedule_features(b, k)).any() for b, k in candidate.blocks)


def family(workload: str) -> str:
    """Workloads that are alike: ``mcfuser/G``, ``mcfuser/S``, each network of Mirage at all batch sizes, each kind of what a
    calibration draws, all products."""
    suite, _, name = workload.partition("/")
    if suite == "calibrate":
        return f"{suite}/{name.rsplit('-', 1)[0]}"
    if suite in SUITES or not name:  # left out as a whole
        return suite
    return f"{suite}/{name.split(':')[0].split('-')[-1]}" if suite == "mirage" else f"{suite}/{name[0]}"
