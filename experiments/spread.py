"""Measure a spread of schedules of products and short chains (:mod:`search.calibrate.programs`), to fit the model to.

    python -m experiments.spread choose -o out/choices.json             # the candidates; needs no GPU
    python -m experiments.spread compile out/choices.json --budget 150  # fills Triton's cache; needs no GPU
    python -m experiments.spread measure out/choices.json --budget 100 -o out/rows.jsonl

Of each program are measured: the model's best schedules, the best of them with options drawn at random, tiles that people choose
for products, each with and without descriptors, and random schedules. Programs take turns, so that a run that ends early has
something of every one.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator
from collections.abc import Sequence
from itertools import product
from itertools import zip_longest
from pathlib import Path

import numpy as np

from experiments.candidates import best_known
from experiments.candidates import model_best
from experiments.drawn import draw_candidates
from experiments.gather import run
from experiments.gather import say
from experiments.script import own_cache
from experiments.script import parser
from experiments.script import script
from fuser.device import Device
from fuser.device import load_device
from fuser.errors import FuserError
from fuser.errors import UsageError
from fuser.files import read_json
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import BlockGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.serialize import graph_from_json
from fuser.ir.tiling import TilingExpr
from fuser.lower.options import HOIST
from fuser.lower.options import TMA
from fuser.outputs import make_folder
from fuser.outputs import write_file
from fuser.superopt.structures import structures
from search.calibrate.programs import programs
from search.measure.compiling import CompilePool
from search.measure.compiling import planned
from search.measure.known import load
from search.measure.measurement import Measurement
from search.measure.measurer import Bench
from search.measure.records import Records
from search.measure.session import Options
from search.measure.turns import Work
from search.space.knobs import settings
from search.space.knobs import settled
from search.space.places import places
from search.tune import tune_fast

TILES = ((64, 64, 64), (64, 64, 128), (64, 128, 64), (128, 64, 64), (128, 128, 64), (128, 256, 64), (32, 64, 128))
"""Rows, columns and depth that people give the tiles of a product."""
ROUNDS = Options(rounds=7, replay_ms=3.0, warm_ms=5.0)


def with_options(base: Candidate, device: Device, rng: np.random.Generator) -> Candidate:
    """The same tiles with options drawn at random; those of a kernel behind another mostly stay as they are."""
    kernels = []
    for p in places(base, device):
        knobs = settings(p.block, device, p.behind)
        kernels.append(settled(p, knobs, [int(k.sample_code(rng)) for k in knobs]))
    return Candidate(base.graph, Schedule(tuple(kernels)))


def by_hand(program: TensorProgram, device: Device) -> Iterator[Candidate]:
    """Usual tiles of a program that is one product and its epilogue, by pointers and by descriptors."""
    graph = structures(program)[0]
    if len(graph.blocks) != 1 or not (sides := _sides(graph.blocks[0])):
        return
    m, n, k = sides
    for (rows, columns, depth), stages, moved in product(TILES, (3, 4, 5), (False, True)):
        if (rows + columns) * depth * 2 * stages > device.smem_per_block:
            continue
        tiles = {m: rows, n: columns, k: depth}
        warps = 8 if rows * columns > 128 * 128 else 4
        schedule = KernelSchedule(tuple(sorted(tiles.items())), TilingExpr((k,)), (), warps, stages)
        (place,) = places(Candidate(graph, Schedule((schedule,))), device)
        if HOIST.at_place(place, True):
            schedule = HOIST.set(schedule, True)
        if moved:
            tensors = [t for part in TMA.tensors(place.block).values() for t in part] if TMA.tensors else []
            loads = [t for t in tensors if t in place.block.inputs and TMA.at_place(place, True, t)]
            schedule = TMA.set(schedule, True, *loads) if loads else schedule
        yield Candidate(graph, Schedule((schedule,)))


def _usual(c: Candidate) -> bool:
    """Tiles of 64 by 64 with a deep pipeline and descriptors: what most products of a transformer's layer want."""
    (mine,) = c.schedule.kernels
    return sorted(mine.tile.values())[:2] == [64, 64] and mine.num_stages > 3 and any(map(TMA.named, c.schedule.kernels))


def _sides(block: BlockGraph) -> tuple[str, str, str] | None:
    """The axes of the rows, columns and sum of a block's one kind of product."""
    found = set()
    for s in block.computes:
        if s.contracts:
            left, right = (block.by_value[a].axes for a in s.args)
            rows, columns = ([a for a in x if a not in y and a not in s.reduce] for x, y in ((left, right), (right, left)))
            if len(rows) != 1 or len(columns) != 1 or len(s.reduce) != 1:
                return None
            found.add((rows[0], columns[0], s.reduce[0]))
    return found.pop() if len(found) == 1 else None


def choices(program: TensorProgram, device: Device, count: int, seed: int, known: Records) -> list[Candidate]:
    """About ``count`` candidates: what fast tuning chooses, the best that records know, then those of each kind in turn."""
    rng = np.random.default_rng([seed, count])
    top = model_best(program, device, count // 3, max(count // 6, 1))
    hand = list(by_hand(program, device))
    first = [c for c in hand if _usual(c)]
    hand = (first + [c for i in rng.permutation(len(hand)) if (c := hand[int(i)]) not in first])[: count // 3 + 2]
    varied = [with_options(c, device, rng) for c in (*top, *hand)]
    try:
        random = draw_candidates(program, count // 5, seed)
    except FuserError:
        random = []
    kinds = (top, hand, [v for v in varied if not isinstance(planned(v), Measurement)], random)
    tuned = tune_fast(program, device)
    first = [r.candidate for r in (tuned.winner, *tuned.runners[:3])] + [
        r.candidate for r in best_known(known, program.name, device.title, 3)
    ]
    return list(dict.fromkeys((*first, *(c for turn in zip_longest(*kinds) for c in turn if c is not None))))[:count]


def document(found: dict[TensorProgram, list[Candidate]]) -> dict[str, object]:
    graphs = list({id(c.graph): c.graph for cs in found.values() for c in cs}.values())
    at = {id(g): i for i, g in enumerate(graphs)}
    return {
        "graphs": [g.to_json() for g in graphs],
        "programs": {p.name: [[at[id(c.graph)], c.schedule.to_json()] for c in cs] for p, cs in found.items()},
    }


def read(path: Path, seed: int, drawn: int) -> dict[TensorProgram, list[Candidate]]:
    """Candidates by program, of a file that ``choose`` wrote."""
    value, known = read_json(path, error=UsageError), programs(seed, drawn)
    graphs = [graph_from_json(g) for g in value["graphs"]]
    return {known[n]: [Candidate(graphs[i], Schedule.from_json(s)) for i, s in cs] for n, cs in value["programs"].items()}


def compile_all(found: dict[TensorProgram, list[Candidate]], arch: int, workers: int | None, budget: float) -> int:
    """Compile, first candidates of every program first, until all is done or the time is up; returns how many are done."""
    start, done = time.monotonic(), 0
    plans = [planned(c) for turn in zip_longest(*found.values()) for c in turn if c is not None]
    with CompilePool(arch, workers) as pool:
        todo = [p for p in plans if not isinstance(p, Measurement)]
        for p in todo:
            pool.submit(p)
        for p in todo:
            left = budget - (time.monotonic() - start)
            if left <= 0:
                break
            try:
                done += pool.result(p, left).result.ok
            except TimeoutError:
                break
    return done


def main(argv: Sequence[str] | None = None) -> int:
    p = parser("experiments.spread", __doc__, "seed", "known", "budget", "workers", "target", "device", budget=100.0)
    p.add_argument("what", choices=("choose", "compile", "measure"))
    p.add_argument("choices", nargs="?", type=Path, help="a file that choose wrote")
    p.add_argument("-o", "--out", type=Path, default=None)
    p.add_argument("--drawn", type=int, default=8, help="products, and chains, that are drawn")
    p.add_argument("--count", type=int, default=36, help="candidates of a program")
    p.add_argument("--only", default="", help="regular expression of names of programs")
    args = p.parse_args(argv)
    own_cache()
    device = load_device(args.target)
    if args.what == "choose":
        if args.out is None:
            raise UsageError("a file for the candidates is needed", "-o choices.json")
        found = {}
        with Records(":memory:") as known:
            load(known, args.known)
            for name, program in programs(args.seed, args.drawn).items():
                if re.search(args.only, name):
                    found[program] = choices(program, device, args.count, args.seed, known)
                    say(f"{name}: {len(found[program])} candidates")
        write_file(args.out, json.dumps(document(found)) + "\n")
        return 0
    if args.choices is None:
        raise UsageError("a file of candidates is needed", "python -m experiments.spread choose -o choices.json")
    found = read(args.choices, args.seed, args.drawn)
    if args.what == "compile":
        say(f"{compile_all(found, device.arch, args.workers, args.budget)} of {sum(map(len, found.values()))} compiled")
        return 0
    out = args.out or Path("out/spread.jsonl")
    make_folder(out.parent)
    works = [Work(p.name, p, cs, wanted=math.inf) for p, cs in found.items()]
    name = f"spread-{time.strftime('%Y%m%dT%H%M%S')}"
    with Records(":memory:") as records, Bench.open(args.device, records, ROUNDS, args.workers, name) as bench:
        try:
            run(works, bench, args.budget)
        finally:
            say(f"{records.export_lines(out)} rows in {out}")
    return 0


if __name__ == "__main__":
    script(main)
