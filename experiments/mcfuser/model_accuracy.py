"""How well the models predict and rank measured schedules; fits the refined one's constants.

    python -m experiments.mcfuser.model_accuracy experiments/raw experiments/results/h200-{quick,skinny,calibrate}
    python -m experiments.mcfuser.model_accuracy … --device h200 --write fuser/devices/h200.toml

Compared are MCFuser's model (equations 2 to 5), the refined one with its default constants, with fitted ones, and with constants
that were fitted without the workload that is judged (by family: the GEMM chains, the self-attentions and so on are each left out
as a whole; ``--by suite``: all of a suite). The fit starts from the constants that the device has, near which it leaves what the
rows say little of; those for what is held out start from the defaults, which know nothing of it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from statistics import geometric_mean

import numpy as np

from cost_model.calibrate import Accuracy
from cost_model.calibrate import Sample
from cost_model.calibrate import Table
from cost_model.calibrate import accuracy
from cost_model.calibrate import fit
from cost_model.calibrate import held_out
from cost_model.calibrate import table
from cost_model.constants import Constants
from cost_model.constants import constants_of
from cost_model.device_file import fitted as with_constants
from cost_model.device_file import text
from experiments.script import parser
from experiments.script import script
from fuser.device import Device
from fuser.device import load_device
from fuser.ir.mugraph import KernelGraph
from fuser.outputs import write_file
from search.calibrate.samples import family
from search.calibrate.samples import samples
from search.measure.known import files_of
from search.measure.rows import Record
from search.measure.rows import read_rows

STAY = 1.5
"""Pull towards the constants that the device has, as :data:`cost_model.calibrate.PRIOR`."""
COMMON = 0.4
"""What counts of the error that the rows of a workload have in common: the model is to choose among them."""


def read(paths: Sequence[Path], device: Device) -> list[Sample]:
    """Of the rows of a device in files and folders."""
    graphs: dict[str, KernelGraph] = {}
    rows: list[Record] = []
    name = device.title.split()[-1].lower()
    for item in (x for place in paths for file in files_of(place) for x in read_rows(file)):
        if isinstance(item, tuple):
            graphs.setdefault(*item)
        elif isinstance(item, Record) and name in item.device.lower():
            rows.append(item)
    return samples(rows, graphs.get)


def suite(workload: str) -> str:
    return workload.partition("/")[0]


def summary(rows: Sequence[Accuracy]) -> str:
    regret, regret8 = geometric_mean(r.regret for r in rows), geometric_mean(r.regret8 for r in rows)
    return (
        f"ρ {fmean(r.spearman for r in rows):.3f}  τ {fmean(r.kendall for r in rows):.3f}  "
        f"regret {regret:.3f} (worst {max(r.regret for r in rows):.2f})  of 8 {regret8:.3f}  "
        f"MAPE {100 * fmean(r.mape for r in rows):.0f} %"
    )


def report(data: Table, fitted: Constants, out: np.ndarray) -> str:
    models = {
        "paper": data.paper,
        "refined, defaults": data.predict(Constants()),
        "refined, fitted": data.predict(fitted),
        "refined, held out": out,
    }
    scores = {name: accuracy(data, p) for name, p in models.items()}
    lines = []
    for kind in sorted({suite(str(w)) for w in data.workload}):
        lines.append(f"{kind}:")
        for name, rows in scores.items():
            lines.append(f"  {name:<18} {summary([r for r in rows if suite(r.workload) == kind])}")
    lines.append(f"{'workload':<22}{'rows':>5}" + "".join(f"{n:>28}" for n in scores) + "   (ρ, regret, MAPE %)")
    for group in zip(*scores.values(), strict=True):
        cells = "".join(f"{r.spearman:>14.2f}{r.regret:>7.2f}{100 * r.mape:>7.0f}" for r in group)
        lines.append(f"{group[0].workload:<22}{group[0].count:>5}{cells}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    p = parser("experiments.mcfuser.model_accuracy", __doc__)
    p.add_argument("files", nargs="+", type=Path, help="tuning records, files or folders")
    p.add_argument("--device", default="h200")
    p.add_argument("--by", choices=("family", "suite"), default="family", help="what is held out as a whole (%(default)s)")
    p.add_argument("--write", type=Path, help="device file to write, with the constants (.toml, .json)")
    args = p.parse_args(argv)
    device = load_device(args.device)
    data = table(read(args.files, device), device)
    print(f"{len(data.seconds)} schedules of {len(set(data.workload))} workloads on {device.title}", file=sys.stderr)
    fitted = fit(data, constants_of(device), STAY, COMMON)
    print(report(data, fitted, held_out(data, family if args.by == "family" else suite, common=COMMON)))
    if args.write:
        counts = Counter(str(w).split("/")[0] for w in data.workload)
        error = np.sqrt(np.mean(np.log(data.predict(fitted) / data.seconds) ** 2))
        provenance = {
            "device": device.title,
            "files": " ".join(f.name.removesuffix(".xz") for x in args.files for f in files_of(x)),
            "rows": ", ".join(f"{n} of {s}" for s, n in sorted(counts.items())),
            "error": f"{error:.3f} root mean square of the logarithm of time",
        }
        write_file(args.write, text(with_constants(device, fitted, provenance), args.write.name))
        print(f"constants written to {args.write}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    script(main)
