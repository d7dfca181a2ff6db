"""``mufuser bench``: our schedules beside what a user would pick instead, in one run, in turn with each other.

Candidates of a case are the choices of fast tuning and the best schedules that tuning records know (those under
``experiments/data``, and any given); ``--random`` measures more of them first. The folder of a run holds its records: the same
command goes on where an earlier one ended.
"""

from __future__ import annotations

import fnmatch
import math
import time
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import Annotated
from typing import Any

import typer

from experiments.ceilings import Ceilings
from experiments.ceilings import floor_of
from experiments.ceilings import measure_ceilings
from experiments.peers import PEERS
from experiments.peers import peers_of
from experiments.plot import bars
from fuser.console import note
from fuser.console import plain
from fuser.console import print_json
from fuser.console import print_table
from fuser.device import load_device
from fuser.errors import FuserError
from fuser.errors import UsageError
from fuser.ir.program import TensorProgram
from fuser.workloads import match
from fuser.workloads import workload
from search.measure import Bench
from search.measure import Candidate
from search.records import Record
from search.records import Records
from search.records import schedule_text
from search.timing import External
from search.tune import Tuned
from search.tune import tune_fast

DATA = Path(__file__).parent / "data"
FAST_PEERS = ("eager", "flash", "cudnn")
"""Peers that need no compiler of their own."""


@dataclass(frozen=True)
class Choice:
    """What fast tuning chose for a program, and the seconds it took."""

    tuned: Tuned
    seconds: float

    def candidates(self, runners: int) -> tuple[Candidate, ...]:
        """The winner and that many runners-up."""
        return tuple(Candidate(c.graph, c.schedule) for c in (self.tuned.winner, *self.tuned.runners[:runners]))


@dataclass(frozen=True)
class Result:
    """Rows of one program that were timed in turn with each other."""

    program: TensorProgram
    rows: tuple[Record, ...]
    choice: Choice | None = None

    @property
    def ours(self) -> Record | None:
        """The fastest of our kernels."""
        return fastest(r for r in self.rows if r.kind == "kernel")

    @property
    def peers(self) -> dict[str, Record]:
        return {r.structure: r for r in self.rows if r.kind == "peer"}

    @property
    def peer(self) -> Record | None:
        """The fastest peer."""
        return fastest(self.peers.values())

    def row_of(self, candidate: Candidate) -> Record | None:
        key = candidate.graph.stable_hash(), schedule_text(candidate.schedule)
        return next((r for r in self.rows if (r.structure, r.schedule) == key), None)

    @property
    def speedup(self) -> float | None:
        """Time of the fastest peer over ours."""
        ours, peer = self.ours, self.peer
        return peer.time_us / ours.time_us if ours and peer and ours.time_us and peer.time_us else None


def fastest(rows: Iterable[Record]) -> Record | None:
    return min((r for r in rows if r.ok and r.time_us), key=lambda r: r.time_us or math.inf, default=None)


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def choose(name: str, target: str) -> Choice:
    """Fast tuning of a named workload for a device."""
    start = time.perf_counter()
    tuned = tune_fast(workload(name), load_device(target))
    return Choice(tuned, time.perf_counter() - start)


def best_known(records: Records, name: str, device: str, count: int) -> tuple[Candidate, ...]:
    """The fastest correct schedules of a workload that records know of such a device."""
    rows = [r for r in records.rows(workload=name, device=device, kind="kernel", status="ok") if r.time_us]
    wrong = {(r.structure, r.schedule) for r in records.rows(workload=name, device=device, kind="kernel") if not r.ok}
    found: dict[Candidate, None] = {}
    for r in sorted(rows, key=lambda r: r.time_us or math.inf):
        if len(found) == count:
            break
        if (r.structure, r.schedule) not in wrong and (graph := records.structure(r.structure)):
            found[Candidate(graph, r.schedule_value())] = None
    return tuple(found)


def compare(bench: Bench, program: TensorProgram, candidates: Sequence[Candidate], peers: Sequence[External]) -> Result:
    """Check and time everything together; rows that this run has already are read back."""
    wanted = [*dict.fromkeys(candidates), *peers]
    have = {(r.structure, r.schedule): r for r in bench.records.rows(workload=program.name, repeat=bench.run)}
    missing = [i for i in wanted if _name(i) not in have]
    if not missing:
        return Result(program, tuple(have[_name(i)] for i in wanted))
    return Result(program, tuple(bench.measure(program, wanted, again=True)))


def _name(item: Candidate | External) -> tuple[str, str]:
    return (item.name, "") if isinstance(item, External) else (item.graph.stable_hash(), schedule_text(item.schedule))


def cases_of(suites: Sequence[str], cases: Sequence[str]) -> tuple[str, ...]:
    """Workloads of suites (``mcfuser``, or globs of workloads), cut down to ``cases`` (globs of the part after the slash)."""
    names = match([s if "/" in s else f"{s}/*" for s in suites])
    if not cases:
        return tuple(names)
    found = tuple(n for n in names if any(fnmatch.fnmatch(n.partition("/")[2], c) for c in cases))
    if not found:
        raise UsageError(f"no case of {', '.join(suites)} is called {', '.join(cases)}", f"cases are {', '.join(names[:30])}")
    return found


def peer_names(text: str) -> tuple[str, ...]:
    """``all``, ``none``, or names with commas between them."""
    if text in ("all", "none"):
        return PEERS if text == "all" else ()
    return tuple(p.strip() for p in text.split(",") if p.strip())


def document(results: Sequence[Result], ceilings: Ceilings | None, environment: Mapping[str, Any], run: str) -> dict[str, Any]:
    """A run as one document: environment, ceilings, and for each case our fastest kernel, every peer, and the floor."""
    cases = []
    for r in results:
        ours, floor = r.ours, floor_of(r.program, ceilings) if ceilings else None
        cases.append(
            {
                "workload": r.program.name,
                "us": ours.time_us if ours else None,
                "schedule": str(ours.schedule_value()) if ours else None,
                "kernels": ours.kernels if ours else None,
                "error": ours.error_fro if ours else None,
                "spread": ours.spread if ours else None,
                "floor_us": floor.us if floor else None,
                "floor_bound": floor.bound if floor else None,
                "peers": {n: p.time_us if p.ok else p.status for n, p in r.peers.items()},
                "best_peer": r.peer.structure if r.peer else None,
                "speedup": r.speedup,
                "failed": [f"{x.structure[:12]}: {x.status}: {x.detail}" for x in r.rows if not x.ok],
            }
        )
    ratios = [r.speedup for r in results if r.speedup]
    return {
        "schema": 1,
        "run": run,
        "environment": dict(environment),
        "ceilings": ceilings,
        "cases": cases,
        "geometric_mean": geometric_mean(ratios) if ratios else None,
    }


def table(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]], list[str]]:
    """Columns, lines and notes of a document's table; times in microseconds."""
    names = list(dict.fromkeys(n for c in found["cases"] for n in c["peers"]))
    columns = ["case", "µs >", "floor >", *(f"{n} >" for n in names), "× peer >", "error >", "schedule"]

    def cell(value: Any, form: str = ".2f") -> str:
        return format(value, form) if isinstance(value, float) else "-" if value is None else str(value)

    rows = [
        [
            c["workload"],
            cell(c["us"]),
            cell(c["floor_us"]),
            *(cell(c["peers"].get(n)) for n in names),
            cell(c["speedup"]),
            cell(c["error"], ".0e"),
            c["schedule"] or "; ".join(c["failed"])[:120] or "nothing measured",
        ]
        for c in found["cases"]
    ]
    notes = []
    if found["geometric_mean"]:
        notes.append(f"best peer over ours, geometric mean: {found['geometric_mean']:.3f}")
    return columns, rows, notes


def write(folder: Path, found: Mapping[str, Any], records: Records, run: str) -> None:
    """``bench.json``, ``bench.md``, ``bench.svg`` and ``rows.jsonl`` in ``folder``."""
    from json import dumps

    (folder / "bench.json").write_text(dumps(plain(found), indent=1, ensure_ascii=False) + "\n")
    columns, rows, notes = table(found)
    rule = ["--:" if c.endswith(">") else "---" for c in columns]
    lines = [[c.removesuffix(">").strip() for c in columns], rule, *rows]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n\n" + "\n".join(notes) + "\n"
    (folder / "bench.md").write_text(text)
    series = ["mufuser", *dict.fromkeys(n for c in found["cases"] for n in c["peers"]), "floor"]
    groups = []
    for c in found["cases"]:
        values = {"mufuser": c["us"], **c["peers"], "floor": c["floor_us"]}
        times = {n: v for n, v in values.items() if isinstance(v, float)}
        if best := c["us"] or min(times.values(), default=None):
            groups.append((c["workload"], {n: best / v for n, v in times.items() if n != "floor"}))
    title = f"Speed relative to mufuser on {found['environment'].get('device', '?')}"
    (folder / "bench.svg").write_text(bars(title, [s for s in series if s != "floor"], groups))
    records.export_lines(folder / "rows.jsonl", repeat=run)


def run(
    names: Sequence[str],
    bench: Bench,
    target: str,
    known: Records,
    peers: Sequence[str] = FAST_PEERS,
    runners: int = 2,
    best: int = 3,
    random: int = 0,
    seconds: float = math.inf,
) -> tuple[list[Result], Ceilings | None]:
    """Results of as many cases as the time allows. ``runners`` below zero leaves fast tuning out; ``best`` schedules come from
    the records; ``random`` schedules of each case are measured before, in half of the time."""
    end = time.monotonic() + seconds
    device = bench.worker.info["device"]
    if random:
        from experiments.gather import make_case
        from experiments.gather import run as gather

        gather([make_case(n, random, bench.options.seed, "all", ()) for n in names], bench, min(seconds / 2, 1e6), finals=0)
    ceilings = measure_ceilings(bench) if device != "cpu-interpreter" else None
    results: list[Result] = []
    for name in names:
        if time.monotonic() > end:
            note(f"time is up: {len(names) - len(results)} cases are left; the same command goes on with them")
            break
        candidates: list[Candidate] = []
        choice = None
        if runners >= 0:
            try:
                choice = choose(name, target)
                candidates += choice.candidates(runners)
            except FuserError as error:
                note(f"{name}: fast tuning found nothing: {error.message}")
        for source in (known, bench.records):
            candidates += best_known(source, name, device, best)
        program = choice.tuned.program if choice else workload(name)
        result = compare(bench, program, candidates, peers_of(program, peers))
        results.append(replace(result, choice=choice))
        ours = result.ours
        note(f"{name}: {f'{ours.time_us:.2f} µs' if ours else 'no correct kernel'}, {len(result.rows)} rows")
    return results, ceilings


def bench(
    suites: Annotated[list[str], typer.Argument(metavar="SUITE...", help="mcfuser, mirage, graphene, or globs of workloads.")],
    case: Annotated[list[str] | None, typer.Option("--case", help="Cases of the suites, globs too; may be repeated.")] = None,
    peers: Annotated[str, typer.Option("--peers", help=f"all, none, or some of {', '.join(PEERS)}.")] = ",".join(FAST_PEERS),
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the run; a second run goes on there.")] = Path("out"),
    name: Annotated[str, typer.Option("--name", help="Name of the run in the rows.")] = "bench",
    schedules: Annotated[list[Path] | None, typer.Option("--schedules", help="JSON lines of earlier measurements.")] = None,
    random: Annotated[int, typer.Option("--random", min=0, help="Random schedules of each case that are measured before.")] = 0,
    runners: Annotated[int, typer.Option("--runners", help="Runners-up of fast tuning beside its winner; -1: none at all.")] = 2,
    best: Annotated[int, typer.Option("--best", min=0, help="Known schedules of each case.")] = 3,
    target: Annotated[str, typer.Option("--target", help="The device that fast tuning assumes.")] = "h200",
    minutes: Annotated[float, typer.Option("--minutes", help="Time after which no further case is begun.")] = 60.0,
    on: Annotated[str, typer.Option("--on", help="cuda, or cpu: Triton's interpreter, to try a run out.")] = "cuda",
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Measure named workloads beside what a user would pick instead."""
    names = cases_of(suites, case or ())
    wanted = peer_names(peers)
    peers_of(workload(names[0]), wanted)  # unknown names are found before anything runs
    load_device(target)
    if on not in ("cuda", "cpu"):
        raise UsageError(f"there is no device {on!r} to run on", "--on cuda, or --on cpu")
    output.mkdir(parents=True, exist_ok=True)
    with Records(":memory:") as known, Records(output / "bench.sqlite") as records:
        for path in schedules if schedules is not None else sorted(DATA.glob("*.jsonl")):
            known.import_lines(path)
        with Bench.open(on, records, run=name) as opened:
            environment = opened.worker.info
            results, ceilings = run(names, opened, target, known, wanted, runners, best, random, 60 * minutes)
        found = document(results, ceilings, environment, name)
        write(output, found, records, name)
    if json:
        print_json(found)
        return
    columns, rows, notes = table(found)
    notes = [*notes, f"schedules and all rows are in {output}"]
    print_table(f"{environment['device']}, µs", columns[:-1], [r[:-1] for r in rows], notes)
