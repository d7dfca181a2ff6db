"""Large modules behind ``fuser.compile``, beside eager torch and torch.compile: graphs of one call, µs.

    python -m experiments.large check             # small, in Triton's interpreter, on any machine
    python -m experiments.large time -o table.txt # on a GPU with some 140 GB

As `experiments.modules` for modules whose tensors take gigabytes: each process compiles with its inputs there, keeps what it made
(parameters and kernels) but no inputs, and draws them again when it measures, alone. ``--seconds`` ends the compiling, ``--most``
the measuring. Where ours take longer, the row names the kernels of both by their time.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils._pytree import tree_map

import fuser
from experiments.in_turn import alone
from experiments.in_turn import choosing_alone
from experiments.in_turn import claimed
from experiments.modules import apart
from experiments.modules import checked
from experiments.modules import each
from experiments.modules import made
from experiments.modules import told
from experiments.modules import wait
from experiments.patience import patience
from experiments.suite.large import LARGE
from search.measure.replays import captured
from search.measure.replays import in_turn

PATIENCE = 110
"""Seconds that a module may take to compile."""
ROOM = 40e9
"""Bytes of a GPU's memory that have to be free before another module is begun, one at a time. What its evaluation in float64 took
stays with its process until both compilers are done, which need less."""
SLICE = 1 << 26
"""Elements that are compared with float64 at once."""
SLOWER = 1.02
"""Kernels are listed where ours take so many times as long."""


def drawn(name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A module, its inputs and those by name, drawn on the GPU: a host takes longer to draw them than to compile."""
    with torch.device("cuda"):
        module, inputs = made(name, False, device="cuda")
    return module, *apart(inputs)


def apart_by(got: Any, want: Any) -> float:
    """The largest error of a tensor relative to its norm, in float64 a slice at a time."""
    worst = 0.0
    for x, y in zip(tree_leaves(got), tree_leaves(want), strict=True):
        if x.shape != y.shape or x.is_floating_point() != y.is_floating_point():
            return float("inf")
        squares = torch.zeros(2, dtype=torch.float64, device=y.device)
        for a, b in zip(x.reshape(-1).split(SLICE), y.reshape(-1).split(SLICE), strict=True):
            if not torch.equal(a.isnan(), b.isnan()):
                return float("inf")
            a, b = (t.double().nan_to_num(0, 9e9, -9e9) for t in (a, b))
            squares += torch.stack(((a - b).square().sum(), b.square().sum()))
        worst = max(worst, float((squares[0] / (squares[1] + 1e-18)).sqrt()))
    return worst


def floats(inputs: Any, dtype: torch.dtype) -> Any:
    return tree_map(lambda x: x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x, inputs)


def free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def prepared(name: str, folder: Path, most: float) -> tuple[dict[str, Any], dict[str, Callable[..., Any]]]:
    """The row of a module so far, and what calls it: eager torch, ours, torch.compile. Each is held against float64."""
    row: dict[str, Any] = {"name": name, "dtype": "float32"}
    with alone(folder, "room"):
        while torch.cuda.mem_get_info()[0] < ROOM and not (folder / "go").exists():
            time.sleep(0.2)
        module, given, named = drawn(name)
        with alone(folder, "wide"):  # float64 of one module at a time has room
            exact = floats(module.double()(*floats(given, torch.float64), **floats(named, torch.float64)), torch.float32)
            del module
            gc.collect()
            module, *_ = drawn(name)
            row["eager_error"] = apart_by(module(*given, **named), exact)
    calls: dict[str, Callable[..., Any]] = {"eager": module}
    compilers = {
        "ours": lambda: fuser.compile(module, given, example_kwargs=named, effort="instant"),
        "inductor": lambda: torch.compile(module, dynamic=False),
    }
    for peer, compiler in compilers.items():
        start = time.perf_counter(), time.process_time()
        try:
            with patience(most):
                run = compiler()
                got = run(*given, **named)
            row[f"{peer}_seconds"] = time.perf_counter() - start[0], time.process_time() - start[1]
            with alone(folder, "wide"):
                row[f"{peer}_error"] = apart_by(got, exact)
            calls[peer] = run
            if peer == "ours":
                row["plan"] = str(getattr(run, "plan", run))
                realised = getattr(run, "realised", None)
                row["estimate"] = realised and realised.candidate.us
        except Exception as caught:  # noqa: BLE001 - whatever fails is what we want to know
            row[f"{peer}_failed"] = f"{type(caught).__name__}: {str(caught)[:300]}"
        got = None
        gc.collect()
    return row, calls


def measured(row: dict[str, Any], calls: dict[str, Callable[..., Any]]) -> dict[str, Any]:
    """Times of graphs of a call, in turn; the kernels of both where ours take longer."""
    _, given, named = drawn(row["name"])
    graphs = {}
    for peer, call in {**calls, "again": calls.get("inductor")}.items():
        try:
            if call is not None:
                graphs[peer] = captured(lambda call=call: call(*given, **named))
        except Exception as caught:  # noqa: BLE001 - a call that waits for the GPU cannot be captured
            row[f"{peer}_graph_failed"] = str(caught)[:200]
    row |= {f"{peer}_graph": median(us) for peer, us in in_turn({n: g[1] for n, g in graphs.items()}, 3, 0.002).items()}
    if row.get("ours_graph", 0.0) > SLOWER * row.get("inductor_graph", float("inf")):
        row["kernels"] = {peer: kernels(lambda call=calls[peer]: call(*given, **named)) for peer in ("ours", "inductor")}
    return row


def kernels(call: Callable[[], Any]) -> list[tuple[str, float, int]]:
    """The slowest kernels of a call: name, µs, how often."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    found = sorted(seen.key_averages(), key=lambda e: -e.self_device_time_total)[:8]
    return [(e.key[:110], round(e.self_device_time_total, 1), e.count) for e in found if e.self_device_time_total]


def worker(args: argparse.Namespace, names: list[str]) -> None:
    """Prepares modules while there is room, waits for ``go``, then measures them while it holds the lock."""
    torch._dynamo.config.recompile_limit = 1000
    torch._dynamo.config.accumulated_recompile_limit = 10000
    os.sched_setaffinity(0, {args.worker % os.cpu_count()})  # type: ignore[operator]
    folder, until, ready = Path(args.folder), time.time() + args.seconds, []
    choosing_alone(folder)
    for name in names:
        if time.time() > until or (folder / "go").exists() or not claimed(folder / f"claim_{name}"):
            continue
        try:
            ready.append(prepared(name, folder, min(PATIENCE, max(5.0, until + 15 - time.time()))))
            print(json.dumps(ready[-1][0]), flush=True)
        except Exception as caught:  # noqa: BLE001
            print(f"{name} FAILED {type(caught).__name__}: {str(caught)[:300]}", flush=True)
        free()
    (folder / f"ready_{args.worker}").touch()
    while not (folder / "go").exists():
        time.sleep(0.1)
    with (folder / f"rows_{args.worker}.jsonl").open("w") as done:
        for row, calls in ready:
            if (folder / "over").exists():
                break
            with alone(folder):
                try:
                    measured(row, calls)
                except Exception as caught:  # noqa: BLE001
                    row["graph_failed"] = f"{type(caught).__name__}: {str(caught)[:200]}"
                calls.clear()
                free()
            done.write(json.dumps(row) + "\n")
            done.flush()
    (folder / f"done_{args.worker}").touch()


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("check", "time", "prepare", "measure", "work"))
    p.add_argument("--only", nargs="*", default=["*"])
    p.add_argument("--names", nargs="*")
    p.add_argument("--folder", default="/tmp/large-modules")
    p.add_argument("--jobs", type=int, default=min(16, os.cpu_count() or 1))
    p.add_argument("--seconds", type=float, default=600.0, help="seconds to compile at most")
    p.add_argument("--most", type=float, default=300.0, help="seconds to measure at most")
    p.add_argument("--worker", type=int)
    p.add_argument("-o", "--output")
    args = p.parse_args()
    names = args.names or [n for n in LARGE if any(fnmatch(n, g) for g in args.only)]
    warnings.simplefilter("ignore")
    torch.set_grad_enabled(False)
    folder = Path(args.folder)
    if args.what == "check":
        return each(names, lambda n: checked(n, torch.float32)) > 0
    if args.what == "work":
        worker(args, names)
        return 0
    if args.what in ("time", "prepare"):
        folder.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-m", "experiments.large", "work", "--folder", args.folder, "--seconds", str(args.seconds)]
        env = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        for i in range(args.jobs):
            with (folder / f"log_{i}").open("w") as log:
                process = [*words, "--names", *names, "--worker", str(i)]
                subprocess.Popen(process, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True)
        list(wait(args, args.seconds + PATIENCE / 2))
    if args.what in ("time", "measure"):
        (folder / "go").touch()
        for _ in wait(args, args.most, "done"):
            told(args)
        (folder / "over").touch()
        print(told(args))
    return 0


if __name__ == "__main__":
    sys.exit(main())
