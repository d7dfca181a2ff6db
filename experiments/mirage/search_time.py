"""Search time by the largest number of block operators, with and without what prunes (Mirage, table 5).

    python -m experiments.mirage.search_time [--cap 60] [--ops 5 7 9 11] [--out FILE]

A cell is a whole search: enumerate until nothing is left, verify every structure. Cells that reach the cap, or the bound
on values that keeps memory below 2 GiB, are written as ``> seconds``. Without canonical form a value is enumerated once for
every way to compute it, commuted operands included.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.script import script
from fuser.outputs import make_folder
from fuser.outputs import write_file
from fuser.superopt.generate.generator import Limits
from fuser.superopt.search import superoptimize
from fuser.workloads import workload

OUT = Path(__file__).parent / "results" / "search_time.json"
WORKLOADS = ("mirage/rmsnorm", "mirage/gqa-spec")


@dataclass(frozen=True)
class Variant:
    name: str
    processes: int = 1
    expressions: bool = True
    canonical: bool = True


VARIANTS = (
    Variant("two processes", processes=2),
    Variant("one process"),
    Variant("without canonical form", canonical=False),
    Variant("without abstract expressions", expressions=False),
)


def cell(name: str, ops: int, variant: Variant, cap: float) -> dict[str, Any]:
    """One search."""
    limits = Limits(block_ops=ops, budget=cap, expressions=variant.expressions, canonical=variant.canonical)
    result = superoptimize(workload(name), limits, processes=variant.processes, most=10**6)
    counts = result.report.counts
    return {
        "workload": name,
        "block_ops": ops,
        "variant": variant.name,
        "seconds": round(result.seconds, 2) if result.stopped == "exhausted" else f"> {min(cap, result.seconds):.0f}",
        "stopped": result.stopped,
        "tried": counts.tried,
        "pruned": counts.pruned,
        "values": counts.values,
        "structures": len(result.structures),
        "rejected": len(result.rejected),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cap", type=float, default=60.0, help="seconds for a cell")
    parser.add_argument("--ops", type=int, nargs="+", default=[5, 6, 7, 8, 9, 10, 11])
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in WORKLOADS:
        for variant in VARIANTS:
            stopped = False
            for ops in args.ops:
                if stopped:  # a larger space takes no less
                    rows.append({**rows[-1], "block_ops": ops, "carried_over": True})
                    continue
                rows.append(cell(name, ops, variant, args.cap))
                stopped = rows[-1]["stopped"] != "exhausted"
                print(
                    f"{name:16} {variant.name:30} {ops:3} {rows[-1]['seconds']:>8} s  {rows[-1]['structures']:5} structures",
                    flush=True,
                )
    document = {
        "machine": {"cpu": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
        "cap": args.cap,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "cells": rows,
    }
    make_folder(args.out.parent)
    write_file(args.out, json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    script(main)
