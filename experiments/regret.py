"""How much longer the model's first choice takes than the best that a search by measurements finds, over programs that are drawn.

    python -m experiments.regret compile --seed 7 --out out    # fills Triton's cache with the first generation of each search
    python -m experiments.regret measure --seed 7 --out out --budget 120
    python -m experiments.regret table --out out

A search measures the model's best schedules of all structures, then goes on under the budget where most can be gained, as the
effort ``full`` does; in the end the first choice is timed in turn with the fastest that were found.
"""

from __future__ import annotations

import json
import os
import pickle
import statistics
import time
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from experiments.script import own_cache
from experiments.script import parser
from experiments.script import script
from experiments.searched import compile_all
from experiments.searched import drawn_programs
from fuser.console import note
from fuser.console import print_table
from fuser.device import Device
from fuser.device import load_device
from fuser.errors import FuserError
from fuser.errors import UsageError
from fuser.files import read_json
from fuser.ir.program import TensorProgram
from fuser.outputs import make_folder
from fuser.outputs import write_file
from fuser.pools import SPAWN
from fuser.superopt.structures import structures
from search.calibrate.programs import product
from search.libraries import with_libraries
from search.measure.measurement import Turn
from search.measure.measurer import Bench
from search.measure.records import Records
from search.ranked import FULL
from search.realise import realise
from search.tune import tune_fast
from search.tuner.campaign import Campaign
from search.tuner.campaign import Judge
from search.tuner.hunt import Hunt
from search.tuner.judges import OPTIONS
from search.tuner.pool import Entry
from search.tuner.pool import jobs_of
from search.tuner.pool import part
from search.tuner.pool import pool_of

FILE = "regret.json"
ROWS = "rows.jsonl.xz"
BEGUN = "begun.pickle"
FIRST = 24
"""Candidates of a search's first generation."""
LAST = 6
"""The fastest that are timed in turn with the first choice."""
END = 0.2
"""Part of the budget that is kept for that."""


@dataclass(frozen=True)
class Begun:
    """A search with its first generation, and the model's choice among its candidates."""

    hunt: Hunt
    entries: Sequence[Entry]
    choice: Entry


def drawn(seed: int, count: int) -> dict[str, TensorProgram]:
    """Chains, norms, routers and attentions; a third are products with what follows them, some of long sums and few tiles."""
    rng, products = np.random.default_rng(seed), list[TensorProgram]()
    for i in range(count // 3):
        m, k, n = (int(64 * rng.integers(lo, hi)) for lo, hi in ((2, 17), (16, 97), (4, 33)))
        what = ("residual", "bias", "gelu", "plain")[i % 4]
        products.append(product(f"drawn/product-{what}-{seed}-{i}", m, k, n, what))
    return {p.name: p for p in (*products, *drawn_programs(seed, count - len(products)).values())}


def begin(program: TensorProgram, device: Device, seed: int) -> Begun | None:
    """None where nothing can be generated."""
    graphs = with_libraries(structures(program))
    effort = replace(FULL, population=128)
    try:
        pool = pool_of(program, device, [part(job) for job in jobs_of(program, graphs, device, effort, seed)])
        # what spills, or does not compile, is not taken
        (taken,) = realise([tune_fast(program, device, graphs=graphs)], device, checked=False)
        choice = pool.include([taken.candidate.candidate])
    except FuserError:
        return None
    hunt = Hunt(program, pool, effort, seed)
    first = choice[0] if choice else hunt.first
    return Begun(hunt, tuple(dict.fromkeys((first, *hunt.ask(FIRST)))), first)


def begin_all(seed: int, count: int, device: Device, workers: int | None) -> list[Begun]:
    todo = list(drawn(seed, count).values())
    with ProcessPoolExecutor(workers or os.cpu_count(), SPAWN) as pool:
        found = list(pool.map(begin, todo, [device] * len(todo), [seed] * len(todo)))
    return [b for b in found if b is not None]


def begun_in(path: Path) -> list[Begun] | None:
    """What ``compile`` left here, if it did: making the pools again takes as long as compiling."""
    return pickle.loads(path.read_bytes()) if path.exists() else None


def measure(begun: Sequence[Begun], bench: Judge, budget: float) -> list[dict[str, Any]]:
    """A row for each program whose first generation was measured in time."""
    start = time.monotonic()
    for b in begun:
        bench.ahead([e.candidate for e in b.entries])
    searched: list[Begun] = []
    for b in begun:
        left = budget * (1 - END) - (time.monotonic() - start)
        if left < 2:
            note(f"time is up after {len(searched)} programs")
            break
        found, _ = bench.compare(Turn(b.hunt.program, tuple(e.candidate for e in b.entries), seconds=left))
        b.hunt.tell(list(zip(b.entries, found, strict=True)))
        searched.append(b)
    hunts = [b.hunt for b in searched]
    left = budget * (1 - END) - (time.monotonic() - start)
    Campaign(hunts, bench, max(left, 0.0)).run()
    rows = []
    for b in searched:
        if time.monotonic() - start > budget:
            break
        with suppress(FuserError):
            rows.append(row(b, bench))
    return rows


def row(b: Begun, bench: Judge) -> dict[str, Any]:
    """Times in microseconds, of the choice and of what was found, in turn."""
    times = b.hunt.times
    best = [e for e in sorted(times, key=lambda e: times[e]) if times[e] < float("inf")][:LAST]
    among = list(dict.fromkeys((b.choice, *best)))
    found, _ = bench.compare(Turn(b.hunt.program, tuple(e.candidate for e in among), again=True))
    us = [m.time_us if m.ok else None for m in found]
    right = [(t, e) for t, e in zip(us, among, strict=True) if t]
    fastest = min(right, key=lambda x: x[0]) if right else (None, b.choice)
    return {
        "program": b.hunt.program.name,
        "instant": us[0],
        "status": found[0].status,
        "predicted": b.choice.estimate * 1e6,
        "best": fastest[0],
        "measured": len(times),
        "failed": dict(b.hunt.failures),
        "choice": str(b.choice.candidate.schedule),
        "found": str(fastest[1].candidate.schedule),
        "structure": b.choice.structure == fastest[1].structure,
        "schedule": fastest[1].candidate.schedule.to_json(),
    }


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    good = [r for r in rows if r["instant"] and r["best"]]
    lines = [
        (r["program"], r["measured"], f"{r['predicted']:.2f}", f"{r['instant']:.2f}", f"{r['best']:.2f}", _ratio(r)) for r in good
    ]
    heads = ("program", "measured >", "predicted µs >", "instant µs >", "found µs >", "ratio >")
    print_table("The model's first choice and the best that a search found", heads, lines)
    ratios = [r["instant"] / r["best"] for r in good]
    if ratios:
        print(f"regret: median {statistics.median(ratios) - 1:.1%}, worst {max(ratios) - 1:.1%}, of {len(ratios)} programs")
    for r in rows:
        if r not in good:
            print(f"{r['program']}: the first choice is {r['status']}")


def _ratio(r: Mapping[str, Any]) -> str:
    return f"{r['instant'] / r['best']:.3f}"


def main(argv: Sequence[str] | None = None) -> int:
    p = parser("experiments.regret", __doc__, "seed", "budget", "workers", "target", "device", "out", seed=7, budget=120.0)
    p.add_argument("what", choices=("compile", "measure", "table"))
    p.add_argument("--count", type=int, default=32, help="of programs (%(default)s)")
    args = p.parse_args(argv)
    own_cache()
    if args.what == "table":
        show(read_json(args.out / FILE, error=UsageError)["rows"])
        return 0
    device = load_device(args.target)
    make_folder(args.out)
    begun = begun_in(args.out / BEGUN) if args.what == "measure" else None
    if begun is None:
        begun = begin_all(args.seed, args.count, device, args.workers)
    note(f"{len(begun)} searches begun")
    if args.what == "compile":
        write_file(args.out / BEGUN, pickle.dumps(begun))
        every = [e.candidate for turn in zip_longest(*(b.entries for b in begun)) for e in turn if e is not None]
        note(f"{compile_all(every, device.arch, args.workers, args.budget)} of {len(every)} compiled")
        return 0
    with Records(":memory:") as records, Bench.open(args.device, records, OPTIONS, args.workers, "regret") as bench:
        rows = measure(begun, bench, args.budget)
        result = {"seed": args.seed, "environment": json.loads(bench.environment), "compiler": bench.compiler, "rows": rows}
        write_file(args.out / FILE, json.dumps(result, indent=1) + "\n")
        note(f"{records.export_lines(args.out / ROWS)} rows in {args.out / ROWS}")
    show(rows)
    return 0


if __name__ == "__main__":
    script(main)
