"""Functions of a network with candidates of their schedules, as TVM draws them, for :mod:`experiments.mcfuser.tvm_tuned`."""

from __future__ import annotations

import inspect
import json
import pickle
import re
import time
from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from fuser.outputs import write_file

OTHERS = 6
"""Candidates of a function that is no product."""


@dataclass(frozen=True)
class Task:
    """A fused function: shapes and dtypes of its arguments, the first ``inputs`` of which it reads and the others writes, the
    seconds that drawing took, and for each candidate its CUDA source and what TVM keeps beside it. The host functions ``c0``,
    ``c1``, … are in ``KEY.so``."""

    name: str
    product: bool
    args: tuple[tuple[tuple[int, ...], str], ...]
    inputs: int
    seconds: float
    candidates: tuple[tuple[bytes, dict[str, Any]], ...]


def key_file(folder: Path, key: str, end: str) -> Path:
    return folder / f"{key}.{end}"


# -- draw ---------------------------------------------------------------------------------------------------------------------


def draw(folder: Path, names: Sequence[str], trials: int) -> None:
    """``KEY.pkl`` and ``KEY.so`` of each task, ``NAME-tuned.so`` and ``NAME-tuned.json`` of each network."""
    stack = inspect.stack
    inspect.stack = lambda context=1: stack(0)  # TVM reads every source file again for each of its intrinsics
    import tvm_ffi

    from experiments.mcfuser.tvm_alone import imported
    from tvm_bridge.back.offline_cuda import load
    from tvm_bridge.flavour import import_tvm

    tvm = import_tvm()
    load(tvm)
    import_module("tvm.s_tir.tensor_intrin.cuda")
    for name in names:
        start, module = time.perf_counter(), imported(name)
        calls = _calls(module["main"])
        keys: dict[str, str] = {}
        for called, inputs in dict(calls).items():
            function = module[called]
            keys[called] = f"{tvm_ffi.structural_hash(function) & (2**63 - 1):x}"
            if not key_file(folder, keys[called], "pkl").exists():
                _write_task(folder, keys[called], (called, inputs), function, trials)
        _library(_by_name(module, keys), folder / f"{name}-tuned.so")
        counts = Counter(called for called, _ in calls)
        said = {"tasks": keys, "counts": counts}
        write_file(folder / f"{name}-tuned.json", json.dumps(said, indent=1) + "\n")
        print(name, f"{time.perf_counter() - start:.0f} s", flush=True)


def _calls(main: Any) -> list[tuple[str, int]]:
    """The function and the number of inputs of each call."""
    import tvm
    from tvm import relax

    found: list[tuple[str, int]] = []

    def visit(e: Any) -> None:
        if isinstance(e, relax.Call) and isinstance(e.op, tvm.ir.Op) and e.op.name == "relax.call_tir":
            found.append((e.args[0].name_hint, len(e.args[1].fields)))

    relax.analysis.post_order_visit(main, visit)
    return found


def _write_task(folder: Path, key: str, called: tuple[str, int], function: Any, trials: int) -> None:
    import tvm

    (name, inputs), text, start = called, function.script(), time.perf_counter()
    product = 'T.sblock("matmul' in text
    found, made = [], []
    for drawn in (_by_rule(function), *_drawn(function, trials if product else OTHERS, product)):
        try:
            found.append(_lowered(drawn, f"c{len(made)}"))
            made.append(drawn)
        except (tvm.error.InternalError, ValueError, RuntimeError, TypeError) as error:
            print(name, "does not lower:", str(error).strip().splitlines()[-1][:120], flush=True)
    functions = {f"c{i}": f.with_attr("global_symbol", f"c{i}") for i, f in enumerate(made)}
    library = _compiled(tvm.IRModule(functions))
    library.mod.clear_imports()
    library.export_library(str(key_file(folder, key, "so")))
    args = tuple(_arguments(text))
    key_file(folder, key, "pkl").write_bytes(
        pickle.dumps((name, product, args, inputs, time.perf_counter() - start, tuple(found)))
    )
    print(name, key, args, len(found), flush=True)


def read_task(path: Path) -> Task:
    return Task(*pickle.loads(path.read_bytes()))


def _arguments(text: str) -> Iterator[tuple[tuple[int, ...], str]]:
    """Shapes and dtypes of a function's buffers, as TVM prints them."""
    plain = re.sub(r"T\.int64\((\d+)\)", r"\1", text.split("):\n", maxsplit=1)[0])
    for shape, dtype in re.findall(r'T\.Buffer\(\(([\d, ]*)\)(?:, "(\w+)")?\)', plain):
        yield tuple(map(int, re.findall(r"\d+", shape))), dtype or "float32"


def _by_rule(function: Any) -> Any:
    """DLight's schedule."""
    import tvm

    from experiments.mcfuser.tvm_alone import target

    gpu: Any = import_module("tvm.s_tir.dlight").gpu
    rules = (gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback())
    with target():
        apply = import_module("tvm.s_tir.dlight").ApplyDefaultSchedule(*rules)
        return apply(tvm.IRModule({"c": function.with_attr("global_symbol", "c")}))["c"]


def _drawn(function: Any, count: int, product: bool) -> list[Any]:
    """Schedules of MetaSchedule's design space."""
    import tvm

    from experiments.mcfuser.tvm_alone import target

    ms: Any = import_module("tvm.s_tir.meta_schedule")
    kind = "cuda-tensorcore" if product else "cuda"
    rules, after = ms.ScheduleRule.create(kind), ms.Postproc.create(kind)
    generator = ms.space_generator.PostOrderApply(sch_rules=rules, postprocs=after, mutator_probs={})
    context = ms.TuneContext(
        tvm.IRModule({"main": function.with_attr("global_symbol", "main")}),
        target=target(),
        space_generator=generator,
        search_strategy="replay-trace",
        task_name="task",
        rand_state=1,
        num_threads=1,
    )
    try:
        spaces = context.generate_design_space()
    except RuntimeError as error:  # a rule of its that does not fit
        print("no design space:", str(error).strip().splitlines()[-1][:120], flush=True)
        return []
    database = import_module("tvm.s_tir.meta_schedule.database").MemoryDatabase()
    model = ms.CostModel.create("random")
    context.pre_tuning(max_trials=count, num_trials_per_iter=count, design_spaces=spaces, database=database, cost_model=model)
    return [c.sch.mod["main"] for c in context.generate_measure_candidates() or ()]


def _compiled(module: Any) -> Any:
    import tvm
    import tvm_ffi

    from experiments.mcfuser.tvm_alone import target

    tvm_ffi.register_global_func("tvm_callback_cuda_compile", lambda code: code.encode(), override=True)
    with target(), tvm.transform.PassContext(config={"tirx.disable_storage_rewrite": True}):
        return tvm.compile(module, target=target())  # type: ignore[attr-defined]


def _lowered(function: Any, name: str) -> tuple[bytes, dict[str, Any]]:
    """CUDA source of a scheduled function, and what TVM keeps beside it."""
    import tvm
    import tvm_ffi

    found: list[tuple[bytes, dict[str, Any]]] = []
    create: Any = tvm_ffi.get_global_func("ffi.Module.create.cuda")

    def caught(code: Any, form: str, about: Any, sources: Any) -> Any:
        fields = {"arg_types": str, "launch_param_tags": str, "arg_extra_tags": int}
        said = {str(n): {"name": ""} | {f: list(map(t, getattr(x, f))) for f, t in fields.items()} for n, x in about.items()}
        found.append((bytes(code), said))
        return create(code, form, about, sources)

    tvm_ffi.register_global_func("ffi.Module.create.cuda", caught, override=True)
    try:
        _compiled(tvm.IRModule({name: function.with_attr("global_symbol", name)}))
    finally:
        tvm_ffi.register_global_func("ffi.Module.create.cuda", create, override=True)
    return found[0]


def _by_name(module: Any, keys: dict[str, str]) -> Any:
    """The module whose ``main`` calls its tasks as ``tuned.KEY``."""
    import tvm
    from tvm import relax

    functor: Any = import_module("tvm.relax.expr_functor")

    @functor.mutator
    class Named(functor.PyExprMutator):  # type: ignore[misc]
        def visit_call_(self, call: Any) -> Any:
            call = self.visit_expr_post_order(call)
            if isinstance(call.op, tvm.ir.Op) and call.op.name == "relax.call_tir" and call.args[0].name_hint in keys:
                made = call.ty_args[0]
                types = list(made.fields) if isinstance(made, tvm.ir.TupleType) else made
                return relax.call_dps_packed(f"tuned.{keys[call.args[0].name_hint]}", call.args[1], types)
            return call

    named = Named(module)
    named.builder_.update_func(module.get_global_var("main"), named.visit_expr(module["main"]))
    return named.builder_.get()


def _library(module: Any, path: Path) -> None:
    import tvm_ffi

    from experiments.mcfuser.tvm_alone import compiled

    nvcc: Any = import_module("tvm.support.nvcc")
    arch = ["-gencode", "arch=compute_90,code=sm_90"]
    compile_ = lambda code: nvcc.compile_cuda(code, target_format="cubin", arch=arch, compiler="nvcc")  # noqa: E731
    tvm_ffi.register_global_func("tvm_callback_cuda_compile", compile_, override=True)
    compiled(module).export_library(str(path))
