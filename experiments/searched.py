"""Whether a search with the superoptimizer ends with a slower kernel than one without, over programs that are drawn.

    python -m experiments.searched choose -o out/searched.json --seed 1 --count 30    # tunes each twice; needs no GPU
    python -m experiments.searched compile out/searched.json --budget 60              # fills Triton's cache
    python -m experiments.searched measure out/searched.json -o out/searched-rows.jsonl --budget 60

Of both searches the winner and some runners-up are measured, all of a program in turn.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from experiments.script import own_cache
from experiments.script import parser
from experiments.script import script
from fuser.console import note
from fuser.console import print_table
from fuser.device import Device
from fuser.device import load_device
from fuser.errors import FuserError
from fuser.errors import UsageError
from fuser.files import read_json
from fuser.ir.builder import Builder
from fuser.ir.candidate import Candidate
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.ir.serialize import graph_from_json
from fuser.outputs import make_folder
from fuser.outputs import write_file
from fuser.runtime.plan import Plan
from fuser.superopt.structures import searched
from fuser.superopt.structures import structures
from search.calibrate.programs import Form
from search.calibrate.programs import attention
from search.calibrate.programs import lora
from search.calibrate.programs import mlp
from search.calibrate.programs import normed
from search.calibrate.programs import row_sums
from search.calibrate.programs import weighted
from search.calibrate.run import ROUNDS
from search.measure.compiling import CompilePool
from search.measure.measurement import Measurement
from search.measure.measurer import Bench
from search.measure.planned import planned
from search.measure.records import Records
from search.ranked import Tuned
from search.realise import realise
from search.tune import tune_fast
from search.tune import wary


def gated_mlp(name: str, m: int, k: int, n: int) -> TensorProgram:
    """(silu(X G) ⊙ (X U)) D + X."""
    b = Builder(name)
    x, g, u, d = b.input("X", (m, k)), b.input("G", (k, n)), b.input("U", (k, n)), b.input("D", (n, k))
    return b.build(Y=(b.silu(x @ g) * (x @ u)) @ d + x)


def scored(name: str, m: int, k: int, n: int) -> TensorProgram:
    """Y = softmax(X W)."""
    b = Builder(name)
    return b.build(Y=b.softmax(b.input("X", (m, k)) @ b.input("W", (k, n))))


def scaled_rows(name: str, m: int, k: int, n: int) -> TensorProgram:
    """Y = (X W) / Σ|X|: rows divided by a sum over what is multiplied."""
    b = Builder(name)
    x = b.input("X", (m, k))
    return b.build(Y=(x @ b.input("W", (k, n))) / (b.sum(x * x, 1, keepdims=True) + 1.0))


def normed_gate(name: str, m: int, k: int, n: int) -> TensorProgram:
    """silu(rms(X) G) ⊙ (rms(X) U)."""
    b = Builder(name)
    x = b.rms_norm(b.input("X", (m, k)), b.input("g", (k,)))
    return b.build(Y=b.silu(x @ b.input("G", (k, n))) * (x @ b.input("U", (k, n))))


def two_inputs(name: str, m: int, k: int, n: int) -> TensorProgram:
    """relu(X W + H U + v)."""
    b = Builder(name)
    x, h = b.input("X", (m, k)), b.input("H", (m, k))
    return b.build(Y=b.relu(x @ b.input("W", (k, n)) + h @ b.input("U", (k, n)) + b.input("v", (n,))))


def normed_attention(name: str, heads: int, rows: int, keys: int, size: int, causal: bool = False) -> TensorProgram:
    """Attention of normalized queries and keys."""
    b = Builder(name)
    q, k, v = b.input("Q", (heads, rows, size)), b.input("K", (heads, keys, size)), b.input("V", (heads, keys, size))
    return b.build(O=b.softmax((b.rms_norm(q) @ b.rms_norm(k).T) * 0.125) @ v)


PRODUCTS: Mapping[str, Form] = {
    "gated-mlp": gated_mlp,
    "rms-product": normed,
    "layer-norm-product": lambda name, m, k, n: normed(name, m, k, n, "layer_norm"),
    "lora": lora,
    "mlp": mlp,
    "router": weighted,
    "row-sums": row_sums,
    "softmax": scored,
    "scaled-rows": scaled_rows,
    "normed-gate": normed_gate,
    "two-inputs": two_inputs,
}
ATTENTIONS: Mapping[str, Form] = {"attention": attention, "normed-attention": normed_attention}


def drawn_programs(seed: int, count: int) -> dict[str, TensorProgram]:
    """Programs of all of these kinds in turn, sizes by the seed: few rows and many, short sums and long ones."""
    rng = np.random.default_rng(seed)
    found: dict[str, TensorProgram] = {}
    for i, kind in zip(range(count), itertools.cycle((*PRODUCTS, *ATTENTIONS)), strict=False):
        name = f"drawn/{kind}-{seed}-{i}"
        if kind in ATTENTIONS:
            sizes = (int(rng.choice(x)) for x in ((4, 8, 12, 16), (1, 16, 128, 256), (256, 512, 2048), (64, 80, 128)))
            found[name] = ATTENTIONS[kind](name, *sizes)
        else:
            m = int(rng.choice([8, 16, 64, 128, 256, 512]))
            k, n = (int(64 * rng.integers(4, 65)) for _ in range(2))
            found[name] = PRODUCTS[kind](name, m, k, min(n, 1024) if kind in ("router", "softmax", "mlp", "gated-mlp") else n)
    return found


SLOWER = 1.05
"""Times slower with the superoptimizer from which the search has lost by it."""


def entry(tuned: Tuned, runners: int) -> list[list[Any]]:
    """The winner and the best of other structures, with their estimates."""
    kept, shown = [tuned.winner], {id(tuned.winner.graph)}
    for r in tuned.runners:
        if id(r.graph) not in shown and len(kept) <= runners:
            kept.append(r)
            shown.add(id(r.graph))
    return [[r.graph.to_json(), r.schedule.to_json(), r.us] for r in kept]


def choose(program: TensorProgram, device: Device, budget: float, runners: int) -> dict[str, Any]:
    """Both searches of a program."""
    start = time.perf_counter()
    first = structures(program)
    plain = tune_fast(program, device, graphs=first)
    graphs = searched(program, budget)
    other = wary(tune_fast(program, device, graphs=graphs), first)
    # what spills, or is slow as it is compiled, is not taken
    made = realise([plain, other], device, checked=False)
    plain, other = (replace(t, winner=r.candidate) for t, r in zip((plain, other), made, strict=True))
    note(
        f"{program.name}: {plain.winner.us:.2f} µs of {plain.structures} structures, {other.winner.us:.2f} of {len(graphs)}, "
        f"{time.perf_counter() - start:.0f} s"
    )
    return {"plain": entry(plain, runners), "searched": entry(other, runners)}


def read(value: dict[str, Any]) -> dict[str, list[Candidate]]:
    return {k: [Candidate(graph_from_json(g), Schedule.from_json(s)) for g, s, _ in entries] for k, entries in value.items()}


def compile_all(every: Sequence[Candidate], arch: int, workers: int | None, budget: float) -> int:
    """Compile until all is done or the time is up; returns how many are done."""
    end, done = time.monotonic() + budget, 0
    with CompilePool(arch, workers) as pool:
        todo: list[Plan] = []
        for c in every:
            if not isinstance(p := planned(c), Measurement):
                pool.submit(p)
                todo.append(p)
        with suppress(TimeoutError):
            for p in todo:
                done += pool.result(p, max(end - time.monotonic(), 0.0)).result.ok
    return done


def measure(found: dict[TensorProgram, dict[str, list[Candidate]]], bench: Bench, budget: float) -> list[dict[str, Any]]:
    """Times of all candidates of each program, None for what is not right or was not ready."""
    start, rows = time.monotonic(), []
    for program, kinds in found.items():
        left = budget - (time.monotonic() - start)
        if left < 2:
            note(f"time is up after {len(rows)} programs")
            break
        every = list(dict.fromkeys(c for cs in kinds.values() for c in cs))
        times = dict(zip(every, bench.measure(program, every, compile_timeout=left), strict=True))
        rows.append(
            {"program": program.name}
            | {k: [times[c].time_us if times[c].ok else None for c in cs] for k, cs in kinds.items()}
            | {"failed": [f"{r.status}: {r.detail[:80]}" for r in times.values() if not r.ok]}
        )
    return rows


def print_result(rows: Sequence[dict[str, Any]]) -> None:
    """Each program, and how often the search has lost."""
    shown, ratios = [], []
    for r in rows:
        plain, mine = r["plain"][0], r["searched"][0]
        best = min((t for k in ("plain", "searched") for t in r[k] if t), default=None)
        if plain and mine and best:
            ratios.append(mine / plain)
            shown.append((r["program"], f"{plain:.2f}", f"{mine:.2f}", f"{mine / plain:.3f}", f"{best:.2f}"))
        else:
            shown.append((r["program"], plain or "-", mine or "-", "-", "; ".join(r["failed"])[:60]))
    print_table("Without and with the superoptimizer", ("program", "without µs>", "with µs>", "ratio>", "best µs>"), shown)
    if ratios:
        lost = sum(x > SLOWER for x in ratios)
        print(
            f"with over without: {geometric_mean(ratios):.3f} (worst {max(ratios):.2f}), slower by 5 %: {lost} of {len(ratios)}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    p = parser("experiments.searched", __doc__, "seed", "budget", "workers", "target", "device", seed=1, budget=60.0)
    p.add_argument("what", choices=("choose", "compile", "measure", "table"))
    p.add_argument("file", nargs="?", type=Path, help="what choose wrote; for table, what measure wrote")
    p.add_argument("-o", "--out", type=Path, default=None)
    p.add_argument("--count", type=int, default=30, help="of programs")
    p.add_argument("--runners", type=int, default=3, help="runners-up of other structures")
    p.add_argument("--superoptimize", type=float, default=6.0, metavar="SECONDS", help="of the superoptimizer for each program")
    args = p.parse_args(argv)
    own_cache()
    if args.what == "table":
        print_result(read_json(args.file, error=UsageError)["rows"])
        return 0
    device = load_device(args.target)
    if args.what != "compile" and args.out is None:
        raise UsageError("a file for the result is needed", "-o FILE")
    if args.what == "choose":
        make_folder(args.out.parent)
        chosen: dict[str, Any] = {}
        for name, program in drawn_programs(args.seed, args.count).items():
            try:
                chosen[name] = choose(program, device, args.superoptimize, args.runners)
            except FuserError as error:
                note(f"{name} left out: {error.message}")
            write_file(args.out, json.dumps({"seed": args.seed, "count": args.count, "programs": chosen}) + "\n")
        return 0
    if args.file is None:
        raise UsageError("a file of candidates is needed", "python -m experiments.searched choose -o FILE")
    value = read_json(args.file, error=UsageError)
    programs = drawn_programs(value["seed"], value["count"])
    found = {programs[n]: read(v) for n, v in value["programs"].items()}
    if args.what == "compile":
        every = list(dict.fromkeys(c for kinds in found.values() for cs in kinds.values() for c in cs))
        note(f"{compile_all(every, device.arch, args.workers, args.budget)} of {len(every)} compiled")
        return 0
    make_folder(args.out.parent)
    name = f"searched-{time.strftime('%Y%m%dT%H%M%S')}"
    with Records(":memory:") as records, Bench.open(args.device, records, ROUNDS, args.workers, name) as bench:
        rows = measure(found, bench, args.budget)
        result = {"environment": json.loads(bench.environment), "compiler": bench.compiler, "rows": rows}
        write_file(args.out.with_suffix(".json"), json.dumps(result, indent=1) + "\n")
        note(f"{records.export_lines(args.out)} rows in {args.out}")
    print_result(rows)
    return 0


if __name__ == "__main__":
    script(main)
