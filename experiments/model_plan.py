"""What ``bench models`` would do, without a GPU: its cases, and what the model expects of each."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from experiments import report
from experiments.ceilings import Ceilings
from experiments.model_bench import DTYPE
from experiments.model_bench import Case
from experiments.model_bench import floor
from fuser.console import note
from fuser.console import plain
from fuser.console import print_table
from fuser.device import Device
from fuser.errors import FuserError
from search.cover.offers import Pricing


def listing(cases: Sequence[Case], peers: Sequence[str]) -> dict[str, Any]:
    """Cases with titles and the shapes of their inputs, and the peers."""
    from experiments.networks import NETWORKS

    return {
        "cases": [{"workload": c.name, "title": NETWORKS[c.network].title, "batch": c.batch} for c in cases],
        "peers": list(peers),
    }


def print_listing(found: Mapping[str, Any]) -> None:
    rows = [(report.short_name(c["workload"], found), c["title"], c["batch"]) for c in found["cases"]]
    print_table("networks", ("case", "what", "batch >"), rows, [f"peers: {', '.join(found['peers'])}"])


def planned(cases: Sequence[Case], device: Device) -> dict[str, Any]:
    """What the model expects of each case on a device, and the floors; nothing is compiled or run."""
    import torch

    from experiments.networks import NETWORKS
    from fuser.frontends.torch_export import from_torch
    from search.cover.model import compile_model

    found = []
    for i, case in enumerate(cases):
        note(f"… {case.name} ({i + 1} of {len(cases)})")
        torch.manual_seed(0)
        module, shapes = NETWORKS[case.network].make(case.batch)
        known = from_torch(
            module.eval().to(getattr(torch, DTYPE)), tuple(torch.randn(s).to(getattr(torch, DTYPE)) for s in shapes)
        )
        least = floor(known.program, device)
        row = {"workload": case.name, "floor_us": least.us, "floor_bound": least.bound}
        try:
            plan = compile_model(known.program, known.params, Pricing(device), compiled=False, checked=False).plan
            row |= {"predicted_us": plan.us, "kernels": plan.launches, "choice": plan.choice, "plan": plan.lines(), "note": ""}
        except FuserError as problem:
            row |= {"predicted_us": None, "kernels": None, "choice": None, "plan": [], "note": problem.message}
        found.append(row)
    return plain({"target": device.name, "device": device.title, "ceilings": Ceilings.of(device), "cases": found})


def print_plan(found: Mapping[str, Any]) -> None:
    rows = [
        (
            report.short_name(c["workload"], found),
            report.digits(c["predicted_us"]),
            f"{report.digits(c['floor_us'])} {report.BOUNDS[c['floor_bound']]}",
            c["kernels"] or "-",
            f"{c['choice']['candidates']}" if c["choice"] else "-",
            f"{c['choice']['seconds']:.2f}" if c["choice"] else "-",
        )
        for c in found["cases"]
    ]
    notes = [
        "candidates and seconds are those of the integer program; predicted without any overlap between kernels",
        report.floor_note(**found["ceilings"]),
        *(f"{c['workload']}: {c['note']}" for c in found["cases"] if c["note"]),
    ]
    heads = ("case", "predicted >", "floor >", "kernels >", "candidates >", "s >")
    print_table(f"networks for {found['device']}, µs of one call", heads, rows, notes)
