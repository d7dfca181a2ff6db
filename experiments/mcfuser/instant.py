"""The winners of fast tuning, measured: how good is a choice that was made without a GPU?

    python -m experiments.mcfuser.instant --name h200-instant

Tunes each workload with the model alone, then checks and times the winner, the runners-up, the best schedules that earlier runs
measured (``--known``) and the peers, in turn with each other.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Iterable
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from experiments.gather import say
from experiments.peers import peers_of
from fuser.device import load_device
from fuser.errors import FuserError
from fuser.errors import UsageError
from fuser.workloads import match
from fuser.workloads import workload
from search.measure import Bench
from search.measure import Candidate
from search.records import Record
from search.records import Records
from search.session import Options
from search.timing import External
from search.tune import Tuned
from search.tune import tune_fast

WIDTHS = (8, 8, 8, 5, 8, 8, 7, 9)
"""Of the columns of the table."""


@dataclass(frozen=True)
class Choice:
    """What tuning chose for a workload, and the seconds it took."""

    tuned: Tuned
    seconds: float

    def candidates(self, runners: int) -> tuple[Candidate, ...]:
        return tuple(Candidate(c.graph, c.schedule) for c in (self.tuned.winner, *self.tuned.runners[:runners]))


@dataclass(frozen=True)
class Outcome:
    """Rows of one workload: the model's choices best first, known schedules, peers."""

    choice: Choice
    chosen: tuple[Record, ...]
    known: tuple[Record, ...]
    peers: tuple[Record, ...]


def choose(name: str, target: str) -> Choice:
    start = time.perf_counter()
    tuned = tune_fast(workload(name), load_device(target))
    return Choice(tuned, time.perf_counter() - start)


def best_known(records: Records, name: str, device: str, count: int) -> tuple[Candidate, ...]:
    """The fastest schedules of earlier runs on such a device."""
    rows = [r for r in records.rows(workload=name, device=device, kind="kernel", status="ok", repeat="") if r.time_us]
    found: dict[Candidate, None] = {}
    for r in sorted(rows, key=lambda r: r.time_us or math.inf)[:count]:
        if graph := records.structure(r.structure):
            found[Candidate(graph, r.schedule_value())] = None
    return tuple(found)


def measure(bench: Bench, choice: Choice, runners: int, known: Sequence[Candidate], peers: Sequence[External]) -> Outcome:
    chosen = choice.candidates(runners)
    extra = tuple(k for k in known if k not in chosen)
    rows = bench.measure(choice.tuned.program, [*chosen, *extra, *peers], again=True)
    n, m = len(chosen), len(chosen) + len(extra)
    return Outcome(choice, tuple(rows[:n]), tuple(rows[n:m]), tuple(rows[m:]))


def fastest(rows: Iterable[Record]) -> Record | None:
    return min((r for r in rows if r.ok and r.time_us), key=lambda r: r.time_us or math.inf, default=None)


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def table(outcomes: Sequence[Outcome]) -> str:
    """A line for each workload, in microseconds; then the geometric means."""
    heads = ("est", "winner", "top", "rank", "known", "peer", "x peer", "error")
    lines = [f"{'workload':<18}" + "".join(f"{h:>{w}}" for h, w in zip(heads, WIDTHS, strict=True)) + "  schedule"]
    over_peer: list[float] = []
    over_best: list[float] = []
    for o in outcomes:
        winner, top, known, peer = o.chosen[0], fastest(o.chosen), fastest(o.known), fastest(o.peers)
        times = [r.time_us if r else None for r in (winner, top, known, peer)]
        line = f"{o.choice.tuned.program.name:<18}{o.choice.tuned.winner.us:>8.2f}"
        cells = [f"{t:.2f}" if t else "-" for t in times]
        line += f"{cells[0] if winner.ok else winner.status:>8}{cells[1]:>8}{o.chosen.index(top) if top else '-':>5}"
        line += f"{cells[2]:>8}{cells[3]:>8}"
        ours, theirs = times[0], times[3]
        best = min((t for t in times[:3] if t), default=None)
        if ours and best:
            over_best.append(ours / best)
        if ours and theirs:
            over_peer.append(theirs / ours)
            line += f"{over_peer[-1]:>7.2f}"
        else:
            line += f"{'-':>7}"
        line += f"{winner.error_fro:>9.1e}" if winner.error_fro is not None else f"{'-':>9}"
        lines.append(f"{line}  {len(winner.schedule_value().kernels)}k {winner.schedule_value()}")
    correct = sum(o.chosen[0].ok for o in outcomes)
    lines.append(f"{correct} of {len(outcomes)} winners correct; tuning {sum(o.choice.seconds for o in outcomes):.1f} s in all")
    if over_peer:
        lines.append(f"best peer / winner, geometric mean: {geometric_mean(over_peer):.3f}")
    if over_best:
        lines.append(f"winner / fastest schedule of this run, geometric mean: {geometric_mean(over_best):.3f}")
    return "\n".join(lines)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m experiments.mcfuser.instant", description=(__doc__ or "").splitlines()[0])
    p.add_argument("workloads", nargs="*", default=["mcfuser/*"])
    p.add_argument("--target", default="h200", help="device that the model assumes")
    p.add_argument("--runners", type=int, default=3, help="runners-up that are measured too")
    p.add_argument("--known", type=Path, action="append", default=[], help="JSON lines of earlier runs")
    p.add_argument("--best", type=int, default=2, help="schedules of each workload from --known")
    p.add_argument("--peers", default="eager,flash,cudnn", help="comma-separated, or none")
    p.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out")), help="folder of the results ($OUT)")
    p.add_argument("--name", default="instant", help="name of this run in the rows")
    p.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    p.add_argument("--workers", type=int, default=None, help="processes that tune and compile (cores by default)")
    args = p.parse_args(argv)
    if args.runners < 0:
        raise UsageError("--runners must not be negative")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("MUFUSER_CACHE", str(Path(os.environ.get("TMPDIR", "/tmp")) / "mufuser"))
    names = match(args.workloads)
    peer_names = [] if args.peers == "none" else args.peers.split(",")
    outcomes: list[Outcome] = []
    start = time.monotonic()
    with Records(":memory:") as earlier, Records(":memory:") as records:
        for path in args.known:
            earlier.import_lines(path)
        with Bench.open(args.device, records, Options(), args.workers, args.name) as bench:
            device = bench.worker.info["device"]
            with ProcessPoolExecutor(args.workers, get_context("spawn")) as pool:
                futures = {n: pool.submit(choose, n, args.target) for n in names}
                work: list[tuple[Choice, tuple[Candidate, ...]]] = []
                for name, future in futures.items():
                    try:
                        choice = future.result()
                    except FuserError as error:
                        say(f"{name} left out: {error.message}")
                        continue
                    known = best_known(earlier, name, device, args.best)
                    bench.submit([*choice.candidates(args.runners), *known])
                    work.append((choice, known))
            say(f"tuned after {time.monotonic() - start:.0f} s")
            try:
                for choice, known in work:
                    outcomes.append(measure(bench, choice, args.runners, known, peers_of(choice.tuned.program, peer_names)))
                    bad = [f"{r.status}: {r.detail[:90]}" for r in outcomes[-1].chosen if not r.ok]
                    say(f"[{time.monotonic() - start:4.0f} s] {choice.tuned.program.name}{'; ' + bad[0] if bad else ''}")
            finally:
                records.export_lines(args.out / "instant.jsonl")
    text = table(outcomes)
    (args.out / "instant.txt").write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
