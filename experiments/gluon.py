"""Kernels by warp groups (``backend=gluon``) in turn with the best Triton kernels and with peers.

    python -m experiments.gluon --compile-only --out out    # chooses schedules and fills the cache; needs no GPU
    python -m experiments.gluon --case 'mirage/*prefill' --budget 200 --out out
    python -m experiments.gluon --list                      # schedules, and why others have no such form; needs no GPU
    python -m experiments.gluon --schedules experiments/results/h200-gluon/schedules.json --out out

Of each case the schedules are the product of a few tiles, groups, stages and places a block (one, or one after the other), or
those that a file has for its cases; what the assembler refuses falls out. One of them is what the solver of layouts picks among
all (column ``pick``: the fastest's time over that of its pick). Beside the named workloads there are causal attentions, heads of
80 and 128, and products with bias and ReLU of drawn sizes. Everything is compared with float64 before it is timed, and what
differs is not timed.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import json
import math
import pickle
import re
import time
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.candidates import best_known
from experiments.peers import FAST_PEERS
from experiments.peers import PEERS
from experiments.peers import peers_of
from experiments.script import own_cache
from experiments.script import parser
from experiments.script import script
from experiments.searched import compile_all
from fuser.console import note
from fuser.device import Device
from fuser.device import load_device
from fuser.errors import FuserError
from fuser.ir.builder import Builder
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.lower.gluon.split import row_axis
from fuser.lower.pieces import next_power
from fuser.lower.tiles import Tiles
from fuser.lower.triton_source import generate_graph
from fuser.outputs import make_folder
from fuser.outputs import write_file
from fuser.superopt.structures import structures
from fuser.workloads import match
from fuser.workloads import workload
from search.layouts.facts import Facts
from search.layouts.solve import solved
from search.measure.known import PACKAGED
from search.measure.known import load
from search.measure.measurer import Bench
from search.measure.records import Records
from search.measure.rows import Record
from search.measure.session import Options
from search.space.groups import by_warp_groups
from search.tune import tune_fast

NAMED = (
    "graphene/*", "mirage/*-prefill", "mirage/*-prefill:8", "mcfuser/S*", "mcfuser/G4", "mcfuser/G5", "mcfuser/G6", "mcfuser/G10",
)  # fmt: skip
ATTENTIONS = ((32, 4096, 4096, 64, True), (8, 2048, 2048, 128, True), (32, 1024, 4096, 128, False), (32, 1024, 4096, 80, False))
"""Heads, queries, keys, width, causal or not."""
GROUPS = (1, 2, 3, 4)
COLUMNS = (64, 128, 256)
STAGES = (2, 3, 4)
MOST = 14
"""Schedules of a case, spread over all."""


@dataclass(frozen=True)
class Case:
    program: TensorProgram
    gluon: tuple[Candidate, ...]
    triton: tuple[Candidate, ...]
    refused: tuple[str, ...]
    pick: int = -1
    """Which of the schedules by groups the solver of layouts would take; none where it has no plan of any."""


def programs(seed: int) -> Iterator[TensorProgram]:
    """The named workloads of the suites, and those beside them."""
    yield from (workload(n) for n in match(NAMED))
    yield from (attention(*sizes) for sizes in ATTENTIONS)
    rng = np.random.default_rng(seed)
    yield from (product(*(int(x) for x in rng.integers(1, 9, 3) * 1024)) for _ in range(4))


def attention(heads: int, m: int, n: int, wide: int, causal: bool) -> TensorProgram:
    b = Builder(f"attention-{heads}x{m}x{n}x{wide}{'-causal' if causal else ''}")
    q, k, v = b.input("Q", (heads, m, wide)), b.input("K", (heads, n, wide)), b.input("V", (heads, n, wide))
    return b.build(O=b.attention(q, k, v, causal=causal))


def packed(batch: int, tokens: int, heads: int, wide: int, causal: bool) -> TensorProgram:
    """Attention as networks have it: queries, keys and values side by side in one tensor, and heads in rows."""
    b = Builder(f"packed-{batch}x{tokens}x{heads}x{wide}{'-causal' if causal else ''}")
    x = b.input("X", (batch, tokens, 3, heads, wide))
    q, k, v = (
        b.op("slice", x, axis=2, start=i, stop=i + 1).reshape(batch, tokens, heads, wide).transpose(0, 2, 1, 3) for i in range(3)
    )
    return b.build(O=b.attention(q, k, v, causal=causal).transpose(0, 2, 1, 3))


def product(m: int, n: int, k: int) -> TensorProgram:
    b = Builder(f"product-{m}x{n}x{k}")
    return b.build(Y=b.relu(b.input("X", (m, k)) @ b.input("W", (k, n)) + b.input("B", (n,))))


def named(name: str) -> TensorProgram:
    """The program of a case: a workload, or one of those beside them with the sizes that its name says."""
    if found := re.fullmatch(r"attention-(\d+)x(\d+)x(\d+)x(\d+)(-causal)?", name):
        heads, m, n, wide = (int(x) for x in found.groups()[:4])
        return attention(heads, m, n, wide, bool(found[5]))
    if found := re.fullmatch(r"packed-(\d+)x(\d+)x(\d+)x(\d+)(-causal)?", name):
        batch, tokens, heads, wide = (int(x) for x in found.groups()[:4])
        return packed(batch, tokens, heads, wide, bool(found[5]))
    if found := re.fullmatch(r"product-(\d+)x(\d+)x(\d+)", name):
        return product(*(int(x) for x in found.groups()))
    return workload(name)


def schedules(block: BlockGraph, sms: int) -> Iterator[KernelSchedule]:
    """By warp groups: rows of 64 for each group of a kernel with products, else a few."""
    if block.splits:
        return
    dots = [s for s in block.computes if s.contracts]
    sides = [[set(block.by_value[a].axes) for a in s.args] for s in dots]
    single = {a: 1 for s, (x, y) in zip(dots, sides, strict=True) for a in x & y if a not in s.reduce}
    whole = {a: next_power(n) for a, n in block.extents.items()} | single
    rows = row_axis(Tiles.of(block, KernelSchedule(tuple(sorted(whole.items())))))
    if not rows:
        return
    inner = {a for s in dots for a in s.reduce}
    chained = [a for a in inner if any(a in s.axes for s in dots)]
    loop = chained[:1] or sorted(inner, key=lambda a: -block.extents[a])[:1]
    last = {s.axes[-1] for s in block.stores} - inner
    heights = (64, 128, 32, 16) if dots else (4, 8, 16)
    for groups, height, columns, stages, again in itertools.product(GROUPS, heights, COLUMNS, STAGES, (0, 1)):
        tiles = whole | {rows: groups * height}
        if dots and tiles[rows] % 64:
            continue
        tiles |= dict.fromkeys(loop, columns if chained else 64)
        if dots and not chained:
            tiles |= {a: min(columns, whole[a]) for a in last}
        if not dots and (columns != COLUMNS[0] or stages != STAGES[0]):
            continue
        if any(tiles[a] > 256 for a in inner) or (dots and any(tiles[a] > 256 for a in last)):
            continue
        knobs = [("backend", "gluon")]
        knobs += [("group", 8)] * (dots != [] and not chained) + [("persistent", sms)] * again
        order = TilingExpr(tuple(a for a in loop if tiles[a] < block.extents[a]))
        yield KernelSchedule(tuple(sorted(tiles.items())), order, (), 4 * groups, stages, tuple(knobs))


def by_groups(graph: KernelGraph, tried: Iterable[Schedule]) -> tuple[list[Candidate], list[str]]:
    """Candidates of a graph of one kernel, and why there are no others."""
    found, refused = [], dict[str, None]()
    for schedule in dict.fromkeys(tried):
        try:
            generate_graph(graph, schedule)
        except FuserError as error:
            refused[error.message] = None
            continue
        found.append(Candidate(graph, schedule))
    return found, list(refused)


def case_of(program: TensorProgram, known: Records, target: str, seed: int, given: Sequence[str] | None = None) -> Case:
    """``given``: the schedules by groups, where they are not to be drawn; of several kernels in parts of a sum."""
    device = load_device(target)
    graphs = [g for g in structures(program) if len(g.kernels) == len(g.blocks)]
    split = [g for g in graphs if len(g.blocks) == 2 and g.blocks[0].splits][:1]
    found, refused = list[Candidate](), list[str]()
    for graph in [*(g for g in graphs if len(g.blocks) == 1)][:2] + split * (given is not None):
        try:
            tried = (Schedule((s,)) for s in schedules(graph.blocks[0], device.sm_count))
            mine = [t for t in given or () if len(t.split(";")) == len(graph.blocks)]
            made, why = by_groups(graph, tried if given is None else (Schedule.parse(t, graph.blocks) for t in mine))
        except FuserError as error:
            made, why = [], [error.message]
        found, refused = found + made, refused + why
    first = _picked(found, device)
    most = MOST if given is None else len(found)
    drawn = [int(i) for i in np.random.default_rng(seed).permutation(len(found)) if i != first]
    picked = sorted(drawn[:most] if first < 0 else [first, *drawn[: most - 1]])
    triton = [r.candidate for r in best_known(known, program.name, device.title, 2)]
    tuned = tune_fast(program, device, kernels=False)
    triton += [next(r.candidate for r in (tuned.winner, *tuned.runners) if not by_warp_groups(r.schedule))]
    mine = tuple(found[i] for i in picked)
    return Case(
        program, mine, tuple(dict.fromkeys(triton)), tuple(dict.fromkeys(refused)), picked.index(first) if first in picked else -1
    )


def _picked(found: Sequence[Candidate], device: Device) -> int:
    """The candidate, of all of them, whose plan the solver of layouts predicts to be the fastest; -1 where none has a plan."""
    best, number = math.inf, -1
    for i, c in enumerate(found):
        block, schedule = c.blocks[0]
        try:
            s = solved(Facts.of(block, schedule, device), best)
        except FuserError:
            continue
        best, number = s.choice.total, i
    return number


def cases_of(target: str, seed: int, wanted: re.Pattern[str], given: Mapping[str, Sequence[str]] | None) -> list[Case]:
    with Records(":memory:") as known:
        load(known, [PACKAGED])
        if given is None:
            return [case_of(p, known, target, seed) for p in programs(seed) if wanted.fullmatch(p.name)]
        return [case_of(named(n), known, target, seed, texts) for n, texts in given.items() if wanted.fullmatch(n)]


def line(case: Case, rows: Sequence[Record]) -> str:
    """Best times of the three kinds, how many kernels by groups were right, and the fastest of them."""
    mine, triton = rows[: len(case.gluon)], rows[len(case.gluon) : len(case.gluon) + len(case.triton)]
    peers = rows[len(case.gluon) + len(case.triton) :]
    best = [min((r.time_us for r in part if r.ok and r.time_us), default=math.nan) for part in (mine, triton, peers)]
    first = next((r.schedule_value() for r in mine if r.ok and r.time_us == best[0]), "-")
    bad = sorted({f"{r.status} {r.detail[:60]}" for r in mine if not r.ok})
    right = f"{sum(r.ok for r in mine)}/{len(mine)}"
    times = "".join(f"{us:>10.2f}" for us in best) + f"{best[1] / best[0]:>8.3f}{best[2] / best[0]:>8.3f}"
    pick = mine[case.pick] if case.pick >= 0 else None
    near = f"{best[0] / pick.time_us:>8.3f}" if pick and pick.ok and pick.time_us else f"{'-':>8}"
    fields = f"{case.program.name:<34}{times}{near}{right:>8}  {first}"
    return "\n".join((fields, *(f"    {b}" for b in bad[:3])))


HEAD = f"{'case':<34}{'gluon µs':>10}{'triton':>10}{'peer':>10}{'x trit.':>8}{'x peer':>8}{'pick':>8}{'right':>8}  schedule"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    p = parser("experiments.gluon", __doc__, "budget", "target", "seed", "workers", "device", "out", budget=200.0)
    p.add_argument("--case", action="append", default=[], help="globs of cases, all by default")
    p.add_argument("--schedules", type=Path, help="a file of schedules by case, JSON")
    p.add_argument("--compile-only", action="store_true", help="fill the cache of compiled kernels")
    p.add_argument("--peers", nargs="+", default=FAST_PEERS, choices=PEERS, help="beside what (default: %(default)s)")
    p.add_argument("--list", action="store_true", help="show schedules, and why there are no others")
    return p.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    own_cache()
    start = time.monotonic()
    made = args.out / "cases.pickle"
    wanted = re.compile("|".join(map(fnmatch.translate, args.case or "*")))
    given = json.loads(args.schedules.read_text()) if args.schedules else None
    cases = pickle.loads(made.read_bytes()) if made.exists() else cases_of(args.target, args.seed, wanted, given)
    cases = [c for c in cases if wanted.fullmatch(c.program.name)]
    note(f"{sum(len(c.gluon) for c in cases)} schedules of {len(cases)} cases after {time.monotonic() - start:.0f} s")
    if args.list:
        for c in cases:
            print(c.program.name, *(f"    {x.schedule}" for x in c.gluon), *(f"    not: {r}" for r in c.refused[:4]), sep="\n")
        return 0
    every = [x for c in cases for x in (*c.gluon, *c.triton)]
    make_folder(args.out)
    if args.compile_only:
        write_file(made, pickle.dumps(cases))
        done = compile_all(every, load_device(args.target).arch, args.workers, args.budget)
        note(f"{done} of {len(every)} compiled after {time.monotonic() - start:.0f} s")
        return 0
    lines = [HEAD]
    print(HEAD, flush=True)
    with (
        Records(":memory:") as records,
        Bench.open(args.device, records, Options(seed=args.seed), args.workers, "gluon") as bench,
    ):
        bench.submit(every)
        for c in cases:
            if (left := args.budget - (time.monotonic() - start)) < 2:
                note(f"time is up before {c.program.name}")
                break
            items = [*c.gluon, *c.triton, *peers_of(c.program, args.peers)]
            lines.append(line(c, bench.measure(c.program, items, again=True, compile_timeout=left)))
            print(lines[-1], flush=True)
            records.export_lines(args.out / "gluon.jsonl")
    write_file(args.out / "gluon.txt", "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    script(main)
