"""The command ``explain``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from typing import Any

import typer

from cost_model.explain import COUNTS
from cost_model.explain import explain as explain_terms
from cost_model.explain import terms
from cost_model.names import REFINED
from cost_model.names import TITLES
from fuser.arguments import BucketSizes
from fuser.arguments import Json
from fuser.arguments import Set
from fuser.arguments import Target
from fuser.arguments import device_of
from fuser.by_fields import by_fields
from fuser.console import note
from fuser.console import print_json
from fuser.console import print_table
from fuser.errors import UsageError
from fuser.frontends.model_file import is_model_file
from fuser.runtime.library import summary
from fuser.workloads import match
from fuser.workloads import workload
from search.figures import require_matplotlib
from search.ranked import INSTANT
from search.ranked import Ranked
from search.ranked import Tuned
from search.roofline import Point
from search.roofline import draw_roofline
from search.roofline import point
from search.tune import tune_fast
from search.tune_report import ModelName
from search.tune_report import taken_line
from search.tuner.efforts import effort_of
from search.tuner.memory import GENERATED
from search.tuner.memory import open_memory


@dataclass(frozen=True)
class Explain:
    """Options of ``explain``."""

    target: Target = "h200"
    settings: Set = None
    kernel: Annotated[
        str | None, typer.Option("--kernel", metavar="NAME", help="Of a model: one kernel of its plan, by name, glob or number.")
    ] = None
    params: Annotated[Path | None, typer.Option("--params", help="The parameters of a Relay model.")] = None
    buckets: BucketSizes = None
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw a roofline, and predicted beside measured times.")
    ] = None
    model: ModelName = REFINED
    json: Json = False


@by_fields
def explain(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Named workloads, globs of them, or the file of a model.")
    ],
    *,
    options: Explain,
) -> None:
    """Cost terms of the winner beside those of the best other candidate.

    Of a model (.pt2, .onnx, Relay's .json): its plan and why neighbours are not fused, or one kernel of it.
    """
    device, model, plot = device_of(options.target, options.settings), options.model, options.plot
    if plot:
        require_matplotlib(plot)
    if files := [n for n in names if is_model_file(n)]:
        if len(names) > 1:
            raise UsageError(f"{files[0]} is a model: it is explained alone", "one model a call")
        if model != REFINED:
            raise UsageError(f"--model {model} ranks named workloads; {files[0]} is covered by the refined one", "leave it out")
        from search.model_commands import explain_model  # what chooses for whole models

        explain_model(files[0], options.params, device, options.kernel, plot, options.json, options.buckets or ())
        return
    if given := [option for option in ("kernel", "params", "buckets") if getattr(options, option) is not None]:
        raise UsageError(f"--{given[0]} belongs to a model", "name its file: .pt2, .onnx or .json")
    effort, memory = effort_of("instant", model), open_memory()
    documents: list[dict[str, Any]] = []
    points: list[Point] = []
    for name in match(names):
        tuned = tune_fast(workload(name), device, effort, kernels=False)
        points += [point(name, tuned.program, tuned.winner.seconds, memory, device)] if plot else []
        shown = [tuned.winner, *other(tuned)]
        rows = explain_terms([c.candidate for c in shown], device, model)
        taken = memory.find(tuned.program, device, GENERATED, INSTANT) if model == REFINED else None
        if options.json:
            documents.append(
                {
                    "workload": name,
                    **({"taken": {"us": taken.ranked.us, "says": taken_line(taken)}} if taken else {}),
                    "candidates": [
                        {
                            "structure": summary(c.graph),
                            "schedule": str(c.schedule),
                            "estimate_us": c.us,
                            "terms": [terms(b, s, device, model) for b, s in c.candidate.blocks],
                        }
                        for c in shown
                    ],
                }
            )
            continue
        table: list[tuple[str, ...]] = []
        kernel = ""
        for row in rows:
            if row.kernel != kernel:
                kernel = row.kernel
                table.append((f"kernel {kernel}", *("" for _ in shown), ""))
            table.append((f"  {row.meaning}", *(_cell(row.term, v) for v in row.values)))
        heads = [f"{summary(c.graph)} >" for c in shown]
        notes = [f"{'winner' if i == 0 else 'runner-up'}: {c.schedule}, {c.us:.2f} µs" for i, c in enumerate(shown)]
        notes += [taken_line(taken)] if taken else []
        title = f"{name} on {device.title} by {TITLES[model]} (times in µs)"
        print_table(title, ("term", *heads), [r[: len(shown) + 1] for r in table], notes)
    if plot:
        draw_roofline(points, device, plot)
        note(f"drawn: {plot}" + ("" if any(p.pairs for p in points) else "; nothing of these was measured"))
    if options.json:
        print_json({"target": device.name, "hypothetical": device.hypothetical, "model": model, "workloads": documents})


def other(tuned: Tuned) -> list[Ranked]:
    """The best candidate of another structure if there is one, else the next schedule."""
    apart = [c for c in tuned.runners if c.graph is not tuned.winner.graph]
    return (apart or list(tuned.runners))[:1]


def _cell(term: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if term in COUNTS else f"{value:.3f}" if abs(value) < 100 else f"{value:,.0f}"
