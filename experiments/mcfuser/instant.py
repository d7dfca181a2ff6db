"""The winners of fast tuning, measured: how good is a choice that was made without a GPU?

    python -m experiments.mcfuser.instant --name h200-instant

Tunes each workload with the model alone, then checks and times the winner, the runners-up, the best schedules that earlier runs
measured (``--known``) and the peers, in turn with each other.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import geometric_mean

from experiments.candidates import Request
from experiments.candidates import fastest
from experiments.candidates import plan
from experiments.compare import Result
from experiments.compare import run
from experiments.peers import FAST_PEERS
from experiments.script import own_cache
from experiments.script import parser
from experiments.script import script
from fuser.console import note
from fuser.errors import UsageError
from fuser.outputs import make_folder
from fuser.outputs import write_file
from fuser.workloads import match
from search.measure.known import load
from search.measure.measurer import Bench
from search.measure.records import Records
from search.measure.rows import Record
from search.measure.session import Options

WIDTHS = (8, 8, 8, 5, 8, 8, 7, 9)
"""Of the columns of the table."""


def table(results: Sequence[Result], runners: int) -> str:
    """A line for each workload, in microseconds; then the geometric means."""
    heads = ("est", "winner", "top", "rank", "best", "peer", "x peer", "error")
    lines = [f"{'workload':<18}" + "".join(f"{h:>{w}}" for h, w in zip(heads, WIDTHS, strict=True)) + "  schedule"]
    over_peer: list[float] = []
    over_best: list[float] = []
    correct = 0
    for r in results:
        assert r.choice is not None
        rows = [row for c in r.choice.candidates(runners) if (row := r.row_of(c))]
        winner, top, best, peer = rows[0], fastest(rows), r.ours, r.peer
        correct += winner.ok
        if winner.time_us and best and best.time_us:
            over_best.append(winner.time_us / best.time_us)
        if winner.time_us and peer and peer.time_us:
            over_peer.append(peer.time_us / winner.time_us)
        cells = (
            f"{r.choice.tuned.winner.us:.2f}",
            f"{winner.time_us:.2f}" if winner.time_us else winner.status,
            _time(top),
            str(rows.index(top)) if top else "-",
            _time(best),
            _time(peer),
            f"{over_peer[-1]:.2f}" if winner.time_us and peer else "-",
            f"{winner.measurement.error_fro:.1e}" if winner.measurement.error_fro is not None else "-",
        )
        line = f"{r.program.name:<18}" + "".join(f"{c:>{w}}" for c, w in zip(cells, WIDTHS, strict=True))
        lines.append(f"{line}  {len(winner.schedule_value().kernels)}k {winner.schedule_value()}")
    seconds = sum(r.choice.seconds for r in results if r.choice)
    lines.append(f"{correct} of {len(results)} winners correct; tuning {seconds:.1f} s in all")
    if over_peer:
        lines.append(f"best peer / winner, geometric mean: {geometric_mean(over_peer):.3f}")
    if over_best:
        lines.append(f"winner / fastest schedule of this run, geometric mean: {geometric_mean(over_best):.3f}")
    return "\n".join(lines)


def _time(row: Record | None) -> str:
    return f"{row.time_us:.2f}" if row and row.time_us else "-"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    p = parser("experiments.mcfuser.instant", __doc__, "target", "known", "out", "name", "device", "workers", name="instant")
    p.add_argument("workloads", nargs="*", default=["mcfuser/*"])
    p.add_argument("--runners", type=int, default=3, help="runners-up that are measured too")
    p.add_argument("--best", type=int, default=2, help="schedules of each workload from --known")
    p.add_argument("--peers", default=",".join(FAST_PEERS), help="comma-separated, or none")
    args = p.parse_args(argv)
    if args.runners < 0:
        raise UsageError("--runners must not be negative")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    make_folder(args.out)
    own_cache()
    peers = [] if args.peers == "none" else args.peers.split(",")
    results: list[Result] = []
    with Records(":memory:") as earlier, Records(":memory:") as records:
        load(earlier, args.known)
        with Bench.open(args.device, records, Options(), args.workers, args.name) as bench:
            request = Request(args.target, 1 + args.runners, args.best, random=0)
            cases = plan(match(args.workloads), request, (earlier,), bench.worker.info["device"], peers)
            for case in cases:
                if case.choice is None:
                    note(f"{case.name} left out: {case.note}")
            try:
                for result in run(bench, [c for c in cases if c.choice]):
                    results.append(result)
                    if bad := [f"{r.status}: {r.detail[:90]}" for r in result.rows if not r.ok]:
                        note(f"{result.program.name}: {bad[0]}")
            finally:
                records.export_lines(args.out / "instant.jsonl")
    text = table(results, args.runners)
    write_file(args.out / "instant.txt", text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    script(main)
