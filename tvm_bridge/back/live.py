"""Regions of an imported model put back into its live Relay module, built, and compared with the module as it was."""

from __future__ import annotations

import os
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("TOPHUB_LOCATION", "NONE")  # else every build waits for a download

from fuser.errors import FuserError
from fuser.errors import ModelFileError
from fuser.errors import UnsupportedError
from fuser.files import printable
from fuser.ir.ops import Array
from fuser.kept import text_hash
from fuser.lower.compile import intermediates
from fuser.lower.compile import neutral
from search.regions import Left
from tvm_bridge.back.carve import ExprRef
from tvm_bridge.back.carve import Numbering
from tvm_bridge.back.carve import RegionSpec
from tvm_bridge.back.carve import carve
from tvm_bridge.back.carve import number
from tvm_bridge.back.carve import region_symbols
from tvm_bridge.back.embed import RegionKernels
from tvm_bridge.back.relay import BuiltModel
from tvm_bridge.back.relay import build as build_module
from tvm_bridge.back.relay import check_region
from tvm_bridge.back.relay import resolve_target
from tvm_bridge.flavour import import_tvm
from tvm_bridge.flavour import require_relay
from tvm_bridge.planned import program_weights
from tvm_bridge.read.relay_graph import Ref
from tvm_bridge.result import Comparison
from tvm_bridge.result import FusedRegion
from tvm_bridge.result import Optimized
from tvm_bridge.result import predicted_us
from tvm_bridge.to_program.relay_import import ImportedModel


def load(model: str | Path, params: str | Path | None, name: str) -> tuple[Any, dict[str, Any]]:
    """A live module, typed, and its parameters from files that the reader has accepted. TVM may crash on them all the same: call
    it in a process of its own (:mod:`tvm_bridge.apart`)."""
    require_relay()
    tvm = import_tvm()
    try:
        mod = tvm.relay.transform.InferType()(tvm.ir.load_json(Path(model).read_text()))
        return mod, dict(tvm.runtime.load_param_dict(Path(params).read_bytes())) if params else {}
    except Exception as error:  # TVM raises many classes: the file is not what this TVM writes
        last = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise ModelFileError(
            f"this TVM cannot load {name}: {printable(last, 400)}",
            "save it again with the TVM that is installed, or leave TVM out (--runtime torch)",
        ) from error


def reference(imported: ImportedModel, numbering: Numbering, tensor: str) -> ExprRef:
    """Where the live module has a tensor of the program."""
    ref: Ref = imported.origin[tensor]
    graph = imported.model.graph
    if ref.kind == "input":
        return ExprRef("var", graph.inputs[ref.index].name)
    if ref.kind == "node":
        node = graph.nodes[ref.index]
        return ExprRef("call", node.call, ref.field if len(node.types) > 1 else None)
    value = graph.constants[ref.index].value
    for i, constant in enumerate(numbering.constants):
        found = constant.data.numpy()
        if found.shape == value.shape and np.array_equal(found, value.astype(found.dtype), equal_nan=found.dtype.kind == "f"):
            return ExprRef("constant", i)
    raise UnsupportedError(f"the constant {tensor} is not in the live module")


def spec(imported: ImportedModel, numbering: Numbering, region: FusedRegion) -> RegionSpec:
    """The place of a region in the live module."""
    nodes = imported.between(region.inputs, region.region.outputs)
    return RegionSpec(
        region.name,
        frozenset(imported.model.graph.nodes[i].call for i in nodes),
        tuple(reference(imported, numbering, t) for t in region.inputs),
        tuple(reference(imported, numbering, t) for t in region.region.outputs),
        key=_key(region),
    )


def _key(region: FusedRegion) -> str:
    """Equal for regions whose kernels are the same over the same places of inputs, weights and outputs."""
    if not region.weights:
        return ""
    places = {n: i for i, n in enumerate((*region.inputs, *region.weights, *region.region.program.outputs))}
    kernels = [(neutral(a.source), [places.setdefault(n, len(places)) for n in a.source.args]) for a in region.realised.artifacts]
    return text_hash(repr(kernels))


def region_kernels(region: FusedRegion) -> RegionKernels:
    """The compiled kernels of a region with what lives between them."""
    done, program = region.realised, region.region.program
    between = intermediates(done.candidate.graph, done.artifacts)
    weights = _weights(region)
    return RegionKernels(
        done.artifacts,
        tuple(n for n in program.inputs if n not in program_weights(region)),
        program.outputs,
        {name: (arg.shape, arg.dtype) for name, arg in between.items()},
        {name: (value.shape, str(value.dtype)) for name, value in weights.items()},
    )


def _weights(region: FusedRegion) -> dict[str, Any]:
    """The weights in the dtypes of the kernels, on the CPU."""
    dtypes = {arg.name: arg.dtype for a in region.realised.artifacts for arg in a.args}
    return {n: _nd_array(value, dtypes[n]) for n, value in region.weights.items()}


def _nd_array(value: Array, dtype: str) -> Any:
    """An array of TVM on the CPU. It takes bfloat16 by its bits."""
    tvm = import_tvm()
    if dtype != "bfloat16":
        return tvm.nd.array(np.asarray(value, dtype, order="C"))
    bits = np.asarray(value, np.float32, order="C").view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return tvm.nd.empty(rounded.shape, dtype).copyfrom(rounded)


def _specs(result: Optimized, mod: Any) -> tuple[list[RegionSpec], dict[str, str]]:
    """The places of all regions, and by name of a region why it has none."""
    numbering = number(mod)
    specs: list[RegionSpec] = []
    why: dict[str, str] = {}
    for region in result.regions:
        try:
            specs.append(spec(result.imported, numbering, region))
        except FuserError as error:
            why[region.name] = error.message
    return specs, why


def _carve(mod: Any, specs: Sequence[RegionSpec], why: dict[str, str]) -> Any:
    """The carved module; ``why`` gets the regions that do not fit beside the others."""
    try:
        return carve(mod, specs)
    except FuserError:
        kept: list[RegionSpec] = []
    for one in specs:
        try:
            carve(mod, [*kept, one])
            kept.append(one)
        except FuserError as error:
            why[one.name] = error.message
    return carve(mod, kept)


def _differing(result: Optimized, carved: Any, params: Mapping[str, Any]) -> dict[str, str]:
    """Name of each region whose Relay body TVM cannot compile, or whose program is not what its body computes, and why."""
    tvm = import_tvm()
    symbols = region_symbols(carved)
    found: dict[str, str] = {}  # by symbol: equal regions have one function
    for r in result.regions:
        symbol = symbols.get(r.name)
        if symbol is None or symbol in found:
            continue
        single = all(t.dtype == "float32" for t in r.region.program.tensors)
        try:
            rng, tolerance = np.random.default_rng(0), 1e-4 if single else 2e-2
            check_region(carved, symbol, r.region.program, rng, params, tolerance, weights=program_weights(r))
            found[symbol] = ""
        except FuserError as error:
            found[symbol] = error.message
        except (tvm.TVMError, ValueError, TypeError) as error:
            found[symbol] = f"TVM cannot compile its body: {(str(error).strip().splitlines() or [''])[-1][:300]}"
    return {name: found[symbol] for name, symbol in symbols.items() if found.get(symbol)}


def build(result: Optimized, mod: Any, params: Mapping[str, Any], target: str = "llvm") -> Optimized:
    """Carve the regions out and build the module: with their PTX where this TVM has CUDA, with their Relay bodies on the CPU
    where not. A region that cannot be carved out, or whose kernels would not compute what the model does, is left to TVM.
    """
    require_relay()
    tvm = import_tvm()
    specs, why = _specs(result, mod)
    carved = _carve(mod, specs, why)
    if different := _differing(result, carved, params):
        why |= different
        carved = _carve(mod, [s for s in specs if s.name not in why], why)
    symbols = region_symbols(carved)
    regions = tuple(replace(r, symbol=symbols[r.name]) for r in result.regions if r.name in symbols)
    kernels = {r.symbol: region_kernels(r) for r in reversed(regions)}  # of equal ones those of the first
    has_cuda = tvm.get_global_func("target.build.cuda", allow_missing=True) is not None and tvm.cuda(0).exist
    if has_cuda:
        carved = on_gpu(mod, specs, regions)
    built = build_module(carved, params, kernels, resolve_target("cuda" if has_cuda else target), bound=has_cuda)
    note = (
        "the regions run their PTX"
        if has_cuda
        else "this TVM has no CUDA: regions run their Relay bodies on the CPU, the PTX is in the output"
    )
    notes = tuple(f"{name} stays with TVM: {reason}" for name, reason in why.items())
    left = [Left(n, f"stays with TVM: {why[r.name]}") for r in result.regions if r.name in why for n in r.region.contractions]
    after = predicted_us(result.program, result.device, regions)
    return replace(
        result,
        regions=regions,
        left=(*result.left, *left),
        after_us=after,
        built=built,
        notes=(*result.notes, *notes, note),
    )


def on_gpu(mod: Any, specs: Sequence[RegionSpec], regions: Sequence[FusedRegion]) -> Any:
    """The carved module with the kernels' own weights in the place of the model's."""
    weights = {r.name: tuple(_weights(r).values()) for r in regions}
    return carve(mod, [replace(s, weights=weights[s.name]) for s in specs if s.name in weights])


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
    assert isinstance(result.built, BuiltModel)
    inputs = random_inputs(result.imported, rng)
    out = result.built.run(inputs)
    try:
        plain, how = list(result.imported.model.evaluate(inputs)), "numpy"
    except UnsupportedError:
        plain, how = build_module(mod, params, {}, result.built.target).run(inputs), "TVM"
    largest = max((_difference(a, b) for a, b in zip(out, plain, strict=True)), default=0.0)
    scale = max((float(np.max(np.abs(finite))) for b in plain if (finite := _finite(b)).size), default=0.0)
    return Comparison(largest, largest / max(scale, 1e-30), f"{result.built.target.kind.name} against {how}")


def _finite(x: Array) -> Array:
    wide = np.asarray(x, np.float64)
    return wide[np.isfinite(wide)]


def _difference(found: Array, wanted: Array) -> float:
    """Largest absolute difference; infinite where NaN or infinity do not stand in the same places."""
    a, b = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    where = np.isfinite(b)
    if a.shape != b.shape or not np.array_equal(a[~where], b[~where], equal_nan=True):
        return float("inf")
    gap = np.abs(a[where] - b[where])
    return float("inf") if np.isnan(gap).any() else float(gap.max(initial=0.0))
