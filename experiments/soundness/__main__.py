"""Check every structure of every workload, and programs of odd sizes, on a GPU against float64.

    python -m experiments.soundness --budget 240
    python -m experiments.soundness 'odd/attention*' 'mirage/*' --resume out/soundness.jsonl

Outputs and workspace are filled with NaN first; the inputs are fresh; each kernel runs several times on a busy device and has to
give the same bits. ``--device cpu`` runs the small programs in Triton's interpreter. The exit status is 1 if a schedule that
tuning would not leave out is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from experiments.script import own_cache
from experiments.script import parser
from experiments.script import script
from experiments.soundness.run import Settings
from experiments.soundness.run import run
from fuser.outputs import make_folder


def parse(argv: Sequence[str] | None) -> tuple[list[str], Settings]:
    p = parser("experiments.soundness", __doc__, "budget", "seed", "target", "device", "workers", "out", budget=240.0)
    p.add_argument("cases", nargs="*", default=["*"], help="names and globs of workloads and odd/… programs; all by default")
    p.add_argument("--case", action="append", default=[], help="further names and globs, instead of all")
    p.add_argument("--passes", type=int, default=3, help="passes over the structures, each with other schedules")
    p.add_argument("--search", type=float, default=5.0, help="seconds of the superoptimizer for each case, 0: none")
    p.add_argument("--suspects", type=int, default=0, help="schedules of known bad classes to check too, at the end")
    p.add_argument("--sanitize", type=int, default=12, help="kernels for compute-sanitizer, 0: none")
    p.add_argument("--resume", type=Path, action="append", default=[], help="JSON lines of earlier runs")
    a = p.parse_args(argv)
    cases = a.case if a.case and a.cases == ["*"] else [*a.cases, *a.case]
    return cases, Settings(
        a.budget, a.passes, a.search, a.seed, a.target, a.device, a.workers, a.suspects, a.sanitize, tuple(a.resume), a.out
    )


def main(argv: Sequence[str] | None = None) -> int:
    start = time.monotonic()
    own_cache()
    cases, settings = parse(argv)
    make_folder(settings.out)
    return run(cases, settings, start)


if __name__ == "__main__":
    script(main)
