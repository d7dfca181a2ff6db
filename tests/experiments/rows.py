"""Rows and results as a bench leaves them, made up or as measured."""

from __future__ import annotations

import json
from typing import Any

from experiments.compare import Result
from experiments.drawn import draw_candidates
from fuser.ir.candidate import Candidate
from fuser.ir.schedule import Schedule
from fuser.superopt.structures import one_kernel
from fuser.workloads import workload
from search.measure.rows import Record
from search.measure.rows import record_of
from tests.paths import ROOT

RESULTS = ROOT / "experiments" / "results"
DEVICE = "NVIDIA H200"
ENVIRONMENT = {"device": DEVICE, "torch": "2.11.0", "triton": "3.6.0", "driver": "580", "ptxas": "12.8"}


def committed(suite: str) -> dict[str, Any]:
    """The document of a suite that is in the repository."""
    return json.loads((RESULTS / f"h200-{suite}" / "bench.json").read_text())


def draw(name: str, count: int) -> list[Candidate]:
    """Some candidates of a workload."""
    return draw_candidates(workload(name), count)


def kernel(name: str, us: float, candidate: Candidate | None = None, **fields: Any) -> Record:
    graph = candidate.graph if candidate else one_kernel(workload(name))
    schedule = candidate.schedule.text if candidate else Schedule(()).text
    values = {"repeat": "bench", "batch": "bench/0", "time_us": us, "error_fro": 3e-4, "generator": "g1"} | fields
    of = {"workload": name, "program": "p", "structure": graph.stable_hash(), "schedule": schedule, "source": "s"}
    return record_of(of | {"device": DEVICE, "compiler": "triton 3.6.0"} | values)


def peer(name: str, which: str, us: float | None, status: str = "ok", detail: str = "", **fields: Any) -> Record:
    values = {"repeat": "bench", "batch": "bench/0", "time_us": us, "status": status, "detail": detail} | fields
    of = {"workload": name, "program": "p", "structure": which, "schedule": "", "source": "", "kind": "peer"}
    return record_of(of | {"device": DEVICE, "compiler": "torch 2.11.0"} | values)


def result(name: str, us: float, peers: dict[str, float | str]) -> Result:
    """Our time and that of each peer; a text is the reason why it has none."""
    found = [peer(name, p, t) if isinstance(t, int | float) else peer(name, p, None, "invalid", t) for p, t in peers.items()]
    return Result(workload(name), (kernel(name, us), *found))
