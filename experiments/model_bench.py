"""``python -m experiments.model_bench``: whole networks on a GPU beside eager torch, SDPA and inductor, as CUDA graphs, in a run.

Nothing is measured before: our kernels are the model's choice. Every output is compared with the network in float64 before
anything is timed; replays of all contestants take turns.
"""

from __future__ import annotations

import json
import math
import statistics
import time
import warnings
from collections.abc import Callable
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated
from typing import Any

import typer

from experiments.environment import environment
from experiments.environment import need_gpu
from experiments.script import script
from fuser.agreement import agreement
from fuser.console import note
from fuser.errors import UsageError
from fuser.outputs import make_folder
from fuser.outputs import write_file
from search.measure.machine import device_info

ROUNDS, SECONDS = 7, 0.05
"""Rounds in which all contestants take turns, and how long each replays in one."""
DTYPE = "float16"
EXACT = 1.5
"""Times the error of eager torch that ours may have."""


def contestants(module: Any, inputs: tuple[Any, ...], inductor: bool) -> dict[str, Callable[[], Any]]:
    """Calls of the peers."""
    import torch
    from torch.nn.attention import SDPBackend
    from torch.nn.attention import sdpa_kernel

    from experiments import networks

    def eager() -> Any:
        networks.explicit = True
        try:
            return module(*inputs)
        finally:
            networks.explicit = False

    def forced(backend: Any) -> Callable[[], Any]:
        def call() -> Any:
            with sdpa_kernel(backend):
                return module(*inputs)

        return call

    found = {"eager": eager, "flash": forced(SDPBackend.FLASH_ATTENTION), "cudnn": forced(SDPBackend.CUDNN_ATTENTION)}
    if inductor:
        torch._dynamo.reset()
        compiled = torch.compile(module, mode="max-autotune-no-cudagraphs")
        found["inductor"] = lambda: compiled(*inputs)
    return found


def captured(call: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
    """The output of a call, and the replay of its CUDA graph."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        out = call()
    graph.replay()
    torch.cuda.synchronize()
    return out, graph.replay


def error(got: Any, wanted: Any) -> float:
    """Relative Frobenius norm of the difference; infinite where NaN or infinity stand elsewhere."""
    found = agreement(got, wanted, DTYPE, math.inf)
    return found.error if found.ok else math.inf


def timed(replays: Mapping[str, Callable[[], None]]) -> dict[str, float]:
    """Median microseconds of a replay over rounds in turn."""
    import torch

    counts: dict[str, int] = {}
    for name, replay in replays.items():
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        replay()
        start.record()
        for _ in range(5):
            replay()
        end.record()
        torch.cuda.synchronize()
        counts[name] = max(5, int(SECONDS * 5e3 / start.elapsed_time(end)))
    found: dict[str, list[float]] = {n: [] for n in replays}
    for _ in range(ROUNDS):
        for name, replay in replays.items():
            start, end = torch.cuda.Event(True), torch.cuda.Event(True)
            start.record()
            for _ in range(counts[name]):
                replay()
            end.record()
            torch.cuda.synchronize()
            found[name].append(1e3 * start.elapsed_time(end) / counts[name])
    return {n: statistics.median(ts) for n, ts in found.items()}


def case(name: str, batch: int, inductor: bool) -> dict[str, Any]:
    """One network: errors, times, what was compiled."""
    import torch

    import fuser
    from experiments.networks import NETWORKS

    torch.manual_seed(0)
    module, shapes = NETWORKS[name].make(batch)
    module = module.eval().to("cuda", getattr(torch, DTYPE)).requires_grad_(False)
    inputs = tuple(torch.randn(s, device="cuda", dtype=getattr(torch, DTYPE)) for s in shapes)
    with torch.no_grad():
        wanted = module.double()(*(x.double() for x in inputs))
    module.to(getattr(torch, DTYPE))
    start = time.perf_counter()
    run = fuser.compile(module, inputs)
    row: dict[str, Any] = {"name": name, "batch": batch, "compile_seconds": time.perf_counter() - start}
    row |= {"predicted_us": run.realised.candidate.us, "kernels": len(run.graph.kernels), "plan": run.explain().splitlines()}
    ours = run.captured(*inputs)
    ours.replay()
    torch.cuda.synchronize()
    (got,) = ours.outputs.values()
    errors, replays = {"mufuser": error(got, wanted)}, {"mufuser": ours.replay}
    failed: dict[str, str] = {}
    for peer, call in contestants(module, inputs, inductor).items():
        try:
            out, replay = captured(call)
        except RuntimeError as problem:  # a backend that does not take these shapes
            failed[peer] = str(problem).split("\n", 1)[0]
            torch.cuda.synchronize()
            continue
        errors[peer], replays[peer] = error(out, wanted), replay
    correct = errors["mufuser"] <= EXACT * errors["eager"]
    if not correct:  # no time without a right result
        del replays["mufuser"]
    row |= {"errors": errors, "failed": failed, "correct": correct, "us": timed(replays)}
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each case: µs of ours and of the peers, ours × the best of them, errors, seconds to compile."""
    peers = list(dict.fromkeys(p for r in rows for p in r["us"] if p != "mufuser"))
    heads = "".join(f"{p:>10}" for p in peers)
    lines = [f"{'network':<18}{'batch':>6}{'ours':>9}{heads}{'×best':>8}{'error':>10}{'eager':>10}{'s':>7}"]
    for r in rows:
        us = r["us"]
        best = min(us[p] for p in peers if p in us)
        cells = "".join(f"{us[p]:>10.1f}" if p in us else f"{'-':>10}" for p in peers)
        ours = f"{us['mufuser']:>9.1f}{cells}{best / us['mufuser']:>8.2f}" if r["correct"] else f"{'wrong':>9}{cells}{'-':>8}"
        errors = f"{r['errors']['mufuser']:>10.1e}{r['errors']['eager']:>10.1e}"
        lines.append(f"{r['name']:<18}{r['batch']:>6}{ours}{errors}{r['compile_seconds']:>7.1f}")
    return "\n".join(lines)


def main(
    names: Annotated[list[str], typer.Argument(help="Networks, or globs of them.")] = ["*"],  # noqa: B006
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for models.json and models.txt.")] = Path("out"),
    batch: Annotated[list[int], typer.Option(help="Batch sizes.")] = [1],  # noqa: B006
    inductor: Annotated[bool, typer.Option(help="With torch.compile (max-autotune) among the peers.")] = True,
) -> None:
    """Whole networks beside eager torch, SDPA and inductor."""
    need_gpu()
    warnings.filterwarnings("ignore")
    from experiments.networks import NETWORKS

    chosen = [n for n in NETWORKS if any(fnmatch(n, p) for p in names)]
    if not chosen:
        raise UsageError(f"there is no network {', '.join(names)}", f"networks: {', '.join(NETWORKS)}")
    make_folder(output)
    rows: list[dict[str, Any]] = []
    for size in batch:
        for name in chosen:
            try:
                rows.append(case(name, size, inductor))
            except Exception as problem:  # noqa: BLE001 - one case must not end the others
                note(f"{name}, batch {size}: {type(problem).__name__}: {str(problem).splitlines()[0]}")
                continue
            document = {"environment": environment(device_info("cuda")), "rows": rows}
            write_file(output / "models.json", json.dumps(document, indent=1) + "\n")
            write_file(output / "models.txt", table(rows) + "\n")
            note(table(rows[-1:]))
    print(table(rows))


if __name__ == "__main__":
    script(lambda: typer.run(main))
