"""Schedules of single programs, most in float32, measured: is what the model puts first the fastest of them?

    python -m experiments.single compile --only 'sums/*' --out out   # fills Triton's cache; needs no GPU
    python -m experiments.single measure --out out --budget 60
    python -m experiments.single table out/rows.jsonl.xz             # first by today's prices, and the fastest; needs no GPU

Of each program the model's best schedules are measured, the best of every other structure, and some that are drawn; on request
(``--near``) some of those that it takes to be about as fast as the best: what sets them apart has no price yet.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import numpy as np

from experiments.cases import Case
from experiments.cases import compile_cases
from experiments.cases import measure_cases
from experiments.drawn import draw_candidates
from experiments.script import own_cache
from experiments.script import parser
from experiments.script import script
from fuser.console import note
from fuser.device import Device
from fuser.device import load_device
from fuser.errors import FuserError
from fuser.errors import UsageError
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.lower.options import FLATTEN
from fuser.outputs import make_folder
from fuser.outputs import write_file
from fuser.superopt.structures import structures
from search.measure.rows import Record
from search.measure.rows import read_rows
from search.ranked import Ranked
from search.space.estimates import estimator
from search.space.places import places
from search.space.schedules import ScheduleSpace
from search.tune import graph_seconds
from search.tune import judged
from search.tune import rank_graph

BEST, OTHERS, DRAWN = 8, 8, 8
"""Candidates of a program: the model's best, the best of as many other structures, and drawn ones."""
NEAR, POPULATION = 1.03, 5000
"""Estimates that are near the best, and how many schedules of a structure are looked at for them."""
TARGET = "h200"

Make = Callable[[Builder], Ref]


def product(m: int, n: int, k: int, turned: str = "nn", end: str = "") -> Make:
    """X W with operands as they lie (``t``: transposed), and what follows."""

    def make(b: Builder) -> Ref:
        x = b.input("X", (k, m)).T if turned[0] == "t" else b.input("X", (m, k))
        y = x @ (b.input("W", (n, k)).T if turned[1] == "t" else b.input("W", (k, n)))
        if end == "residual":
            return y + b.input("R", (m, n))
        return b.op(end, y + b.input("b", (n,))) if end else y

    return make


def attention(heads: tuple[int, ...], rows: int, size: int, causal: bool = False) -> Make:
    return lambda b: b.attention(*(b.input(x, (*heads, rows, size)) for x in "QKV"), causal=causal)


def loss(kind: str, rows: int, columns: int) -> Make:
    """A number alone, or one of each row."""

    def make(b: Builder) -> Ref:
        x, y = (b.input(n, (rows, columns)) for n in "XT")
        if kind == "l1_norm":
            return x / b.sum(b.op("abs", x), 1, keepdims=True)
        if kind == "cosine":
            return b.sum(x * y, 1) / b.op("sqrt", b.sum(x * x, 1) * b.sum(y * y, 1))
        if kind == "kl_div":  # of chances
            return b.sum(y * (b.op("log", y) - b.op("log", x)), 0, 1) * (1.0 / rows)
        if kind == "kl":
            return b.sum(b.exp(y) * (y - x), 0, 1) * (1.0 / rows)
        if kind == "triplet":
            far = b.input("Z", (rows, columns))
            apart = [b.op("sqrt", b.sum(b.op("square", x - z), 1)) for z in (y, far)]
            return b.sum(b.relu(apart[0] - apart[1] + 1.0), 0) * (1.0 / rows)
        return b.sum(b.op("square", x - y), 0, 1) * (1.0 / (rows * columns))

    return make


def norm(kind: str, *shape: int) -> Make:
    def make(b: Builder) -> Ref:
        x = b.input("X", shape)
        if kind == "layer_norm":
            return b.layer_norm(x, b.input("G", shape[-1:]), b.input("B", shape[-1:]))
        if kind == "rms_norm":
            return b.rms_norm(x, b.input("G", shape[-1:]))
        if kind == "instance_norm":  # of what lies channels last
            return b.op("instance_norm", x.transpose(0, 2, 1))
        return b.op(kind, x)

    return make


def group_norm(images: int, channels: int, side: int, groups: int, turned: str) -> Make:
    """GroupNorm and SiLU of images; read and written channels first (``n``), or channels last (``t``)."""

    def make(b: Builder) -> Ref:
        last = turned[0] == "t"
        x = b.input("X", (images, side, side, channels) if last else (images, channels, side, side))
        x = x.transpose(0, 3, 1, 2) if last else x
        y = b.op("silu", b.op("group_norm", x, *(b.input(n, (channels,)) for n in "GB"), groups=groups))
        return y.transpose(0, 2, 3, 1) if turned[1] == "t" else y

    return make


PROGRAMS: Mapping[str, Make] = {
    **{f"products/{t}-{m}x{n}x{k}": product(m, n, k, t) for t in ("nn", "nt", "tn", "tt") for m, n, k in ((1536, 1536, 3072),)},
    **{f"products/nn-{m}x{n}x{k}": product(m, n, k) for m, n, k in ((1000, 1200, 900), (8192, 8192, 64), (256, 256, 65536))},
    **{f"products/{e}-2048x3072x1024": product(2048, 3072, 1024, "nt", e) for e in ("gelu", "relu", "residual")},
    **{
        f"attention/{'x'.join(map(str, h))}x{r}x{s}{'-causal' * c}": attention(h, r, s, bool(c))
        for h, r, s, c in (
            ((8, 8), 1024, 64, 0),
            ((8, 8), 1024, 64, 1),
            ((4, 16), 768, 128, 0),
            ((2, 12), 640, 96, 1),
            ((2, 8), 512, 512, 0),
        )
    },
    **{
        f"sums/{kind}-{r}x{c}": loss(kind, r, c)
        for kind in ("mse", "kl", "kl_div", "triplet", "cosine", "l1_norm")
        for r, c in ((32768, 8192), (4096, 16384), (512, 4096))
    },
    **{
        f"norms/{k}-{'x'.join(map(str, s))}": norm(k, *s)
        for k, s in (("layer_norm", (8192, 4096)), ("layer_norm", (16, 4194304)))
    },
    "sums/kl_div-16384x20000": loss("kl_div", 16384, 20000),
    **{f"norms/{k}-{'x'.join(map(str, s))}": norm(k, *s) for k, s in (("rms_norm", (16384, 5120)), ("softmax", (4096, 50000)))},
    **{f"norms/instance-{'x'.join(map(str, s))}": norm("instance_norm", *s) for s in ((32, 4096, 96), (64, 900, 128))},
    **{
        f"half/groups-{t}-{'x'.join(map(str, s))}": group_norm(*s, t)
        for t in ("nn", "nt", "tt", "tn")
        for s in ((8, 64, 56, 16), (2, 320, 64, 32), (8, 512, 16, 32), (4, 128, 128, 32))
    },
}


def program(name: str) -> TensorProgram:
    b = Builder(name, "float16" if name.startswith("half/") else "float32")
    return b.build(Y=PROGRAMS[name](b))


def near_the_best(graphs: Sequence[KernelGraph], device: Device, count: int) -> list[Candidate]:
    """Schedules drawn from those whose estimates are near the least, each with another first kernel."""
    rng, estimate = np.random.default_rng(0), estimator(device)
    found: list[tuple[float, Candidate]] = []
    for graph in graphs:
        space = ScheduleSpace(graph, device)
        rows = space.population(POPULATION, rng)
        seconds = np.asarray(space.estimate_rows(rows, estimate))
        found += [
            (seconds[i], Candidate(graph, space.schedule(rows[i]))) for i in np.flatnonzero(seconds <= NEAR * seconds.min())
        ]
    least = min((s for s, _ in found), default=0.0)
    first = {(c.graph, c.schedule.kernels[0]): c for s, c in found if s <= NEAR * least}
    distinct = list(first.values())
    return [distinct[i] for i in rng.permutation(len(distinct))[:count]]


def case(name: str, near: int = 0) -> Case:
    device, p = load_device(TARGET), program(name)
    groups: list[list[Ranked]] = []
    graphs = structures(p)
    for graph in graphs:
        try:
            ranked, _, _ = rank_graph(graph, device, np.random.default_rng(0), options=True)
        except FuserError:
            continue
        groups.append(sorted(ranked, key=judged))
    groups = sorted((g for g in groups if g), key=lambda g: judged(g[0]))
    best = sorted((r for g in groups for r in g[:BEST]), key=judged)[:BEST]
    chosen = [r.candidate for r in (*best, *(g[0] for g in groups[:OTHERS]))]
    try:
        chosen += draw_candidates(p, DRAWN)
    except FuserError as error:
        note(f"{name}: {error.message}")
    chosen += near_the_best(graphs, device, near) if near else []
    return Case(p, tuple(dict.fromkeys(chosen)))


@dataclass(frozen=True)
class Line:
    """Microseconds of the fastest schedule of a program and of that which the model puts first, among those that were right."""

    name: str
    schedules: int
    best: float
    first: float
    predicted: float
    schedule: str


def lines(path: Path) -> Iterator[Line]:
    """One for each program of a file of rows, by today's prices, among the schedules that today's rules offer."""
    device, graphs = load_device(TARGET), dict[str, KernelGraph]()
    found: dict[str, list[tuple[float, float, str]]] = {}
    for row in read_rows(path):
        if isinstance(row, tuple):
            graphs[row[0]] = row[1]
        elif isinstance(row, Record) and row.ok and row.time_us:
            candidate = Candidate(graphs[row.structure], row.schedule_value())
            order = judged(Ranked(candidate, graph_seconds(candidate, device)))
            if math.isfinite(order) and all(p.facts.flat() for p in places(candidate, device) if FLATTEN.of(p.schedule)):
                found.setdefault(row.workload, []).append((row.time_us, 1e6 * order, str(candidate.schedule)))
    for name, rows in found.items():
        best, first = min(rows), min(rows, key=lambda r: r[1])
        yield Line(name, len(rows), best[0], *first[:2], best[2])


def table(found: Sequence[Line]) -> str:
    head = f"{'µs':40} {'schedules':>9} {'best':>8} {'first':>8} {'predicted':>9} {'ratio':>6}  best schedule"
    rows = [
        f"{x.name:40} {x.schedules:9} {x.best:8.1f} {x.first:8.1f} {x.predicted:9.1f} {x.first / x.best:6.2f}  {x.schedule[:70]}"
        for x in found
    ]
    mean = math.exp(sum(math.log(x.first / x.best) for x in found) / len(found)) if found else 1.0
    return "\n".join([head, *rows, f"{len(found)} programs: first choices take {mean:.3f} x as long as the fastest measured\n"])


def main() -> int:
    p = parser("experiments.single", __doc__, "out", "budget", "workers", "device", budget=90.0)
    p.add_argument("step", choices=("compile", "measure", "table"))
    p.add_argument("rows", nargs="*", type=Path, help="files of rows, for `table`")
    p.add_argument("--only", nargs="*", default=["*"], metavar="GLOB", help="programs, for `compile`")
    p.add_argument(
        "--near", type=int, default=0, metavar="N", help="so many more that the model takes to be about as fast, for `compile`"
    )
    args = p.parse_args()
    own_cache()
    if args.step == "compile":
        names = [n for n in PROGRAMS if any(fnmatch(n, g) for g in args.only)]
        if not names:
            raise UsageError(f"no program is named like {' or '.join(args.only)}", f"take some of {', '.join(PROGRAMS)}")
        compile_cases(
            args.out, partial(case, near=args.near), names, load_device(TARGET), args.workers or os.cpu_count() or 1, args.budget
        )
    elif args.step == "measure":
        measure_cases(args.out, args.device, args.budget, "single")
    else:
        text = "\n".join(f"{path}\n{table(list(lines(path)))}" for path in args.rows or [args.out / "rows.jsonl.xz"])
        write_file(make_folder(args.out) / "single.txt", text)
        print(text, end="")
    return 0


if __name__ == "__main__":
    script(main)
