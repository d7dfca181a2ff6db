"""Whole networks with schedules that MetaSchedule draws, measured and chosen on a GPU that has no compiler of TVM.

    python -m experiments.mcfuser.tvm_tuned draw FOLDER [NAME...]  # with TVM 0.27 and tvm_ffi 0.1.14, without a GPU
    python -m experiments.mcfuser.tvm_tuned cubins FOLDER          # on the GPU's machine: NVRTC over many cores
    python -m experiments.mcfuser.tvm_tuned time FOLDER -o OUT     # there: every candidate against DLight's, and timed
    python -m experiments.mcfuser.tvm_tuned whole FOLDER -o OUT    # there: each network by DLight's schedules, and the best

The tasks of a network are its fused functions as :mod:`experiments.mcfuser.tvm_alone` has them. Candidate 0 of each is DLight's;
of those with a product ``--trials`` more are drawn from the design space of MetaSchedule for tensor cores (``replay-trace``: at
random, one generation, no cost model), of the others 6. A network is compiled once, calls its tasks by name, and what is
registered under these names when it is loaded decides. FOLDER/runtime is TVM's runtime, as ``mufuser package`` writes it,
FOLDER/include CUDA's headers with those of CCCL.

With tvm_ffi 0.1.15 MetaSchedule ends the process: serialising any function does. With storage rewriting TVM refuses nine in ten
of the candidates for tensor cores (buffers of two types in one place), so that it is off.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import inspect
import json
import multiprocessing
import os
import pickle
import re
import signal
import statistics
import sys
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from experiments.script import script
from fuser.outputs import make_folder
from fuser.outputs import write_file

DEFAULT = ("bert-small", "bert-base", "bert-large")
TRIALS, OTHERS = 32, 6
WITHIN = 2e-2
"""Relative error against DLight's schedule from which on a candidate is wrong."""
ALL, SLOWEST = 50.0, 5.0
"""Seconds that candidates are timed for at most, and that the last one may take beyond."""


@dataclass(frozen=True)
class Task:
    """A fused function: shapes and dtypes of its arguments, the last of which it writes, and for each candidate its CUDA source
    and what TVM keeps beside it. The host functions ``c0``, ``c1``, … are in ``KEY.so``."""

    name: str
    product: bool
    args: tuple[tuple[tuple[int, ...], str], ...]
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
        main = module["main"].script()
        counts = {g.name_hint: len(re.findall(rf"call_tir\({g.name_hint},", main)) for g in module.get_global_vars()}
        keys: dict[str, str] = {}
        for called in (n for n, count in counts.items() if count):
            function = module[called]
            keys[called] = f"{tvm_ffi.structural_hash(function) & (2**63 - 1):x}"
            if not key_file(folder, keys[called], "pkl").exists():
                _write_task(folder, keys[called], called, function, trials)
        _library(_by_name(module, keys), folder / f"{name}-tuned.so")
        said = {"tasks": keys, "counts": counts, "seconds": time.perf_counter() - start}
        write_file(folder / f"{name}-tuned.json", json.dumps(said, indent=1) + "\n")
        print(name, f"{time.perf_counter() - start:.0f} s", flush=True)


def _write_task(folder: Path, key: str, name: str, function: Any, trials: int) -> None:
    import tvm

    text = function.script()
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
    key_file(folder, key, "pkl").write_bytes(pickle.dumps((name, product, args, tuple(found))))
    print(name, key, args, len(found), flush=True)


def _task(path: Path) -> Task:
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
    spaces = context.generate_design_space()
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
                return relax.call_dps_packed(f"tuned.{keys[call.args[0].name_hint]}", call.args[1], call.ty_args[0])
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


# -- cubins -------------------------------------------------------------------------------------------------------------------


@cache
def _nvrtc() -> ctypes.CDLL:
    """NVRTC of torch's installation."""
    found = importlib.util.find_spec("torch")
    assert found is not None and found.origin is not None
    for path in sorted(Path(found.origin).parent.parent.glob("nvidia/*/lib/libnvrtc.so.1*")):
        if ".alt" not in path.name:
            return ctypes.CDLL(str(path))
    return ctypes.CDLL("libnvrtc.so.13")


def _cubin(job: tuple[tuple[str, int], bytes, str]) -> tuple[tuple[str, int], bytes | str, float]:
    """A cubin, or what the compiler says, and its seconds."""
    where, code, include = job
    start, lib, program, size = time.process_time(), _nvrtc(), ctypes.c_void_p(), ctypes.c_size_t()
    options = ["--gpu-architecture=sm_90", "--std=c++17", "-default-device", f"-I{include}", f"-I{include}/cccl"]
    lib.nvrtcCreateProgram(ctypes.byref(program), code, b"kernel.cu", 0, None, None)
    failed = lib.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*map(str.encode, options)))
    kind = "ProgramLog" if failed else "CUBIN"
    getattr(lib, f"nvrtcGet{kind}Size")(program, ctypes.byref(size))
    room = ctypes.create_string_buffer(size.value)
    getattr(lib, f"nvrtcGet{kind}")(program, room)
    lib.nvrtcDestroyProgram(ctypes.byref(program))
    return where, room.value.decode(errors="replace")[:300] if failed else room.raw, time.process_time() - start


def cubins(folder: Path, jobs: int, seconds: float) -> None:
    """``cubins`` of as many candidates as can be compiled in that time, the first of all tasks first."""
    tasks = {p.stem: _task(p) for p in sorted(folder.glob("*.pkl"))}
    work = [((k, i), code, str(folder / "include")) for k, t in tasks.items() for i, (code, _) in enumerate(t.candidates)]
    work.sort(key=lambda job: job[0][1])
    start, spent, found = time.perf_counter(), 0.0, dict[tuple[str, int], bytes]()
    with multiprocessing.Pool(jobs) as pool:
        for where, made, cpu in pool.imap_unordered(_cubin, work):
            spent += cpu
            if isinstance(made, bytes):
                found[where] = made
            else:
                print(where, made, flush=True)
            if time.perf_counter() - start > seconds:
                pool.terminate()
                break
    (folder / "cubins").write_bytes(pickle.dumps((found, spent)))
    print(f"{len(found)} of {len(work)} in {time.perf_counter() - start:.0f} s, {spent:.0f} s of all cores", flush=True)


# -- time ---------------------------------------------------------------------------------------------------------------------


def _runtime(folder: Path) -> Any:
    sys.path.insert(0, str(folder / "runtime"))
    return import_module("mufuser_model").runtime(folder / "runtime")


def _codes(folder: Path) -> dict[tuple[str, int], bytes]:
    return pickle.loads((folder / "cubins").read_bytes())[0]


def functions(ffi: Any, folder: Path, key: str, which: Sequence[int]) -> tuple[Task, Any, dict[int, Callable[..., Any]]]:
    """A task, its host functions' module, and those of the candidates that were compiled."""
    task, codes = _task(key_file(folder, key, "pkl")), _codes(folder)
    host, found = ffi.load_module(str(key_file(folder, key, "so"))), {}
    create, about = map(ffi.get_global_func, ("ffi.Module.create.cuda", "runtime.LoadMetaDataFromJSON"))
    for i in (i for i in which if (key, i) in codes):
        said = json.dumps({"tvm_version": "0.27", "func_info": task.candidates[i][1]})
        host.import_module(create(codes[key, i], "cubin", about(said), {}))
        found[i] = host[f"c{i}"]
    return task, host, found


def _time_tasks(folder: Path, keys: Sequence[str], place: tuple[int, int], log: Path, end: float) -> None:
    ffi = _runtime(folder)
    for number in range(place[0], len(keys)):
        if time.perf_counter() < end:
            _time_task(ffi, folder, keys[number], place[1] if number == place[0] else 0, log)


def _time_task(ffi: Any, folder: Path, key: str, start: int, log: Path) -> None:
    """Rows of the candidates from ``start`` on, each after a line that says which one begins."""
    import torch

    task, _, found = functions(ffi, folder, key, range(10_000))
    torch.manual_seed(0)
    args = [torch.randn(s, device="cuda").to(getattr(torch, t)) * (0.1 if len(s) > 1 else 1) for s, t in task.args]
    wanted = None
    with log.open("a") as lines:
        for i in (i for i in sorted(found) if i >= start or i == 0):
            print(json.dumps({"key": key, "at": i}), file=lines, flush=True)
            args[-1] = torch.full_like(args[-1], float("nan"))
            row = {"key": key, "name": task.name, "i": i}
            try:
                row |= _timed(ffi, found[i], args, wanted)
            except Exception as error:  # noqa: BLE001 - a candidate that does not run
                row["failed"] = str(error)[-200:]
            wanted = args[-1].float().clone() if wanted is None else wanted
            print(json.dumps(row), file=lines, flush=True)


def _timed(ffi: Any, call: Callable[..., Any], args: Sequence[Any], wanted: Any) -> dict[str, Any]:
    import torch

    given = [ffi.from_dlpack(x) for x in args]
    call(*given)
    error = 0.0 if wanted is None else float((args[-1].float() - wanted).norm() / wanted.norm())
    if not error < WITHIN:
        return {"error": error, "failed": "wrong result"}
    graph, rounds = torch.cuda.CUDAGraph(), []
    with ffi.use_torch_stream(torch.cuda.graph(graph, capture_error_mode="relaxed")):
        for _ in range(10):
            call(*given)
    graph.replay()
    for _ in range(3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        rounds.append(begin.elapsed_time(end) * 100)
    return {"error": error, "us": statistics.median(rounds)}


def timed(folder: Path, output: Path) -> None:
    """``trials.jsonl``, and ``best.json`` with the fastest of each task. A candidate that ends its process ends no other."""
    log, start = output / "trials.jsonl", time.perf_counter()
    import_module("torch")  # before the processes part, which make a context each
    log.write_text("")
    keys = sorted((p.stem for p in folder.glob("*.pkl")), key=lambda k: not _task(key_file(folder, k, "pkl")).product)
    place = (0, 0)  # of the next candidate: its task, and its number there
    while not _apart(lambda place=place: _time_tasks(folder, keys, place, log, start + ALL), start + ALL + SLOWEST):
        begun = [(keys.index(r["key"]), r["at"]) for r in _rows(log) if "at" in r]
        if not begun or begun[-1] < place or time.perf_counter() > start + ALL:
            break
        place = begun[-1][0], begun[-1][1] + 1
    found: dict[str, dict[int, float]] = {}
    for row in (r for r in _rows(log) if "us" in r):
        found.setdefault(row["key"], {})[row["i"]] = row["us"]
    best = {
        k: {"best": min(v, key=v.__getitem__), "us": min(v.values()), "rule": v.get(0), "timed": len(v)} for k, v in found.items()
    }
    said = {"seconds": time.perf_counter() - start, "compiling": pickle.loads((folder / "cubins").read_bytes())[1], "tasks": best}
    write_file(output / "best.json", json.dumps(said, indent=1) + "\n")
    print({k: v for k, v in said.items() if k != "tasks"}, flush=True)


def _rows(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def _apart(work: Callable[[], None], end: float) -> bool:
    """Whether the work ended well, and in time, in a process of its own."""
    child = os.fork()
    if not child:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    while not (done := os.waitpid(child, os.WNOHANG))[0]:
        if time.perf_counter() > end:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.02)
    return done[1] == 0


# -- whole --------------------------------------------------------------------------------------------------------------------


def whole(folder: Path, output: Path, names: Sequence[str]) -> None:
    """``tuned.json``: microseconds of each network by DLight's schedules and by the best, and errors against float64."""
    best = json.loads((output / "best.json").read_text())["tasks"]
    rows: dict[str, Any] = {}
    for name in names:
        try:
            rows[name] = _whole(folder, name, best)
        except Exception as error:  # noqa: BLE001 - the others go on
            rows[name] = {"failed": f"{type(error).__name__}: {str(error)[-400:]}"}
        write_file(output / "tuned.json", json.dumps(rows, indent=1) + "\n")
        print(name, rows[name], flush=True)


def _whole(folder: Path, name: str, best: dict[str, Any]) -> dict[str, Any]:
    import torch

    from experiments.mcfuser.relax_runtime import Machine
    from experiments.mcfuser.relax_runtime import network
    from search.measure.replays import captured
    from search.measure.replays import in_turn

    ffi, about = _runtime(folder), json.loads((folder / f"{name}-tuned.json").read_text())
    net, shapes = network(name)
    torch.manual_seed(1)
    x, net = torch.randn(*shapes[0]).half().cuda(), net.cuda()
    with torch.no_grad():
        wanted = net.double()(x.double())
    net.half()
    outputs, replays, keep = {}, {}, []
    for kind in ("DLight", "tuned"):
        for key in set(about["tasks"].values()):
            i = best.get(key, {"best": 0})["best"] if kind == "tuned" else 0
            keep.append(functions(ffi, folder, key, [i]))
            ffi.register_global_func(f"tuned.{key}", keep[-1][2][i], override=True)
        machine = Machine(folder, f"{name}-tuned.so", x, [p.detach() for _, p in net.named_parameters()])
        outputs[kind], replays[kind] = machine.captured()
        keep.append(machine)
    with torch.no_grad():
        outputs["eager"], replays["eager"] = captured(lambda: net(x))
    us = {kind: statistics.median(rounds) for kind, rounds in in_turn(replays).items()}
    return {"us": us, "error": {k: float((y.double() - wanted).norm() / wanted.norm()) for k, y in outputs.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("draw", "cubins", "time", "whole"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help=f"networks (default: {' '.join(DEFAULT)})")
    parser.add_argument("--trials", type=int, default=TRIALS, help="candidates of a task with a product, beside DLight's")
    parser.add_argument("--seconds", type=float, default=150, help="for cubins")
    parser.add_argument("-j", "--jobs", type=int, default=12)
    parser.add_argument("-o", "--output", type=Path, default=Path("h200-tuned"))
    given = parser.parse_intermixed_args()
    make_folder(given.folder)
    names = given.names or [*DEFAULT]
    if given.step in ("time", "whole"):
        make_folder(given.output)
    if given.step == "draw":
        draw(given.folder, names, given.trials)
    elif given.step == "cubins":
        cubins(given.folder, given.jobs, given.seconds)
    elif given.step == "time":
        timed(given.folder, given.output)
    else:
        whole(given.folder, given.output, names)


if __name__ == "__main__":
    script(main)
