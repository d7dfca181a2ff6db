"""A recipe as one module of Relax (TVM 0.27), and as a library that TVM's virtual machine runs on a GPU.

Kernels are embedded as they were compiled, each called by a host function of its own; Relax plans the memory between them, and
captures them in CUDA graphs. The weights are constants of the library, or a tuple that is the last argument of ``main`` (and that
a CUDA graph keeps: it must be the same one in every call). ``about`` returns JSON that says what the library is.

Nothing here needs a GPU, but all of it a process that ends afterwards (:mod:`tvm_bridge.back.offline_cuda`).
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fuser.errors import EnvironmentError_
from fuser.errors import UnsupportedError
from fuser.errors import said
from fuser.installed import version_of
from fuser.ir.ops import Array
from fuser.ir.program import Tensor
from search.buckets.places import Dim
from search.buckets.places import Dims
from tvm_bridge.back import offline_cuda
from tvm_bridge.back import relax_library
from tvm_bridge.back.bucket_recipe import BucketRecipe
from tvm_bridge.back.recipe import Launch
from tvm_bridge.back.recipe import Recipe
from tvm_bridge.back.relax_launch import Code
from tvm_bridge.back.relax_launch import cuda_module
from tvm_bridge.back.relax_launch import host_function
from tvm_bridge.back.relax_launch import open_shape
from tvm_bridge.flavour import import_tvm

FORMAT, OPEN_FORMAT = 1, 2
"""Of what ``about`` returns, with sizes that are all fixed and with open ones; another number is another convention of calling
``main``."""


def module_of(recipe: Recipe | BucketRecipe, values: Mapping[str, Array] | None, code: Code = "cubin") -> Any:
    """The module: ``main`` over the inputs, with ``values`` of the weights as constants, or without them over a tuple of weights
    too. Of buckets each is a function of its own, and ``main`` calls the first that has room for the sizes of its inputs."""
    tvm, relax = import_tvm(), _relax()
    builder, functions = relax.BlockBuilder(), dict[Any, Any]()
    held = None if values is None else {n: relax.const(_tensor(recipe.table[n], values[n])) for n in recipe.weights}
    if isinstance(recipe, Recipe):
        _function(builder, "main", recipe, recipe, held, functions)
    else:
        for i, (_, one) in enumerate(recipe.buckets):
            _function(builder, f"bucket_{i}", one, recipe, held, functions)
        _dispatch(builder, recipe, held is None)
    with builder.function("about", []):
        builder.emit_func_output(tvm.ir.StringImm(json.dumps(about(recipe, "beside" if values is None else "inside"))))
    entries = {s.entry: s for s in recipe.launches}
    module = builder.get().with_attr("external_mods", [cuda_module(s, code) for s in entries.values()])
    return relax.transform.InlinePrivateFunctions()(module) if recipe.calls else module


def _params(recipe: Recipe, whole: Recipe | BucketRecipe, packed: bool) -> tuple[list[Any], dict[str, Any]]:
    """Variables of the inputs, and of the tuple of weights where they are ``packed``; and those of the open sizes."""
    relax, sizes = _relax(), dict[str, Any]()
    params = [relax.Var(f"x{i}", _type(recipe.table[n], recipe.dims.get(n), sizes)) for i, n in enumerate(recipe.inputs)]
    if packed:
        params.append(relax.Var("weights", relax.TupleType([_type(whole.table[n]) for n in whole.weights])))
    return params, sizes


def _function(
    builder: Any,
    name: str,
    recipe: Recipe,
    whole: Recipe | BucketRecipe,
    held: Mapping[str, Any] | None,
    functions: dict[Any, Any],
) -> None:
    """The steps of a recipe as a function; ``whole`` has the weights, ``held`` them as constants, ``functions`` those
    that launch."""
    relax = _relax()
    params, sizes = _params(recipe, whole, held is None)
    known = dict(zip(recipe.inputs, params, strict=False)) | dict(held or {})
    with builder.function(name, params, attrs={"num_input": len(recipe.inputs)}):
        with builder.dataflow():
            if held is None:
                mine = [(i, n) for i, n in enumerate(whole.weights) if n in recipe.weights]
                known |= {n: builder.emit(relax.TupleGetItem(params[-1], i)) for i, n in mine}
            for step in recipe.steps:
                if isinstance(step, Launch):
                    known |= _launched(builder, step, known, recipe, sizes, functions)
                else:
                    function = relax_library.function(step, recipe.table).without_attr("global_symbol")
                    function = function.with_attr("Primitive", 0).without_attr("Primitive")
                    called = builder.add_func(function, f"library_{step.op}")
                    known[step.output] = builder.emit(relax.Call(called, [known[n] for n in step.args]))
            found = [known[n] for n in recipe.outputs]
            result = builder.emit_output(found[0] if len(found) == 1 else relax.Tuple(found))
        builder.emit_func_output(result)


def _dispatch(builder: Any, recipe: BucketRecipe, packed: bool) -> None:
    """``main`` of buckets. What none has room for goes to the last, which refuses it (:func:`host_function`)."""
    relax, tirx = _relax(), import_module("tvm.tirx")
    params, sizes = _params(recipe.largest, recipe, packed)
    functions = [builder.get().get_global_var(f"bucket_{i}") for i in range(len(recipe.buckets))]

    def within(limits: Mapping[str, int]) -> Any:
        return relax.prim_value(functools.reduce(tirx.And, [sizes[s] <= n for s, n in limits.items()]))

    with builder.function("main", params):
        called = relax.Call(functions[-1], params)
        for (limits, _), function in reversed(list(zip(recipe.buckets, functions, strict=True))[:-1]):
            called = relax.If(within(limits), relax.Call(function, params), called)
        builder.emit_func_output(builder.emit(called))


def about(recipe: Recipe | BucketRecipe, weights: str) -> dict[str, Any]:
    """What a library is, for whoever loads it. An open size stands as its name in a shape (``8*seq`` for 8 times as much), and in
    ``sizes`` with its limits."""
    one, buckets = (recipe, ()) if isinstance(recipe, Recipe) else (recipe.largest, recipe.buckets)

    def signature(names: tuple[str, ...], table: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        return [{"name": n, "shape": _shape_text(table[n], one.dims.get(n)), "dtype": table[n].dtype} for n in names]

    found = {
        "format": OPEN_FORMAT if buckets else FORMAT,
        "model": recipe.name,
        "arch": recipe.arch,
        "tvm": version("apache-tvm"),
        "tvm_ffi": version("apache-tvm-ffi"),
        "mufuser": version_of("mufuser"),
        "inputs": signature(one.inputs, one.table),
        "outputs": signature(one.outputs, one.table),
        "weights": {"where": weights, "tensors": signature(recipe.weights, recipe.table)},
    }
    if not isinstance(recipe, Recipe):
        found["sizes"] = {
            s: {"least": recipe.least[s], "buckets": sorted({limits[s] for limits, _ in buckets})} for s in recipe.least
        }
    return found


def _shape_text(tensor: Tensor, dims: Dims | None) -> list[Any]:
    def text(dim: Dim, extent: int) -> Any:
        names = [f.symbol for f in dim if f.symbol]
        fixed = math.prod(f.extent for f in dim if not f.symbol)
        return "*".join([*([str(fixed)] if fixed > 1 else []), *names]) if names else extent

    return list(tensor.shape) if dims is None else [text(d, n) for d, n in zip(dims, tensor.shape, strict=True)]


def _launched(
    builder: Any, step: Launch, known: Mapping[str, Any], recipe: Recipe, sizes: dict[str, Any], functions: dict[Any, Any]
) -> dict[str, Any]:
    """The results of a launch by name. Launches of one entry over equal tensors share their host function."""
    relax, table, dims = _relax(), recipe.table, recipe.dims
    ends = tuple((table[n].shape, table[n].dtype, dims.get(n)) for n in (*step.inputs, *step.outputs))
    order = tuple((*step.inputs, *step.outputs).index(n) for n in step.args)
    key = (step.entry, ends, order)
    if key not in functions:
        name = f"launch_{len(functions)}_{step.entry}"
        functions[key] = builder.add_func(host_function(name, step, table, dims), name)
    types = [_type(table[n], dims.get(n), sizes) for n in step.outputs]
    args = [known[n] for n in step.inputs]
    made = builder.emit(relax.call_tir(functions[key], relax.Tuple(args), types if len(types) > 1 else types[0]))
    if len(types) == 1:
        return {step.outputs[0]: made}
    return {n: builder.emit(relax.TupleGetItem(made, i)) for i, n in enumerate(step.outputs)}


def _relax() -> Any:
    return import_module("tvm.relax")


def _type(tensor: Tensor, dims: Dims | None = None, sizes: dict[str, Any] | None = None) -> Any:
    return _relax().TensorType(open_shape(tensor, dims, {} if sizes is None else sizes), tensor.dtype)


def _tensor(tensor: Tensor, value: Array) -> Any:
    """A weight in its dtype, on the CPU."""
    import numpy as np

    tvm = import_tvm()
    if tensor.dtype != "bfloat16":
        return tvm.runtime.tensor(np.ascontiguousarray(value, tensor.dtype).reshape(tensor.shape))
    import ml_dtypes

    return tvm.runtime.tensor(np.ascontiguousarray(value).astype(ml_dtypes.bfloat16).reshape(tensor.shape))


def compiled(recipe: Recipe | BucketRecipe, module: Any, graphs: bool = True) -> Any:
    """The module compiled for the recipe's architecture; ``graphs``: what can be captured is replayed as a CUDA graph."""
    tvm, pipeline = import_tvm(), import_module("tvm.relax.backend.cuda.pipeline")
    major, minor = divmod(recipe.arch, 10)
    suffix = "a" if recipe.arch >= 90 else ""
    target = tvm.target.Target({"kind": "cuda", "arch": f"sm_{major}{minor}{suffix}"}, host={"kind": "llvm"})
    if recipe.calls:
        relax_library.need_compiler(recipe.calls)
    legal = [*pipeline.library_dispatch_passes(target), *pipeline.legalize_passes(target)] if recipe.calls else []
    passes = [*legal, *pipeline.dataflow_lower_passes(target), *pipeline.finalize_passes(target)]
    try:
        with target, tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": graphs}):
            return tvm.compile(module, target=target, relax_pipeline=tvm.transform.Sequential(passes))
    except (tvm.error.InternalError, ValueError, RuntimeError, TypeError) as error:
        raise UnsupportedError(
            f"TVM {tvm.__version__} does not compile {recipe.name!r}: {said(error)[-400:]}", "run it in torch (--runtime torch)"
        ) from error


def write_library(
    recipe: Recipe | BucketRecipe,
    values: Mapping[str, Array],
    path: Path,
    weights: str = "inside",
    code: Code = "cubin",
    graphs: bool = True,
) -> dict[str, Any]:
    """Compile a recipe and write it to ``path``, with ``beside`` the weights to ``path.with_suffix('.params')``; what
    :func:`about` says of it. Raises :class:`UnsupportedError`, :class:`EnvironmentError_`."""
    tvm = import_tvm()
    weights = weights if recipe.weights else "inside"
    offline_cuda.load(tvm)
    offline_cuda.compiler()
    module = compiled(recipe, module_of(recipe, values if weights == "inside" else None, code), graphs)
    try:
        module.export_library(str(path))
    except RuntimeError as error:
        raise EnvironmentError_(f"the library cannot be linked: {said(error)[-300:]}", "install gcc or clang") from error
    if weights == "beside":
        tensors = {n: _tensor(recipe.table[n], values[n]) for n in recipe.weights}
        tvm.runtime.save_param_dict_to_file(tensors, str(path.with_suffix(".params")))
    return about(recipe, weights)
