"""Regions of an imported model put back into its live Relay module, built, and compared with the module as it was."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("TOPHUB_LOCATION", "NONE")  # else every build waits for a download

from fuser.errors import FuserError
from fuser.errors import ModelFileError
from fuser.errors import UnsupportedError
from fuser.ir.ops import Array
from fuser.lower.compile import intermediates
from tvm_bridge.api import Comparison
from tvm_bridge.api import FusedRegion
from tvm_bridge.api import Optimized
from tvm_bridge.carve import ExprRef
from tvm_bridge.carve import Numbering
from tvm_bridge.carve import RegionSpec
from tvm_bridge.carve import carve
from tvm_bridge.carve import number
from tvm_bridge.embed import RegionKernels
from tvm_bridge.flavour import import_tvm
from tvm_bridge.flavour import require_relay
from tvm_bridge.relay import build as build_module
from tvm_bridge.relay import check_region
from tvm_bridge.relay import region_symbols
from tvm_bridge.relay import resolve_target
from tvm_bridge.relay_graph import Ref
from tvm_bridge.relay_import import ImportedModel


def load(model: str | Path, params: str | Path | None) -> tuple[Any, dict[str, Any]]:
    """A live module and its parameters from files that the reader has accepted."""
    require_relay()
    tvm = import_tvm()
    try:
        mod = tvm.ir.load_json(Path(model).read_text())
        arrays = dict(tvm.runtime.load_param_dict(Path(params).read_bytes())) if params else {}
    except (tvm.TVMError, ValueError) as error:
        raise ModelFileError(
            f"this TVM cannot load {model}: {str(error).strip().splitlines()[-1]}", "save it again with the TVM that is installed"
        ) from error
    return tvm.relay.transform.InferType()(mod), arrays


def reference(imported: ImportedModel, numbering: Numbering, tensor: str) -> ExprRef:
    """Where the live module has a tensor of the program."""
    ref: Ref = imported.origin[tensor]
    graph = imported.model.graph
    if ref.kind == "input":
        return ExprRef("var", graph.inputs[ref.index].name)
    if ref.kind == "node":
        node = graph.nodes[ref.index]
        if node.call[0] != "main":
            raise UnsupportedError(f"{tensor} is computed inside the function {node.call[0]}", "inline nested functions first")
        return ExprRef("call", node.call[1], ref.field if len(node.types) > 1 else None)
    value = graph.constants[ref.index].value
    for i, constant in enumerate(numbering.constants):
        found = constant.data.numpy()
        if found.shape == value.shape and np.array_equal(found, value.astype(found.dtype), equal_nan=found.dtype.kind == "f"):
            return ExprRef("constant", i)
    raise UnsupportedError(f"the constant {tensor} is not in the live module")


def spec(imported: ImportedModel, numbering: Numbering, region: FusedRegion) -> RegionSpec:
    """The place of a region in the live module."""
    nodes = imported.between(region.region.inputs, region.region.outputs)
    calls = {imported.model.graph.nodes[i].call for i in nodes}
    if other := {f for f, _ in calls} - {"main"}:
        raise UnsupportedError(
            f"region {region.name} reaches into the function {sorted(other)[0]}", "inline nested functions first"
        )
    return RegionSpec(
        region.name,
        frozenset(i for _, i in calls),
        tuple(reference(imported, numbering, t) for t in region.region.inputs),
        tuple(reference(imported, numbering, t) for t in region.region.outputs),
    )


def region_kernels(region: FusedRegion) -> RegionKernels:
    """The compiled kernels of a region with what lives between them."""
    done = region.realised
    between = intermediates(done.candidate.graph, done.artifacts)
    return RegionKernels(
        done.artifacts,
        region.region.program.inputs,
        region.region.program.outputs,
        {name: (arg.shape, arg.dtype) for name, arg in between.items()},
    )


def build(result: Optimized, mod: Any, params: Mapping[str, Any], target: str = "llvm") -> Optimized:
    """Carve the regions out and build the module: with their PTX where this TVM has CUDA, with their Relay bodies on the CPU
    where not.
    """
    require_relay()
    tvm = import_tvm()
    numbering = number(mod)
    kept: list[FusedRegion] = []
    specs: list[RegionSpec] = []
    notes: list[str] = []
    for region in result.regions:
        try:
            specs.append(spec(result.imported, numbering, region))
            kept.append(region)
        except FuserError as error:
            notes.append(f"{region.name} stays with TVM: {error.message}")
    carved = carve(mod, specs)
    symbols = region_symbols(carved)
    checked: set[str] = set()
    for r in kept:
        key = r.region.program.stable_hash()
        if key not in checked:  # the kernels were made from the program, the model has the Relay body: they must agree
            single = all(t.dtype == "float32" for t in r.region.program.tensors)
            tolerance = 1e-4 if single else 2e-2
            check_region(carved, symbols[r.name], r.region.program, np.random.default_rng(0), params, tolerance)
            checked.add(key)
    regions = tuple(replace(r, symbol=symbols.get(r.name, "")) for r in result.regions)
    kernels = {r.symbol: region_kernels(r) for r in regions if r.symbol}
    has_cuda = tvm.get_global_func("target.build.cuda", allow_missing=True) is not None and tvm.cuda(0).exist
    built = build_module(carved, params, kernels, resolve_target("cuda" if has_cuda else target))
    note = (
        "the regions run their PTX"
        if has_cuda
        else "this TVM has no CUDA: regions run their Relay bodies on the CPU, the PTX is in the output"
    )
    return replace(result, regions=regions, built=built, notes=(*result.notes, *notes, note))


def random_inputs(imported: ImportedModel, rng: np.random.Generator) -> dict[str, Array]:
    """Inputs of the model: standard normal floats; integers 0 and 1, which are valid as token, segment and mask."""
    found: dict[str, Array] = {}
    for var in imported.model.inputs:
        shape, dtype = var.type.dims, var.type.dtype
        if dtype.startswith(("float", "bfloat")):
            found[var.name] = rng.standard_normal(shape).astype(np.float32 if dtype == "bfloat16" else dtype)
        else:
            found[var.name] = rng.integers(0, 2, shape).astype(dtype)
    return found


def compare(result: Optimized, mod: Any, params: Mapping[str, Any], rng: np.random.Generator) -> Comparison:
    """Run the built model and the unpartitioned one on the same inputs.

    The unpartitioned graph is evaluated operator by operator in numpy (float32), which shares no code with the build; where it
    has an operator that numpy lacks, TVM builds it too.
    """
    assert result.built is not None
    inputs = random_inputs(result.imported, rng)
    out = result.built.run(inputs)
    try:
        plain, how = list(result.imported.model.evaluate(inputs)), "numpy"
    except UnsupportedError:
        plain, how = build_module(mod, params, {}, result.built.target).run(inputs), "TVM"
    largest = max(float(np.max(np.abs(a.astype(np.float64) - b.astype(np.float64)))) for a, b in zip(out, plain, strict=True))
    scale = max(float(np.max(np.abs(b.astype(np.float64)))) for b in plain)
    return Comparison(largest, largest / max(scale, 1e-30), f"{result.built.target.kind.name} against {how}")
