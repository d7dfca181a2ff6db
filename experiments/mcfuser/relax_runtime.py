"""Whole networks as libraries of TVM 0.27 on a GPU: with our kernels and as TVM alone makes them, beside our runtime and torch.

    python -m experiments.mcfuser.relax_runtime build FOLDER      # with TVM 0.27, without a GPU
    python -m experiments.mcfuser.tvm_alone FOLDER                # so too
    python -m experiments.mcfuser.relax_runtime prepare FOLDER    # on the GPU's machine: the plans again, with their weights
    python -m experiments.mcfuser.tvm_figure FOLDER -o OUT        # there: compared with float64, then timed in turn

TVM alone (:mod:`experiments.mcfuser.tvm_alone`) has schedules by rule (DLight), which know no wgmma of Hopper: no strong peer.
Weights are random from a seed, and arguments of the libraries.
"""

from __future__ import annotations

import argparse
import json
import pickle
import resource
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
WITHIN = 2e-2
"""Relative error from which on a contestant is wrong."""


def network(name: str) -> tuple[Any, tuple[tuple[int, ...], ...]]:
    import torch

    torch.manual_seed(0)
    net, shapes = NETWORKS[name].make(1)
    return net.eval().half(), shapes


def plan_of(name: str, device: str | None) -> Any:
    """The compiled program of a network; with ``device`` None all products are generated."""
    import torch

    from fuser.frontends.torch_export import from_torch
    from search.choose import compile_imported
    from search.how import How

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


# -- prepare ----------------------------------------------------------------------------------------------------------------


def prepare(folder: Path, names: list[str]) -> None:
    """``NAME.plans``: the plans, with the weights as they have them. And torch.compile's kernels in its cache."""
    import torch

    for name in names:
        start = _spent()
        made = {"ours": plan_of(name, None)}
        (folder / f"{name}-plan.json").write_text(json.dumps({"planning": _spent() - start}))
        made["default"] = plan_of(name, "cuda:0")
        made["default"] = replace(made["default"], device=None)
        (folder / f"{name}.plans").write_bytes(pickle.dumps(made))
        net, shapes = network(name)
        with torch.no_grad():
            torch.compile(net.cuda())(torch.zeros(shapes[0], dtype=torch.float16, device="cuda"))
        print(name, [len(m.graph.kernels) for m in made.values()], flush=True)


def _spent() -> float:
    """Seconds of all cores: others use the machine too."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in usages)


# -- machines ---------------------------------------------------------------------------------------------------------------


def runtime(folder: Path) -> Any:
    """TVM's, of FOLDER/runtime."""
    sys.path.insert(0, str(folder / "runtime"))
    return import_module("mufuser_model").runtime(folder / "runtime")


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("build", "prepare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help=f"networks (default: {' '.join(DEFAULT)})")
    given = parser.parse_args()
    make_folder(given.folder)
    (build if given.step == "build" else prepare)(given.folder, given.names or [*DEFAULT])


if __name__ == "__main__":
    script(main)
