"""Whole networks as libraries of TVM 0.27 on a GPU: with our kernels and as TVM alone makes them, beside our runtime and torch.

    python -m experiments.mcfuser.relax_runtime build FOLDER      # with TVM 0.27, without a GPU
    python -m experiments.mcfuser.tvm_alone FOLDER                # so too
    python -m experiments.mcfuser.relax_runtime prepare FOLDER    # on the GPU's machine: the plans again, with their weights
    python -m experiments.mcfuser.relax_runtime run FOLDER -o OUT # there: compared with float64, then timed in turn

TVM alone (:mod:`experiments.mcfuser.tvm_alone`) has schedules by rule (DLight), which know no wgmma of Hopper: no strong peer.
``run`` needs TVM's runtime alone: that of FOLDER/runtime, where ``mufuser package`` put it, or one that is installed. Weights are
random from a seed, and arguments of the libraries.
"""

from __future__ import annotations

import argparse
import json
import pickle
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from experiments.networks import NETWORKS
from experiments.script import script
from fuser.device import load_device
from fuser.outputs import make_folder
from fuser.outputs import write_file

DEFAULT: tuple[str, ...] = ("bert-small", "bert-base", "bert-large", "vit-b", "gpt2")
TARGET = "h200"
PAPER = {"bert-small": 81, "bert-base": 202, "bert-large": 243}
"""Seconds of tuning with MCFuser and Relay, table IV."""
AGAINST = "tvm", "tuned", "inductor", "ours"
WITHIN = 2e-2
"""Relative error from which on a contestant is wrong."""
COLUMNS = {
    "tvm+ours": "TVM's virtual machine with our kernels, a call captured as one CUDA graph",
    "own graphs": "the same library, which captures by itself what it can",
    "calls": "the same kernels without graphs, wall clock of a call from Python, launches included",
    "ours": "our own runtime with the same plan",
    "default": "our own runtime with products of cuBLAS where the model prefers them",
    "tvm": "TVM alone",
    "tuned": "TVM alone with the best of MetaSchedule's schedules (experiments.mcfuser.tvm_tuned)",
    "eager": "torch eager with SDPA",
    "inductor": "torch.compile",
}


def network(name: str) -> tuple[Any, tuple[tuple[int, ...], ...]]:
    import torch

    torch.manual_seed(0)
    net, shapes = NETWORKS[name].make(1)
    return net.eval().half(), shapes


def plan_of(name: str, device: str | None) -> Any:
    """The compiled program of a network; with ``device`` None all products are generated."""
    import torch

    from fuser.frontends.torch_export import from_torch
    from search.compile import How
    from search.compile import compile_imported

    net, shapes = network(name)
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        known = from_torch(net, tuple(torch.zeros(s, dtype=torch.float16) for s in shapes))
    return replace(
        compile_imported(known, load_device(TARGET), device, How(checked=False, jobs=4, ours=device is not None)), called=None
    )


# -- build --------------------------------------------------------------------------------------------------------------------


def build(folder: Path, names: list[str]) -> None:
    """Libraries of each network: ``NAME-plain.so`` and ``NAME-graphs.so`` with our kernels."""
    from tvm_bridge.back.offline_cuda import load
    from tvm_bridge.back.recipe import recipe_of
    from tvm_bridge.back.relax import compiled
    from tvm_bridge.back.relax import module_of
    from tvm_bridge.flavour import import_tvm

    load(import_tvm())
    for name in names:
        start = time.perf_counter()
        recipe = recipe_of(plan_of(name, None))
        planned = time.perf_counter()
        for kind in ("plain", "graphs"):
            compiled(recipe, module_of(recipe, None), kind == "graphs").export_library(str(folder / f"{name}-{kind}.so"))
        seconds = {"plan": planned - start, "libraries": time.perf_counter() - planned}
        write_file(folder / f"{name}.json", json.dumps({"kernels": len(recipe.launches), "seconds": seconds}) + "\n")
        print(name, len(recipe.launches), seconds, flush=True)


# -- run ----------------------------------------------------------------------------------------------------------------------


def prepare(folder: Path, names: list[str]) -> None:
    """``NAME.plans``: the plans, with the weights as they have them. And torch.compile's kernels in its cache."""
    import torch

    for name in names:
        start = time.perf_counter()
        made = {"ours": plan_of(name, None)}
        (folder / f"{name}-plan.json").write_text(json.dumps({"planning": time.perf_counter() - start}))
        made["default"] = plan_of(name, "cuda:0")
        made["default"] = replace(made["default"], device=None)
        (folder / f"{name}.plans").write_bytes(pickle.dumps(made))
        net, shapes = network(name)
        with torch.no_grad():
            torch.compile(net.cuda())(torch.zeros(shapes[0], dtype=torch.float16, device="cuda"))
        print(name, [len(m.graph.kernels) for m in made.values()], flush=True)


def run(folder: Path, names: list[str], output: Path) -> None:
    """Compare and time each network; the table after each."""
    make_folder(output)
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
        try:
            rows[name] = measure(folder, output, name)
        except Exception as error:  # noqa: BLE001 - the others go on
            rows[name] = {"failed": f"{type(error).__name__}: {str(error)[-400:]}"}
        write_file(output / "relax.json", json.dumps(rows, indent=1) + "\n")
        write_file(output / "relax.txt", table(rows))
        print(name, rows[name], flush=True)


def measure(folder: Path, output: Path, name: str) -> dict[str, Any]:
    """Microseconds and relative errors of all contestants on one network."""
    import torch

    from search.measure.replays import captured
    from search.measure.replays import in_turn
    from search.measure.replays import wall

    net, shapes = network(name)
    torch.manual_seed(1)
    x = torch.randn(*shapes[0]).half().cuda()
    net = net.cuda()
    with torch.no_grad():
        wanted = net.double()(x.double())
    net.half()
    plans = {k: replace(p, device="cuda") for k, p in pickle.loads((folder / f"{name}.plans").read_bytes()).items()}
    constants, weights = plans["ours"]._constants(), [p.detach() for _, p in net.named_parameters()]
    ffi, failed = runtime(folder), dict[str, str]()
    plain, graphs = (Machine(ffi, folder / f"{name}-{kind}.so", x, constants) for kind in ("plain", "graphs"))
    peers = {}
    for kind, made in (("tvm", _alone), ("tuned", _tuned)):
        try:
            peers[kind] = made(ffi, (folder, output), name, (x, weights))
        except Exception as error:  # noqa: BLE001 - a peer
            failed[kind] = f"{type(error).__name__}: {str(error)[-400:]}"
    torch._dynamo.reset()
    compiled = torch.compile(net)
    calls = {kind: lambda plan=plan: plan(x) for kind, plan in plans.items()}
    calls |= {"eager": lambda: net(x), "inductor": lambda: compiled(x)}
    found = {"tvm+ours": plain.captured()} | {kind: captured(call) for kind, call in calls.items()}
    for kind, machine in peers.items():
        try:
            found[kind] = machine.captured()
        except Exception as error:  # noqa: BLE001 - a peer
            failed[kind] = f"{type(error).__name__}: {str(error)[-400:]}"
    found["own graphs"] = graphs.output(), graphs.call
    outputs, errors = dict[str, Any](), dict[str, float]()
    for kind, (y, replay) in found.items():  # each again: what one replays may lie where another's output does
        replay()
        torch.cuda.synchronize()
        outputs[kind] = y.clone()
        errors[kind] = float((y.double() - wanted).norm() / wanted.norm())
    times = in_turn({kind: replay for kind, (_, replay) in found.items()})
    us = {c: statistics.median(t) for c, t in times.items()} | {"calls": wall(plain.call)}
    row: dict[str, Any] = {
        "us": us,
        "spread": {c: (max(t) - min(t)) / us[c] for c, t in times.items()},
        "error": errors,
        "same bits": bool((outputs["tvm+ours"] == outputs["ours"]).all()),
        "failed peers": failed,
    }
    if "tuned" in us:
        row["tuning"] = import_module("experiments.mcfuser.tvm_tuned").seconds(folder, output, name)
    for file in (f"{name}.json", f"{name}-plan.json"):
        row |= json.loads((folder / file).read_text())
    return row


def runtime(folder: Path) -> Any:
    """TVM's, of FOLDER/runtime."""
    sys.path.insert(0, str(folder / "runtime"))
    return import_module("mufuser_model").runtime(folder / "runtime")


def _alone(ffi: Any, folders: tuple[Path, Path], name: str, given: tuple[Any, Any]) -> Machine:
    return Machine(ffi, folders[0] / f"{name}-tvm.so", *given)


def _tuned(ffi: Any, folders: tuple[Path, Path], name: str, given: tuple[Any, Any]) -> Machine:
    from experiments.mcfuser.tvm_tuned import choice
    from experiments.mcfuser.tvm_tuned import register

    kept = register(ffi, folders[0], choice(*folders, name))
    made = Machine(ffi, folders[0] / f"{name}-tuned.so", *given)
    made.keep += kept
    return made


class Machine:
    """A library on TVM's virtual machine over torch tensors. ``weights`` are by name, or in the order of its arguments.

    What a captured call held goes back to TVM's pool, from which the next machine takes what it makes of its weights: a replay
    of the former would write over them. So all machines are made before any is captured.
    """

    def __init__(self, ffi: Any, path: Path, x: Any, weights: Any) -> None:
        import torch

        self.ffi = ffi
        machine = ffi.load_module(str(path))["vm_load_executable"]()
        machine["vm_initialization"](2, torch.cuda.current_device(), 2, 1, 0, 2)
        if isinstance(weights, dict):
            tensors = json.loads(machine["about"]())["weights"]["tensors"]
            for spec in tensors:
                have = weights.get(spec["name"])
                if have is None or list(have.shape) != spec["shape"]:
                    raise ValueError(f"{path.name} is of another plan: {spec['name']} {spec['shape']}")
            more = [tuple(weights[s["name"]].contiguous() for s in tensors)]
        else:
            more = list(machine["main_transform_params"](self._given(tuple(weights))))
        self.keep = [machine]
        self.main, self.args = machine["main"], [self._given(a) for a in (x, *more)]

    def _given(self, value: Any) -> Any:
        many = isinstance(value, tuple)
        if isinstance(value, self.ffi.Tensor):
            return value
        return self.ffi.convert(tuple(map(self.ffi.from_dlpack, value))) if many else self.ffi.from_dlpack(value)

    def call(self) -> Any:
        return self.main(*self.args)

    def output(self) -> Any:
        """The output after some calls: those that capture, and replays."""
        import torch

        for _ in range(3):
            self.call()
        found = self.call()
        torch.cuda.synchronize()
        return torch.from_dlpack(found).clone()

    def captured(self) -> tuple[Any, Callable[[], None]]:
        import torch

        self.output()
        graph = torch.cuda.CUDAGraph()
        with self.ffi.use_torch_stream(torch.cuda.graph(graph, capture_error_mode="relaxed")):
            found = self.call()
        graph.replay()
        torch.cuda.synchronize()
        return torch.from_dlpack(found), lambda keep=(self, found): graph.replay()


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Figure 9: microseconds, what the first column is against others, errors against float64; table IV: seconds of tuning."""
    heads = [
        f"{'network':<12}",
        *(f"{c:>11}" for c in COLUMNS),
        *(f"{f'×{c}':>11}" for c in AGAINST),
        f"{'error':>10}{'eager':>10}",
    ]
    lines, notes = ["".join(heads)], []
    for name, row in rows.items():
        if "failed" in row:
            lines.append(f"{name:<12}{row['failed']}")
            continue
        us, error = row["us"], row["error"]
        cells = [f"{us[c]:>11.1f}" if c in us else f"{'-':>11}" for c in COLUMNS]
        cells += [f"{us[c] / us['tvm+ours']:>11.2f}" if c in us else f"{'-':>11}" for c in AGAINST]
        same = "" if row["same bits"] else "  other bits than ours"
        lines.append(f"{name:<12}{''.join(cells)}{error['tvm+ours']:>10.1e}{error['eager']:>10.1e}{same}")
        notes += [f"{name}: {peer} is wrong: {e:.1e}" for peer, e in error.items() if not e < WITHIN]
        notes += [f"{name}: {peer} failed: {why}" for peer, why in row["failed peers"].items()]
    spreads = [f"{n} {max(r['spread'].values()):.2f}" for n, r in rows.items() if "spread" in r]
    notes += [f"largest spread of a contestant's rounds: {', '.join(spreads)}"] if spreads else []
    return "\n".join([*lines, "", *(f"{c}: {what}" for c, what in COLUMNS.items()), *notes, "", *_tuning(rows)]) + "\n"


def _tuning(rows: dict[str, dict[str, Any]]) -> list[str]:
    """Seconds to choose and compile, and those of the best of MetaSchedule's schedules."""
    heads = ("network", "ours", "paper", "MetaSchedule: draw", "compile", "time", "trials")
    lines = ["".join(f"{h:>20}" for h in heads)]
    for name, row in rows.items():
        if "planning" in row:
            of = row.get("tuning", {})
            drawn = [f"{of[k]:.0f}" if k in of else "-" for k in ("draw", "compile", "time", "trials")]
            lines.append("".join(f"{c:>20}" for c in (name, f"{row['planning']:.0f}", PAPER.get(name, "-"), *drawn)))
    return [
        *lines,
        "",
        "ours: seconds to choose and compile all kernels, the networks side by side; paper: MCFuser with Relay, table IV;",
        "draw: seconds of one process without a GPU; compile: of all cores together; trials: measured of a task with a product",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("build", "prepare", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help=f"networks (default: {' '.join(DEFAULT)})")
    parser.add_argument("-o", "--output", type=Path, default=Path("h200-relax"))
    given = parser.parse_intermixed_args()
    make_folder(given.folder)
    names: list[str] = given.names or [*DEFAULT]
    if given.step == "run":
        run(given.folder, names, given.output)
    else:
        (build if given.step == "build" else prepare)(given.folder, names)


if __name__ == "__main__":
    script(main)
