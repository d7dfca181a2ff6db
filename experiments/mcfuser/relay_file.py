"""A Relay file of TVM 0.19 on a GPU: do its kernels, as a library of TVM 0.27, give what the original gives in TVM 0.19?

    python -m experiments.mcfuser.relay_file make FOLDER          # with TVM 0.19: the file, an input, and TVM's outputs
    python -m experiments.mcfuser.relay_file build FOLDER         # with TVM 0.27, without a GPU: model.so, its weights beside it
    python -m experiments.mcfuser.relay_file prepare FOLDER       # on the GPU's machine: the weights again
    python -m experiments.mcfuser.relay_file run FOLDER -o OUT    # there, with TVM's runtime alone, of FOLDER/runtime

Weights are drawn by name from a seed, so that the folder that travels has none. ``run`` also calls ``mufuser optimize`` on the
file, which runs the model on the GPU and times it.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
import zlib
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from experiments.script import script
from fuser.cli import main as mufuser
from fuser.device import load_device
from fuser.outputs import make_folder
from fuser.outputs import write_file

TARGET = "h200"


def drawn(specs: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray[Any, Any]]:
    """Weights of each name and shape, the same everywhere: of 0.02 about 0, scales of norms about 1."""

    def one(name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, np.float32) * np.float32(0.02)
        return values + np.float32(1) if "norm" in name.lower() and name.endswith("weight") else values

    return {name: one(name, tuple(shape)) for name, shape in specs.items()}


def make(folder: Path, name: str) -> None:
    """``model.json`` as TVM 0.19 saves it, ``weights.json`` with their shapes, ``sample.npz`` with an input and TVM's outputs."""
    import tvm
    from tvm import relay
    from tvm.contrib import graph_executor

    from experiments.models import relay_module

    mod, params = relay_module(name)
    specs = {n: tuple(p.shape) for n, p in params.items()}
    weights = drawn(specs)
    write_file(folder / "model.json", tvm.ir.save_json(mod))
    write_file(folder / "weights.json", json.dumps(specs))
    with tvm.transform.PassContext(opt_level=3):
        built = relay.build(mod, target="llvm", params=weights)
    machine = graph_executor.GraphModule(built["default"](tvm.cpu()))
    free = [v for v in mod["main"].params if v.name_hint not in specs]
    shape = tuple(int(d) for d in free[0].type_annotation.shape)
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    machine.run(**{free[0].name_hint: x})
    outputs = [machine.get_output(i).numpy() for i in range(machine.get_num_outputs())]
    np.savez(folder / "sample.npz", x, *outputs)
    print(f"{name}: {len(specs)} weights, outputs {[y.shape for y in outputs]}")


def _weights(folder: Path, ffi: Any) -> Path:
    """The parameter file of the model, written again."""
    return _saved(ffi, folder / "model.params", drawn(json.loads((folder / "weights.json").read_text())))


def _saved(ffi: Any, path: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Path:
    save = ffi.get_global_func("runtime.SaveParamsToFile")
    save({n: ffi.from_dlpack(np.array(a, order="C")) for n, a in arrays.items()}, str(path))
    return path


def _compiled(folder: Path, params: Path, jobs: int) -> Any:
    from fuser.frontends.model_file import read_model_file
    from search.choose import compile_imported
    from search.how import How

    file = read_model_file(folder / "model.json", params)
    return compile_imported(file.imported, load_device(TARGET), None, How(checked=False, jobs=jobs, ours=False))


def build(folder: Path) -> None:
    """``library/model.so``, without its weights."""
    from tvm_bridge.back.offline_cuda import load
    from tvm_bridge.back.recipe import recipe_of
    from tvm_bridge.back.relax import compiled
    from tvm_bridge.back.relax import module_of
    from tvm_bridge.flavour import import_tvm

    load(import_tvm())
    recipe = recipe_of(_compiled(folder, _weights(folder, import_module("tvm_ffi")), 2))
    make_folder(folder / "library")
    compiled(recipe, module_of(recipe, None)).export_library(str(folder / "library" / "model.so"))
    print(len(recipe.launches), "launches")


def prepare(folder: Path) -> None:
    """On the GPU's machine, before anything is timed: weights, the plan with them, and the library's file of them."""
    import mufuser_model
    import torch  # noqa: F401 - brings CUDA's runtime

    from tvm_bridge.back.recipe import recipe_of

    ffi = mufuser_model.runtime(folder / "runtime")
    made = _compiled(folder, _weights(folder, ffi), 16)
    table, weights = (recipe := recipe_of(made)).table, recipe.weights
    _saved(ffi, folder / "library" / "model.params", {n: np.asarray(made.params[n], table[n].dtype) for n in weights})
    (folder / "made.pkl").write_bytes(pickle.dumps(replace(made, called=None)))
    print(len(recipe.launches), "launches", flush=True)


def run(folder: Path, output: Path) -> int:
    """The library over the stored input, compared with the stored outputs; then ``mufuser optimize`` of the same file."""
    import mufuser_model
    import torch

    from search.measure.replays import medians

    make_folder(output)
    made = replace(pickle.loads((folder / "made.pkl").read_bytes()), device="cuda")
    mufuser_model.runtime(folder / "runtime")
    model = mufuser_model.Model(folder / "library")
    x, *wanted = np.load(folder / "sample.npz").values()
    given = torch.from_numpy(x).cuda()
    results = [model(given) for _ in range(3)][-1]  # captured in the first call
    found = [torch.from_dlpack(y).double().cpu().numpy() for y in results]
    differences = [float(np.linalg.norm(y - z) / np.linalg.norm(z)) for y, z in zip(found, wanted, strict=True)]
    row = {
        "gpu": torch.cuda.get_device_name(),
        "kernels": len(made.graph.kernels),
        "relative difference from TVM 0.19": differences,
        "us": medians({"library": lambda: model(given), "our runtime": made.captured(given).replay}),
    }
    write_file(output / "relay.json", json.dumps(row, indent=1) + "\n")
    print(row, flush=True)
    files = [str(folder / "model.json"), "--params", str(folder / "model.params")]
    return mufuser(["optimize", *files, "-j", "16", "-o", str(folder / "out")])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("make", "build", "prepare", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("-n", "--network", default="bert-base", help="of experiments/models.py, for make")
    parser.add_argument("-o", "--output", type=Path, default=Path("h200-relay"))
    given = parser.parse_args()
    make_folder(given.folder)
    sys.path.insert(0, str(given.folder / "runtime"))
    if given.step == "run":
        return run(given.folder, given.output)
    if given.step == "make":
        make(given.folder, given.network)
    else:
        (build if given.step == "build" else prepare)(given.folder)
    return 0


if __name__ == "__main__":
    script(main)
