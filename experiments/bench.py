"""``mufuser bench``: our schedules beside what a user would pick instead, in one run, in turn with each other.

Candidates of a case are the model's best, the fastest that records know (those of the package, or any given) and,
where they know none, random ones. The folder of a run holds its rows: the same command goes on where an earlier one ended, and
further cases join those that are there. Without a GPU a run can be planned, and its table and figure drawn again.
"""

from __future__ import annotations

import fnmatch
import json as json_
import os
import time
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated
from typing import Any

import typer

from experiments import model_bench
from experiments import model_plan
from experiments import report
from experiments.candidates import RANDOM
from experiments.candidates import Request
from experiments.candidates import cases_of
from experiments.candidates import plan
from experiments.ceilings import limits
from experiments.ceilings import measure_ceilings
from experiments.compare import Result
from experiments.compare import run
from experiments.environment import environment
from experiments.environment import need_gpu
from experiments.peers import FAST_PEERS
from experiments.peers import PEERS
from experiments.peers import known_peers
from experiments.planned import listing
from experiments.planned import planned
from experiments.planned import print_listing
from experiments.planned import print_plan
from experiments.plot import draw
from experiments.script import INTERRUPTED
from fuser.arguments import Json
from fuser.arguments import seconds
from fuser.by_fields import by_fields
from fuser.console import note
from fuser.console import plain
from fuser.console import print_json
from fuser.console import print_table
from fuser.console import stdout
from fuser.device import Device
from fuser.device import load_device
from fuser.errors import EnvironmentError_
from fuser.errors import ModelFileError
from fuser.errors import UsageError
from fuser.files import counted
from fuser.outputs import locked
from fuser.outputs import make_folder
from fuser.outputs import write_file
from fuser.superopt.structures import structures
from fuser.workloads import workload
from fuser.workloads import workload_names
from search.libraries import with_libraries
from search.measure.known import PACKAGED
from search.measure.known import load
from search.measure.measurer import Bench
from search.measure.records import Records
from search.measure.session import Options
from search.measure.store import move_aside
from search.ranked import Effort
from search.tuner.efforts import effort_of
from search.tuner.efforts import measures
from search.tuner.memory import LIBRARY
from search.tuner.memory import Memory
from search.tuner.tasks import STOPPED
from search.tuner.tasks import Task
from search.tuner.tuning import Tuning

SUITES = ("mcfuser", "mirage", "graphene")
THERE = ", ".join((*SUITES, f"{model_bench.SUITE} (whole networks, by themselves)"))
"""For errors."""
SAME = ("device", "torch", "triton", "driver")
"""What two runs must share for their cases to stand in one table."""


def peer_names(text: str) -> tuple[str, ...]:
    """``all``, ``none``, or names with commas between them."""
    if text in ("all", "none"):
        return tuple(PEERS) if text == "all" else ()
    return known_peers(p.strip() for p in text.split(",") if p.strip())


def sources(schedules: Sequence[str]) -> list[Path]:
    """Files and folders of rows for ``--schedules``: ``records`` are those of the package, ``model`` none."""
    found: list[Path] = []
    for item in schedules:
        if item == "records":
            found.append(PACKAGED)
        elif item != "model":
            if not (os.path.isfile(item) or os.path.isdir(item)):  # False for what can be no name too
                raise UsageError(f"there is no file of schedules {item}", "--schedules records, model, or a file of JSON lines")
            found.append(Path(item))
    return found


# -- documents of a folder ----------------------------------------------------------------------------------------------------


def merged(old: report.Document, new: Mapping[str, Any]) -> dict[str, Any]:
    """The cases of an earlier document of the same run and machine in front of those of a new one, which replace their like."""
    if any(old["environment"].get(k) != new["environment"].get(k) for k in SAME) or old["run"] != new["run"]:
        return dict(new)
    fresh = {c["workload"]: c for c in new["cases"]}
    cases = [fresh.pop(c["workload"], c) for c in old["cases"]] + list(fresh.values())
    ratios = [c["speedup"] for c in cases if c["speedup"]]
    left = [n for n in dict.fromkeys((*old["left"], *new["left"])) if n not in {c["workload"] for c in cases}]
    return {**new, "cases": cases, "left": left, "geometric_mean": geometric_mean(ratios) if ratios else None}


def earlier(folder: Path) -> report.Document | None:
    """The document that an earlier call left in a folder, or that another one writes to at this moment; one that cannot be used
    is put aside and as good as none."""
    path = folder / "bench.json"
    if not os.path.lexists(path):
        return None
    try:
        return report.read(path)
    except ModelFileError as error:
        note(f"{error.message}: it is now {move_aside(path)}, and what is in the folder's rows joins the new one")
        return None


def keep(folder: Path, found: report.Document) -> report.Document:
    """Write ``bench.json`` and ``bench.md``, joined with the cases that are there; returns what was written. Other processes may
    do the same: one after another. What is there of another run or machine is put aside."""
    with locked(folder):
        before = earlier(folder)
        joined = merged(before, found) if before else plain(found)
        if before and not {c["workload"] for c in before["cases"]} <= {c["workload"] for c in joined["cases"]}:
            note(f"{folder}/bench.json is of the run {before['run']} on another machine or of another name: {_aside(folder)}")
        write_file(folder / "bench.json", json_.dumps(plain(joined), indent=1, ensure_ascii=False) + "\n")
        write_file(folder / "bench.md", report.markdown(joined))
    return joined


def _aside(folder: Path) -> str:
    return f"it is now {move_aside(folder / 'bench.json', 'other')}"


def show(found: report.Document, notes: Sequence[str] = ()) -> None:
    """The table on stdout, with as many columns as the terminal is wide."""
    heads, rows, said = report.table(found, stdout().width)
    print_table(report.title(found), heads, rows, [*said, *notes])


def figures(found: report.Document, folder: Path) -> str:
    """Draw, and say where; without matplotlib, say that."""
    try:
        drawn = draw(found, folder)
    except EnvironmentError_ as error:
        return f"no figure: {error.message} ({error.hint})"
    return f"drawn: {', '.join(map(str, drawn))}" if drawn else "no figure: no case has a peer with a time"


# -- the verb -----------------------------------------------------------------------------------------------------------------


def measure(
    names: Sequence[str],
    request: Request,
    files: Sequence[Path],
    peers: Sequence[str],
    folder: Path,
    name: str,
    on: str,
    budget: float,
) -> tuple[report.Document, bool]:
    """Measure, writing the documents after every case; the last, and whether all of it was interrupted. With an effort that
    measures each case is searched first: what was found stands beside the peers."""
    make_folder(folder)
    interrupted = False
    results: list[Result] = []
    with Records(":memory:") as known, Records(folder / "bench.sqlite") as records:
        load(known, files)
        if measures(request.effort):
            search_all(names, request.effort, load_device(request.target), records)
        with Bench.open(on, records, Options(seed=request.seed), run=name) as bench:
            where = environment(bench.worker.info)
            cases = plan(names, request, (known, records), bench.worker.info["device"], peers)
            ceilings = limits(bench.worker.info["device"], measure_ceilings(bench)) if on == "cuda" else None
            found = plain(report.document([], ceilings, where, name, names))
            try:
                for result in run(bench, cases, budget):
                    results.append(result)
                    left = names[len(results) :]
                    found = plain(report.document(results, ceilings, where, name, left))
                    keep(folder, found)
            except KeyboardInterrupt:
                note("interrupted: what was measured is kept, the same command goes on")
                interrupted = True
        found = keep(folder, found)
        with locked(folder):  # whoever comes last has all rows
            records.export_lines(folder / "rows.jsonl", repeat=name)
    return found, interrupted


def search_all(names: Sequence[str], effort: Effort, device: Device, records: Records) -> None:
    """Search workloads as ``mufuser tune`` does, knowing nothing but these records, to which the rows are added. Raises
    KeyboardInterrupt where that was interrupted."""
    start = time.monotonic()
    programs = [workload(n) for n in names]
    tasks = [Task(p, lambda p=p: with_libraries(structures(p)), 1, LIBRARY) for p in programs]
    found = [t.searched for t in Tuning(effort, Memory(records)).tune(tasks, device) if t and t.searched]
    if any(s.why in STOPPED for s in found):
        raise KeyboardInterrupt("what was measured is kept, the same command goes on")
    searched = f"{counted(sum(s.measured for s in found), 'candidate')} of {counted(len(found), 'case')}"
    note(f"searched with the effort {effort.name}: {searched} in {time.monotonic() - start:.0f} s")


Suites = Annotated[
    list[str] | None,
    typer.Argument(metavar="SUITE", help="mcfuser, mirage, graphene, or globs of workloads; models [NETWORK]..."),
]


@dataclass(frozen=True)
class Asked:
    """Options of ``bench``."""

    case: Annotated[list[str] | None, typer.Option("--case", metavar="CASE", help="Only these, globs too: S?, '*:8'.")] = None
    peers: Annotated[
        str | None,
        typer.Option(
            "--peers", metavar="NAMES", help=f"all, none, or some of {', '.join(PEERS)} (default: {','.join(FAST_PEERS)})."
        ),
    ] = None
    batch: Annotated[str, typer.Option("--batch", metavar="SIZES", help="Of models: batch sizes.")] = "1,8"
    schedules: Annotated[
        list[str] | None,
        typer.Option(
            "--schedules", metavar="FROM", help="records (the default), model, or rows in a file or folder; may be repeated."
        ),
    ] = None
    effort: Annotated[
        str,
        typer.Option("--effort", metavar="EFFORT", help="quick, full:SECONDS: search each case first, knowing nothing."),
    ] = "instant"
    top: Annotated[int, typer.Option("--top", min=0, metavar="N", help="Schedules of each case that the model puts first.")] = 3
    best: Annotated[
        int, typer.Option("--best", min=0, metavar="N", help="Schedules of each case that were the fastest so far.")
    ] = 3
    random: Annotated[
        int | None,
        typer.Option(
            "--random", min=0, metavar="N", help=f"Random schedules of each case. [{RANDOM} where none are known, else 0]"
        ),
    ] = None
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Of inputs and random schedules.")] = 0
    target: Annotated[str, typer.Option("--target", metavar="DEVICE", help="The device that the model assumes.")] = "h200"
    budget: Annotated[float, seconds("--budget", "Begin no case after so long.", 1)] = 540.0
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Folder of the run.")] = Path("out")
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the run in its rows.")] = "bench"
    on: Annotated[str, typer.Option("--on", metavar="WHERE", help="cuda, or cpu: Triton's interpreter.")] = "cuda"
    list_: Annotated[bool, typer.Option("--list", help="List the cases and peers; measure nothing.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show candidates, predictions and floors; needs no GPU.")] = False
    table: Annotated[
        Path | None, typer.Option("--table", metavar="RESULT.json", help="Show an earlier result; needs no GPU.")
    ] = None
    plot_only: Annotated[
        Path | None, typer.Option("--plot-only", metavar="RESULT.json", help="Draw an earlier result again; needs no GPU.")
    ] = None
    json: Json = False


@by_fields
def bench(suites: Suites = None, *, options: Asked) -> int:
    """Measure named workloads, or whole networks, beside what a user would pick instead.

    Every candidate is checked against float64, then all are timed in turn. `models` takes names of networks (bert-base, gpt2:8),
    and nothing of them was measured before.

    The same command goes on where it ended; --budget bounds one call.
    """
    if options.table or options.plot_only:
        return _again(options.table, options.plot_only, options.json)
    if not suites and not options.list_:
        raise UsageError("no suite is named", f"mufuser bench {SUITES[0]}; suites are {THERE}; --list shows their cases")
    if suites and model_bench.SUITE in suites:
        if suites[0] != model_bench.SUITE:
            raise UsageError(f"networks are measured by themselves, not beside {suites[0]}", "mufuser bench models [NETWORK]...")
        asked = model_bench.cases_of([*suites[1:], *(options.case or ())], model_bench.batches_of(options.batch))
        among = model_bench.peers_of(options.peers)
        if options.list_ or options.dry_run:
            found = model_plan.listing(asked, among) if options.list_ else model_plan.planned(asked, load_device(options.target))
            show_ = model_plan.print_listing if options.list_ else model_plan.print_plan
            print_json(found) if options.json else show_(found)
            return 0
        return _networks(asked, among, options.budget, options.output, options.name, options.json)
    for s in suites or ():
        if "/" not in s and not fnmatch.filter(workload_names(), f"{s}/*"):
            raise UsageError(f"there is no suite {s!r}", f"suites are {THERE}; --list shows their cases")
    names = cases_of(suites or SUITES, options.case or ())
    wanted = peer_names(",".join(FAST_PEERS) if options.peers is None else options.peers)
    device = load_device(options.target)
    if options.list_:
        found = listing(names, wanted if options.peers != "none" else PEERS)
        print_json(found) if options.json else print_listing(found)
        return 0
    if options.on not in ("cuda", "cpu"):
        raise UsageError(f"there is no device {options.on!r} to run on", "--on cuda, or --on cpu")
    effort = effort_of(options.effort)
    if measures(effort) and options.on != "cuda":
        raise UsageError(f"the effort {options.effort!r} measures on a GPU, not with --on {options.on}", "--effort instant")
    files = sources(options.schedules or ["model" if measures(effort) else "records"])
    # the interpreter is slow: nobody wants 24 more of its kernels by default
    random = 0 if options.on == "cpu" and options.random is None else options.random
    request = Request(options.target, options.top, options.best, random, options.seed, effort)
    if options.dry_run:
        with Records(":memory:") as known:
            load(known, files)
            found = planned(plan(names, request, (known,), device.title, wanted), device)
        print_json(found) if options.json else print_plan(found)
        return 0
    if options.on == "cuda":
        need_gpu()
    found, interrupted = measure(names, request, files, wanted, options.output, options.name, options.on, options.budget)
    with locked(options.output):
        drawn = figures(earlier(options.output) or found, options.output)
    if options.json:
        print_json(found)
        note(drawn)
    else:
        show(found, [f"written: {options.output}/bench.json, bench.md, rows.jsonl; {drawn}"])
    return INTERRUPTED if interrupted else 0


def _networks(cases: Sequence[model_bench.Case], peers: Sequence[str], budget: float, folder: Path, name: str, json: bool) -> int:
    """``bench models`` on a GPU."""
    need_gpu()
    make_folder(folder)
    found, interrupted = model_bench.run_all(cases, peers, name, budget, earlier(folder), lambda made: keep(folder, made))
    print_json(found) if json else show(found, [f"written: {folder}/bench.json, bench.md"])
    return INTERRUPTED if interrupted else 0


def _again(table: Path | None, plot_only: Path | None, json: bool) -> int:
    """What needs an earlier result alone."""
    if plot_only:
        drawn = draw(report.read(plot_only), plot_only.parent, plot_only.stem)
        note(f"drawn: {', '.join(map(str, drawn))}" if drawn else "no case has a peer with a time: nothing drawn")
    if table:
        found = report.read(table)
        print_json(found) if json else show(found)
    return 0
