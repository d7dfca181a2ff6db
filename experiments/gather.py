"""Measure many schedules of many workloads in one call of limited time: what a cost model is fitted and judged on.

    python -m experiments.gather 'mirage/*' 'graphene/*' --to 200 --budget 540 --out DIR

Schedules are drawn over the whole space, good and bad, from several structures (:mod:`experiments.sampler`); those that records
know are left out, and ``--to`` counts them. Workloads take turns, a chunk of schedules each, so that a run that ends early has
something of every one. Compilers work ahead on every core while the device measures, and a chunk that is ready goes before one
that is not. Every row is written at once; the same command goes on where it ended.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from experiments.candidates import fastest
from experiments.candidates import fastest_first
from experiments.drawn import Key
from experiments.drawn import draw_candidates
from experiments.peers import FAST_PEERS
from experiments.peers import peers_of
from experiments.rows import earlier
from experiments.script import INTERRUPTED
from experiments.script import parser
from experiments.script import script
from fuser.device import Device
from fuser.device import load_device
from fuser.errors import NoValidKernelError
from fuser.errors import UnsupportedError
from fuser.ir.candidate import Candidate
from fuser.outputs import locked
from fuser.outputs import make_folder
from fuser.outputs import write_file
from fuser.pools import SPAWN
from fuser.workloads import match
from fuser.workloads import workload
from search.measure.known import load
from search.measure.measurer import Bench
from search.measure.records import Records
from search.measure.rows import Record
from search.measure.session import Options
from search.measure.turns import Chunk
from search.measure.turns import Work
from search.measure.turns import take_turns

CHUNK = 10
"""Candidates that are timed in turn with each other."""
SPARE = 1.2
"""Candidates for each correct schedule that is wanted: some do not compile, some are wrong."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def correct(records: Records, name: str) -> frozenset[Key]:
    """Schedules of a workload that records know with a time."""
    return frozenset((r.structure, r.schedule) for r in records.rows(workload=name, kind="kernel", status="ok") if r.time_us)


def tried(records: Records, name: str) -> frozenset[Key]:
    """Schedules of a workload that records know, right or not."""
    return frozenset((r.structure, r.schedule) for r in records.rows(workload=name, kind="kernel"))


def make_works(
    names: Sequence[str], args: argparse.Namespace, sources: Sequence[Records], device: Device, peers: Sequence[str]
) -> list[Work]:
    """Workloads with candidates for what is missing of ``--to``, or ``--count`` of them, drawn in several processes; those that
    have no schedule are left out."""
    have = {n: len(frozenset().union(*(correct(s, n) for s in sources))) for n in names}
    wanted = {n: math.inf if args.to is None else max(0, args.to - have[n]) for n in names}
    works = []
    with ProcessPoolExecutor(args.workers or os.cpu_count(), SPAWN) as pool:
        futures: dict[str, Future[list[Candidate]]] = {}
        for name in names:
            count = args.count if args.to is None else math.ceil(SPARE * wanted[name])
            known = frozenset().union(*(tried(s, name) for s in sources))
            futures[name] = pool.submit(_drawn, name, count, args.seed, args.structures, known, device, args.slowest)
        for name, future in futures.items():
            program = workload(name)
            try:
                works.append(Work(name, program, future.result(), peers_of(program, peers), wanted[name], have[name]))
            except (UnsupportedError, NoValidKernelError) as error:
                say(f"{name} left out: {error.message}")
    return works


def _drawn(name: str, count: int, *options: Any) -> list[Candidate]:
    return draw_candidates(workload(name), count, *options) if count else []


def chunks(works: Sequence[Work]) -> list[Chunk]:
    """The first chunk of every workload, with its peers, then the second ones and so on."""
    rounds = max((math.ceil(len(w.candidates) / CHUNK) for w in works), default=0)
    found = []
    for r in range(rounds):
        for w in works:
            if items := w.candidates[r * CHUNK : (r + 1) * CHUNK]:
                found.append(Chunk(w, (*items, *(w.peers if r == 0 else ()))))
    return found


def run(works: Sequence[Work], bench: Bench, seconds: float, finals: int = 0) -> None:
    """Measure chunk after chunk until all is done or the time is up; with ``finals`` the last quarter of it at most goes to a
    comparison of that many schedules of each workload with the peers."""
    start = time.monotonic()
    bench.batches = len(bench.records)
    # a comparison needs about a second a workload, and the peers' own compilers much more when they are asked for
    reserve = min(0.25 * seconds, 1.5 * len(works) + 10) if finals else 0.0
    todo, number = chunks(works), 0

    def tell(chunk: Chunk, rows: list[Record]) -> None:
        nonlocal number
        number += 1
        best = fastest(r for r in rows if r.kind == "kernel")
        failed = [f"{x.status} ({x.structure if x.kind == 'peer' else 'kernel'}): {x.detail[:90]}" for x in rows if not x.ok]
        what = f"{chunk.work.name}: {sum(r.ok for r in rows)} of {len(rows)} ok{f', best {best.time_us:.2f} µs' if best else ''}"
        say(f"[{time.monotonic() - start:5.0f} s] {number}/{len(todo)} {what}{'; ' + failed[0] if failed else ''}")

    left = take_turns(todo, bench, seconds - reserve, tell)
    say(f"time is up after {number} chunks, {left} are left" if left else "all workloads have what was asked for")
    for work in works if finals else ():
        left = seconds - (time.monotonic() - start)
        best = fastest_first(work.kernels)[:finals]
        if left < 3 or not best:
            say(f"no comparison for {work.name}: {'no correct schedule' if left >= 3 else 'time is up'}")
            continue
        again = [c for r in best if (c := bench.records.candidate(r))]
        work.rows += bench.measure(work.program, [*again, *work.peers], again=True, compile_timeout=left)


def table(works: Iterable[Work]) -> str:
    """A line for each workload: how many there were and are, and the fastest beside the peers, in microseconds."""
    heads = ("had", "ok", "bad", "kinds", "best", "median", "worst")
    lines = [f"{'workload':<24}" + "".join(f"{h:>9}" for h in heads) + "  fastest"]
    for w in works:
        rows = fastest_first(w.kernels)
        times = [f"{r.time_us:.2f}" for r in (rows[:1] + rows[len(rows) // 2 :][:1] + rows[-1:])]
        cells = [w.have, len(rows), len(w.kernels) - len(rows), len({r.structure for r in rows}), *(times or ["-"] * 3)]
        best = fastest(r for r in w.rows if r.kind == "kernel")
        peer = fastest(r for r in w.rows if r.kind == "peer")
        line = f"{w.name:<24}" + "".join(f"{c:>9}" for c in cells) + (f"  {best.schedule_value()}" if best else "")
        lines.append(line + (f"; best peer {peer.structure} {peer.time_us:.2f}" if peer else ""))
    return "\n".join(lines)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    p = parser(
        "experiments.gather", __doc__, "budget", "seed", "out", "workers", "target", "device", "name", budget=480.0, name="gather"
    )
    p.add_argument("workloads", nargs="*", default=["mcfuser/*"], help="names and globs; mcfuser/* by default")
    p.add_argument("--to", type=int, help="correct schedules that each workload shall have, known ones counted")
    p.add_argument("--count", type=int, default=40, help="new schedules of each workload, without --to (40)")
    p.add_argument("--structures", choices=("one", "all", "searched"), default="all", help="what is sampled (all)")
    p.add_argument(
        "--known", type=Path, action="append", help="rows of earlier runs, a file or folder; experiments/raw by default"
    )
    p.add_argument(
        "--slowest", type=float, default=50.0, help="avoid what the model thinks so many times slower than the best (50)"
    )
    p.add_argument("--compile-seconds", type=int, default=20, help="time limit for the compiler, each schedule (20)")
    p.add_argument("--peers", default="none", help=f"none, or some of {','.join(FAST_PEERS)} and others, with commas")
    p.add_argument("--finals", type=int, default=0, help="best schedules that are timed again beside the peers (0)")
    return p.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    start = time.monotonic()
    make_folder(args.out)
    interrupted = False
    os.environ.setdefault("MUFUSER_CACHE", str(Path(tempfile.gettempdir()) / "mufuser"))
    peers = [] if args.peers == "none" else args.peers.split(",")
    device = load_device(args.target)
    works: list[Work] = []
    with Records(":memory:") as known, Records(args.out / "gather.sqlite") as records:
        load(known, earlier() if args.known is None else args.known)
        with Bench.open(args.device, records, Options(seed=args.seed), args.workers, args.name) as bench:
            bench.pool.seconds = args.compile_seconds
            say(f"{bench.worker.info}; {len(known)} rows known")
            works = make_works(match(args.workloads), args, (known, records), device, peers)
            say(f"{sum(len(w.candidates) for w in works)} candidates after {time.monotonic() - start:.0f} s")
            try:
                run(works, bench, args.budget - (time.monotonic() - start), args.finals)
            except KeyboardInterrupt:
                say("interrupted: what was measured is kept")
                interrupted = True
            finally:
                # whatever ended the run, its rows leave the machine
                with locked(args.out):
                    count = records.export_lines(args.out / "gather.jsonl")
                say(f"{count} rows in {args.out / 'gather.jsonl'}; {bench.worker.restarts} restarts of the measuring process")
    text = table(works)
    write_file(args.out / "gather.txt", text + "\n")
    print(text)
    return INTERRUPTED if interrupted else 0


if __name__ == "__main__":
    script(main)
