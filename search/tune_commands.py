"""The command ``tune``."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Annotated
from typing import Any

import typer

from cost_model.names import REFINED
from cost_model.names import TITLES
from cost_model.refined import check_device
from fuser.arguments import Json
from fuser.arguments import Set
from fuser.arguments import Target
from fuser.arguments import device_of
from fuser.arguments import seconds
from fuser.by_fields import by_fields
from fuser.console import plain
from fuser.console import print_json
from fuser.console import print_table
from fuser.console import progress
from fuser.device import Device
from fuser.errors import UsageError
from fuser.files import counted
from fuser.files import file_stem
from fuser.interrupts import Terminated
from fuser.ir.candidate import Candidate
from fuser.ir.program import TensorProgram
from fuser.lower.compile import save_artifact
from fuser.outputs import make_folder
from fuser.outputs import write_file
from fuser.pools import SPAWN
from fuser.pools import Children
from fuser.runtime.library import summary
from fuser.superopt.structures import searched
from fuser.superopt.structures import structures
from fuser.superopt.verify.verdicts import verdict_document
from fuser.workloads import match
from fuser.workloads import workload
from search.evidence import Evidence
from search.evidence import made_by
from search.figures import require_matplotlib
from search.libraries import with_libraries
from search.ranked import Effort
from search.ranked import Ranked
from search.ranked import Tuned
from search.realise import Realised
from search.realise import realise
from search.tune import graph_seconds
from search.tune import tune_fast
from search.tune import wary
from search.tune_report import ModelName
from search.tune_report import NoRecords
from search.tune_report import RecordsFile
from search.tune_report import Simulate
from search.tune_report import measured_document
from search.tune_report import records_of
from search.tune_report import reuse_line
from search.tune_report import show_measured
from search.tuner.convergence import draw
from search.tuner.efforts import WORDS
from search.tuner.efforts import check_heard
from search.tuner.efforts import effort_of
from search.tuner.efforts import measures
from search.tuner.live import live
from search.tuner.memory import GENERATED
from search.tuner.memory import LIBRARY
from search.tuner.memory import open_memory
from search.tuner.tasks import STOPPED
from search.tuner.tasks import Task
from search.tuner.tuning import Tuning
from search.why_not import refusals
from search.why_not import spelled

if TYPE_CHECKING:
    from search.tuner.spread import Workers

Names = Annotated[list[str], typer.Argument(metavar="WORKLOAD...", help="Named workloads, or globs of them ('mcfuser/*').")]


@dataclass(frozen=True)
class Tune:
    """Options of ``tune``."""

    target: Target = "h200"
    settings: Set = None
    effort: Annotated[str, typer.Option("--effort", metavar="EFFORT", help=f"{WORDS}.")] = "instant"
    model: ModelName = REFINED
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder for sources, PTX, cubins and report.json.")] = None
    schedule: Annotated[
        str | None,
        typer.Option("--schedule", metavar="SCHEDULE", help="Search nothing: compile and check this one, spelled as printed."),
    ] = None
    superoptimize: Annotated[float, seconds("--superoptimize", "Let the superoptimizer look for structures first.")] = 0.0
    jobs: Annotated[
        int | None,
        typer.Option("-j", "--jobs", min=1, max=1024, metavar="N", help="Processes that compile. [2; all cores, to measure]"),
    ] = None
    check: Annotated[
        bool,
        typer.Option("--check/--no-check", help="Check winners against float64 in Triton's interpreter, without torch in numpy."),
    ] = True
    records: RecordsFile = None
    no_records: NoRecords = False
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Of the search.")] = 0
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw how the search converged (.svg, .pdf, .png).")
    ] = None
    simulate: Simulate = None
    dask: Annotated[
        str | None, typer.Option("--dask", metavar="ADDRESS", help="Measure on the workers of a Dask cluster, a GPU each.")
    ] = None
    json: Json = False


@by_fields
def tune(names: Names, *, options: Tune) -> None:
    """Choose schedules for named workloads, compile the winners to PTX and cubin, and check them.

    With the efforts quick and full the fastest candidates are measured on the GPU, and kept: the next call, of instant too, takes
    the winner at once.
    """
    wanted = effort_of(options.effort, options.model)
    check_heard(wanted, options.dask, options.simulate)
    device = device_of(options.target, options.settings)
    found = match(names)
    if options.plot:
        require_matplotlib(options.plot)
    if options.output:
        make_folder(options.output)
    simulated = options.simulate is not None
    memory = open_memory(records_of(options.records, options.no_records), str(options.simulate) if simulated else "")
    start = time.perf_counter()
    workers = _workers(options.dask, simulated) if options.dask else None
    tuning = Tuning(wanted, memory, options.jobs, workers, lambda: live(device, options.json))
    if options.schedule is not None:
        tuned = [_given(found, options.schedule, device, measures(wanted) or simulated)]
    else:
        tuned = _tuned(found, device, tuning, options.superoptimize, options.seed, options.json)
    searching = time.perf_counter() - start
    stopped = next((t.searched.why for t in tuned if t.searched and t.searched.why in STOPPED), "")
    stop = Terminated if stopped == "terminated" else KeyboardInterrupt
    tuned = [t for t in tuned if not stopped or (t.searched is not None and t.searched.origin != "model")]
    if stopped and not tuned:
        raise stop
    start = time.perf_counter()
    if (options.jobs or 2) > 1 and len(tuned) > 1 and not stopped:
        with Children(options.jobs or 2, SPAWN) as pool:
            done = realise(tuned, device, pool, options.check)
    else:
        done = realise(tuned, device, None, options.check)
    compiled = time.perf_counter() - start
    evidence = Evidence(device)
    documents = [document(r, options.output, device, evidence) for r in done]
    report = {
        "schema": 1,
        "made_by": made_by(),
        "target": device.name,
        "arch": device.sm,
        "hypothetical": device.hypothetical,
        "effort": options.effort,
        "model": options.model,
        "search_seconds": searching,
        "compile_seconds": compiled,
        "interrupted": bool(stopped),
        "workloads": documents,
        "kernels": evidence.kernels,
        "structures": evidence.structures,
        "graphs": evidence.graphs,
    }
    notes = [f"written to {options.output}"] if options.output else []
    if done and not simulated and not options.no_records and any(t.searched for t in tuned):
        notes.insert(0, reuse_line(done, " ".join([options.target, *(options.settings or ())]), options.records))
    if options.output:
        write_file(options.output / "report.json", dumps(plain(report), indent=1) + "\n")
    if options.plot:
        notes.append(f"drawn: {options.plot}" if draw(tuned, device, options.plot) else "nothing was measured: nothing drawn")
    if options.json:
        print_json(report)
    elif any(t.searched for t in tuned):
        how = f"{'simulated' if simulated else 'measured'}, ranked by {TITLES[options.model]}"
        show_measured(f"{device.title}, {how}", documents, done, searching, notes)
    else:
        title = f"{device.title}, {TITLES[options.model]} alone"
        given = tuned[0].notes if options.schedule is not None else ()
        _show_instant(title, documents, compiled, device.sm, options.check, [*given, *notes])
    if stopped:
        raise stop("what was measured is kept, the same command goes on")


def _tuned(
    names: Sequence[str],
    device: Device,
    tuning: Tuning,
    superoptimize: float,
    seed: int,
    quiet: bool,
) -> list[Tuned]:
    """Each workload tuned, in order. Whatever restricts the choice has winners of its own."""
    scope = (LIBRARY if measures(tuning.effort) else GENERATED) if not superoptimize else f"superoptimized {superoptimize:g} s"
    if tuning.effort.model != REFINED:
        scope = f"{scope} ranked by {tuning.effort.model}".strip()
    if measures(tuning.effort):
        check_device(device)
        tasks = [_task(workload(n), superoptimize, scope) for n in names]
        return [t for t in tuning.tune(tasks, device, seed) if t is not None]
    tuned: list[Tuned] = []
    with progress("tuning", len(names), quiet=quiet) as step:
        for name in names:
            program = workload(name)
            (known,) = tuning.tune([Task(program, tuple, 1, scope)], device, seed)
            tuned.append(known or _fast(program, device, tuning.effort, superoptimize))
            step(name)
    return tuned


def _workers(address: str, simulated: bool) -> Workers:
    from search.tuner.cluster import dask_workers  # all that measures

    return dask_workers(address, simulated)


def _given(names: Sequence[str], text: str, device: Device, measured: bool) -> Tuned:
    """The schedule that somebody names, alone."""
    if len(names) > 1 or measured:
        what = "is of one workload" if len(names) > 1 else "leaves nothing to measure: mufuser bench times schedules"
        raise UsageError(f"--schedule {what}", f"tune {names[0]} --schedule ..., with the effort instant")
    tuned = tune_fast(workload(names[0]), device, kernels=False)
    candidate = spelled(tuned, text)
    seconds = graph_seconds(candidate, device)
    notes = () if math.isfinite(seconds) else (_unpriced(tuned.program, candidate, device),)
    return replace(tuned, winner=Ranked(candidate, seconds), runners=(), notes=notes)


def _unpriced(program: TensorProgram, candidate: Candidate, device: Device) -> str:
    """Why the model has no time for a schedule that compiles."""
    why = "; ".join(r.text for r in refusals(program, candidate, device)) or "a block does not fit on an SM by its counts"
    return f"the model has no estimate of {candidate.schedule}: {why}"


def _task(program: TensorProgram, superoptimize: float, scope: str) -> Task:
    return Task(
        program, lambda: with_libraries(searched(program, superoptimize) if superoptimize else structures(program)), 1, scope
    )


def _fast(program: TensorProgram, device: Device, effort: Effort, superoptimize: float) -> Tuned:
    graphs = searched(program, superoptimize) if superoptimize else None
    start = time.perf_counter()
    tuned = tune_fast(program, device, effort, graphs=graphs)
    return replace(wary(tuned, structures(program)) if graphs else tuned, seconds=time.perf_counter() - start)


def _show_instant(
    title: str, documents: Sequence[dict[str, Any]], compiled: float, sm: str, check: bool, notes: Sequence[str]
) -> None:
    rows = []
    for r in documents:
        worst = r["check"].error if r["check"] else None
        rows.append(
            (
                r["workload"],
                r["structure"],
                r["schedule"],
                f"{r['estimate_us']:.2f}" if math.isfinite(r["estimate_us"]) else "-",
                f"{r['tuning_seconds'] * 1e3:.0f}" if r["tuning_seconds"] else "-",
                "-" if worst is None else f"{worst:.0e}",
            )
        )
    done_to = f"verified, compiled for {sm} and checked" if check else f"verified and compiled for {sm}, not checked,"
    first = f"{counted(len(rows), 'winner')} {done_to} in {compiled:.1f} s"
    heads = ("workload", "kernels", "schedule", "est. µs >", "tuned ms >", "error >")
    print_table(title, heads, rows, [first, *notes])


def document(done: Realised, output: Path | None, device: Device, evidence: Evidence) -> dict[str, Any]:
    """One workload of the report; its kernels join the evidence."""
    winner, tuned = done.candidate, done.tuned
    stem = file_stem(tuned.program.name.replace("/", "_").replace(":", "_b"))
    kernels = []
    for i, a in enumerate(done.artifacts):
        manifest = save_artifact(a, output, f"{stem}_{i}") if output else a.manifest()
        kernels.append(manifest | {"ptx_bytes": len(a.ptx), "cubin_bytes": len(a.cubin)})
    saved = {a.name: m for a, m in zip(done.artifacts, kernels, strict=True)}
    evidence.save = lambda a: saved[a.name]
    evidence.add(tuned.program.name, winner.candidate, done.artifacts, (done,))
    return {
        "workload": tuned.program.name,
        "structure": summary(winner.graph),
        "schedule": str(winner.schedule),
        "schedules": winner.schedule.to_json(),
        "mugraph": winner.graph.to_json(),
        "estimate_us": winner.estimate * 1e6,
        "runner_up_us": tuned.runner_up.us if tuned.runner_up else None,
        "structures": tuned.structures,
        "candidates": tuned.candidates,
        "rejected": done.rejected,
        "tuning_seconds": tuned.searched.seconds if tuned.searched else tuned.seconds,
        **measured_document(winner, tuned, device),
        "kernels": kernels,
        "verdict": verdict_document(done.verdict),
        "check": done.check,
    }
