"""The command ``show``: a µGraph as text or a drawing, the layouts of its kernels, and the instructions that these become."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import typer

from fuser.arguments import Json
from fuser.arguments import Set
from fuser.arguments import Target
from fuser.arguments import device_of
from fuser.console import print_json
from fuser.console import print_table
from fuser.console import print_text
from fuser.device import Device
from fuser.errors import UsageError
from fuser.files import counted
from fuser.ir.candidate import scheduled_blocks
from fuser.ir.mugraph import KernelGraph
from fuser.ir.schedule import Schedule
from fuser.ir.text import describe
from fuser.ir.text import dot
from fuser.ir.text import mermaid
from fuser.ir.text import svg
from fuser.lower.decompose import decompose
from fuser.lower.options import BACKEND
from fuser.lower.spec_text import shown
from fuser.superopt.commands import read_graph
from fuser.superopt.commands import threads_text
from fuser.superopt.generate.signature import signature
from fuser.workloads import match
from fuser.workloads import workload
from search.layouts.report import Planned
from search.layouts.report import costs
from search.layouts.report import document
from search.layouts.report import picked
from search.layouts.report import planned
from search.layouts.report import rows
from search.layouts.tiles import near
from search.tune import rank_graph
from search.tune import tune_fast

FORMS = {"text": describe, "mermaid": mermaid, "dot": dot, "svg": svg}
CHOSEN = ("layouts", "specs")
"""Forms for which layouts are chosen, on a device."""


def show(
    graph: Annotated[str, typer.Argument(help="A µGraph as JSON, or a named workload: the model's choice for it.")],
    form: Annotated[
        str,
        typer.Option("--as", help="text, threads, mermaid, dot or svg; layouts or specs: what the solver of layouts chooses."),
    ] = "text",
    schedule: Annotated[
        str | None, typer.Option("--schedule", metavar="SCHEDULE", help="As tune and explain print it; without it, the best.")
    ] = None,
    target: Target = "h200",
    settings: Set = None,
    json: Json = False,
) -> None:
    """Print or draw a µGraph.

    As layouts: groups of warps, buffers and layouts of every tile, what that costs and what limits it. As specs: nested
    specifications down to instructions, with the threads and the layouts of each (Graphene, figure 8).
    """
    if form not in (*FORMS, "threads", *CHOSEN):
        raise UsageError(f"a µGraph cannot be shown as {form!r}", f"use one of {', '.join([*FORMS, 'threads', *CHOSEN])}")
    named = ".json" not in graph and not os.path.exists(graph)  # false for what no file can be called
    if form in CHOSEN:
        device = device_of(target, settings)
        found, kernels = _scheduled(graph, named, schedule, device)
        _show_layouts(found, kernels, device, form, schedule is not None, json)
        return
    found, under = _plain(graph, named, schedule, target, settings)
    if json:
        about = {"schedule": str(under)} if under else {}
        print_json({"graph": found.to_json(), "signature": signature(found).text.splitlines()} | about)
    elif form == "threads":
        print_text(threads_text(found))
    else:
        print_text(FORMS[form](found, under) if form != "svg" or under else svg(found))


def _plain(
    graph: str, named: bool, schedule: str | None, target: str, settings: Sequence[str] | None
) -> tuple[KernelGraph, Schedule | None]:
    """A µGraph, with a schedule where one is given or the model chooses."""
    if named:
        return _scheduled(graph, named, schedule, device_of(target, settings))
    found = read_graph(graph)
    return found, Schedule.parse(schedule, found.blocks) if schedule is not None else None


def _scheduled(graph: str, named: bool, schedule: str | None, device: Device) -> tuple[KernelGraph, Schedule]:
    """The µGraph of a file or the best of a workload, under a schedule that is given, or the model's best."""
    if named:
        (name, *more) = match([graph])
        if more:
            raise UsageError(f"{graph!r} names {1 + len(more)} workloads", f"name one: {name}")
        winner = tune_fast(workload(name), device, kernels=False).winner
        found, best = winner.graph, winner.schedule
    else:
        found = read_graph(graph)
        best = None
    if schedule is not None:
        return found, Schedule.parse(schedule, found.blocks)
    return found, best or rank_graph(found, device, np.random.default_rng(0))[0][0].schedule


def _show_layouts(found: KernelGraph, schedule: Schedule, device: Device, form: str, fixed: bool, json: bool) -> None:
    made: list[tuple[Planned, Planned | None]] = []
    for block, own in scheduled_blocks(found, schedule):
        by_groups = BACKEND.of(own) == "gluon"
        if fixed or not by_groups:
            tries = (own,) if fixed else (own, *near(block, own, device))
            made.append((planned(block, tries, device), None if by_groups or form != "layouts" else picked(block, device)))
        else:
            made.append((picked(block, device) or planned(block, (own,), device), None))
    if json:
        print_json(
            {"target": device.name, "hypothetical": device.hypothetical, "kernels": [document(p, device, g) for p, g in made]}
        )
        return
    if not made:
        print_text(f"{found.name} has no generated kernel: libraries compute it")
    for p, gluon in made:
        if p.plan is None or p.facts is None:
            print_text(f"{p.block.name}: {p.schedule}\nno layouts: {p.why}")
        elif form == "specs":
            print_text(f"// {p.block.name}: {p.schedule}\n// on {device.title}, {p.us:.2f} µs by the solver of layouts")
            print_text(shown(decompose(p.facts.tiles, p.plan, device.arch), p.plan))
        else:
            _show_plan(p, gluon, device)


def _show_plan(p: Planned, gluon: Planned | None, device: Device) -> None:
    assert p.plan is not None
    print_table(f"{p.block.name}: {p.schedule}", ("what", "choice", "how"), rows(p))
    notes = [
        *p.plan.limits,
        f"{counted(p.modes, 'way')} to share an SM, {p.asked} solved, the best of {counted(p.tried, 'schedule')}",
    ]
    if gluon is not None:
        notes.append(f"in Gluon, {gluon.us:.2f} µs: --schedule '{gluon.schedule}'")
    print_table(f"{p.us:.2f} µs on {device.title}", ("", "of it", "µs >"), costs(p), notes)
