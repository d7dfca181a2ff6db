"""What kernels by warp groups (``backend=gluon``) are worth, and whether the model knows.

    python -m experiments.backends choose --out out       # schedules by the model, beside those in Triton and drawn ones; no GPU
    python -m experiments.backends compile --out out      # fills the cache of compiled kernels; no GPU
    python -m experiments.backends measure --out out --budget 120
    python -m experiments.backends seconds --out out      # what it takes to write, solve and compile a pick; no GPU

Of each workload the model's best schedules by warp groups run in turn with its best in Triton and the best known ones:
``instant`` with and without Gluon. Of block graphs the picks of the solver of layouts run in turn with 32 schedules that are
drawn of all that have a form; the first that compiles without heavy spills is the pick. Beside the first three there are such as
differ in one way: results leave by pointers, or there is no warp that loads.
"""

from __future__ import annotations

import fnmatch
import pickle
import re
import time
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from itertools import pairwise

import numpy as np

from experiments.candidates import best_known
from experiments.gluon import named
from experiments.script import own_cache
from experiments.script import parser
from experiments.script import script
from experiments.searched import compile_all
from fuser.console import note
from fuser.console import print_table
from fuser.device import Device
from fuser.device import load_device
from fuser.errors import FuserError
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.lower.compile import compile_kernel
from fuser.lower.gluon.source import generate_gluon
from fuser.lower.options import FLATTEN
from fuser.lower.options import PERSISTENT
from fuser.lower.options import SPECIALIZE
from fuser.lower.options import TMA
from fuser.lower.tiles import Tiles
from fuser.outputs import make_folder
from fuser.outputs import write_file
from fuser.superopt.structures import structures
from fuser.workloads import match
from fuser.workloads import workload
from search.layouts.facts import Facts
from search.layouts.report import short_list
from search.layouts.solve import solved
from search.measure.known import PACKAGED
from search.measure.known import load
from search.measure.measurer import Bench
from search.measure.records import Records
from search.measure.rows import Record
from search.measure.session import Options
from search.realise import SPILL_LIMIT
from search.space.estimates import estimator
from search.space.groups import by_warp_groups
from search.space.groups import group_space
from search.space.groups import written
from search.space.kernels import Estimator
from search.space.kernels import KernelSpace
from search.space.schedules import ScheduleSpace
from search.tune import tune_fast

NAMED = ("mcfuser/*", "mirage/*", "mirage/*:8", "graphene/gemm*", "graphene/l*", "graphene/fmha")
DRAWN_OF = (
    "graphene/fmha", "graphene/gemm-bias-relu", "graphene/lstm", "mirage/mha-prefill", "mirage/gqa-prefill",
    "mirage/gqa-prefill:8", "mirage/mqa-spec:8", "mirage/lora:8", "mirage/gated-mlp:8", "mcfuser/S1", "mcfuser/S3", "mcfuser/S6",
    "mcfuser/G3", "mcfuser/G8", "mcfuser/G11", "attention-8x2048x2048x128-causal", "attention-32x1024x4096x128",
    "attention-32x1024x4096x80", "product-3072x3072x1024", "product-1024x1024x2048",
    "attention-24x768x1536x64", "attention-16x64x4096x64", "attention-4x128x8192x128", "attention-12x1500x1500x64",
    "attention-20x1280x1280x64-causal", "attention-6x64x2048x128", "packed-4x640x16x64", "product-2048x2048x2048",
    "product-512x4096x1024", "product-6144x1536x1536", "product-1024x1024x4096", "product-384x8192x2048",
)  # fmt: skip
"""The last three lines are of shapes that no price has been fitted to; several have so few rows that groups share out keys."""
DRAWN, PICKS = 32, 3
BRIEF = Options(rounds=5, replay_ms=4.0, warm_ms=8.0)
"""Hundreds of kernels in two minutes."""


@dataclass(frozen=True)
class Case:
    """Candidates by what chose them; the picks in the solver's order come first."""

    kind: str
    program: TensorProgram
    groups: tuple[Candidate, ...]
    triton: tuple[Candidate, ...] = ()
    drawn: tuple[Candidate, ...] = ()

    @property
    def every(self) -> list[Candidate]:
        return list(dict.fromkeys((*self.groups, *self.triton, *self.drawn)))


def of_workload(program: TensorProgram, known: Records, device: Device) -> Case:
    tuned = tune_fast(program, device)
    ranked = sorted((tuned.winner, *tuned.runners), key=lambda r: r.seconds)
    mine = [r.candidate for r in ranked if by_warp_groups(r.candidate.schedule)][:PICKS]
    others = [r.candidate for r in ranked if not by_warp_groups(r.candidate.schedule)][:1]
    best = [r.candidate for r in best_known(known, program.name, device.title, 2)]
    return Case("workload", program, (*mine, *flattened(mine)), tuple(dict.fromkeys((*others, *best))))


def flattened(picks: Sequence[Candidate]) -> Iterator[Candidate]:
    """Those whose blocks stay, with the end of each place beside the start of the next."""
    for c in picks:
        ((block, schedule), *rest) = c.blocks
        flat = FLATTEN.set(schedule, True)
        if not rest and PERSISTENT.of(schedule) and written(block, flat):
            yield Candidate(c.graph, Schedule((flat,)))


def of_block(program: TensorProgram, device: Device, seed: int) -> Case | None:
    """The first structure of one kernel that has a form by warp groups."""
    estimate = estimator(device)
    for graph in structures(program):
        if len(graph.kernels) != 1 or not graph.blocks:
            continue
        (space,) = ScheduleSpace(graph, device).kernels
        mine = group_space(space)
        if mine is None:
            continue
        best = [p.schedule for p in short_list(graph.blocks[0], device)][:PICKS]
        picks = tuple(Candidate(graph, Schedule((s,))) for s in dict.fromkeys((*best, *beside(graph.blocks[0], best))))
        return Case("block", program, picks, (), tuple(drawn(graph, mine, estimate, np.random.default_rng(seed))))
    return None


def beside(block: BlockGraph, picks: Sequence[KernelSchedule]) -> Iterator[KernelSchedule]:
    """Schedules that differ from a pick in one way: results by pointers, no warp that loads."""
    for schedule in picks:
        for other in (TMA.set(schedule, False, *block.outputs), SPECIALIZE.set(schedule, False)):
            if other != schedule and written(block, other):
                yield other


def drawn(graph: KernelGraph, space: KernelSpace, estimate: Estimator, rng: np.random.Generator) -> Iterator[Candidate]:
    """Schedules that have a form, each as likely as another: half of them with blocks that stay, and where one group is all there
    is, some without a warp that loads."""
    ways = ((PERSISTENT.key(), space.device.sm_count),), ((SPECIALIZE.key(), False),)
    every: list[tuple[KernelSpace, KernelSchedule]] = []
    for mine in (space, *(replace(space, always=(*space.always, *way)) for way in ways)):
        for batch in mine.batches({}):
            seconds = batch.seconds(estimate, checked=True)
            every += [(mine, batch.schedule(int(i))) for i in np.flatnonzero(np.isfinite(seconds))]
    left = DRAWN
    for i in rng.permutation(len(every)):
        if left and written(space.block, every[i][1]):
            left -= 1
            yield Candidate(graph, Schedule((every[i][1],)))


def chosen(target: str, seed: int, kind: str, wanted: re.Pattern[str]) -> Iterator[Case]:
    device = load_device(target)
    with Records(":memory:") as known:
        load(known, [PACKAGED])
        for name in match(NAMED) if kind != "block" else ():
            if wanted.fullmatch(name):
                yield of_workload(workload(name), known, device)
        for name in DRAWN_OF if kind != "workload" else ():
            if wanted.fullmatch(name) and (case := of_block(named(name), device, seed)) is not None:
                yield case


# -- what was measured


def best(rows: Sequence[Record]) -> float:
    return min((r.time_us for r in rows if r.ok and r.time_us), default=0.0)


HEAD = f"{'':<10}{'program':<36}{'pick µs':>10}{'other':>10}{'best':>10}{'x other':>9}{'failed':>8}  schedule"


def line(case: Case, rows: Sequence[Record]) -> str:
    """The first pick's time, that of Triton's first (of drawn ones the fastest), that of the fastest of all, how much faster the
    pick is than the other, and how many failed."""
    of = dict(zip(case.every, rows, strict=True))
    first = next((c for c in case.groups if of[c].ok and of[c].measurement.spills <= SPILL_LIMIT), None)
    pick = of[first].time_us or 0.0 if first else 0.0
    other = best([of[c] for c in (case.triton[:1] or case.drawn)])
    failed = f"{sum(not r.ok for r in rows)}/{len(rows)}"
    ratio = f"{other / pick:>9.3f}" if pick and other else f"{'-':>9}"
    times = f"{pick:>10.2f}{other:>10.2f}{best(rows):>10.2f}"
    return f"{case.kind:<10}{case.program.name:<36}{times}{ratio}{failed:>8}  {first.schedule if first else '-'}"


def spent(case: Case, device: Device) -> tuple[float, float, float]:
    """Seconds that one kernel takes here: its source, the solver of its layouts, and the compiler; those of
    the cache where it has the kernel."""
    ((block, schedule),) = case.groups[0].blocks
    marks = [time.perf_counter()]
    source = generate_gluon(Tiles.of(block, schedule), block.name)
    marks.append(time.perf_counter())
    solved(Facts.of(block, schedule, device))
    marks.append(time.perf_counter())
    compile_kernel(source, device.arch)
    marks.append(time.perf_counter())
    written, planned, compiled = (after - before for before, after in pairwise(marks))
    return written, planned, compiled


def print_seconds(cases: Sequence[Case], device: Device) -> None:
    rows = []
    for case in (c for c in cases if c.kind == "block"):
        try:
            rows.append((case, spent(case, device)))
        except FuserError as error:
            note(f"{case.program.name}: {error.message}")
    heads = ("block graph", "source s >", "layouts s >", "compiler s >", "all s >")
    shown = [(c.program.name, *(f"{x:.2f}" for x in (*s, sum(s)))) for c, s in rows]
    print_table("One kernel by warp groups, first picks", heads, shown)


def main(argv: Sequence[str] | None = None) -> int:
    p = parser("experiments.backends", __doc__, "budget", "target", "seed", "workers", "device", "out", budget=120.0)
    p.add_argument("what", choices=("choose", "compile", "measure", "seconds"))
    p.add_argument("--kind", choices=("workload", "block"), default="", help="only these cases")
    p.add_argument("--case", action="append", default=[], help="globs of cases, all by default")
    args = p.parse_args(argv)
    own_cache()
    start, file = time.monotonic(), args.out / "cases.pickle"
    make_folder(args.out)
    if args.what == "choose":
        cases = []
        for case in chosen(args.target, args.seed, args.kind, re.compile("|".join(map(fnmatch.translate, args.case or "*")))):
            cases.append(case)
            note(f"{case.kind} {case.program.name}: {len(case.every)} candidates, {time.monotonic() - start:.0f} s")
        write_file(file, pickle.dumps(cases))
        return 0
    cases = pickle.loads(file.read_bytes())
    if args.what == "seconds":
        print_seconds(cases, load_device(args.target))
        return 0
    every = list(dict.fromkeys(c for case in cases for c in case.every))
    if args.what == "compile":
        note(f"{compile_all(every, load_device(args.target).arch, args.workers, args.budget)} of {len(every)} compiled")
        return 0
    print(HEAD, flush=True)
    with Records(":memory:") as records, Bench.open(args.device, records, BRIEF, args.workers, "backends") as bench:
        bench.submit(every)
        for case in cases:
            if (left := args.budget - (time.monotonic() - start)) < 2:
                note(f"time is up before {case.kind} {case.program.name}")
                break
            try:
                print(line(case, bench.measure(case.program, case.every, again=True, compile_timeout=left)), flush=True)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one case, the others have their minutes
                note(f"{case.kind} {case.program.name}: {type(error).__name__}: {error}")
            records.export_lines(args.out / "backends.jsonl")
    return 0


if __name__ == "__main__":
    script(main)
