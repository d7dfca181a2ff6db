"""What a bench would do, without a GPU: its cases, and the candidates, predictions and floors of each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from experiments.candidates import Case
from experiments.ceilings import Ceilings
from experiments.ceilings import contraction_flops
from experiments.ceilings import floor_of
from experiments.ceilings import nbytes
from experiments.peers import PEERS
from experiments.peers import peers_of
from experiments.report import BOUNDS
from experiments.report import digits
from experiments.report import floor_note
from experiments.report import short_name
from experiments.report import suites
from fuser.console import print_table
from fuser.device import Device
from fuser.workloads import parse_name
from fuser.workloads import workload


def listing(names: Sequence[str], peers: Iterable[str]) -> dict[str, Any]:
    """Cases with formula, shapes, bytes of inputs and outputs, FLOPs of contractions, and peers."""
    cases, peers = [], tuple(peers)
    for name in names:
        program = workload(name)
        shapes = {n: list(program[n].shape) for n in (*program.inputs, *program.outputs)}
        row, _ = parse_name(name)
        cases.append(
            {
                "workload": name,
                "formula": (row.formula.__doc__ or "").splitlines()[0].rstrip(".:"),
                "shapes": shapes,
                "bytes": nbytes(program),
                "flops": contraction_flops(program),
                "peers": [p.name for p in peers_of(program, peers)],
            }
        )
    return {"cases": cases, "peers": {p: PEERS[p] for p in peers}}


def print_listing(found: dict[str, Any]) -> None:
    rows = [
        (
            short_name(c["workload"], found),
            " ".join(f"{n}[{','.join(map(str, s))}]" for n, s in c["shapes"].items()),
            f"{c['bytes'] / 1e6:.3g}",
            f"{c['flops'] / 1e9:.3g}",
        )
        for c in found["cases"]
    ]
    notes = [f"{name}: {text}" for name, text in found["peers"].items()]
    print_table(f"cases of {', '.join(suites(found))}", ("case", "inputs and outputs", "MB >", "GFLOP >"), rows, notes)


def planned(cases: Sequence[Case], device: Device) -> dict[str, Any]:
    """Candidates with predicted and recorded times, peers and floors (under the rates of the device's description)."""
    limits = Ceilings.of(device)
    found = []
    for case in cases:
        floor = floor_of(case.program, limits)
        estimates = [case.choice.tuned.winner, *case.choice.tuned.runners] if case.choice else []
        found.append(
            {
                "workload": case.name,
                "model": [
                    {"schedule": str(c.schedule), "kernels": len(c.schedule.kernels), "predicted_us": e.us}
                    for c, e in zip(case.chosen, estimates, strict=False)
                ],
                "records": [
                    {"schedule": str(r.candidate.schedule), "kernels": len(r.candidate.schedule.kernels), "us": r.us}
                    for r in case.recorded
                ],
                "random": len(case.drawn),
                "peers": [p.name for p in case.peers],
                "floor_us": floor.us,
                "floor_bound": floor.bound,
                "note": case.note,
            }
        )
    return {"target": device.name, "device": device.title, "ceilings": limits, "cases": found}


def print_plan(found: dict[str, Any]) -> None:
    rows = []
    for c in found["cases"]:
        predicted = c["model"][0]["predicted_us"] if c["model"] else None
        known = min((r["us"] for r in c["records"]), default=math.nan)
        kinds = f"{len(c['model'])}+{len(c['records'])}+{c['random']}"
        rows.append(
            (
                short_name(c["workload"], found),
                digits(predicted),
                digits(known) if c["records"] else "-",
                f"{digits(c['floor_us'])} {BOUNDS[c['floor_bound']]}",
                kinds,
                ", ".join(c["peers"]),
            )
        )
    notes = [
        "model: predicted µs; known: µs of earlier measurements; tried: candidates of the model + known ones + random ones",
        floor_note(**asdict(found["ceilings"])),
        *(f"{c['workload']}: {c['note']}" for c in found["cases"] if c["note"]),
    ]
    heads = ("case", "model >", "known >", "floor >", "tried >", "peers")
    print_table(f"plan of {', '.join(suites(found))} for {found['device']}", heads, rows, notes)
