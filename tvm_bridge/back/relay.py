"""Relay's side of the bridge: the external compiler ``mufuser``, and building, running, saving and loading carved models.

Where TVM has CUDA and a region has kernels, its function becomes a host function that launches their PTX. Elsewhere the
region's own Relay body is compiled for the CPU: such a model has the same calls and the same results, and a saved library needs
nothing but TVM's runtime.
"""

from __future__ import annotations

import contextvars
import math
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from functools import cached_property
from functools import lru_cache
from pathlib import Path
from typing import Any
from typing import Literal

import numpy as np

from fuser.agreement import agreements
from fuser.drawing import Draw
from fuser.drawing import drawn
from fuser.errors import EnvironmentError_
from fuser.errors import NoValidKernelError
from fuser.errors import ProgramError
from fuser.errors import UsageError
from fuser.errors import said
from fuser.ir.program import TensorProgram
from tvm_bridge.back.embed import RegionKernels
from tvm_bridge.back.embed import check_signature
from tvm_bridge.back.embed import cuda_module
from tvm_bridge.flavour import require_relay

require_relay()

import tvm  # noqa: E402
from tvm import relay  # noqa: E402
from tvm.contrib import graph_executor  # noqa: E402
from tvm.contrib.cc import get_cc  # noqa: E402
from tvm.relay.backend.executor_factory import GraphExecutorFactoryModule  # noqa: E402
from tvm.runtime.vm import VirtualMachine  # noqa: E402

from tvm_bridge.back.carve import COMPILER  # noqa: E402
from tvm_bridge.back.carve import inline_regions  # noqa: E402
from tvm_bridge.back.carve import number  # noqa: E402
from tvm_bridge.back.carve import region_functions  # noqa: E402
from tvm_bridge.back.cpu_form import cpu_form  # noqa: E402
from tvm_bridge.to_program.fold import fold_weights  # noqa: E402

Array = np.ndarray[Any, Any]
Executor = Literal["graph", "vm"]


@dataclass(frozen=True)
class _Context:
    """What the external compiler needs to know of the build that calls it."""

    kernels: Mapping[str, RegionKernels | None]
    target: Any


_CONTEXT: contextvars.ContextVar[_Context | None] = contextvars.ContextVar("mufuser_build", default=None)


def resolve_target(target: Any = "llvm") -> Any:
    """A TVM target with its host. ``native`` is LLVM with this machine's instruction set, and not portable."""
    if isinstance(target, str) and target == "native":
        target = f"llvm -mcpu={tvm.get_global_func('target.llvm_get_system_cpu')()}"  # type: ignore[misc]
    try:
        found = tvm.target.Target(target)
    except (tvm.TVMError, ValueError) as error:
        raise UsageError(f"{target!r} is no TVM target", "give llvm, native or cuda, or a target string of TVM") from error
    if found.kind.name == "cuda" and tvm.get_global_func("target.build.cuda", allow_missing=True) is None:
        raise EnvironmentError_("this TVM was built without CUDA", "build TVM with USE_CUDA=ON, or use target llvm")
    return tvm.target.Target(found, host="llvm") if found.kind.name == "cuda" and found.host is None else found


def _shapes(types: Sequence[Any]) -> list[tuple[tuple[int, ...], str]]:
    return [(tuple(int(e) for e in t.shape), str(t.dtype)) for t in types]


def signature(function: Any) -> tuple[list[tuple[tuple[int, ...], str]], list[tuple[tuple[int, ...], str]]]:
    """Shapes and dtypes of the inputs and of the outputs of a region's function."""
    result = function.ret_type
    outputs = list(result.fields) if isinstance(result, tvm.ir.TupleType) else [result]
    return _shapes([p.type_annotation for p in function.params]), _shapes(outputs)


class _Body:
    """What the function of a region computes: equal to those of the same structure."""

    def __init__(self, function: Any) -> None:
        self.function = relay.Function(function.params, function.body, function.ret_type)

    def __hash__(self) -> int:
        return int(tvm.ir.structural_hash(self.function))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Body) and bool(tvm.ir.structural_equal(self.function, other.function))


def _cpu_module(symbol: str, function: Any, target: Any) -> Any:
    """The region's own body, compiled: once, though it is compared with its program and is then part of the model.

    One function ``symbol(inputs…, outputs…)`` over the fused operators, by the ahead-of-time executor.
    """
    return _compiled(symbol, _Body(function), str(target))


@lru_cache(maxsize=64)
def _compiled(symbol: str, body: _Body, target: str) -> Any:
    plain = cpu_form(body.function)
    executor = relay.backend.Executor("aot", {"interface-api": "packed", "unpacked-api": False})
    # The weights are arguments, so that there is little to fold; and this executor cannot lower a constant tensor of booleans.
    with tvm.transform.PassContext(opt_level=3, disabled_pass=["FoldConstant"]):
        built = relay.build(
            tvm.IRModule.from_expr(plain), target=target, executor=executor, runtime=relay.backend.Runtime("cpp"), mod_name=symbol
        )
        (lowered,) = built.lowered_ir_mods.values()  # type: ignore[union-attr]
        functions: dict[Any, Any] = {}
        for variable, made in lowered.functions.items():
            if variable.name_hint == "__tvm_main__":
                main = tvm.tir.PrimFunc(made.params, made.body, made.ret_type, made.buffer_map)
                functions[tvm.ir.GlobalVar(symbol)] = main.with_attr("global_symbol", symbol).with_attr(
                    "target", made.attrs["target"]
                )
            else:
                functions[variable] = made
        return tvm.build(tvm.IRModule(functions), target=target)


@tvm.register_func(f"relay.ext.{COMPILER}", override=True)
def compile_region(function: Any) -> Any:
    """Relay's hook: the runtime module of one carved function."""
    context = _CONTEXT.get() or _Context({}, resolve_target("llvm"))
    symbol = str(function.attrs["global_symbol"])
    kernels = context.kernels.get(symbol)
    if context.target.kind.name != "cuda":
        return _cpu_module(symbol, function, context.target)
    if kernels is None:
        raise ProgramError(f"the region {symbol} has no kernels", "leave it out of the regions to carve, so that TVM compiles it")
    return cuda_module(symbol, kernels, signature(function), context.target)


def _tensors(inputs: Mapping[str, Array], device: Any) -> dict[str, Any]:
    return {name: tvm.nd.array(np.asarray(value, order="C"), device) for name, value in inputs.items()}


def _flatten(result: Any) -> list[Array]:
    return [result.numpy()] if isinstance(result, tvm.nd.NDArray) else [array for part in result for array in _flatten(part)]


def _check_inputs(inputs: Mapping[str, Array], types: Mapping[str, tuple[tuple[int, ...], str]]) -> None:
    """The graph executor computes with whatever is in the memory of its inputs."""
    for name, (shape, dtype) in types.items():
        if name not in inputs:
            raise UsageError(f"the input {name!r} of the model is missing", f"its inputs are {', '.join(map(repr, types))}")
        given, want = np.asarray(inputs[name]), f"{dtype}{list(shape)}"
        if (have := f"{given.dtype}{list(given.shape)}") != want and dtype in np.sctypeDict:
            raise UsageError(f"the input {name!r} is {have}, but the model wants {want}")


@dataclass(frozen=True)
class LoadedModel:
    """A compiled model on a device; ``names`` are its inputs in order, where known."""

    module: Any
    executor: Executor
    device: Any

    @cached_property
    def _runner(self) -> Any:
        if self.executor == "vm":
            return VirtualMachine(self.module, self.device)
        return graph_executor.GraphModule(self.module["default"](self.device))

    @cached_property
    def _types(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Of each input of the graph executor that is no parameter of the library."""
        shapes, dtypes = self._runner.get_input_info()
        known = set(map(str, self.module["get_graph_params"]()))
        return {str(n): (tuple(map(int, s)), str(dtypes[n])) for n, s in shapes.items() if str(n) not in known}

    def run(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Outputs of the model in order, for ``inputs`` by name.

        Raises :class:`UsageError` for a name that the model does not have, an input that is missing, or of another type.
        """
        tensors = _tensors(inputs, self.device)
        runner = self._runner
        try:
            if self.executor == "vm":
                runner.set_input("main", **tensors)
                return _flatten(runner.run())
            if unknown := [name for name in tensors if runner.get_input_index(name) < 0]:
                raise UsageError(f"the model has no input {unknown[0]!r}")
            _check_inputs(inputs, self._types)
            runner.set_input(**tensors)
        except (tvm.TVMError, ValueError) as error:
            raise UsageError(f"the inputs {sorted(inputs)} do not fit the model: {said(error).splitlines()[-1]}") from error
        runner.run()
        return [runner.get_output(i).numpy() for i in range(runner.get_num_outputs())]


@dataclass(frozen=True)
class BuiltModel:
    """A model built with its regions: ``module`` is the carved Relay module, ``factory`` the compiled library."""

    module: Any
    params: Mapping[str, Any]
    kernels: Mapping[str, RegionKernels | None] = field(repr=False)
    target: Any
    factory: Any = field(repr=False)

    @cached_property
    def loaded(self) -> LoadedModel:
        """The model on the graph executor of this process."""
        return LoadedModel(self.factory, "graph", tvm.device(self.target.kind.name, 0))

    def run(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Run on the graph executor: outputs in order, for ``inputs`` by name."""
        return self.loaded.run(inputs)

    def vm(self) -> LoadedModel:
        """The same model compiled for Relay's virtual machine."""
        return self._machine

    @cached_property
    def _machine(self) -> LoadedModel:
        with _compiling(self.kernels, self.target), tvm.transform.PassContext(opt_level=3):
            executable = relay.vm.compile(_prepared(self.module, self.target, self.params), target=self.target)
        return LoadedModel(executable, "vm", tvm.device(self.target.kind.name, 0))

    def export(self, path: str | Path, executor: Executor = "graph") -> Path:
        """Write a shared library that :func:`load` reads, in any process. Linking needs a C compiler."""
        if get_cc() is None:
            raise EnvironmentError_("no C compiler was found to link the library", "install gcc or clang, or set CXX")
        path = Path(path)
        if path.suffix != ".so":
            raise UsageError(f"a library ends in .so, not {path.name!r}")
        library = self.factory if executor == "graph" else self.vm().module.mod
        library.export_library(str(path))
        return path


def _prepared(mod: Any, target: Any, params: Mapping[str, Any]) -> Any:
    """The form that Relay's compilers take: weights bound, regions inlined, and products that the CPU is fast in."""
    typed = relay.transform.InferType()(tvm.IRModule(dict(mod.functions.items()), mod.type_definitions))
    if target.kind.name == "llvm":
        typed["main"] = cpu_form(typed["main"])
        typed = relay.transform.InferType()(typed)
    typed["main"] = fold_weights(typed["main"], params)
    return inline_regions(relay.transform.InferType()(typed))


def _without_constant_loader(factory: Any, symbols: Collection[str]) -> Any:
    """The same model without the module that TVM adds for external compilers.

    It hands constants to those that ask for them, which this one does not, and holds a second copy of every weight of the model.
    """
    if factory.lib.type_key != "const_loader":
        return factory
    parts = list(factory.lib.imported_modules)
    external = [part for part in parts if any(part.implements_function(symbol) for symbol in symbols)]
    others = [part for part in parts if part not in external]
    if len(others) != 1:
        return factory
    for part in external:
        others[0].import_module(part)
    return GraphExecutorFactoryModule(
        factory.ir_mod,
        factory.target,
        factory.executor,
        factory.graph_json,
        others[0],
        factory.libmod_name,
        factory.params,
        factory.function_metadata,
    )


class _compiling:
    """Tells the external compiler, for the time of a build, what to compile with."""

    def __init__(self, kernels: Mapping[str, RegionKernels | None], target: Any) -> None:
        self.context = _Context(kernels, target)

    def __enter__(self) -> None:
        self.token = _CONTEXT.set(self.context)

    def __exit__(self, *_: object) -> None:
        _CONTEXT.reset(self.token)


def build(
    mod: Any,
    params: Mapping[str, Any] | None = None,
    kernels: Mapping[str, RegionKernels | None] | None = None,
    target: Any = "llvm",
    bound: bool = False,
) -> BuiltModel:
    """Compile a carved module; ``kernels`` go by the symbols of :func:`region_symbols`, and are used where the target is CUDA.

    Their arguments are checked against the model on every target; ``bound``: its functions take the kernels' weights.
    Raises :class:`ProgramError` for kernels of another region.
    """
    functions = region_functions(mod)
    for symbol, found in (kernels or {}).items():
        if symbol not in functions:
            raise ProgramError(f"the module has no region {symbol!r}", f"its regions are {', '.join(functions) or 'none'}")
        if found is not None:
            check_signature(symbol, found.validate(), signature(functions[symbol]), bound)
    resolved = resolve_target(target)
    arrays = {name: value if isinstance(value, tvm.nd.NDArray) else tvm.nd.array(value) for name, value in (params or {}).items()}
    with _compiling(kernels or {}, resolved), tvm.transform.PassContext(opt_level=3):
        factory = relay.build(_prepared(mod, resolved, arrays), target=resolved)
    return BuiltModel(mod, arrays, dict(kernels or {}), resolved, _without_constant_loader(factory, functions))


def load(path: str | Path, device: str = "cpu") -> LoadedModel:
    """A library that :meth:`BuiltModel.export` wrote. Raises :class:`UsageError` if it is no such file."""
    try:
        module = tvm.runtime.load_module(str(path))
    except (tvm.TVMError, ValueError, OSError) as error:
        raise UsageError(f"{path} is no compiled model: {said(error).splitlines()[-1]}") from error
    executor: Executor = "vm" if module.type_key == "VMExecutable" else "graph"
    return LoadedModel(module, executor, tvm.device(device, 0))


def run_region(mod: Any, symbol: str, inputs: Sequence[Array], target: Any = "llvm") -> list[Array]:
    """Run one carved region's Relay body alone on the CPU, with ``inputs`` in its order."""
    functions = region_functions(mod)
    if symbol not in functions:
        raise ProgramError(f"the module has no region {symbol!r}", f"its regions are {', '.join(functions) or 'none'}")
    expected, results = signature(functions[symbol])
    if len(inputs) != len(expected):
        raise ProgramError(f"the region {symbol} has {len(expected)} inputs, not {len(inputs)}")
    arguments = [
        tvm.nd.array(np.asarray(np.reshape(value, shape), dtype, order="C"))
        for value, (shape, dtype) in zip(inputs, expected, strict=True)
    ]
    outputs = [tvm.nd.empty(shape, dtype) for shape, dtype in results]
    _cpu_module(symbol, functions[symbol], resolve_target(target))[symbol](*arguments, *outputs)
    return [output.numpy() for output in outputs]


def _random(kind: Any, rng: np.random.Generator) -> Array:
    shape = tuple(int(e) for e in kind.shape)
    if str(kind.dtype).startswith("float"):
        return rng.standard_normal(shape).astype(str(kind.dtype))
    return rng.integers(0, 2, shape).astype(str(kind.dtype))


def _extra_inputs(mod: Any, symbol: str, start: int, params: Mapping[str, Any], rng: np.random.Generator) -> list[Array]:
    """Values of a region's inputs from ``start`` on, which its program does without: parameters, constants, and what is computed
    from them. Inputs of the model are drawn: they may have no part in what the region gives.
    """
    call = next(c for c in number(mod).calls if isinstance(c.op, relay.GlobalVar) and str(c.op.name_hint) == symbol)
    if not (extra := call.args[start:]):
        return []
    alone = tvm.IRModule(dict(mod.functions.items()), mod.type_definitions)
    used = {str(v.name_hint): v for v in relay.analysis.free_vars(relay.Tuple(list(extra)))}
    alone["main"] = relay.Function(list(used.values()), relay.Tuple(list(extra)))
    values = {n: params[n] if n in params else tvm.nd.array(_random(v.checked_type, rng)) for n, v in used.items()}
    return build(alone, values).run({})


def check_region(
    mod: Any,
    symbol: str,
    program: TensorProgram,
    rng: np.random.Generator,
    params: Mapping[str, Any] | None = None,
    tolerance: float = 1e-4,
    target: Any = "llvm",
    weights: Mapping[str, Array] | None = None,
) -> float:
    """Largest difference, relative to the largest value, between a region's Relay body and the program that stands for it.

    The program is evaluated in float64 on random inputs of its domain; NaN and infinity have to stand where it has them.
    ``params`` gives the inputs that only the Relay body has, ``weights`` those that only the program has.
    Raises :class:`NoValidKernelError` above ``tolerance``: then the kernels made from the program would not compute what the
    model does.
    """
    seed = int(rng.integers(1 << 32))

    def attempt(draw: Draw) -> tuple[dict[str, Any], dict[str, Any]]:
        inputs = program.random_inputs(np.random.default_rng(seed), place=draw.place) | dict(weights or {})
        return inputs, program.evaluate(inputs)

    _, inputs, expected = drawn(program, attempt)
    arguments = [inputs[name] for name in program.inputs if name not in (weights or {})]
    extra = _extra_inputs(mod, symbol, len(arguments), params or {}, rng)
    found = run_region(mod, symbol, [*arguments, *extra], target)
    outputs = dict(zip(program.outputs, found, strict=True))
    outcome = agreements(outputs, expected, {n: program[n].dtype for n in program.outputs}, math.inf)
    if not (outcome.ok and outcome.max_error <= tolerance):
        raise NoValidKernelError(
            f"the program of region {symbol} differs from its Relay body: "
            + (outcome.message or f"by {outcome.max_error:.2g} of the largest value"),
            "report the model: the region was read wrongly",
        )
    return outcome.max_error
