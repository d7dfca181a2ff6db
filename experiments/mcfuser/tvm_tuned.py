"""Whole networks with schedules that MetaSchedule draws, measured and chosen on a GPU that has no compiler of TVM.

    python -m experiments.mcfuser.tvm_tuned draw FOLDER [NAME...]  # with TVM 0.27 and tvm_ffi 0.1.14, without a GPU
    python -m experiments.mcfuser.tvm_tuned cubins FOLDER          # on the GPU's machine: NVRTC over many cores
    python -m experiments.mcfuser.tvm_tuned time FOLDER -o OUT     # there: every candidate against DLight's, and timed
    python -m experiments.mcfuser.tvm_figure FOLDER -o OUT         # there: each network by the best, beside all others

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
import json
import multiprocessing
import os
import pickle
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from experiments.mcfuser.relax_runtime import DEFAULT
from experiments.mcfuser.relax_runtime import WITHIN
from experiments.mcfuser.relax_runtime import runtime
from experiments.mcfuser.tvm_drawn import Task
from experiments.mcfuser.tvm_drawn import draw
from experiments.mcfuser.tvm_drawn import key_file
from experiments.mcfuser.tvm_drawn import read_task
from experiments.script import script
from fuser.outputs import make_folder
from fuser.outputs import write_file

TRIALS = 32
ROOM = 4096
"""Elements beside each argument of a candidate that is tried."""
ALL, SLOWEST = 50.0, 5.0
"""Seconds that candidates are timed for at most, and that the last one may take beyond."""


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
    """``cubins`` of as many candidates as can be compiled in that time beside those there are, the first of all tasks first."""
    tasks = {p.stem: read_task(p) for p in sorted(folder.glob("*.pkl"))}
    work = [((k, i), code, str(folder / "include")) for k, t in tasks.items() for i, (code, _) in enumerate(t.candidates)]
    work.sort(key=lambda job: job[0][1])
    found, spent = pickle.loads((folder / "cubins").read_bytes()) if (folder / "cubins").exists() else ({}, 0.0)
    work, start = [job for job in work if job[0] not in found], time.perf_counter()
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
    print(f"{len(found)} cubins after {time.perf_counter() - start:.0f} s, {spent:.0f} s of all cores", flush=True)


# -- time ---------------------------------------------------------------------------------------------------------------------


def _codes(folder: Path) -> dict[tuple[str, int], bytes]:
    return pickle.loads((folder / "cubins").read_bytes())[0]


def functions(ffi: Any, folder: Path, key: str, which: Sequence[int]) -> tuple[Task, Any, dict[int, Callable[..., Any]]]:
    """A task, its host functions' module, and those of the candidates that were compiled."""
    task, codes = read_task(key_file(folder, key, "pkl")), _codes(folder)
    host, found = ffi.load_module(str(key_file(folder, key, "so"))), {}
    create, about = map(ffi.get_global_func, ("ffi.Module.create.cuda", "runtime.LoadMetaDataFromJSON"))
    for i in (i for i in which if (key, i) in codes):
        said = json.dumps({"tvm_version": "0.27", "func_info": task.candidates[i][1]})
        host.import_module(create(codes[key, i], "cubin", about(said), {}))
        found[i] = host[f"c{i}"]
    return task, host, found


def _time_tasks(folder: Path, keys: Sequence[str], place: tuple[int, int], log: Path, end: float) -> None:
    ffi = runtime(folder)
    for number in range(place[0], len(keys)):
        if time.perf_counter() < end:
            _time_task(ffi, folder, keys[number], place[1] if number == place[0] else 0, log)


def _time_task(ffi: Any, folder: Path, key: str, start: int, log: Path) -> None:
    """Rows of the candidates from ``start`` on, each after a line that says which one begins."""
    import torch

    task, _, found = functions(ffi, folder, key, range(10_000))
    torch.manual_seed(0)
    values = [torch.randn(s, device="cuda").to(getattr(torch, t)) * (0.1 if len(s) > 1 else 1) for s, t in task.args]
    rooms, args = zip(*map(_roomy, values), strict=True)
    results, wanted = args[task.inputs :], None
    with log.open("a") as lines:
        for i in (i for i in sorted(found) if i >= start or i == 0):
            print(json.dumps({"key": key, "at": i}), file=lines, flush=True)
            for y in results:
                y.fill_(float("nan"))
            row, before = {"key": key, "name": task.name, "i": i}, [r.clone() for r in rooms]
            try:
                row |= _timed(ffi, found[i], args, (results, wanted))
                for old, room in zip(before[task.inputs :], rooms[task.inputs :], strict=True):
                    old[ROOM:-ROOM] = room[ROOM:-ROOM]
                if not all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(before, rooms, strict=True)):
                    row = {k: v for k, v in row.items() if k != "us"} | {"failed": "writes elsewhere than to its result"}
                    for room, old in zip(rooms, before, strict=True):
                        room.copy_(old)
            except Exception as error:  # noqa: BLE001 - a candidate that does not run
                row["failed"] = str(error)[-200:]
            wanted = [y.float().clone() for y in results] if wanted is None else wanted
            print(json.dumps(row), file=lines, flush=True)


def _roomy(x: Any) -> tuple[Any, Any]:
    """A copy of a tensor amid NaN, and all of it: in a network others' tensors lie there."""
    import torch

    filling = float("nan") if x.is_floating_point() else 0
    room = torch.full((x.numel() + 2 * ROOM,), filling, dtype=x.dtype, device=x.device)
    inner = room[ROOM:-ROOM].view(x.shape)
    inner.copy_(x)
    return room, inner


def _timed(ffi: Any, call: Callable[..., Any], args: Sequence[Any], about: tuple[Sequence[Any], Any]) -> dict[str, Any]:
    """Microseconds of a candidate whose results, the first and those after many calls, are what is wanted."""
    import torch

    def error() -> float:
        results, wanted = about
        pairs = zip(results, wanted or [y.float() for y in results], strict=True)
        return max(float((y.float() - z).norm() / z.norm()) for y, z in pairs)

    given = [ffi.from_dlpack(x) for x in args]
    call(*given)
    first = error()
    if not first < WITHIN:
        return {"error": first, "failed": "wrong result"}
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
    last = error()
    return {"error": last, "us": statistics.median(rounds)} if last < WITHIN else {"error": last, "failed": "wrong when repeated"}


def timed(folder: Path, output: Path) -> None:
    """``trials.jsonl``, and ``best.json`` with the fastest of each task. A candidate that ends its process ends no other."""
    log, start = output / "trials.jsonl", time.perf_counter()
    import_module("torch")  # before the processes part, which make a context each
    log.write_text("")
    keys = sorted((p.stem for p in folder.glob("*.pkl")), key=lambda k: not read_task(key_file(folder, k, "pkl")).product)
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


def choice(folder: Path, output: Path, name: str) -> dict[str, int]:
    """The best candidate of each task of a network; DLight's where none was timed."""
    best = json.loads((output / "best.json").read_text())["tasks"]
    return {key: best[key]["best"] if key in best else 0 for key in _about(folder, name)["tasks"].values()}


def _about(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / f"{name}-tuned.json").read_text())


def register(ffi: Any, folder: Path, chosen: Mapping[str, int]) -> list[Any]:
    """What ``NAME-tuned.so`` finds when it is loaded next, to be kept as long as that is."""
    kept = [functions(ffi, folder, key, [i]) for key, i in chosen.items()]
    for (key, i), (*_, found) in zip(chosen.items(), kept, strict=True):
        ffi.register_global_func(f"tuned.{key}", found[i], override=True)
    return kept


def seconds(folder: Path, output: Path, name: str) -> dict[str, float]:
    """What tuning of a network took: to draw, to compile (all cores together) and to time, by its share of the candidates, and
    how many of a product's were timed."""
    best, compiled = json.loads((output / "best.json").read_text()), Counter(key for key, _ in _codes(folder))
    tasks = {key: read_task(key_file(folder, key, "pkl")) for key in _about(folder, name)["tasks"].values()}
    share = sum(compiled[key] for key in tasks) / max(1, compiled.total())
    timed = [best["tasks"][key]["timed"] for key, task in tasks.items() if task.product and key in best["tasks"]]
    return {
        "draw": sum(task.seconds for task in tasks.values()),
        "compile": best["compiling"] * share,
        "time": best["seconds"] * share,
        "trials": sum(timed) / max(1, len(timed)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("draw", "cubins", "time"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help=f"networks (default: {' '.join(DEFAULT)})")
    parser.add_argument("--trials", type=int, default=TRIALS, help="candidates of a task with a product, beside DLight's")
    parser.add_argument("--seconds", type=float, default=150, help="for cubins")
    parser.add_argument("-j", "--jobs", type=int, default=12)
    parser.add_argument("-o", "--output", type=Path, default=Path("h200-relax"))
    given = parser.parse_intermixed_args()
    make_folder(given.folder)
    names = given.names or [*DEFAULT]
    if given.step == "draw":
        draw(given.folder, names, given.trials)
    elif given.step == "cubins":
        cubins(given.folder, given.jobs, given.seconds)
    else:
        make_folder(given.output)
        timed(given.folder, given.output)


if __name__ == "__main__":
    script(main)
