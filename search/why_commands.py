"""The command ``why-not``."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Annotated
from typing import Any

import typer

from cost_model.explain import COUNTS
from cost_model.explain import Row
from fuser.arguments import Set
from fuser.arguments import Target
from fuser.arguments import device_of
from fuser.console import print_json
from fuser.console import print_table
from fuser.console import print_text
from fuser.device import Device
from fuser.errors import UsageError
from fuser.frontends.model_file import is_model_file
from fuser.ir.candidate import Candidate
from fuser.ir.program import TensorProgram
from fuser.runtime.library import summary
from fuser.workloads import match
from fuser.workloads import workload
from search.measure.rows import Record
from search.model_commands import kernel_of_model
from search.ranked import INSTANT
from search.tune import tune_fast
from search.tune_report import taken_line
from search.tuner.memory import GENERATED
from search.tuner.memory import Memory
from search.tuner.memory import open_memory
from search.tuner.memory import sources_of
from search.why_not import WhyNot
from search.why_not import why_not as ask

WHOLE = ("launch", "base", "waits", "turns", "roof")
"""Terms that the others are parts of."""
SMALL = 5e-4
"""Microseconds that nobody cares about."""


def why_not(
    program: Annotated[str, typer.Argument(metavar="PROGRAM", help="A named workload, or the file of a model.")],
    schedule: Annotated[str, typer.Argument(metavar="SCHEDULE", help="As tune, explain and this verb print it, in quotes.")],
    target: Target = "h200",
    settings: Set = None,
    kernel: Annotated[
        str | None, typer.Option("--kernel", metavar="NAME", help="Of a model: a kernel of its plan, by name, glob or number.")
    ] = None,
    params: Annotated[Path | None, typer.Option("--params", help="The parameters of a Relay model.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Why a program was not given a schedule: the rules that forbid it, or the terms of the model by which it loses.

    A schedule is spelled as it is printed: order, tiles and splits in brackets, warps, stages, options; several kernels with ;
    between them. Nothing is compiled or measured.
    """
    device, taken = device_of(target, settings), None
    memory = open_memory()
    if is_model_file(program):
        name, tuned = kernel_of_model(program, params, device, kernel, json)
    elif kernel is not None or params is not None:
        raise UsageError(f"{'--kernel' if kernel else '--params'} belongs to a model", "name its file: .pt2, .onnx or .json")
    else:
        (name, *more) = match([program])
        if more:
            raise UsageError(f"{program!r} names {1 + len(more)} workloads", f"name one: {name}")
        tuned = tune_fast(workload(name), device, kernels=False)
        taken = memory.find(tuned.program, device, GENERATED, INSTANT)
    found = ask(tuned, schedule, device)
    known = measured(tuned.program, found.candidate, memory, device)
    if taken is not None:
        same = taken.ranked.candidate == found.candidate
        known["taken"] = {"this": same, "says": taken_line(taken, "this schedule" if same else ""), "us": taken.ranked.us}
    if json:
        about = {"target": device.name, "hypothetical": device.hypothetical, "program": name}
        print_json(about | document(found) | {"measured": known})
    else:
        _show(name, found, known, device)


def document(found: WhyNot) -> dict[str, Any]:
    return {
        "schedule": str(found.candidate.schedule),
        "structure": summary(found.candidate.graph),
        "wins": found.wins,
        "reasons": found.reasons,
        "estimate_us": found.seconds * 1e6,
        "winner": {
            "schedule": str(found.winner.schedule),
            "structure": summary(found.winner.graph),
            "estimate_us": found.winner.us,
        },
        "place": found.place,
        "ranked": found.ranked,
        "unseen": found.unseen,
        "terms": found.terms,
    }


def measured(program: TensorProgram, candidate: Candidate, memory: Memory, device: Device) -> dict[str, Any]:
    """What records say: of the candidate, and of the fastest of its program."""
    rows = [r for _, found in sources_of(memory, program, device) for r in found]
    names = candidate.graph.stable_hash(), candidate.schedule.text
    mine = [r for r in rows if (r.structure, r.schedule) == names]
    good = sorted((r for r in rows if r.ok and r.time_us), key=lambda r: r.time_us or 0.0)
    said: dict[str, Any] = {"rows": len(rows)}
    if mine:
        best = min((r for r in mine if r.ok and r.time_us), key=lambda r: r.time_us or 0.0, default=mine[0])
        said["this"] = _row(best)
    if good:
        said["fastest"] = _row(good[0])
    return said


def _row(row: Record) -> dict[str, Any]:
    return {"us": row.time_us, "status": row.status, "schedule": str(row.schedule_value()), "detail": row.detail}


def _show(name: str, found: WhyNot, known: dict[str, Any], device: Device) -> None:
    us, best = found.seconds * 1e6, found.winner.us
    mine, winner = str(found.candidate.schedule), str(found.winner.schedule)
    lines = [f"schedule: {mine}"] + ([] if found.wins else [f"winner:   {winner}, {best:.2f} µs"])
    if other := found.candidate.graph != found.winner.graph:
        lines.append(f"structures: {summary(found.candidate.graph)}; the winner's: {summary(found.winner.graph)}")
    lines += _measured(known)
    if found.wins:
        print_text("\n".join([f"{name} on {device.title}: this is the winner by the model, {us:.2f} µs", *lines]))
        return
    if found.reasons:
        estimate = [f"the model alone would give it {us:.2f} µs"] if isfinite(us) else []
        rows = [(r.rule, r.text if other is False or not r.kernel else f"{r.kernel}: {r.text}") for r in found.reasons]
        print_table(f"{name} on {device.title}: not allowed", ("rule", "figures"), rows, [*lines, *estimate])
        return
    longer = f"{us / best - 1:+.1%}" if isfinite(us) and best else ""
    place = f"number {found.place} of {found.ranked} that were kept" if found.place else f"not kept: {found.unseen}"
    title = f"{name} on {device.title}: {us:.2f} µs, the winner {best:.2f} ({longer})"
    heads = ("term", "winner >", "this >", "difference >")
    print_table(title, heads, list(_terms(found.terms)), [*_mostly(found.terms), place, *lines])


def _terms(terms: Sequence[Row]) -> list[tuple[str, ...]]:
    """Times in microseconds, then what they come from; terms that are nothing in both are left out."""
    rows: list[tuple[str, ...]] = []
    kernel = ""
    for row in terms:
        values = [v or 0.0 for v in row.values]
        if all(abs(v) < SMALL for v in values):
            continue
        if row.kernel != kernel:
            kernel = row.kernel
            rows.append((f"kernel {kernel}", "", "", ""))
        difference = values[1] - values[0]
        shown = ["-" if v is None else _number(row.term, v) for v in row.values]
        sign = "+" if difference > 0 else "-"
        rows.append((f"  {row.meaning}", *shown, "" if abs(difference) < SMALL else sign + _number(row.term, abs(difference))))
    return rows


def _number(term: str, value: float) -> str:
    if term not in COUNTS:
        return f"{value:.3f}"
    return f"{value:,.4g}" if value < 100 else f"{value:,.0f}"


def _mostly(terms: Sequence[Row]) -> list[str]:
    """The term that costs most beside the winner's."""
    costs = [((r.values[1] or 0.0) - (r.values[0] or 0.0), r) for r in terms if r.term in WHOLE]
    worst, row = max(costs, key=lambda x: x[0], default=(0.0, None))
    return [f"most of it: {row.meaning}, {worst:+.3f} µs (times in µs)"] if row and worst > SMALL else ["times in µs"]


def _measured(known: dict[str, Any]) -> list[str]:
    lines = [known["taken"]["says"]] if "taken" in known else []
    if mine := known.get("this"):
        lines.append(f"measured: {mine['us']:.2f} µs" if mine["us"] else f"measured: {mine['status']} {mine['detail']}".rstrip())
    if best := known.get("fastest"):
        lines.append(f"the fastest that was measured: {best['us']:.2f} µs, {best['schedule']}")
    return lines
