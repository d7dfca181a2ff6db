"""A network for any number of tokens by buckets on a GPU: in our runtime and as one library of TVM 0.27, beside plans of
that very size, eager torch and torch.compile with open sizes.

    python -m experiments.buckets build FOLDER     # with TVM 0.27, without a GPU
    mufuser package FOLDER -o FOLDER               # there: TVM's runtime and the loader
    python -m experiments.buckets prepare FOLDER   # on the GPU's machine: kernels of torch.compile
    python -m experiments.buckets run FOLDER       # there

``build`` leaves model.so with its weights, and the plans (plans.pkl). Weights are random from a seed, of few different values, so
that the folder can be packed small.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.networks import NETWORKS
from experiments.script import script
from fuser.device import load_device
from fuser.outputs import make_folder
from fuser.outputs import write_file

NETWORK, TARGET = "bert-small", "h200"
BUCKETS, FIXED = (128, 256, 512), (128, 512)
SIZES = (1, 100, 128, 129, 200, 256, 500, 512)


def network() -> Any:
    import torch

    torch.manual_seed(0)
    net = NETWORKS[NETWORK].make(1)[0].eval().half()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_((p * 128).round() / 128)
    return net


def tokens(count: int, seed: int = 0) -> Any:
    import torch

    return torch.randn(1, count, 512, generator=torch.Generator().manual_seed(seed)).half()


def build(folder: Path) -> None:
    import fuser
    from tvm_bridge.relaxed import relax_library

    start, net = time.perf_counter(), network()
    run: Any = fuser.compile(net, (tokens(300),), buckets={"input:1": BUCKETS}, target=TARGET, checked=False)
    seconds = {"buckets": time.perf_counter() - start}
    relax_library(run.buckets, NETWORK, weights="beside").export(folder / "model.so")
    fixed = {n: replace(fuser.compile(net, (tokens(n),), target=TARGET, checked=False), called=None) for n in FIXED}
    (folder / "plans.pkl").write_bytes(pickle.dumps((run.buckets, fixed)))
    write_file(folder / "build.json", json.dumps(seconds) + "\n")


def inductor(net: Any) -> Any:
    """The network by torch.compile for any number of tokens but one."""
    import torch

    compiled = torch.compile(net, dynamic=True)
    with torch.no_grad():
        compiled(tokens(300).cuda())
    return compiled


def run(folder: Path, output: Path) -> None:
    """Errors of every size against float64, and times."""
    import torch

    from search.buckets.bucketed import BucketedProgram
    from search.measure.replays import captured
    from search.measure.replays import medians
    from search.measure.replays import wall

    sys.path.insert(0, str(folder))
    from mufuser_model import Model  # type: ignore[import-not-found]

    net = network().cuda()
    buckets, fixed = pickle.loads((folder / "plans.pkl").read_bytes())
    on_gpu = tuple(replace(b, made=replace(b.made, device="cuda")) for b in buckets)
    ours = BucketedProgram(NETWORK, load_device(TARGET), "cuda", on_gpu)
    plans = {n: replace(p, device="cuda") for n, p in fixed.items()}
    model = Model(folder)
    compiled = inductor(net)
    rows: dict[int, Any] = {}
    for n in SIZES:
        x = tokens(n, n).cuda()
        with torch.no_grad():
            wanted = network().cuda().double()(x.double())

        def library(x: Any = x) -> Any:
            return torch.from_dlpack(model(x)[0])

        calls: dict[str, Callable[[], Any]] = {"buckets": lambda x=x: ours(x), "library": library}
        calls |= {"eager": lambda x=x: net(x)} | ({"inductor": lambda x=x: compiled(x)} if n > 1 else {})
        if n in plans:
            calls["fixed"] = lambda x=x, n=n: plans[n](x)
        with torch.no_grad():
            for _ in range(3):
                library()
            found = {k: call().double() for k, call in calls.items()}
            error = {k: float((y - wanted).norm() / wanted.norm()) for k, y in found.items()}
            replays = {k: captured(call)[1] for k, call in calls.items() if k != "library"}
            us = medians(replays)
            walls = {k: wall(call) for k, call in calls.items()}
        rows[n] = {"error": error, "shape": list(found["library"].shape), "graph us": us, "call us": walls}
        write_file(output / "buckets.json", json.dumps(rows, indent=1) + "\n")
        write_file(output / "buckets.txt", table(rows))


def table(rows: dict[int, Any]) -> str:
    """Microseconds by number of tokens: as CUDA graphs, then calls from Python in a row; errors against float64."""
    graphs, calls = ("buckets", "fixed", "eager", "inductor"), ("buckets", "library", "fixed", "eager", "inductor")
    lines = [f"{'tokens':>6}" + "".join(f"{c:>10}" for c in graphs) + "  |" + "".join(f"{c:>10}" for c in calls) + "  | error"]
    for n, row in rows.items():
        cells = [
            [f"{row[k][c]:>10.1f}" if c in row[k] else f"{'-':>10}" for c in of]
            for k, of in (("graph us", graphs), ("call us", calls))
        ]
        errors = ", ".join(f"{k} {e:.1e}" for k, e in row["error"].items())
        lines.append(f"{n:>6}{''.join(cells[0])}  |{''.join(cells[1])}  | {errors}")
    return "\n".join(["µs as CUDA graphs | µs of calls from Python in a row | relative error against float64", *lines]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("build", "prepare", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("h200-buckets"))
    given = parser.parse_args()
    make_folder(given.folder)
    if given.step == "build":
        build(given.folder)
    elif given.step == "prepare":
        inductor(network().cuda())
    else:
        make_folder(given.output)
        run(given.folder, given.output)


if __name__ == "__main__":
    script(main)
