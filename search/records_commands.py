"""The command ``records``: what was measured, and what is known by it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC
from datetime import datetime
from datetime import timedelta
from pathlib import Path
from typing import Annotated
from typing import Any

import typer

from fuser.arguments import Json
from fuser.console import print_json
from fuser.console import print_table
from fuser.console import print_text
from fuser.device import load_device
from fuser.errors import EnvironmentError_
from fuser.errors import UsageError
from fuser.files import counted
from fuser.lower.assembler import compiler
from fuser.workloads import match
from fuser.workloads import workload
from search.measure.known import SUFFIXES
from search.measure.known import load
from search.measure.records import Records
from search.measure.rows import Record
from search.measure.store import FORMS
from search.measure.versions import same_compiler
from search.measure.winners import Winner
from search.ranked import EFFORTS
from search.tuner.live import counts_text
from search.tuner.memory import GENERATED
from search.tuner.memory import LIBRARY
from search.tuner.memory import chosen_file
from search.tuner.memory import fastest
from search.tuner.memory import holds
from search.tuner.memory import names_of
from search.tuner.memory import open_memory
from search.tuner.memory import program_key
from search.tuner.memory import user_file

SHOWN = 8
"""Rows of a workload that are shown, the fastest."""


def records(
    action: Annotated[str, typer.Argument(metavar="ACTION", help="list, show, why, merge, prune, export or import.")] = "list",
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[WHAT]...", help="Workloads to show; files to read or write.")
    ] = None,
    path: Annotated[str | None, typer.Option("--records", metavar="PATH", help="A file in place of the user's records.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="Of why and show: the device. [h200]")] = None,
    older: Annotated[
        float | None, typer.Option("--older", min=0.0, max=36500.0, metavar="DAYS", help="Of prune: what is older, too.")
    ] = None,
    json: Json = False,
) -> None:
    """Show and care for what was measured on this machine.

    list: winners of searches. show WORKLOAD: its fastest rows and failures. why WORKLOAD: whether a call would take a winner, or
    why not. export FILE (.jsonl, .jsonl.xz), import and merge FILE (these, or records of another machine). prune: forget what
    other compilers or generators made.
    """
    actions: Mapping[str, Callable[..., dict[str, Any]]] = {
        "list": _list,
        "show": _show,
        "why": _why,
        "merge": _merge,
        "prune": _prune,
        "export": _export,
        "import": _merge,
    }
    if action not in actions:
        raise UsageError(f"there is no action {action!r}", f"actions: {', '.join(actions)}")
    needs = {"show": "a workload", "why": "a workload", "merge": "a file", "export": "a file", "import": "a file"}
    if action in needs and not names:
        raise UsageError(
            f"mufuser records {action} needs {needs[action]}", f"mufuser records {action} {needs[action].split()[1].upper()}"
        )
    heard = {"--target": (target, ("why", "show")), "--older": (older, ("prune",))}
    unheard = [n for n, (value, by) in heard.items() if value is not None and action not in by]
    if action in ("list", "prune"):
        unheard += map(repr, names or ())
    if unheard:
        raise UsageError(f"mufuser records {action} takes no {unheard[0]}", "leave it out")
    if path and path.endswith(SUFFIXES):
        hint = f"mufuser records import {path}; tune and compile read it as it is"
        raise UsageError(f"{path} has the name of JSON lines, which are read beside records", hint)
    place = user_file() if path is None else chosen_file(path)
    reads = action in ("list", "show", "why", "export")
    if path and (reads or action == "prune") and not os.path.exists(place):
        raise UsageError(f"there are no records {place}", "check the path")
    _check_kept(place)
    with _opened(place, reads, path is None) as store:
        document = actions[action](store, names or [], _Request(place, path, target or "h200", older, json))
    if json:
        print_json({"records": str(place), "action": action} | document)


def _opened(place: Path, reads: bool, own: bool) -> Records:
    """The records at a place; ``own``: nobody named it, it is in the user's cache folder."""
    try:
        return Records(place, reads)
    except UsageError as error:
        if not own:
            raise
        raise EnvironmentError_(error.message, "set MUFUSER_CACHE to a folder that can be written") from error


def _check_kept(place: Path) -> None:
    """Raises :class:`UsageError` for what is there and no file: SQLite would only say that it cannot use it."""
    if place.exists() and not place.is_file():
        raise UsageError(f"{place} is {'a folder' if place.is_dir() else 'no regular file'}", "give a file of records (SQLite)")


class _Request:
    """The options of a call."""

    def __init__(self, place: Path, path: str | None, target: str, older: float | None, json: bool) -> None:
        self.place, self.path, self.target, self.older, self.json = place, path, target, older, json


def _list(store: Records, names: Sequence[str], asked: _Request) -> dict[str, Any]:
    winners = sorted(store.winners(), key=lambda w: (w.device, w.workload, w.timestamp))
    counts = Counter((r.device, r.compiler, r.status == "ok") for r in store.rows(kind="kernel"))
    machines = sorted({(d, c) for d, c, _ in counts})
    if not asked.json:
        rows = [
            (
                w.workload,
                w.device,
                f"{w.time_us:.2f}",
                w.effort or "interrupted",
                str(w.measured),
                f"{w.seconds:.0f}",
                w.timestamp[:10],
            )
            for w in winners
        ]
        heads = ("workload", "device", "µs >", "effort", "measured >", "day")
        notes = [f"{d}, {c}: {counts[d, c, True]} measured, {counts[d, c, False]} failed" for d, c in machines]
        print_table(f"records in {asked.place}", heads, rows, notes or ([] if winners else ["nothing was measured yet"]))
    totals = [{"device": d, "compiler": c, "ok": counts[d, c, True], "failed": counts[d, c, False]} for d, c in machines]
    return {"winners": [asdict(w) for w in winners], "rows": totals}


def _show(store: Records, names: Sequence[str], asked: _Request) -> dict[str, Any]:
    device, found = load_device(asked.target), []
    for name in match(names):
        program = workload(name)
        best = list(fastest(store, program, names_of(device)))
        rows = [r for d in names_of(device) for r in store.rows(program=program_key(program), device=d, kind="kernel")]
        failures = Counter(r.status for r in rows if not r.ok)
        found.append(
            {"workload": name, "rows": len(rows), "failures": dict(failures), "fastest": [_short(r) for r in best[:SHOWN]]}
        )
        if not asked.json:
            heads = ("µs >", "schedule", "compiler", "day")
            lines = [(f"{r.time_us:.2f}", str(r.schedule_value()), r.compiler, r.timestamp[:10]) for r in best[:SHOWN]]
            print_table(f"{name} on {device.title}", heads, lines, [f"{counted(len(rows), 'row')}, {counts_text(failures)}"])
    return {"workloads": found}


def _short(row: Record) -> dict[str, Any]:
    return {"us": row.time_us, "structure": row.structure, "schedule": str(row.schedule_value()), "compiler": row.compiler}


def _why(store: Records, names: Sequence[str], asked: _Request) -> dict[str, Any]:
    """Whether a call takes what is known, by effort."""
    device, found = load_device(asked.target), []
    memory = open_memory(asked.path)
    for name in match(names):
        program, lines = workload(name), list[str]()
        for effort in EFFORTS.values():
            scope = GENERATED if effort.name == "instant" else LIBRARY
            known = memory.find(program, device, scope, effort)
            if known:
                us = (known.ranked.measured or 0.0) * 1e6
                lines.append(f"{effort.name}: hit, {us:.2f} µs, {known.ranked.schedule} ({known.origin})")
            else:
                lines += [f"{effort.name}: miss", *(f"  {m}" for m in memory.misses)]
                if not memory.misses:
                    lines.append(f"  nothing is known of it on {device.title}")
        found.append({"workload": name, "key": program_key(program), "why": lines})
        if not asked.json:
            print_text("\n".join([f"{name} ({program_key(program)}) on {device.title}, {compiler() or 'no compiler'}", *lines]))
    return {"workloads": found}


def _merge(store: Records, names: Sequence[str], asked: _Request) -> dict[str, Any]:
    found = {}
    for name in names:
        if not os.path.exists(name):
            raise UsageError(f"there is no file {name}", FORMS)
        if os.path.realpath(name) == os.path.realpath(asked.place):
            raise UsageError(f"{name} are the records themselves", "give another file")
        if os.path.isdir(name) or name.endswith(SUFFIXES):
            found[name] = load(store, [Path(name)])
        else:
            _check_kept(Path(name))
            with Records(name, reading=True) as other:
                found[name] = store.merge(other)
        if not asked.json:
            print_text(f"{name}: {found[name]} new in {asked.place}")
    return {"new": found}


def _export(store: Records, names: Sequence[str], asked: _Request) -> dict[str, Any]:
    if len(names) > 1:
        raise UsageError(f"{len(names)} files are named", "one file an export")
    if not names[0].endswith(SUFFIXES):
        raise UsageError(f"{names[0]!r} has not the name of JSON lines", "best.jsonl, or best.jsonl.xz to have it packed")
    about = {"mufuser": "records", "date": datetime.now(UTC).isoformat(timespec="seconds")}
    count = store.export_lines(Path(names[0]), about, winners=True)
    if not asked.json:
        print_text(f"{names[0]}: {counted(count, 'row')}, {counted(len(list(store.winners())), 'winner')}")
    return {"rows": count}


def _prune(store: Records, names: Sequence[str], asked: _Request) -> dict[str, Any]:
    """Forget what would not be used here."""
    limit = (datetime.now(UTC) - timedelta(days=asked.older)).isoformat() if asked.older is not None else ""

    def stale(r: Record | Winner) -> bool:
        old = bool(limit) and r.timestamp < limit
        return old or not same_compiler(r.compiler) or not holds(store, r)

    rows = [r for r in store.rows(kind="kernel") if stale(r)]
    winners = [w for w in store.winners() if stale(w)]
    store.remove(rows, winners)
    if not asked.json:
        forgotten = f"{counted(len(rows), 'row')} and {counted(len(winners), 'winner')}"
        print_text(f"{forgotten} forgotten, {counted(len(store), 'row')} left in {asked.place}")
    return {"rows": len(rows), "winners": len(winners)}
