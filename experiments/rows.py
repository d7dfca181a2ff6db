"""The raw rows of this repository: checks them, and makes what is derived from them.

    python -m experiments.rows                      # check every file against the manifest, list it
    python -m experiments.rows --manifest           # write the manifest again, after rows were added
    python -m experiments.rows --best h200          # write the best known schedules, which are part of the package
    python -m experiments.rows --best h200 --from out/rows.jsonl -o best.jsonl.xz    # those of an application's rows

Needs no GPU. The best known schedules of a workload are the fastest that were right and never failed, by the latest run of each.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from experiments.candidates import best_known
from experiments.candidates import latest
from experiments.drawn import name_of
from experiments.environment import commit
from experiments.script import parser
from experiments.script import script
from fuser.device import load_device
from fuser.errors import UsageError
from fuser.outputs import write_file
from search.calibrate.programs import SUITES
from search.measure.known import MANIFEST
from search.measure.known import PACKAGED
from search.measure.known import files_of
from search.measure.known import load
from search.measure.known import sha256
from search.measure.lines import read_lines
from search.measure.records import Records
from search.tune import graph_seconds
from search.tuner.memory import holds

RAW = Path(__file__).parent / "raw"
RESULTS = Path(__file__).parent / "results"
KNOWN = (
    RAW,
    *(RESULTS / n for n in ("h200-quick", "h200-gluon", "h200-groups", "h200-layouts", "h200-suites/explored.jsonl.xz")),
)
"""What the package's best schedules are chosen of: the raw rows, those of searches of the same workloads, and of kernels by
warp groups."""
BEST = 5
"""Schedules of a workload that are kept: times of different runs differ by more than the first few."""


def entry(file: Path) -> dict[str, Any]:
    """Of a file in the manifest."""
    return {"rows": sum("workload" in item for item in read_lines(file)), "sha256": sha256(file)}


def best(raw: Records, title: str, count: int = BEST) -> Records:
    """The fastest schedules of every workload of a suite on a device, but of those that the model alone is judged on; of the rows
    of each the last one whose kernels are still generated as they were, if there is one. What the model has no time for is left
    out."""
    found, device = Records(":memory:"), load_device(title)
    names = {r.workload for r in raw.rows(device=title, kind="kernel")}
    for name in sorted(n for n in names if "/" in n and n.partition("/")[0] not in SUITES):
        every = best_known(raw, name, title, 2 * count)
        for known in [k for k in every if isfinite(graph_seconds(k.candidate, device))][:count]:
            structure, schedule = name_of(known.candidate)
            rows = list(raw.rows(workload=name, device=title, structure=structure, schedule=schedule))
            found.add_structure(known.candidate.graph)
            found.add(latest([r for r in rows if holds(raw, r)] or rows)[0])
    return found


def write_best(device: str, sources: Sequence[Path], path: Path) -> int:
    """The best schedules of a device that the rows of ``sources`` know, as a file; returns the number of its rows."""
    names = [str(s) for s in sources]
    title, origin = load_device(device).title, [] if tuple(sources) == KNOWN else ["--from", *names]
    with Records(":memory:") as raw:
        load(raw, sources)
        with best(raw, title) as found:
            if not len(found):
                where = f"no correct kernel of {title} is in {', '.join(names)}"
                raise UsageError(where, "give rows of this device, or another device")
            about = {
                "device": title,
                "compilers": dict(sorted(Counter(r.compiler for r in found.rows()).items())),
                "rows": {f.name: sha256(f) for source in sources for f in files_of(source)},
                "commit": commit(RAW.parents[1]),
                "command": shlex.join(["python", "-m", "experiments.rows", "--best", device, *origin]),
            }
            return found.export_lines(path, about)


def main(argv: Sequence[str] | None = None) -> int:
    p = parser("experiments.rows", __doc__)
    what = p.add_mutually_exclusive_group()
    what.add_argument("--manifest", action="store_true", help="write the manifest of the raw rows again")
    what.add_argument("--best", metavar="DEVICE", help="write the best known schedules of a device")
    sources = "rows that --best reads, files or folders; by default the raw ones and those of searches"
    p.add_argument("--from", type=Path, nargs="+", default=KNOWN, dest="sources", metavar="ROWS", help=sources)
    p.add_argument("-o", "--output", type=Path, help="file that --best writes; the package's own by default")
    args = p.parse_args(argv)
    if args.best:
        path = args.output or PACKAGED / f"{args.best}.jsonl.xz"
        print(f"{write_best(args.best, args.sources, path)} rows in {path}")
        return 0
    if args.manifest:
        found = {f.name: entry(f) for f in sorted(RAW.glob("*.jsonl.xz"))}
        write_file(RAW / MANIFEST, json.dumps(found, indent=1) + "\n")
    for file in files_of(RAW):
        print(f"{file.name:<40}{entry(file)['rows']:>6} rows")
    return 0


if __name__ == "__main__":
    script(main)
