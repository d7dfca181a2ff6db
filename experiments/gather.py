"""Measure many schedules of many workloads in one call of limited time, with the peers beside them.

    python -m experiments.gather 'mcfuser/*' --count 40 --minutes 8 --out DIR

Workloads take turns, a chunk of schedules each, so that a run that ends early has something of every one. Every row is written
at once; a later run with ``--resume`` leaves out what is there. At the end the best schedules of each workload are timed again,
in turn with the peers.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path

import numpy as np

from experiments.peers import peers_of
from experiments.sampler import sample
from fuser.errors import EnvironmentError_
from fuser.errors import FuserError
from fuser.errors import UnsupportedError
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.lower.triton_source import generate
from fuser.workloads import match
from fuser.workloads import workload
from search.measure import Bench
from search.measure import Candidate
from search.records import Record
from search.records import Records
from search.session import Options
from search.timing import External

CHUNK = 10
"""Candidates that are timed in turn with each other."""


@dataclass
class Case:
    """A workload with what is still to be measured."""

    name: str
    program: TensorProgram
    candidates: list[Candidate]
    peers: tuple[External, ...]
    rows: list[Record] = field(default_factory=list)
    done: int = 0
    skipped: int = 0

    def best(self, count: int) -> list[Record]:
        good = sorted((r for r in self.rows if r.ok and r.kind == "kernel" and not r.repeat), key=lambda r: r.time_us or 0.0)
        return good[:count]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def graphs_of(program: TensorProgram, which: str) -> tuple[KernelGraph, ...]:
    """``one``: the whole program in a kernel; ``all``: also cut into kernels and with reductions split over the grid."""
    from search.structures import one_kernel
    from search.structures import structures

    return (one_kernel(program),) if which == "one" else structures(program)


def make_case(name: str, count: int, seed: int, which: str, peers: Sequence[str]) -> Case:
    """Sampled candidates of a workload, shared among its structures; raises :class:`UnsupportedError` if it has none."""
    program = workload(name)
    graphs = graphs_of(program, which)
    share = (
        [count]
        if len(graphs) == 1
        else [max(4, count // 3)] + [max(4, (2 * count // 3) // (len(graphs) - 1))] * (len(graphs) - 1)
    )
    lists = []
    for i, graph in enumerate(graphs):
        rng = np.random.default_rng([seed, i])
        good = []
        for schedule in sample(graph, share[i], rng):
            try:
                for block, kernel in zip(graph.blocks, schedule.kernels, strict=True):
                    generate(block, kernel)
            except FuserError:
                continue  # the sampler knows less than the generator about what makes sense
            good.append(Candidate(graph, schedule))
        lists.append(good)
    mixed = [c for group in itertools.zip_longest(*lists) for c in group if c is not None]
    if not mixed:
        raise UnsupportedError(f"{name} has no schedule that lowers")
    return Case(name, program, mixed, peers_of(program, peers))


def run(cases: Sequence[Case], bench: Bench, seconds: float, finals: int = 3) -> None:
    """Measure chunk after chunk until all is done or the time is up; the last quarter of it at most goes to the comparison with
    peers."""
    start = time.monotonic()
    # a comparison needs about a second a case, and the peers' own compilers much more when they are asked for
    reserve = min(0.25 * seconds, 1.5 * len(cases) + 10) if finals else 0.0
    for case in cases:
        known = [c for c in case.candidates if bench.known(case.program, c)]
        case.rows += [r for c in known if (r := bench.known(case.program, c))]
        case.skipped = len(known)
        case.candidates = [c for c in case.candidates if c not in set(known)]
    rounds = max((-(-len(c.candidates) // CHUNK) for c in cases), default=0)
    order = [(case, r) for r in range(rounds) for case in cases if case.candidates[r * CHUNK : (r + 1) * CHUNK]]
    for case, r in order:
        bench.submit(case.candidates[r * CHUNK : (r + 1) * CHUNK])
    hopeless = 0
    for number, (case, r) in enumerate(order, 1):
        left = seconds - reserve - (time.monotonic() - start)
        if left < 3:
            say(f"time is up after {number - 1} of {len(order)} chunks")
            break
        items: list[Candidate | External] = [*case.candidates[r * CHUNK : (r + 1) * CHUNK]]
        if r == 0:
            items += case.peers
        rows = bench.measure(case.program, items, compile_timeout=left)
        case.rows += rows
        case.done += len(rows)
        hopeless += not any(x.ok for x in rows)
        if number == hopeless == 4:
            raise EnvironmentError_(f"nothing works here; the last: {rows[-1].status}: {rows[-1].detail}", "see the lines above")
        good = [x.time_us for x in rows if x.ok and x.time_us and x.kind == "kernel"]
        failed = [f"{x.status} ({x.structure if x.kind == 'peer' else 'kernel'}): {x.detail[:90]}" for x in rows if not x.ok]
        say(
            f"[{time.monotonic() - start:5.0f} s] {number}/{len(order)} {case.name}: {len(good)} ok, "
            f"best {min(good, default=float('nan')):.2f} µs{'; ' + failed[0] if failed else ''}"
        )
    if not finals:
        return
    for case in cases:
        left = seconds - (time.monotonic() - start)
        best = case.best(finals)
        if left < 3 or not best:
            say(f"no comparison for {case.name}: {'no correct schedule' if left >= 3 else 'time is up'}")
            continue
        again = [Candidate(graph, r.schedule_value()) for r in best if (graph := bench.records.structure(r.structure))]
        peers = tuple(p for p in case.peers if any(r.ok and r.structure == p.name for r in case.rows)) or case.peers
        case.rows += bench.measure(case.program, [*again, *peers], again=True, compile_timeout=left)


def table(cases: Iterable[Case], run_name: str) -> str:
    """One line for each workload: the best of the comparison beside each peer, in microseconds."""
    cases = list(cases)
    names = list(dict.fromkeys(p.name for c in cases for p in c.peers))
    lines = [f"{'workload':<20}{'ok':>5}{'bad':>5}{'best':>9}" + "".join(f"{n:>10}" for n in names) + f"{'×peer':>7}  schedule"]
    ratios: list[float] = []
    for case in cases:
        first = [r for r in case.rows if r.kind == "kernel" and not r.repeat]
        last = [r for r in case.rows if r.repeat == run_name and r.ok and r.time_us] or [
            r for r in case.rows if r.ok and r.time_us
        ]
        ours = min((r for r in last if r.kind == "kernel"), key=lambda r: r.time_us or 0.0, default=None)
        theirs = {r.structure: r.time_us for r in last if r.kind == "peer" and r.time_us}
        ok = sum(r.ok for r in first)
        line = f"{case.name:<20}{ok:>5}{len(first) - ok:>5}" + (f"{ours.time_us:>9.2f}" if ours else f"{'-':>9}")
        line += "".join(f"{theirs[n]:>10.2f}" if n in theirs else f"{'-':>10}" for n in names)
        if ours and ours.time_us and theirs:
            ratios.append(min(theirs.values()) / ours.time_us)
            line += f"{ratios[-1]:>7.2f}"
        else:
            line += f"{'':>7}"
        lines.append(line + (f"  {len(ours.schedule_value().kernels)}k {ours.schedule_value()}" if ours else ""))
    if ratios:
        lines.append(f"geometric mean over the best peer: {float(np.exp(np.mean(np.log(ratios)))):.3f} ({len(ratios)} cases)")
    return "\n".join(lines)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m experiments.gather", description=(__doc__ or "").splitlines()[0])
    p.add_argument("workloads", nargs="*", default=["mcfuser/*"], help="names and globs; mcfuser/* by default")
    p.add_argument("--count", type=int, default=40, help="schedules of each workload")
    p.add_argument("--seed", type=int, default=0, help="of the sampled schedules and the inputs")
    p.add_argument("--minutes", type=float, default=8.0, help="time of the whole run")
    p.add_argument("--structures", choices=("one", "all"), default="one")
    p.add_argument("--peers", default="eager,flash,cudnn", help="comma-separated, or none; inductor and flex compile for long")
    p.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out")), help="folder of the results ($OUT)")
    p.add_argument("--resume", type=Path, action="append", default=[], help="JSON lines of earlier runs")
    p.add_argument("--finals", type=int, default=3, help="best schedules that are timed again beside the peers")
    p.add_argument("--workers", type=int, default=None, help="compiling processes (cores by default)")
    p.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    p.add_argument("--name", default="", help="name of this run in the rows")
    return p.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    start = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("MUFUSER_CACHE", str(Path(os.environ.get("TMPDIR", "/tmp")) / "mufuser"))
    names = match(args.workloads)
    peers = [] if args.peers == "none" else args.peers.split(",")
    run_name = args.name or f"gather-{args.seed}-{time.strftime('%Y%m%dT%H%M%S')}"
    local = Path(os.environ["MUFUSER_CACHE"]) / f"{run_name}.sqlite"
    lines = args.out / "gather.jsonl"
    with Records(local) as records:
        for path in args.resume:
            say(f"{records.import_lines(path)} rows read from {path}")
        with Bench.open(args.device, records, Options(seed=args.seed), args.workers, run_name) as bench:
            say(f"{bench.worker.info}")
            cases = []
            for name in names:
                try:
                    cases.append(make_case(name, args.count, args.seed, args.structures, peers))
                except UnsupportedError as error:
                    say(f"{name} left out: {error.message}")
            say(f"{sum(len(c.candidates) for c in cases)} candidates after {time.monotonic() - start:.0f} s")
            try:
                run(cases, bench, 60 * args.minutes - (time.monotonic() - start), args.finals)
            except KeyboardInterrupt:
                say("interrupted: what was measured is kept")
            finally:
                # whatever ended the run, its rows leave the machine
                count = records.export_lines(lines)
                say(f"{count} rows in {lines}; {bench.worker.restarts} restarts of the measuring process")
    text = table(cases, run_name)
    (args.out / "gather.txt").write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
