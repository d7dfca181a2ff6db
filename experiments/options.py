"""Which options of the lowering pay: variants of good schedules, measured in turn with the schedules themselves.

    python -m experiments.options --case 'mcfuser/*' --case graphene/gemm --known experiments/raw --budget 240

The bases of each workload are the fastest schedules that records know, then the model's own choices among tiles that are powers
of two (descriptors need them). Workloads take turns, a chunk of variants each with its base beside them, so that a run that ends
early has something of every one. Nothing that is wrong is timed.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean

import numpy as np
from numpy.typing import NDArray

from cost_model.features import Features
from experiments.candidates import best_known
from experiments.candidates import model_best
from experiments.script import own_cache
from experiments.script import parser
from experiments.script import script
from fuser.console import note
from fuser.device import Device
from fuser.device import load_device
from fuser.errors import FuserError
from fuser.errors import UsageError
from fuser.ir.candidate import Candidate
from fuser.ir.program import TensorProgram
from fuser.outputs import make_folder
from fuser.pools import SPAWN
from fuser.workloads import match
from fuser.workloads import workload
from search.measure.known import load
from search.measure.measurer import Bench
from search.measure.records import Records
from search.measure.rows import Record
from search.measure.session import Options
from search.space.variants import Variant
from search.space.variants import variants

CHUNK = 14
"""Variants that are timed in turn with their base."""
GAIN = 1.01
"""Times faster than the base from which a variant counts as a win."""


@dataclass(frozen=True)
class Job:
    """Variants of one base of a workload, to be measured together."""

    name: str
    program: TensorProgram
    number: int
    base: Candidate
    variants: tuple[Variant, ...]

    @property
    def candidates(self) -> list[Candidate]:
        return [self.base, *(v.candidate for v in self.variants)]


@dataclass(frozen=True)
class Outcome:
    """What became of a variant: ``ratio`` is the base's time over its own, None where it was not timed."""

    name: str
    number: int
    variant: Variant
    base_us: float
    ratio: float | None
    status: str
    detail: str = ""


def whole_powers(f: Features) -> NDArray[np.bool_]:
    """True where every tile is a power of two."""
    found = np.ones(len(f), dtype=bool)
    for tile in f.tile.values():
        n = tile.astype(np.int64)
        found &= (n & (n - 1)) == 0
    return found


def model_choices(name: str, target: str, count: int) -> list[Candidate]:
    """The model's best schedules with tiles of powers of two."""
    return model_best(workload(name), load_device(target), count, count, whole_powers)


def bases_of(
    names: Sequence[str], known: Records, device: str, target: str, best: int, choices: int
) -> dict[str, list[Candidate]]:
    """``best`` known schedules of each workload and ``choices`` of the model."""
    found = {n: [r.candidate for r in best_known(known, n, device, best)] for n in names}
    if choices:
        with ProcessPoolExecutor(min(len(names), os.cpu_count() or 1), SPAWN) as pool:
            for name, made in zip(
                names, pool.map(model_choices, names, [target] * len(names), [choices] * len(names)), strict=True
            ):
                found[name] = list(dict.fromkeys((*found[name], *made)))
    return found


def jobs_of(bases: dict[str, list[Candidate]], device: Device) -> list[Job]:
    """Chunks of every workload's first base, then of the second ones."""
    found: list[tuple[int, int, int, Job]] = []
    for w, (name, candidates) in enumerate(bases.items()):
        program = workload(name)
        for number, base in enumerate(candidates):
            try:
                made = list(variants(base, device))
            except FuserError as error:
                note(f"{name}, base {number}, left out: {error.message}")
                continue
            for c in range(0, len(made), CHUNK):
                found.append((number, c, w, Job(name, program, number, base, tuple(made[c : c + CHUNK]))))
    return [job for *_, job in sorted(found, key=lambda x: x[:3])]


def outcomes(job: Job, rows: Sequence[Record]) -> list[Outcome]:
    """Of the rows of a job's candidates, the base first."""
    base = rows[0].time_us if rows[0].ok else None
    found = []
    for v, row in zip(job.variants, rows[1:], strict=True):
        ratio = base / row.time_us if base and row.ok and row.time_us else None
        found.append(Outcome(job.name, job.number, v, base or math.nan, ratio, row.status, row.detail))
    return found


def run(jobs: Sequence[Job], bench: Bench, seconds: float) -> list[Outcome]:
    """Measure until all is done or the time is up."""
    start = time.monotonic()
    found: list[Outcome] = []
    ahead = 3  # jobs whose kernels are compiled while others are measured
    for i, job in enumerate(jobs):
        left = seconds - (time.monotonic() - start)
        if left < 3:
            note(f"time is up after {i} of {len(jobs)} jobs")
            break
        for later in jobs[i : i + ahead]:
            bench.submit(later.candidates)
        rows = bench.measure(job.program, job.candidates, again=True, compile_timeout=left)
        found += (mine := outcomes(job, rows))
        top = max((o for o in mine if o.ratio), key=lambda o: o.ratio or 0.0, default=None)
        bad = [f"{o.variant}: {o.status} {o.detail[:80]}" for o in mine if o.status != "ok"]
        note(
            f"[{time.monotonic() - start:5.0f} s] {i + 1}/{len(jobs)} {job.name} base {job.number} "
            f"{rows[0].time_us or math.nan:.2f} µs ({rows[0].status})"
            + (f", best {top.ratio:.3f} x {top.variant}" if top else "")
            + (f"; {len(bad)} failed, {bad[0]}" if bad else "")
        )
    return found


def family(name: str) -> str:
    """``mcfuser/S`` of ``mcfuser/S4``; the suite where cases have names."""
    found = re.match(r"(\w+/[A-Za-z]+)\d+$", name)
    return found[1] if found else name.partition("/")[0]


def table(found: Sequence[Outcome]) -> str:
    """For each option and family: geometric mean of base over variant, wins, how many were timed, and what failed how often."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for o in found:
        for who in (family(o.name), "all"):
            groups.setdefault((o.variant.option, who), []).append(o)
    lines = [f"{'option':<36}{'workloads':<14}{'mean':>7}{'best':>7}{'wins':>6}{'timed':>7}  failed"]
    for (option, who), mine in sorted(groups.items()):
        timed = [o.ratio for o in mine if o.ratio]
        failed = sorted({o.status for o in mine} - {"ok"})
        text = ", ".join(f"{sum(o.status == s for o in mine)} {s}" for s in failed)
        numbers = (
            f"{geometric_mean(timed):>7.3f}{max(timed):>7.3f}{sum(r > GAIN for r in timed):>6}"
            if timed
            else f"{'-':>7}{'-':>7}{0:>6}"
        )
        lines.append(f"{option:<36}{who:<14}{numbers}{len(timed):>7}  {text}")
    lines.append("")
    lines.append(f"{'workload':<22}{'base µs':>9}{'best µs':>9}{'ratio':>7}  fastest base's best variants")
    for name in dict.fromkeys(o.name for o in found):
        timed = [o for o in found if o.name == name and o.ratio]
        if not timed:
            continue
        base = min(o.base_us for o in timed)
        ranked = sorted(timed, key=lambda o: o.base_us / (o.ratio or 1.0))
        best = ranked[0].base_us / (ranked[0].ratio or 1.0)
        texts = [f"{o.variant} (base {o.number}) {o.base_us / (o.ratio or 1.0):.2f}" for o in ranked[:3]]
        lines.append(f"{name:<22}{base:>9.2f}{best:>9.2f}{base / best:>7.3f}  {'; '.join(texts)}")
    return "\n".join(lines)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    p = parser(
        "experiments.options", __doc__, "known", "budget", "target", "seed", "workers", "device", "name", budget=240.0, name=""
    )
    p.add_argument("--case", action="append", default=[], help="workload or glob, several times; mcfuser/* by default")
    p.add_argument("--best", type=int, default=1, help="known schedules of each workload that are varied")
    p.add_argument("--choices", type=int, default=1, help="of the model's schedules with tiles of powers of two")
    p.add_argument("--only", default="", help="regular expression of the options to measure, 'tma|persistent' say")
    p.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT", "out")) / "options.jsonl", help="JSON lines of all rows"
    )
    return p.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    start = time.monotonic()
    own_cache()
    names = match(args.case or ["mcfuser/*"])
    make_folder(args.out.parent)
    run_name = args.name or f"options-{time.strftime('%Y%m%dT%H%M%S')}"
    found: list[Outcome] = []
    with Records(":memory:") as known, Records(":memory:") as records:
        load(known, args.known)
        note(f"{len(known)} known rows after {time.monotonic() - start:.0f} s")
        with Bench.open(args.device, records, Options(seed=args.seed), args.workers, run_name) as bench:
            device = load_device(args.target)
            bases = bases_of(names, known, bench.worker.info["device"], args.target, args.best, args.choices)
            jobs = jobs_of(bases, device)
            if args.only:
                jobs = [
                    replace(j, variants=kept)
                    for j in jobs
                    if (kept := tuple(v for v in j.variants if re.search(args.only, v.option)))
                ]
            if not jobs:
                raise UsageError(
                    "there is no variant to measure", "give --known, or --choices, and no --only that names no option"
                )
            note(f"{sum(len(j.variants) for j in jobs)} variants in {len(jobs)} jobs after {time.monotonic() - start:.0f} s")
            try:
                found = run(jobs, bench, args.budget - (time.monotonic() - start))
            except KeyboardInterrupt:
                note("interrupted: what was measured is kept")
            finally:
                note(f"{records.export_lines(args.out)} rows in {args.out}")
    print(table(found))
    return 0


if __name__ == "__main__":
    script(main)
