"""What a search ended with, as a table and in a report; and the options of commands that search."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Annotated
from typing import Any

import typer

from cost_model.floor import floor_seconds
from fuser.console import print_table
from fuser.device import Device
from fuser.errors import UsageError
from search.ranked import Ranked
from search.ranked import Tuned
from search.realise import Realised
from search.tuner.live import counts_text
from search.tuner.memory import Known

RecordsFile = Annotated[
    str | None,
    typer.Option("--records", metavar="PATH", help="Tuning records in place of the user's, or rows to read beside them."),
]
NoRecords = Annotated[bool, typer.Option("--no-records", help="Take nothing that was measured before, and keep nothing.")]
Simulate = Annotated[
    int | None,
    typer.Option("--simulate", min=0, metavar="SEED", help="Measure on a made-up device, to try a search without a GPU."),
]
ModelName = Annotated[
    str, typer.Option("--model", metavar="MODEL", help="What ranks candidates: refined, or paper (MCFuser's equations 2 to 5).")
]
HEADS = ("workload", "kernels", "est. >", "first >", "best µs >", "floor >", "tried >")
FEW = 4
"""Programs whose schedules are shown below the table."""


def records_of(path: str | None, without: bool) -> str | bool | None:
    """Which records a command was asked to use (:func:`search.tuner.memory.open_memory`)."""
    if without and path is not None:
        raise UsageError("--records and --no-records exclude each other", "leave out one of them")
    return False if without else path


def taken_line(known: Known, name: str = "") -> str:
    """What ``tune`` does in place of the model's choice; ``name``: how to call the schedule."""
    measured = f"{known.ranked.us:.2f} µs measured" if known.ranked.measured else "measured"
    return f"tune takes {name or known.ranked.schedule} from records: {measured} ({known.origin})"


def measured_document(winner: Ranked, tuned: Tuned, device: Device) -> dict[str, Any]:
    """What a report says of measurements; nothing of a choice by the model alone."""
    if tuned.searched is None:
        return {}
    s = tuned.searched
    return {
        "measured_us": winner.measured * 1e6 if winner.measured is not None else None,
        "first_us": s.first_seconds * 1e6 if math.isfinite(s.first_seconds) else None,
        "floor_us": floor_seconds(tuned.program, device) * 1e6,
        "search": {
            "origin": s.origin,
            "ended": s.why,
            "measured": s.measured,
            "failures": dict(s.failures),
            "generations": [
                {"best_us": g.best * 1e6, "best_so_far_us": g.best_so_far * 1e6, "measured": g.measured} for g in s.history
            ],
        },
    }


def show_measured(
    title: str,
    documents: Sequence[dict[str, Any]],
    done: Sequence[Realised],
    seconds: float,
    notes: Sequence[str],
) -> None:
    """The table at the end: times of the model's estimate, its first choice and the winner, in microseconds."""
    rows = []
    for d in documents:
        us, first = d.get("measured_us"), d.get("first_us")
        tried = d["search"]["measured"] if "search" in d else 0
        estimate = d["estimate_us"]
        rows.append(
            (
                d["workload"],
                d["structure"],
                f"{estimate:.2f}" if math.isfinite(estimate) else "-",
                "-" if first is None else f"{first:.2f}",
                "-" if us is None else f"{us:.2f}",
                f"{d['floor_us']:.2f}" if "floor_us" in d else "-",
                str(tried) if tried else "-",
            )
        )
    schedules = [f"{d['workload']}: {d['schedule']}" for d in documents] if len(documents) <= FEW else []
    print_table(title, HEADS, rows, [*schedules, *summary_lines(done, seconds), *notes])


def summary_lines(done: Sequence[Realised], seconds: float) -> list[str]:
    """What was measured and what failed, and where winners come from."""
    searches = [r.tuned.searched for r in done if r.tuned.searched]
    fresh = [s for s in searches if s.origin == "measured"]
    lines = []
    if fresh:
        failures: Counter[str] = sum((Counter(s.failures) for s in fresh), Counter())
        ends = ", ".join(f"{n} {why}" for why, n in Counter(s.why for s in fresh).most_common())
        lines.append(f"{sum(s.measured for s in fresh)} measured, {counts_text(failures)}, {seconds:.1f} s; searches: {ends}")
    taken = Counter(s.origin for s in searches if s.origin not in ("measured", "model"))
    lines += [f"{n} known before: {origin}" for origin, n in taken.items()]
    return lines


def reuse_line(done: Sequence[Realised], target: str, records: str | None) -> str:
    """The line of code that takes what was found."""
    arguments = [repr(done[0].tuned.program.name), f"target={target!r}", *([f"records={records!r}"] if records else [])]
    others = f", and so the other {len(done) - 1}" if len(done) > 1 else ""
    return f"in Python: run = fuser.compile({', '.join(arguments)}){others}"
