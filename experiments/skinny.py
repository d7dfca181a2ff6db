"""Products of few rows with large weights, as decoding has them: how near to the bandwidth of the device they come.

    python -m experiments.skinny --out out

Draws programs by a seed (1 to 16 rows, weights of 8 to 128 MB, float16 and bfloat16, weights stored either way), lets the model
alone choose for each, as ``fuser.compile`` does, and measures its choice beside its next ones and random schedules of its space.
The floor of a program is one launch and the time of its bytes at the bandwidth that a large streaming kernel reaches in the same
run. Weights come from device memory: calls go through copies that are four times the L2 cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np

from experiments.ceilings import Ceilings
from experiments.ceilings import measure_ceilings
from experiments.ceilings import nbytes
from experiments.environment import environment
from experiments.environment import head
from experiments.script import parser
from experiments.script import script
from fuser.console import note
from fuser.device import Device
from fuser.device import load_device
from fuser.errors import FuserError
from fuser.errors import NoValidKernelError
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.candidate import Candidate
from fuser.ir.program import TensorProgram
from fuser.outputs import make_folder
from fuser.outputs import write_file
from fuser.pools import SPAWN
from fuser.superopt.structures import structures
from search.libraries import with_libraries
from search.measure.measurement import Measurement
from search.measure.measurer import Bench
from search.measure.planned import planned
from search.measure.records import Records
from search.measure.rows import Record
from search.measure.session import Options
from search.realise import realise
from search.space.schedules import ScheduleSpace
from search.tune import tune_fast

WIDTHS = (1024, 1536, 2048, 2560, 3072, 3584, 4096, 5120, 5632, 6144, 7168, 8192, 11008, 12288, 14336, 16384)
"""Rows and columns of weights, as published networks have them."""
LEAST, MOST = 8 << 20, 128 << 20
"""Bytes of all weights of a program."""
OPTIONS = Options(l2_factor=4.0, rounds=9)


@dataclass(frozen=True)
class Sizes:
    """``rows`` × ``k`` times ``k`` × ``n``; ``turned``: weights are stored as [n, k], as torch's linear layers have them."""

    rows: int
    k: int
    n: int
    turned: bool


def _weight(b: Builder, name: str, k: int, n: int, turned: bool) -> Ref:
    return b.input(name, (n, k)).T if turned else b.input(name, (k, n))


def plain(b: Builder, s: Sizes) -> TensorProgram:
    return b.build(Y=b.input("X", (s.rows, s.k)) @ _weight(b, "W", s.k, s.n, s.turned))


def norm(b: Builder, s: Sizes) -> TensorProgram:
    x, gain = b.input("X", (s.rows, s.k)), b.input("G", (s.k,))
    return b.build(Y=b.rms_norm(x, gain) @ _weight(b, "W", s.k, s.n, s.turned))


def packed(b: Builder, s: Sizes) -> TensorProgram:
    """Queries, keys and values of a normalized row, one weight and one bias for all."""
    x, gain, shift, bias = b.input("X", (s.rows, s.k)), b.input("G", (s.k,)), b.input("S", (s.k,)), b.input("B", (s.n,))
    return b.build(Y=b.layer_norm(x, gain, shift) @ _weight(b, "W", s.k, s.n, s.turned) + bias)


def residual(b: Builder, s: Sizes) -> TensorProgram:
    x, r = b.input("X", (s.rows, s.k)), b.input("R", (s.rows, s.n))
    return b.build(Y=x @ _weight(b, "W", s.k, s.n, s.turned) + r)


def gelu(b: Builder, s: Sizes) -> TensorProgram:
    x, bias = b.input("X", (s.rows, s.k)), b.input("B", (s.n,))
    return b.build(Y=b.gelu(x @ _weight(b, "W", s.k, s.n, s.turned) + bias))


def _gated(b: Builder, s: Sizes) -> Ref:
    x = b.input("X", (s.rows, s.k))
    gate, up = (_weight(b, name, s.k, s.n, s.turned) for name in ("W1", "W2"))
    return b.silu(x @ gate) * (x @ up)


def gated(b: Builder, s: Sizes) -> TensorProgram:
    return b.build(Y=_gated(b, s))


def whole(b: Builder, s: Sizes) -> TensorProgram:
    """A gated MLP with the product that ends it."""
    return b.build(Y=_gated(b, s) @ _weight(b, "D", s.n, s.k, s.turned))


def lora(b: Builder, s: Sizes) -> TensorProgram:
    x, w = b.input("X", (s.rows, s.k)), _weight(b, "W", s.k, s.n, s.turned)
    down, up = _weight(b, "A", s.k, 64, s.turned), _weight(b, "B", 64, s.n, s.turned)
    return b.build(Y=x @ w + (x @ down) @ up)


KINDS: dict[str, Callable[[Builder, Sizes], TensorProgram]] = {
    f.__name__: f for f in (plain, norm, packed, residual, gelu, gated, whole, lora)
}
MATRICES = {"gated": 2, "whole": 3}
"""Large weights of a kind that has more than one."""


def drawn(count: int, seed: int) -> Iterator[TensorProgram]:
    """Kinds take turns; the rest is drawn."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        kind = list(KINDS)[i % len(KINDS)]
        dtype = str(rng.choice(("float16", "bfloat16")))
        while True:
            k, n = (int(x) for x in rng.choice(WIDTHS, 2))
            if LEAST <= 2 * k * n * MATRICES.get(kind, 1) <= MOST:
                break
        s = Sizes(int(rng.integers(1, 17)) if rng.random() < 0.6 else 1, k, n, bool(rng.integers(2)))
        short = f"{kind}/{s.rows}x{k}x{n}-{'nk' if s.turned else 'kn'}-{'fp16' if dtype == 'float16' else 'bf16'}"
        yield KINDS[kind](Builder(f"skinny/{short}", dtype), s)


@dataclass(frozen=True)
class Chosen:
    """The model's candidates, the first one first, with its estimate in microseconds; ``further`` ones are drawn."""

    program: TensorProgram
    candidates: tuple[Candidate, ...]
    estimate: float
    seconds: float
    further: tuple[Candidate, ...]


def choose(program: TensorProgram, device: Device, runners: int, further: int) -> Chosen:
    start = time.perf_counter()
    graphs = with_libraries(structures(program))
    tuned = tune_fast(program, device, graphs=graphs)
    seconds = time.perf_counter() - start
    # what spills, or is slow as it is compiled, is not taken
    (taken,) = realise([tuned], device, checked=False)
    ranked = list({r.candidate: None for r in (taken.candidate, tuned.winner, *tuned.runners)})[: 1 + runners]
    return Chosen(program, tuple(ranked), taken.candidate.us, seconds, tuple(_drawn(program, device, further)))


def _drawn(program: TensorProgram, device: Device, count: int) -> Iterator[Candidate]:
    """The better half of some random schedules of each structure, by the model."""
    from cost_model import refined

    rng, graphs = np.random.default_rng(0), structures(program)[:8]
    for graph in graphs if count else ():
        space = ScheduleSpace(graph, device)
        try:
            rows = space.population(200, rng)
        except NoValidKernelError:
            continue
        seconds = space.estimate_rows(rows, lambda f: refined.seconds(f, device))
        better = np.argsort(seconds)[: len(rows) // 2]
        for i in rng.permutation(better)[: -(-count // len(graphs))]:
            if np.isfinite(seconds[i]):
                yield Candidate(graph, space.schedule(rows[i]))


@dataclass(frozen=True)
class Line:
    """What was measured of a program: microseconds of its floor, of the model's choice and of the best schedule."""

    program: TensorProgram
    floor: float
    estimate: float
    rows: tuple[Record, ...]

    @property
    def choice(self) -> float | None:
        return self.rows[0].time_us if self.rows[0].ok else None

    @property
    def best(self) -> Record | None:
        return min((r for r in self.rows if r.ok and r.time_us), key=lambda r: r.time_us or 0.0, default=None)


def floor_us(program: TensorProgram, rates: Ceilings) -> float:
    return 1e6 * (rates.launch + nbytes(program) / rates.bandwidth)


def table(lines: Sequence[Line]) -> str:
    """A line for each program, in microseconds; then the means of what part of the floor is reached."""
    heads = f"{'MB':>7}{'floor':>8}{'model':>8}{'choice':>8}{'part':>6}{'best':>8}{'part':>6}"
    found = [f"{'program':<38}{heads}  schedule of the choice; of the best"]
    choice, best = [], []
    for line in lines:
        if line.choice is None or line.best is None or not line.best.time_us:
            found.append(f"{line.program.name[7:]:<38} {line.rows[0].status}: {line.rows[0].detail[:80]}")
            continue
        choice.append(line.floor / line.choice)
        best.append(line.floor / line.best.time_us)
        same = line.best is line.rows[0]
        found.append(
            f"{line.program.name[7:]:<38}{nbytes(line.program) / 1e6:7.1f}{line.floor:8.2f}{line.estimate:8.2f}{line.choice:8.2f}"
            f"{choice[-1]:6.0%}{line.best.time_us:8.2f}{best[-1]:6.0%}  {line.rows[0].schedule_value() or 'library'}"
            + ("" if same else f"; {line.best.schedule_value() or 'library'}")
        )
    if choice:
        for what, parts in (("the model's choice", choice), ("the best schedule of this run", best)):
            found.append(
                f"{what} reaches {statistics.geometric_mean(parts):.1%} of the floor in the geometric mean, "
                f"{min(parts):.0%} at least, 75 % in {sum(p >= 0.75 for p in parts)} of {len(lines)}, "
                f"85 % in {sum(p >= 0.85 for p in parts)}"
            )
    return "\n".join(found)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    p = parser("experiments.skinny", __doc__, "seed", "target", "budget", "out", "device", "workers", seed=1, budget=600.0)
    p.add_argument("--count", type=int, default=30, help="programs")
    p.add_argument("--runners", type=int, default=6, help="the model's next choices that are measured too")
    p.add_argument("--further", type=int, default=12, help="random schedules of each program that are measured too")
    p.add_argument("--compile-only", action="store_true", help="fill the compiler's cache and measure nothing")
    return p.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    make_folder(args.out)
    device, start = load_device(args.target), time.monotonic()
    programs = list(drawn(args.count, args.seed))
    lines: list[Line] = []
    with Records(":memory:") as records, Bench.open(args.device, records, OPTIONS, args.workers, "skinny") as bench:
        with ProcessPoolExecutor(args.workers, SPAWN) as pool:
            futures = [pool.submit(choose, p, device, args.runners, args.further) for p in programs]
            chosen = [f.result() for f in futures]
        for c in chosen:
            bench.submit([*c.candidates, *c.further])
        note(f"tuned after {time.monotonic() - start:.0f} s, {max(c.seconds for c in chosen):.1f} s at most for one program")
        if args.compile_only:
            plans = [planned(item) for c in chosen for item in (*c.candidates, *c.further)]
            built = [bench.pool.result(p).result for p in plans if not isinstance(p, Measurement)]
            note(f"{sum(b.ok for b in built)} of {len(plans)} compiled after {time.monotonic() - start:.0f} s")
            return 0
        rates = measure_ceilings(bench)
        for c in chosen:
            if time.monotonic() - start > args.budget:
                break
            try:
                rows = bench.measure(c.program, list(dict.fromkeys((*c.candidates, *c.further))), again=True)
            except FuserError as error:
                note(f"{c.program.name}: {error.message}")
                continue
            lines.append(Line(c.program, floor_us(c.program, rates), c.estimate, tuple(rows)))
            note(f"[{time.monotonic() - start:4.0f} s] {c.program.name}")
        where = environment(bench.worker.info)
        records.export_lines(args.out / "skinny.jsonl")
    text = table(lines)
    rate = f"{rates.launch * 1e6:.2f} µs for one launch, and all bytes at {rates.bandwidth / 1e12:.2f} TB/s (a large negation)"
    first = f"{head(where)}\nfloor: {rate}\n\n"
    write_file(args.out / "skinny.txt", first + text + "\n")
    write_file(args.out / "skinny.json", json.dumps(where, indent=1, sort_keys=True) + "\n")
    print(first + text)
    return 0


if __name__ == "__main__":
    script(main)
