"""Host time of a call: what it costs the CPU to issue one, for graphs of one and of three kernels.

    python -m experiments.host_time --json host_time.json

Each way of calling is timed in bursts that fit into the queue of the GPU, with a synchronisation between bursts that is not
counted; the number is the median over bursts of the time of one call. It ends within half a minute, compilation included.
Without a GPU ``--on fake`` times the same code over a driver that does nothing (captures are left out).
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from experiments.script import parser
from experiments.script import script
from fuser.ir.builder import Builder
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.outputs import make_folder
from fuser.outputs import write_file
from fuser.runtime.graph_executor import Executable
from fuser.runtime.torch_program import run_steps
from fuser.runtime.torch_program import steps
from fuser.superopt.structures import cut
from fuser.superopt.structures import cut_points
from search.measure.machine import device_info

BURST = 100
"""Calls before a synchronisation: far fewer launches than the queue of a GPU holds, so that none waits for the device."""
LIMIT_US = 10.0
"""A captured call may cost that much more than torch's own replay."""
SIZE = 64


@dataclass(frozen=True)
class Row:
    """Microseconds of the host for one call: the median over bursts, and the 10th and 90th percentile."""

    kernels: int
    call: str
    us: float
    low: float
    high: float


def program_of(kernels: int) -> TensorProgram:
    """A chain of ``kernels`` products; small, so that the device is never what is waited for."""
    b = Builder(f"chain-{kernels}")
    x = b.input("X", (SIZE, SIZE))
    for i in range(kernels):
        x = x @ b.input(f"W{i}", (SIZE, SIZE))
    return b.build(Y=x)


def graph_of(program: TensorProgram, kernels: int) -> tuple[KernelGraph, Schedule]:
    """Each product in a kernel of its own, by one block of the GPU."""
    graph = cut(program, cut_points(program)[: kernels - 1])
    return graph, Schedule(tuple(KernelSchedule((), TilingExpr.parse("")) for _ in graph.blocks))


def timed(call: Callable[[], Any], wait: Callable[[], None], seconds: float) -> tuple[float, float, float]:
    """Median, 10th and 90th percentile over bursts, in microseconds a call."""
    for _ in range(BURST):
        call()
    wait()
    found: list[float] = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds or len(found) < 5:
        start = time.perf_counter_ns()
        for _ in range(BURST):
            call()
        found.append((time.perf_counter_ns() - start) / 1e3 / BURST)
        wait()
    found.sort()
    last = len(found) - 1
    return statistics.median(found), found[round(0.1 * last)], found[round(0.9 * last)]


class _Fake(Executable):
    """Launches go to a driver that does nothing; tensors are on the CPU."""

    def _load(self, artifacts: Any) -> Any:
        from fuser.lower.compile import KernelArtifact
        from fuser.runtime.launch import LoadedKernel

        found = []
        for s in self.plan.sources:
            if s is None:
                found.append(None)
                continue
            found.append(LoadedKernel(KernelArtifact(s.name, s, "", b"", 90, 4, 0), 1, 2, 2, 0, 0))
        return found


def _fake_driver() -> None:
    from fuser.runtime import launch

    nothing = ctypes.pythonapi["PyErr_CheckSignals"]  # a C function that does next to nothing and returns 0
    nothing.argtypes = [ctypes.c_void_p] * 4
    driver = SimpleNamespace(cuLaunchKernelEx=nothing)
    launch.driver = lambda: driver  # type: ignore[assignment]


def calls(kernels: int, on: str) -> dict[str, Callable[[], Any]]:
    """The ways to call one program, by name."""
    import torch

    device = "cuda" if on == "cuda" else "cpu"
    program = program_of(kernels)
    make = Executable if on == "cuda" else _Fake
    exe = make(*graph_of(program, kernels), device=device)
    generator = torch.Generator(device=device)
    generator.manual_seed(0)
    # products of such matrices keep the size of their elements
    drawn = [torch.randn(program[n].shape, generator=generator, device=device) / SIZE**0.5 for n in program.inputs]
    inputs = [x.to(torch.float16) for x in drawn]
    out = torch.empty(program["Y"].shape, dtype=torch.float16, device=device)
    named = dict(zip(program.inputs, inputs, strict=True))
    todo = steps(program)

    def eager() -> None:
        run_steps(todo, dict(named))

    found: dict[str, Callable[[], Any]] = {}
    if on == "cuda":
        from fuser.runtime.capture import capture_calls

        expected = exe(*inputs)
        want = run_steps(todo, dict(named))["Y"]
        torch.testing.assert_close(expected, want, rtol=2e-2, atol=2e-2)
        plain = capture_calls([lambda: torch.neg(inputs[0], out=out)], warm=True)
        bound = exe.bind(named, {"Y": out})
        same = capture_calls([bound], warm=True)
        captured = exe.capture(named, {"Y": out})
        copies = [x.clone() for x in inputs]
        found["torch: replay of a graph of one torch kernel"] = plain.replay
        found["torch: replay of a graph of the same kernels"] = same.replay
        found["captured: replay"] = captured.replay
        found["captured: call"] = captured
        found["captured: call, first input copied"] = lambda: captured(copies[0], *inputs[1:])
        found["captured: call, all inputs copied"] = lambda: captured(*copies)
    found["call with out="] = lambda: exe(*inputs, out=out)
    found["call"] = lambda: exe(*inputs)
    found["bound call"] = exe.bind(named, {"Y": out})
    found["torch eager"] = eager
    return found


def measure(on: str, seconds: float) -> list[Row]:
    """Every way of calling, for one kernel and for three."""
    import torch

    wait = torch.cuda.synchronize if on == "cuda" else (lambda: None)
    rows: list[Row] = []
    with torch.no_grad():
        for kernels in (1, 3):
            rows += [Row(kernels, name, *timed(call, wait, seconds)) for name, call in calls(kernels, on).items()]
    return rows


def report(rows: Sequence[Row], on: str) -> dict[str, Any]:
    """The rows with what they were measured on, and by how much a captured call exceeds torch's replay of the same kernels."""
    by = {(r.kernels, r.call): r.us for r in rows}
    torch_replay = "torch: replay of a graph of the same kernels"
    over = {
        str(k): by[k, "captured: call"] - by[k, torch_replay]
        for k in sorted({r.kernels for r in rows})
        if (k, torch_replay) in by
    }
    return {
        "schema": 1,
        "on": on,
        "environment": device_info("cuda" if on == "cuda" else "cpu"),
        "burst": BURST,
        "limit_us": LIMIT_US,
        "captured_over_torch_us": over,
        "within_limit": all(x <= LIMIT_US for x in over.values()) if over else None,
        "rows": [asdict(r) for r in rows],
    }


def main(argv: Sequence[str] | None = None) -> int:
    p = parser("experiments.host_time", __doc__)
    p.add_argument("--on", choices=("cuda", "fake"), default="cuda", help="fake: the host's part alone, without a GPU")
    p.add_argument("--seconds", type=float, default=0.3, help="time for each way of calling")
    p.add_argument("--json", type=Path, help="file for the report")
    args = p.parse_args(argv)
    if find_spec("platformdirs") is None:
        os.environ.setdefault("MUFUSER_CACHE", str(Path(tempfile.gettempdir()) / "mufuser"))
    if args.on == "fake":
        _fake_driver()
    rows = measure(args.on, args.seconds)
    found = report(rows, args.on)
    print(f"host µs of one call, median of bursts of {BURST} ({found['environment']['device']})")
    print(f"{'call':<48}" + "".join(f"{k:>4} kernel{'s' * (k > 1):<2}" for k in (1, 3)))
    for name in dict.fromkeys(r.call for r in rows):
        print(f"{name:<48}" + "".join(f"{r.us:>11.2f}  " for r in rows if r.call == name))
    for k, us in found["captured_over_torch_us"].items():
        print(f"a captured call of {k} kernels over torch's replay of them: {us:+.2f} µs (at most {LIMIT_US:.0f})")
    if args.json:
        make_folder(args.json.parent)
        write_file(args.json, json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    script(main)
