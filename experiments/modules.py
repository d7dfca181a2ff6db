"""Many small modules, as users write them, behind ``fuser.compile``: do all run and agree with torch, and how fast are they?

    python -m experiments.modules check                      # small, in Triton's interpreter, on any machine
    python -m experiments.modules compile --target h200      # real sizes, kernels compiled offline
    python -m experiments.modules time -o table.txt          # on a GPU, beside eager torch and torch.compile
    python -m experiments.modules time --source FOLDER       # files of yours: `Model`, `get_inputs`, as KernelBench has them

``--only GLOB`` takes some of them. ``time`` compiles in several processes, each of which keeps what it made; when all are done
(or ``--seconds`` are over) they measure one after the other, so that nothing else runs on the GPU. Times are of calls one after
the other (events around many), and of a CUDA graph of one call, all in turn (median of rounds); µs. ``--names NAME:DTYPE`` mixes
dtypes; the first are prepared first.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict
from dataclasses import is_dataclass
from fnmatch import fnmatch
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten
from torch.utils._pytree import tree_leaves
from torch.utils._pytree import tree_map

import fuser
from experiments.environment import environment
from experiments.environment import head
from experiments.in_turn import alone
from experiments.in_turn import choosing_alone
from experiments.in_turn import claimed
from experiments.patience import patience
from experiments.suite import SUITE
from experiments.suite.case import Keywords
from experiments.suite.large import LARGE
from experiments.suite.outside import from_file
from fuser.frontends.torch_export import from_torch
from fuser.ir.mugraph import LibraryKernel
from fuser.runtime.library import WHOLE
from search.choose import compile_imported
from search.compiled import CompiledProgram
from search.cover.model import as_it_stands
from search.cover.theirs import wholly
from search.how import How
from search.measure.machine import device_info
from search.measure.replays import captured
from search.measure.replays import in_turn
from search.piecewise import PiecewiseModule
from search.views import with_views
from search.where import where_to_run

PATIENCE = 120
"""Seconds that a module may take to compile."""
ROUNDS, ROUND_SECONDS = 5, 0.02
SETTLED = 30
"""Calls of each before it is measured."""
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "own": None}
"""``own``: of what dtypes a file from outside makes its modules and inputs."""


def made(name: str, small: bool, dtype: Any = torch.float32, device: str = "cpu") -> tuple[Any, tuple[Any, ...]]:
    """A module of a suite, or of a file (a name with a slash), and its inputs; the last of them may be :class:`Keywords`."""
    torch.manual_seed(0)
    module, inputs = (from_file(Path(name)) if "/" in name else (SUITE | LARGE)[name])(small)
    return module.eval().to(device=device, dtype=dtype), converted(inputs, dtype, device)


def converted(inputs: tuple[Any, ...], dtype: Any, device: str | None = None) -> tuple[Any, ...]:
    """With floating-point tensors of another dtype, if any, in their strides; what is no tensor stays."""

    def one(x: Any) -> Any:
        return x.to(device, (dtype if x.is_floating_point() else None) or x.dtype) if isinstance(x, torch.Tensor) else x

    *given, last = inputs or (None,)
    ends = Keywords(tree_map(one, dict(last))) if isinstance(last, Keywords) else tree_map(one, last)
    return (*tree_map(one, tuple(given)), ends) if inputs else ()


def apart(inputs: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments and keyword arguments."""
    return (inputs[:-1], dict(inputs[-1])) if inputs and isinstance(inputs[-1], Keywords) else (inputs, {})


def error(got: Any, want: Any) -> float:
    """The largest error of a tensor, relative to its norm; infinite where results are of different kinds."""
    mine, tree = tree_flatten(got)
    theirs, wanted = tree_flatten(want)
    if tree != wanted:
        return float("inf")
    worst = 0.0
    for x, y in zip(mine, theirs, strict=True):
        if type(x) is type(y) and is_dataclass(y):
            worst = max(worst, error(vars(x), vars(y)))
            continue
        if not isinstance(y, torch.Tensor):
            worst = worst if type(x) is type(y) and x == y else float("inf")
            continue
        if x.shape != y.shape or x.is_floating_point() != y.is_floating_point() or not torch.equal(x.isnan(), y.isnan()):
            return float("inf")
        x, y = (t.detach().double().nan_to_num(0, 9e9, -9e9) for t in (x, y))
        worst = max(worst, float((x - y).norm() / (y.norm() + 1e-9)))
    return worst


class NotDifferentError(Exception):
    """``fuser.compile`` has chosen kernels of ours already."""


# -- without a GPU --------------------------------------------------------------------------------------------------------------


def checked(name: str, dtype: Any) -> str:
    module, inputs = made(name, True, dtype)
    given, named = apart(inputs)
    with torch.no_grad():
        want = module(*given, **named)
        run = fuser.compile(module, given, example_kwargs=named, device="cpu")
        wrong = error(got := run(*given, **named), want)
    assert [getattr(x, "dtype", None) for x in tree_leaves(got)] == [getattr(x, "dtype", None) for x in tree_leaves(want)]
    assert wrong < (1e-3 if dtype is torch.float32 else 3e-2), f"error {wrong:.1e}"
    if isinstance(run, PiecewiseModule):
        return f"graph by graph, error {wrong:.0e}"
    return f"{len(run.graph.blocks)} kernels, {len(run.graph.kernels) - len(run.graph.blocks)} calls, error {wrong:.0e}"


def compiled(name: str, dtype: Any, target: str) -> str:
    module, inputs = made(name, False, dtype)
    given, named = apart(inputs)
    run = fuser.compile(module, given, example_kwargs=named, target=target)
    calls = len(run.graph.kernels) - len(run.graph.blocks)
    return f"{len(run.graph.blocks)} kernels, {calls} calls, {run.realised.candidate.us:.1f} µs"


def each(names: Sequence[str], what: Callable[[str], str]) -> int:
    """Tries each; the number of those that failed."""
    failed = 0
    for name in names:
        start = time.process_time(), time.perf_counter()
        try:
            with patience(PATIENCE):
                said = what(name)
        except Exception as caught:  # noqa: BLE001 - whatever fails is what we want to know
            failed += 1
            said = f"FAILED {type(caught).__name__}: {str(caught)[:200]}"
        cpu, wall = time.process_time() - start[0], time.perf_counter() - start[1]
        print(f"{Path(name).stem:32}{said}  ({cpu:.1f} s CPU, {wall:.1f} s)", flush=True)
    return failed


# -- on a GPU -------------------------------------------------------------------------------------------------------------------


def times(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median µs of a call of each, in turn."""
    for call in calls.values():
        call()
    return {n: statistics.median(found) for n, found in in_turn(calls, ROUNDS, ROUND_SECONDS).items()}


def prepared(name: str, dtype: Any, doors: Sequence[str], most: float = PATIENCE) -> dict[str, Any]:
    """What there is to measure of a module: callables by name, and the row so far; ``most`` seconds for each compiler."""
    module, inputs = made(name, False, dtype, "cuda")
    row: dict[str, Any] = {"name": Path(name).stem, "dtype": str(dtype)[6:] if dtype else "own"}
    given, named = apart(inputs)
    calls: dict[str, Callable[[], Any]] = {"eager": lambda: module(*given, **named)}
    exact = in_float64(module, inputs)
    row["eager_error"] = error(calls["eager"](), exact)
    compilers: dict[str, Callable[[], Callable[..., Any]]] = {
        "ours": lambda: fuser.compile(module, given, example_kwargs=named),
        "instant": lambda: fuser.compile(module, given, example_kwargs=named, effort="instant"),
        "own": lambda: own(module, given, named),
        "whole": lambda: whole(module, given, named),
        "door": lambda: torch.compile(module, backend=fuser.torch_backend, dynamic=False),
        "inductor": lambda: torch.compile(module, dynamic=False),
    }
    for peer in ("ours", "inductor", *doors):
        start = time.perf_counter(), time.process_time()
        try:
            with patience(most):
                run = compilers[peer]()
                row[f"{peer}_error"] = error(run(*given, **named), exact)
            calls[peer] = lambda run=run: run(*given, **named)
            if peer == "ours":
                row["plan"] = str(getattr(run, "plan", run))
                realised = getattr(run, "realised", None)  # a piecewise module has none
                row["estimate"] = realised and realised.candidate.us
                row["beside"] = (beside := getattr(run, "beside", None)) and asdict(beside)
        except NotDifferentError:
            continue
        except Exception as caught:  # noqa: BLE001
            row[f"{peer}_failed"] = f"{type(caught).__name__}: {str(caught)[:300]}"
        row[f"{peer}_seconds"] = time.perf_counter() - start[0], time.process_time() - start[1]
    return {"row": row, "calls": calls}


def captures(one: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Graphs of one call each, of what a user has after some calls: a module in pieces finds out meanwhile how to run best."""
    calls, kept = one["calls"], {}
    for call in calls.values():
        for _ in range(SETTLED):
            call()
    for peer, call in {**calls, "again": calls.get("inductor")}.items():  # the same kernels once more: what times are worth
        try:
            if call is not None:
                kept[peer] = captured(call)  # what it returns is kept too: it lies in the graph's memory
        except Exception as caught:  # noqa: BLE001 - a call that waits for the GPU cannot be captured
            one["row"][f"{peer}_graph_failed"] = str(caught)[:200]
    one["kept"] = kept
    return {n: g[1] for n, g in kept.items()}


def in_float64(module: Any, inputs: tuple[Any, ...]) -> Any:
    """What it returns in double precision; where its own code names a dtype that this contradicts, in its own."""
    wide, more = apart(converted(tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, inputs), torch.float64))
    try:
        return deepcopy(module).double()(*wide, **more)
    except RuntimeError:
        given, named = apart(deepcopy(inputs))
        return deepcopy(module)(*given, **named)


def own(module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Kernels of ours where ``fuser.compile`` leaves all to torch's compiler; refused where it does not."""
    device, spec = where_to_run(None, None, type(module).__name__)
    known = with_views(from_torch(module, given, example_kwargs=named))
    other = compile_imported(known, spec, device, How(compiled=False, jobs=1, theirs=True))
    if not any(isinstance(k, LibraryKernel) and WHOLE in dict(k.attrs).values() for k in other.graph.kernels):
        raise NotDifferentError
    return compile_imported(known, spec, device)


def whole(module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """All of a module with convolutions, which have no price for that, by torch's compiler within our runtime."""
    device, spec = where_to_run(None, None, type(module).__name__)
    known = from_torch(module, given, example_kwargs=named)
    found = None if wholly(known.program, spec) else wholly(known.program, spec, images=True)
    if found is None:
        raise NotDifferentError
    more = {"called": known.called, "traced": known.traced}
    return CompiledProgram(known.program, spec, as_it_stands(found), device, known.params, known.inputs, **more)


def worker(args: argparse.Namespace, names: Sequence[str]) -> None:
    """Prepares its modules until the time is over, waits for ``go``, then measures while it holds the lock."""
    torch._dynamo.config.recompile_limit = 1000  # modules share the forward of a class: what is thrown away would be made again
    torch._dynamo.config.accumulated_recompile_limit = 10000
    os.sched_setaffinity(0, {args.worker % os.cpu_count()})  # type: ignore[operator]
    warnings.simplefilter("ignore")
    folder, until = Path(args.folder), time.time() + args.seconds
    choosing_alone(folder)
    ready, done = [], (folder / f"rows_{args.worker}.jsonl").open("w")
    with torch.no_grad():
        for entry in names:
            if time.time() > until or (folder / "go").exists() or not claimed(folder / f"claim_{entry.replace('/', '_')}"):
                continue
            name, _, dtype = entry.partition(":")
            most = min(PATIENCE, until + PATIENCE / 6 - time.time())
            try:
                ready.append(prepared(name, DTYPES[dtype or args.dtype], args.doors, most))
                print(json.dumps(ready[-1]["row"]), flush=True)
            except Exception as caught:  # noqa: BLE001
                print(f"{entry} FAILED {type(caught).__name__}: {str(caught)[:200]}", flush=True)
            torch.cuda.empty_cache()
        (folder / f"ready_{args.worker}").touch()
        while not (folder / "go").exists():
            time.sleep(0.1)
        for one in ready:
            if (folder / "over").exists():
                break
            with alone(folder):
                for kind, contestants in (("graph", captures), ("calls", itemgetter("calls"))):
                    try:
                        one["row"] |= {f"{peer}_{kind}": us for peer, us in times(contestants(one)).items()}
                    except Exception as caught:  # noqa: BLE001
                        one["row"][f"{kind}_failed"] = str(caught)[:200]
            done.write(json.dumps(one["row"]) + "\n")
            done.flush()
    (folder / f"done_{args.worker}").touch()


def start(args: argparse.Namespace, names: Sequence[str]) -> list[subprocess.Popen[bytes]]:
    folder = Path(args.folder)
    folder.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "experiments.modules", "work", "--folder", args.folder, "--seconds", str(args.seconds)]
    words += ["--dtype", args.dtype, "--doors", *args.doors, "--names", *names]
    env = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    logs = [(folder / f"log_{i}").open("w") for i in range(args.jobs)]
    return [
        subprocess.Popen([*words, "--worker", str(i)], stdout=log, stderr=subprocess.STDOUT, env=env)
        for i, log in enumerate(logs)
    ]


def wait(args: argparse.Namespace, most: float, what: str = "ready") -> Iterator[None]:
    """Until all workers are ``what``, but no longer than ``most`` seconds."""
    until = time.time() + most
    while time.time() < until and len(list(Path(args.folder).glob(f"{what}_*"))) < args.jobs:
        time.sleep(0.5)
        yield


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line for each module: µs of calls and in a graph, errors, and how many times faster than torch.compile."""
    kinds = [(k, 13 + (k == "graph")) for k in ("calls", "graph") if any(f"ours_{k}" in r for r in rows)]
    heads = (f"{kind + ': eager':>{first}}{'inductor':>10}{'ours':>10}{'×':>7}" for kind, first in kinds)
    lines = [f"{'module':30}{''.join(heads)}   errors, seconds to compile"]

    def ratio(r: dict[str, Any], kind: str) -> float:
        return r.get(f"inductor_{kind}", float("nan")) / r.get(f"ours_{kind}", float("nan"))

    for r in sorted(rows, key=lambda r: (math.isnan(x := ratio(r, "graph")), x)):
        text = f"{r['name'] + (' ' + r['dtype'] if r.get('dtype') not in ('float32', 'own', None) else ''):30}"
        for kind, first in kinds:
            times = [r.get(f"{p}_{kind}", float("nan")) for p in ("eager", "inductor", "ours")]
            text += f"{times[0]:{first}.1f}{times[1]:10.1f}{times[2]:10.1f}{ratio(r, kind):7.2f}"
        text += f"   {r.get('eager_error', -1):.0e} {r.get('ours_error', -1):.0e}  {r.get('ours_seconds', (0, 0))[0]:.1f} s"
        text += "".join(f"  {k}: {v}" for k, v in r.items() if k.endswith("failed"))
        lines.append(text)
    return "\n".join(lines)


def apart_by_chance(rows: Sequence[dict[str, Any]]) -> str:
    """How far equal kernels of torch.compile are apart: middle nine tenths."""
    both = sorted(r["inductor_graph"] / r["again_graph"] for r in rows if {"inductor_graph", "again_graph"} <= r.keys())
    few = len(both) // 20
    return f"; its graph captured twice: {both[few]:.3f} to {both[-1 - few]:.3f} x" if both else ""


def told(args: argparse.Namespace) -> str:
    """The table of what was measured so far; written where it is wanted."""
    rows = [json.loads(x) for f in Path(args.folder).glob("rows_*.jsonl") for x in f.read_text().splitlines() if x[-1:] == "}"]
    where = environment(device_info("cuda" if torch.cuda.is_available() else "cpu"))
    text = f"{head(where)}; µs, torch.compile in its default mode, in turn in one run{apart_by_chance(rows)}\n\n{table(rows)}"
    if args.output:
        Path(args.output).write_text(text + "\n")
        Path(args.output).with_suffix(".json").write_text(json.dumps(rows))
    return text


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("check", "compile", "time", "prepare", "measure", "work"))
    p.add_argument("--only", nargs="*", default=["*"])
    p.add_argument("--names", nargs="*")
    p.add_argument("--source", type=Path, help="a folder of files with a module each, in place of the suite")
    p.add_argument("--dtype", choices=DTYPES, help="float32, or what the files have")
    p.add_argument("--target", default="h200")
    p.add_argument("--folder", default="/tmp/modules")
    p.add_argument("--jobs", type=int, default=os.cpu_count())
    p.add_argument("--seconds", type=float, default=1e9)
    p.add_argument("--patience", type=float, default=PATIENCE, help="seconds to wait for workers that are not ready")
    p.add_argument("--most", type=float, default=1e9, help="seconds to measure at most")
    p.add_argument("--worker", type=int)
    p.add_argument("--doors", nargs="*", default=[])
    p.add_argument("-o", "--output")
    args = p.parse_args()
    args.dtype = args.dtype or ("own" if args.source else "float32")
    known = {p.stem: str(p) for p in sorted(args.source.resolve().glob("*.py"))} if args.source else {n: n for n in SUITE}
    names = args.names or [long for n, long in known.items() if any(fnmatch(n, g) for g in args.only)]
    warnings.simplefilter("ignore")
    if args.what == "check":
        return each(names, lambda n: checked(n, DTYPES[args.dtype])) > 0
    if args.what == "compile":
        return each(names, lambda n: compiled(n, DTYPES[args.dtype], args.target)) > 0
    if args.what == "work":
        worker(args, names)
        return 0
    if args.what in ("time", "prepare"):
        start(args, names)
        list(wait(args, args.seconds + PATIENCE / 2))
    if args.what in ("time", "measure"):
        list(wait(args, args.patience))
        (Path(args.folder) / "go").touch()
        for i in range(args.jobs):
            if not (Path(args.folder) / f"ready_{i}").exists():
                print(f"worker {i} is not ready")
        for _ in wait(args, args.most, "done"):  # whoever ends this has what was measured so far
            told(args)
        (Path(args.folder) / "over").touch()
        print(told(args))
    return 0


if __name__ == "__main__":
    sys.exit(main())
