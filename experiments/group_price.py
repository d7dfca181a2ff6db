"""Constants of the price of kernels by warp groups, fitted to measured rows, and what they say of families that they have not
seen.

    python -m experiments.group_price experiments/results/h200-groups/*.jsonl.xz experiments/results/h200-gluon/rows-3.jsonl.xz

Least squares of the logarithms of times, as :mod:`cost_model.calibrate` has them: what takes longer than the best of its program
and run counts less. ``regret``: how much longer the best by the model (of equal ones that of most stages whose blocks end, as a
search has it) takes than the best that was measured, where a run has enough schedules of a program.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import fields
from dataclasses import is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from cost_model.constants import constants_of
from cost_model.features import Counts
from cost_model.features import schedule_features
from cost_model.group_costs import COSTS
from cost_model.group_costs import Costs
from cost_model.groups import GroupWork
from cost_model.groups import group_work
from cost_model.groups import times
from cost_model.resources import resources
from cost_model.work import Work
from cost_model.work import work
from experiments.script import parser
from experiments.script import script
from fuser.console import print_table
from fuser.device import Device
from fuser.device import load_device
from fuser.errors import UsageError
from fuser.ir.mugraph import BlockGraph
from fuser.lower.options import BACKEND
from fuser.lower.options import FLATTEN
from fuser.lower.options import PERSISTENT
from search.measure.records import Records
from search.space.groups import group_space
from search.space.kernels import kernel_space

FAMILIES = (
    ("causal", "causal"), ("product", "products"), ("gemm", "products"), ("lstm", "products"), ("lora", "products"),
    ("mlp", "products"), ("moe", "products"), ("mcfuser/G", "chains"), ("mcfuser/S", "short"),
)  # fmt: skip
"""Part of a program's name and its family; all else is attention."""
BOUNDS = {
    "product_cost": (1.0, 1.6), "taller": (0.001, 1.0), "narrow": (0.01, 0.6), "special_cost": (0.9, 3.0),
    "arithmetic_cost": (0.7, 4.0), "alone": (0.5, 4.0), "tail": (0.3, 4.0), "beside": (1.0, 8.0), "norm": (1.0, 8.0),
    "meet": (1.5, 6.0), "memory": (1.9, 8.0), "merged": (0.05, 0.97), "into": (0.3, 2.0), "arrive": (0.1, 6.0),
    "opening": (0.05, 4.0), "operands": (0.3, 2.0), "exposed": (0.01, 1.5), "spill": (0.001, 0.5),
}  # fmt: skip
GIVEN = ("direct", "refill", "sooner", "together", "cached", "fetched")
"""Taken from single comparisons, not fitted."""
EMPHASIS, ROBUST, PRIOR = 2.0, 0.1, 0.03
ENOUGH, EVEN = 12, 1.005
"""Schedules of a program in a run whose best the model is asked for, and what counts as equal by its estimates."""
CLOSE = 1.03
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Table:
    """Measured schedules as arrays; microseconds. ``run``: the file of each."""

    device: Device
    program: NDArray[np.str_]
    run: NDArray[np.int64]
    stages: NDArray[np.int64]
    stays: NDArray[np.bool_]
    us: Counts
    work: Work
    groups: GroupWork

    def predicted(self, costs: Costs) -> Counts:
        return times(self.work, self.groups, self.device, constants_of(self.device), costs)["seconds"] * 1e6


def table(files: Sequence[Path], device: Device) -> Table:
    """The rows of single kernels by warp groups that were right and that searches try."""
    found: list[tuple[str, int, int, bool, float, Work, GroupWork]] = []
    for run, file in enumerate(files):
        with Records(":memory:") as records:
            records.import_lines(file)
            for r in records.rows(device=device.title, kind="kernel"):
                candidate = records.candidate(r)
                if not (r.ok and r.time_us and candidate) or len(candidate.graph.kernels) != 1 or not candidate.blocks:
                    continue
                ((block, schedule),) = candidate.blocks
                if BACKEND.of(schedule) == "gluon" and not FLATTEN.of(schedule) and tried(block, device):
                    f = schedule_features(block, schedule)
                    g = group_work(f, resources(f, device), device)
                    if g.held.fits[0]:
                        how = schedule.num_stages, PERSISTENT.of(schedule) > 0
                        found.append((r.workload, run, *how, r.time_us, work(f, device), g))
    if not found:
        raise UsageError("no row is of a kernel by warp groups", "give files that experiments.backends has written")
    *columns, works, groups = zip(*found, strict=True)
    names, runs, stages, stays, us = map(np.array, columns)
    return Table(device, names, runs, stages, stays, us, joined(works), joined(groups))


@lru_cache(maxsize=256)
def tried(block: BlockGraph, device: Device) -> bool:
    """Whether searches try a block by warp groups."""
    return group_space(kernel_space(block, device)) is not None


def joined(parts: Sequence[T]) -> T:
    """Arrays one after another, field by field."""
    first: Any = parts[0]
    every = {f.name: [getattr(p, f.name) for p in parts] for f in fields(first)}
    return type(first)(**{n: joined(v) if is_dataclass(v[0]) else np.concatenate(v) for n, v in every.items()})


def family(name: str) -> str:
    return next((f for part, f in FAMILIES if part in name), "attention")


def fitted(t: Table, keep: NDArray[np.bool_]) -> Costs:
    """Constants for the rows that are kept."""
    from scipy.optimize import least_squares

    start = asdict(COSTS)
    free = [n for n in start if n not in GIVEN]
    low, high = (np.log([BOUNDS.get(n, (1e-10, 1e3))[i] for n in free]) for i in (0, 1))
    first = np.clip(np.log([start[n] for n in free]), low + 1e-6, high - 1e-6)
    weight = np.zeros(len(t.us))
    for mine in cases(t, np.ones(len(t.us), np.bool_)):
        weight[mine] = (t.us[mine].min() / t.us[mine]) ** EMPHASIS / math.sqrt(len(mine))

    def errors(x: NDArray[np.float64]) -> NDArray[np.float64]:
        costs = Costs(**(start | dict(zip(free, np.exp(x), strict=True))))
        return np.concatenate([(np.log(t.predicted(costs) / t.us) * weight)[keep], PRIOR * (x - first)])

    found: Any = least_squares(errors, first, loss="soft_l1", f_scale=ROBUST, bounds=(low, high), max_nfev=60)
    return Costs(**(start | dict(zip(free, np.exp(found.x).tolist(), strict=True))))


def cases(t: Table, keep: NDArray[np.bool_]) -> Iterator[NDArray[np.int64]]:
    """The schedules of each program in each run."""
    for run, program in dict.fromkeys(zip(t.run[keep].tolist(), t.program[keep].tolist(), strict=True)):
        yield np.flatnonzero((t.run == run) & (t.program == program))


def row(t: Table, keep: NDArray[np.bool_], name: str, costs: Costs) -> tuple[str, ...]:
    """Rows, root mean square of the logarithm, of how many programs the pick is close to the best, and regret of a family."""
    predicted = t.predicted(costs)
    error = np.log(predicted / t.us)[keep]
    regret = [1.0]
    for mine in (c for c in cases(t, keep) if len(c) >= ENOUGH):
        near = mine[predicted[mine] <= EVEN * predicted[mine].min()]
        pick = max(near.tolist(), key=lambda i: (not t.stays[i], t.stages[i]))
        regret.append(t.us[pick] / t.us[mine].min())
    found = regret[1:]
    mean = math.exp(float(np.mean(np.log(regret[1:])))) if found else math.nan
    good = f"{sum(r <= CLOSE for r in found)}/{len(found)}"
    return name, str(keep.sum()), f"{math.sqrt((error**2).mean()):.3f}", good, f"{mean:.3f}", f"{max(regret):.3f}"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    p = parser("experiments.group_price", __doc__, "target")
    p.add_argument("files", nargs="+", type=Path, help="rows as experiments.backends writes them")
    return p.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    t = table(args.files, load_device(args.target))
    kind = np.array([family(n) for n in t.program])
    names, every = list(dict.fromkeys(kind.tolist())), np.ones(len(kind), np.bool_)
    heads = ("family", "rows >", "error >", "close >", "regret >", "worst >")
    print_table("Each family by constants of the others", heads, [row(t, kind == n, n, fitted(t, kind != n)) for n in names])
    costs = fitted(t, every)
    for title, found in (("By constants of all", costs), ("By constants as they are", COSTS)):
        print_table(title, heads, [*(row(t, kind == n, n, found) for n in names), row(t, every, "all", found)])
    print_table(
        "Constants",
        ("name", "value >", "as they are >"),
        [(n, f"{v:.3g}", f"{asdict(COSTS)[n]:.3g}") for n, v in asdict(costs).items()],
    )
    return 0


if __name__ == "__main__":
    script(main)
