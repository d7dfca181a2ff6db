"""Table IV: seconds of tuning, from an empty cache to compiled kernels of a whole network.

    python -m experiments.mcfuser.tuning [NAME...] -j 2 -o OUT

Ours measures nothing (``instant``), and needs no GPU. Each network is made in a process of its own; ``cores`` are the seconds of
all its processes together, which say more than ``wall`` where others use the machine too.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from experiments.mcfuser.relax_runtime import PAPER
from experiments.script import script
from fuser.outputs import make_folder
from fuser.outputs import write_file

MAKE = """
import sys, warnings, torch
from experiments.mcfuser.relax_runtime import TARGET, network
from fuser.device import load_device
from fuser.frontends.torch_export import from_torch
from search.choose import compile_imported
from search.how import How
if __name__ == "__main__":
    warnings.simplefilter("ignore")
    net, shapes = network(sys.argv[1])
    with torch.no_grad():
        known = from_torch(net, tuple(torch.zeros(s, dtype=torch.float16) for s in shapes))
    made = compile_imported(known, load_device(TARGET), None, How(checked=sys.argv[3] == "checked", jobs=int(sys.argv[2])))
    print(made.plan.launches, len(set(p.key for p in made.plan.parts)))
"""


def measured(name: str, jobs: int, checked: str) -> dict[str, float]:
    """Seconds of one network, with imports, and how many kernels it has."""
    with tempfile.TemporaryDirectory() as folder:
        script_ = Path(folder, "make.py")
        script_.write_text(MAKE)
        environment = os.environ | {"XDG_CACHE_HOME": folder, "TRITON_CACHE_DIR": folder, "PYTHONPATH": os.pathsep.join(sys.path)}
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command = [sys.executable, str(script_), name, str(jobs), checked]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    kernels, parts = map(int, done.stdout.split()[-2:])
    cores = sum(getattr(after, f) - getattr(before, f) for f in ("ru_utime", "ru_stime"))
    return {"wall": wall, "cores": cores, "jobs": jobs, "kernels": kernels, "distinct parts": parts}


def table(rows: dict[str, dict[str, float]]) -> str:
    heads = ("network", "kernels", "wall s", "all cores s", "MCFuser, paper s")
    lines = ["".join(f"{h:>18}" for h in heads)]
    for name, row in rows.items():
        cells = (name, f"{row['kernels']:.0f}", f"{row['wall']:.0f}", f"{row['cores']:.0f}", PAPER.get(name, "-"))
        lines.append("".join(f"{c:>18}" for c in cells))
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[*PAPER])
    parser.add_argument("-j", "--jobs", type=int, default=2)
    parser.add_argument("--checked", choices=("checked", "unchecked"), default="checked")
    parser.add_argument("-o", "--output", type=Path, default=Path("tuning"))
    given = parser.parse_args()
    make_folder(given.output)
    rows: dict[str, dict[str, float]] = {}
    for name in given.names:
        rows[name] = measured(name, given.jobs, given.checked)
        write_file(given.output / "tuning.json", json.dumps(rows, indent=1) + "\n")
        write_file(given.output / "tuning.txt", table(rows))
        print(name, rows[name], flush=True)


if __name__ == "__main__":
    script(main)
