"""How many candidates a search has to measure until it has one within 5 % of the best, by strategy and model; and how well the
models' estimates go with what was measured (figure 11 of the paper).

    python -m experiments.ablation experiments/raw experiments/results/h200-quick -o experiments/results/h200-ablation

Simulated over measured pools: the candidates of a workload are those that rows know, their times the rows' medians. What a search
asks for is looked up, and what nobody has measured does not exist. Each search is made with several seeds; the number is the
median. Needs no GPU.

Strategies: *random* order; *ranked*, the model's order as it is; *algorithm 1* of the paper, in which mutants of a candidate are
those of the pool that differ from it in the fewest choices; *ours*, which learns from every generation what the model misses.
The refined model's constants were fitted to these rows among others; `results/h200-model-accuracy.txt` has its
correlations with those fitted without the family that is judged, which are as high.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from functools import cached_property
from pathlib import Path
from statistics import geometric_mean
from statistics import median
from typing import Any

import numpy as np

from cost_model.calibrate import Sample
from cost_model.calibrate import table
from cost_model.constants import constants_of
from cost_model.names import PAPER
from cost_model.names import REFINED
from cost_model.refined import estimate
from experiments.environment import commit
from experiments.mcfuser.model_accuracy import read
from experiments.script import parser
from experiments.script import script
from fuser.console import note
from fuser.console import print_table
from fuser.device import Device
from fuser.device import load_device
from fuser.errors import UsageError
from fuser.files import read_json
from fuser.ir.candidate import Candidate
from fuser.outputs import make_folder
from fuser.outputs import write_file
from fuser.workloads import workload
from search.measure.measurement import Measurement
from search.ranked import QUICK
from search.tuner.features import features_of
from search.tuner.hunt import Hunt
from search.tuner.pool import TERMS
from search.tuner.pool import WAVES
from search.tuner.pool import Entry
from search.tuner.pool import Pool

CLOSE = 1.05
"""Times the best measured at which a search has arrived."""
FILE = "ablation.json"
LEAST = 40
"""Candidates that a pool needs."""
SEEDS = 9
FIGURE_11 = {"mcfuser/G1": 0.86, "mcfuser/G2": 0.92, "mcfuser/G3": 0.84, "mcfuser/G4": 0.80}
"""The paper's own correlations (section VI-E2): its model on an A100, the first four cases of its table II."""
POPULATION, TOP = 128, 8
"""N and n of algorithm 1."""


@dataclass(frozen=True, eq=False)
class Case:
    """A workload's measured candidates: seconds of each, and what each model says."""

    name: str
    device: Device
    candidates: tuple[Candidate, ...]
    seconds: np.ndarray
    estimates: Mapping[str, np.ndarray]

    @cached_property
    def close(self) -> np.ndarray:
        return self.seconds <= CLOSE * self.seconds.min()

    @cached_property
    def structures(self) -> list[int]:
        names = [c.graph.stable_hash() for c in self.candidates]
        order = {n: i for i, n in enumerate(dict.fromkeys(names))}
        return [order[n] for n in names]

    @cached_property
    def choices(self) -> list[frozenset[tuple[Any, ...]]]:
        """What a candidate chooses: the structure, and for each kernel its order, tiles, parts, warps, stages and options."""
        found = []
        for number, c in zip(self.structures, self.candidates, strict=True):
            mine: set[tuple[Any, ...]] = {("structure", number)}
            for i, k in enumerate(c.schedule.kernels):
                mine |= {(i, "order", str(k.order)), (i, "warps", k.num_warps), (i, "stages", k.num_stages)}
                mine |= {(i, *x) for x in (*k.tiles, *k.splits, *k.knobs)}
            found.append(frozenset(mine))
        return found

    @cached_property
    def shares(self) -> list[dict[str, float]]:
        """Parts of each candidate's estimate, as a search has them among its features."""
        found = []
        for c in self.candidates:
            kernels = [estimate(b, k, self.device) for b, k in c.blocks]
            total = sum(k["seconds"] for k in kernels)
            found.append({f"term:{t}": sum(k[t] * (k["waves"] if t in WAVES else 1.0) for k in kernels) / total for t in TERMS})
        return found


@cache
def nearest(case: Case, i: int) -> list[int]:
    """The candidates that differ from one in the fewest choices."""
    apart = [len(case.choices[i] ^ other) if j != i else 1 << 30 for j, other in enumerate(case.choices)]
    least = min(apart)
    return [j for j, n in enumerate(apart) if n == least]


def cases(samples: Sequence[Sample], device: Device) -> Iterator[Case]:
    """Of each workload with enough rows."""
    for name in sorted({s.workload for s in samples}):
        mine = [s for s in samples if s.workload == name]
        if len(mine) >= LEAST:
            data = table(mine, device)
            told = {PAPER: data.paper, REFINED: data.predict(constants_of(device))}
            yield Case(name, device, tuple(s.candidate for s in mine), data.seconds, told)


# -- strategies: the order in which each measures -----------------------------------------------------------------------------


def random_order(case: Case, model: str, seed: int) -> Iterator[int]:
    yield from np.random.default_rng(seed).permutation(len(case.seconds)).tolist()


def ranked(case: Case, model: str, seed: int) -> Iterator[int]:
    yield from np.argsort(case.estimates[model], kind="stable").tolist()


def algorithm1(case: Case, model: str, seed: int) -> Iterator[int]:
    """Top n of a population; the next one is drawn with weight 1/estimate and mutated. What was measured is not measured again,
    and where a generation has nothing new, a population is drawn afresh."""
    rng, estimates = np.random.default_rng(seed), case.estimates[model]
    count = min(POPULATION, len(estimates) // 2)
    drawn = rng.choice(len(estimates), count, replace=False)
    seen: set[int] = set()
    while len(seen) < len(estimates):
        top = sorted(dict.fromkeys(drawn.tolist()), key=lambda i: estimates[i])[:TOP]
        new = [i for i in top if i not in seen]
        yield from new
        seen.update(new)
        if not new:  # it has converged
            drawn = rng.permutation([i for i in range(len(estimates)) if i not in seen])[:count]
            continue
        weight = 1.0 / estimates[drawn]
        parents = rng.choice(drawn, count, p=weight / weight.sum())
        drawn = np.array([*top, *(rng.choice(nearest(case, i)) for i in parents.tolist())])


def ours(case: Case, model: str, seed: int) -> Iterator[int]:
    """The search of the effort quick, over this pool alone."""
    every: list[Entry] = []
    terms = case.shares if model == REFINED else [{}] * len(case.candidates)
    for number, c, seconds, shares in zip(case.structures, case.candidates, case.estimates[model], terms, strict=True):
        every.append(Entry(number, (), c, float(seconds), features_of(number, c.schedule, shares)))
    at = {e: i for i, e in enumerate(every)}
    pool = Measured({}, {e.key: e for e in every}, case, at)
    hunt = Hunt(workload(case.name), pool, replace(QUICK, patience=len(every), generations=len(every)), seed)
    while generation := hunt.ask():
        yield from (at[e] for e in generation)
        times = [float(case.seconds[at[e]]) for e in generation]
        hunt.tell([(e, Measurement("ok", time_us=s * 1e6)) for e, s in zip(generation, times, strict=True)])


@dataclass
class Measured(Pool):
    """A pool to which nothing is added: all that there is has been measured."""

    case: Case | None = None
    at: dict[Entry, int] = field(default_factory=dict)

    def breed(
        self,
        parents: Sequence[Entry],
        weights: Sequence[float],
        count: int,
        rng: np.random.Generator,
        looked: Sequence[Entry] = (),
    ) -> list[Entry]:
        return []

    def around(self, entry: Entry) -> list[Entry]:
        assert self.case is not None
        every = list(self.at)
        return [every[i] for i in nearest(self.case, self.at[entry])]


DRAWN = (random_order, algorithm1)
"""Those that depend on the seed."""
STRATEGIES = {"ranked": ranked, "algorithm 1": algorithm1, "ours": ours}
COLUMNS = (
    ("random", random_order, REFINED),
    *((f"{title}, {model}", strategy, model) for model in (PAPER, REFINED) for title, strategy in STRATEGIES.items()),
)


def measured(case: Case, order: Iterator[int]) -> int:
    """How many candidates are measured until one is close to the best."""
    for n, i in enumerate(order, 1):
        if case.close[i]:
            return n
    return len(case.seconds)


def correlations(case: Case) -> dict[str, dict[str, float]]:
    """Of estimates with times: Pearson's, Pearson's of logarithms, and Spearman's of ranks."""
    from scipy import stats

    kinds: dict[str, Any] = {
        "pearson": stats.pearsonr,
        "logarithms": lambda p, t: stats.pearsonr(np.log(p), np.log(t)),
        "spearman": stats.spearmanr,
    }
    every = case.estimates.items()
    return {model: {k: float(of(p, case.seconds).statistic) for k, of in kinds.items()} for model, p in every}


def result(case: Case, seeds: int) -> dict[str, Any]:
    counts = {
        title: median(measured(case, order(case, model, s)) for s in range(seeds if order in DRAWN else 1))
        for title, order, model in COLUMNS
    }
    return {
        "workload": case.name,
        "candidates": len(case.seconds),
        "close": int(case.close.sum()),
        "measured": counts,
        "correlations": correlations(case),
    }


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    heads = [t for t, _, _ in COLUMNS]
    lines = [(r["workload"], r["candidates"], r["close"], *(f"{r['measured'][t]:g}" for t in heads)) for r in rows]
    for suite in sorted({r["workload"].split("/")[0] for r in rows}):
        mine = [r["measured"] for r in rows if r["workload"].startswith(suite + "/")]
        lines.append((f"{suite}, geometric mean", "", "", *(f"{geometric_mean(m[t] for m in mine):.1f}" for t in heads)))
        lines.append((f"{suite}, most", "", "", *(f"{max(m[t] for m in mine):g}" for t in heads)))
    note = "Simulated over measured pools; a column names strategy and model. In the pool: all, and those within 5 % of the best."
    title = "Candidates measured until one is within 5 % of the best"
    print_table(title, ("workload", "pool >", "close >", *(f"{t} >" for t in heads)), lines, [note])
    kinds = [(m, k) for m in (PAPER, REFINED) for k in ("pearson", "logarithms", "spearman")]
    lines = [(r["workload"], _figure(r), *(f"{r['correlations'][m][k]:.2f}" for m, k in kinds)) for r in rows]
    for suite in sorted({r["workload"].split("/")[0] for r in rows}):
        mine = [r["correlations"] for r in rows if r["workload"].startswith(suite + "/")]
        lines.append((f"{suite}, mean", "", *(f"{math.fsum(c[m][k] for c in mine) / len(mine):.2f}" for m, k in kinds)))
    heads = ("workload", "the paper's own, on an A100 >", *(f"{m}, {k} >" for m, k in kinds))
    print_table("Estimates with measured times (figure 11)", heads, lines, ["The paper gives correlation coefficients alone."])


def _figure(row: Mapping[str, Any]) -> str:
    own = FIGURE_11.get(row["workload"])
    return "" if own is None else f"{own:.2f}"


def main(argv: Sequence[str] | None = None) -> int:
    p = parser("experiments.ablation", __doc__, "target")
    p.add_argument("files", nargs="+", type=Path, help="tuning records, files or folders; or an ablation.json, to show it again")
    p.add_argument("--seeds", type=int, default=SEEDS, help="searches of each kind, of whose numbers the median is shown")
    p.add_argument("--case", nargs="+", default=["mcfuser/*", "mirage/*[!:8]"], help="globs of workloads (%(default)s)")
    p.add_argument("-o", "--out", type=Path, help="folder for ablation.json")
    args = p.parse_args(argv)
    if [f.name for f in args.files] == [FILE]:
        show(read_json(args.files[0], error=UsageError)["cases"])
        return 0
    device = load_device(args.target)
    samples = [s for s in read(args.files, device) if any(fnmatchcase(s.workload, g) for g in args.case)]
    rows = []
    for c in cases(samples, device):
        rows.append(result(c, args.seeds))
        note(f"{c.name}: {rows[-1]['measured']}")
    show(rows)
    if args.out:
        make_folder(args.out)
        about = {"device": device.title, "seeds": args.seeds, "commit": commit(Path(__file__).parents[1]), "cases": rows}
        write_file(args.out / FILE, json.dumps(about, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    script(main)
