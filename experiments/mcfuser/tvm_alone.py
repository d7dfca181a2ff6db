"""Whole networks as TVM 0.27 makes them without our kernels: with schedules by rule (DLight).

    python -m experiments.mcfuser.tvm_alone FOLDER [NAME...]      # with TVM 0.27, without a GPU

Attention is written out (TVM's own operator becomes loops without tensor cores), products sum in float32, and weights are
transposed once (LiftTransformParams). The architecture is called sm_90: DLight takes tensor cores where that is a number, and
sm_90a is none to it. Its schedules for them (and MetaSchedule: :mod:`experiments.mcfuser.tvm_tuned`) need tvm_ffi 0.1.14: with
0.1.15 TVM ends the process where it serialises a function, which every tensorized block takes.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from experiments.mcfuser.relax_runtime import DEFAULT
from experiments.mcfuser.relax_runtime import network
from experiments.script import script
from fuser.outputs import make_folder
from fuser.outputs import write_file

LIMITS = {
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 232448,
    "thread_warp_size": 32,
    "registers_per_block": 65536,
}


def target() -> Any:
    import tvm

    return tvm.target.Target({"kind": "cuda", "arch": "sm_90", **LIMITS}, host={"kind": "llvm"})


def imported(name: str) -> Any:
    """A network as TVM's importer has it, legal and fused, nothing scheduled: ``main`` takes the input and what
    ``main_transform_params`` makes of the weights."""
    import torch
    import tvm
    from tvm import relax

    ops: Any = relax.op

    def product(x: Any, y: Any) -> Any:
        return ops.matmul(x, y, out_dtype="float32")

    def linear(x: Any, w: Any, b: Any = None, _: str = "") -> Any:
        y = ops.astype(product(x, ops.permute_dims(w)), "float16")
        return y if b is None else ops.add(y, b)

    def attention(q: Any, k: Any, v: Any, bias: Any = None, scale: Any = None, causal_mask: Any = None) -> Any:
        rows, keys, size = int(q.ty.shape[1]), int(k.ty.shape[1]), int(q.ty.shape[3])
        q, k, v = (ops.permute_dims(t, (0, 2, 1, 3)) for t in (q, k, v))
        scores = ops.multiply(product(q, ops.permute_dims(k, (0, 1, 3, 2))), relax.const(size**-0.5, "float32"))
        if causal_mask:
            mask = np.where(np.tri(rows, keys, dtype=bool), 0.0, -1e30).astype("float32")
            scores = ops.add(scores, relax.const(mask))
        weights = ops.astype(ops.nn.softmax(scores, -1), "float16")
        return ops.permute_dims(ops.astype(product(weights, v), "float16"), (0, 2, 1, 3))

    net, shapes = network(name)
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        exported = torch.export.export(net, tuple(torch.zeros(s, dtype=torch.float16) for s in shapes))
        kept = ops.linear, ops.nn.attention
        ops.linear, ops.nn.attention = linear, attention

        read: Any = import_module("tvm.relax.frontend.torch").from_exported_program
        made = read(exported, keep_params_as_input=True, unwrap_unit_return_tuple=True, run_ep_decomposition=False)
        ops.linear, ops.nn.attention = kept
    module, _ = relax.frontend.detach_params(made)  # type: ignore[attr-defined]
    pipeline = import_module("tvm.relax.backend.cuda.pipeline")
    first = [relax.transform.LiftTransformParams(), *pipeline.legalize_passes(target())[:-1]]
    with target():
        return tvm.transform.Sequential(first)(module)


def compiled(module: Any) -> Any:
    """The module with DLight's schedules for what has none."""
    import tvm

    from tvm_bridge.back.relax_library import need_compiler

    need_compiler(())
    pipeline = import_module("tvm.relax.backend.cuda.pipeline")
    goal = target()
    rest = [pipeline.legalize_passes(goal)[-1], *pipeline.dataflow_lower_passes(goal), *pipeline.finalize_passes(goal)]
    with goal, tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": False}):
        return tvm.compile(module, target=goal, relax_pipeline=tvm.transform.Sequential(rest))  # type: ignore[attr-defined]


def compiled_alone(name: str) -> Any:
    """A network with DLight's schedules."""
    return compiled(imported(name))


def build(folder: Path, names: list[str]) -> None:
    """``NAME-tvm.so`` of each network, and the seconds that it took in ``NAME-tvm.json``."""
    for name in names:
        start = time.perf_counter()
        compiled_alone(name).export_library(str(folder / f"{name}-tvm.so"))
        write_file(folder / f"{name}-tvm.json", json.dumps({"seconds": time.perf_counter() - start}) + "\n")
        print(name, f"{time.perf_counter() - start:.0f} s", flush=True)


def main() -> None:
    from tvm_bridge.back.offline_cuda import load
    from tvm_bridge.flavour import import_tvm

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help=f"networks (default: {' '.join(DEFAULT)})")
    given = parser.parse_args()
    make_folder(given.folder)
    load(import_tvm())
    build(given.folder, given.names or [*DEFAULT])


if __name__ == "__main__":
    script(main)
