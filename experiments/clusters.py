"""Softmax, norms and sums of long rows: the best schedules of whole rows beside all in which blocks of a cluster share rows out.

python -m experiments.clusters compile --out out     # fills Triton's cache; needs no GPU
python -m experiments.clusters measure --out out --budget 90
python -m experiments.clusters table --out out
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.cases import Case
from experiments.cases import compile_cases
from experiments.cases import measure_cases
from experiments.script import own_cache
from experiments.script import parser
from experiments.script import script
from fuser.device import load_device
from fuser.errors import FuserError
from fuser.ir.builder import Builder
from fuser.ir.candidate import Candidate
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.outputs import write_file
from fuser.superopt.structures import structures
from search.ranked import Ranked
from search.space.clusters import cluster_space
from search.space.kernels import kernel_space
from search.tune import graph_seconds
from search.tune import judged
from search.tune import rank_graph

SHAPES = (
    *((8, 16384), (8, 65536), (16, 32768), (16, 131072), (32, 65536), (32, 131072), (64, 32768), (64, 131072), (128, 32768)),
    *((256, 32768), (256, 65536), (512, 16384), (1, 131072), (4, 50257), (32, 50257), (64, 8192), (132, 8192), (1024, 32768)),
    *((2048, 16384), (16, 8192), (32, 4096)),
)
"""Rows and columns."""
KINDS = ("softmax", "layer_norm", "rms_norm", "sum", "residual_softmax", "softmax_float32")
PLAIN = 4
"""Schedules without clusters of each program, the model's best."""


def program(kind: str, rows: int, columns: int) -> TensorProgram:
    b = Builder(f"{kind}/{rows}x{columns}")
    x = b.input("X", (rows, columns), "float32" if kind == "softmax_float32" else "float16")
    if kind == "sum":
        return b.build(Y=b.sum(x, 1))
    if kind == "layer_norm":
        return b.build(Y=b.layer_norm(x))
    if kind == "rms_norm":
        return b.build(Y=b.rms_norm(x, b.input("G", (columns,))))
    return b.build(Y=b.softmax(x + b.input("R", (rows, columns)) if kind == "residual_softmax" else x))


def case(given: tuple[str, int, int]) -> Case:
    device, p = load_device("h200"), program(*given)
    plain: list[Ranked] = []
    shared: list[Candidate] = []
    for graph in structures(p):
        try:
            ranked, _, _ = rank_graph(graph, device, np.random.default_rng(0), options=True)
        except FuserError:
            continue
        plain += [r for r in ranked if not in_clusters(r.candidate)]
        mine = cluster_space(kernel_space(graph.blocks[0], device)) if len(graph.kernels) == 1 else None
        shared += [
            Candidate(graph, Schedule((b.schedule(i),))) for b in (mine.batches({}) if mine else ()) for i in range(len(b))
        ]
    best = [r.candidate for r in sorted(plain, key=lambda r: r.seconds)[:PLAIN]]
    return Case(p, (*best, *shared))


def in_clusters(candidate: Candidate) -> bool:
    return any(s.cluster for s in candidate.schedule.kernels)


@dataclass(frozen=True)
class Line:
    """Microseconds of the fastest schedule without clusters, and with them; of the model's choice without them, and of all."""

    name: str
    plain: float
    cluster: float
    choice: float
    chosen: float
    schedule: str


def line(p: TensorProgram, times: Sequence[tuple[float, Candidate]]) -> Iterator[Line]:
    device = load_device("h200")
    order = {c: judged(Ranked(c, graph_seconds(c, device))) for _, c in times}
    plain, shared = ([(t, c) for t, c in times if in_clusters(c) == wanted] for wanted in (False, True))
    if plain and shared:
        first = min(plain, key=lambda x: order[x[1]])
        chosen = min(times, key=lambda x: order[x[1]])
        fastest = min(shared, key=lambda x: x[0])
        yield Line(p.name, min(t for t, _ in plain), fastest[0], first[0], chosen[0], str(fastest[1].schedule))


def table(lines: list[Line], environment: str) -> str:
    head = f"{'µs':32} {'plain':>8} {'cluster':>8} {'ratio':>6} {'choice':>8} {'before':>8} {'ratio':>6}  fastest in clusters"
    found = [environment, "", head]
    for x in lines:
        found.append(
            f"{x.name:32} {x.plain:8.2f} {x.cluster:8.2f} {x.plain / x.cluster:6.2f} {x.chosen:8.2f} {x.choice:8.2f} "
            f"{x.choice / x.chosen:6.2f}  {x.schedule}"
        )
    changed = [math.log(x.choice / x.chosen) for x in lines if x.choice != x.chosen]
    mean = math.exp(sum(changed) / len(changed)) if changed else 1.0
    found += [
        "",
        f"of {len(lines)} programs the model chooses clusters for {len(changed)}: {mean:.2f} x as fast as its choice without",
    ]
    return "\n".join(found) + "\n"


def main() -> int:
    p = parser("experiments.clusters", __doc__, "out", "budget", "workers", budget=90.0)
    p.add_argument("step", choices=("compile", "measure", "table"))
    args = p.parse_args()
    own_cache()
    if args.step == "compile":
        jobs = [(k, *shape) for shape in SHAPES for k in KINDS]
        compile_cases(args.out, case, jobs, load_device("h200"), args.workers or os.cpu_count() or 1, args.budget)
    elif args.step == "measure":
        found = measure_cases(args.out, "cuda", args.budget, "clusters")
        lines = [x for c, times in found.cases for x in line(c.program, times)]
        write_file(args.out / "lines.pickle", pickle.dumps((found.environment, lines)))
    else:
        environment, lines = pickle.loads((args.out / "lines.pickle").read_bytes())
        text = table(lines, environment)
        (args.out / "clusters.txt").write_text(text)
        print(text, end="")
    return 0


if __name__ == "__main__":
    script(main)
