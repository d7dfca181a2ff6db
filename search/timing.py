"""Check and time candidates on one GPU, inside the process that owns it (:mod:`search.worker`).

Correct first: outputs and workspace are filled with NaN, the result is compared with float64 on inputs drawn for that purpose,
and only then is anything timed. Time is that of CUDA-graph replays over so many input sets that the L2 cache cannot hold them,
all candidates of a batch in turn.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from importlib import import_module
from typing import Any

from fuser.errors import FuserError
from fuser.errors import NoValidKernelError
from fuser.errors import UnsupportedError
from fuser.ir.program import TensorProgram
from fuser.lower.compile import KernelArtifact
from fuser.runtime.graph_executor import Executable
from fuser.runtime.graph_executor import Plan
from fuser.runtime.graph_executor import capture_calls
from fuser.runtime.launch import CudaError
from fuser.runtime.launch import LoadedKernel
from fuser.runtime.torch_program import reference

Call = Callable[[], Any]


@dataclass(frozen=True)
class Options:
    """How to measure. ``l2_factor``: inputs and outputs of all sets together are that many times the L2 cache. ``rounds``
    replays are timed; one replay holds each set once, or fewer where it would last longer than ``replay_ms``. ``tolerance``
    overrides the largest accepted Frobenius error (by default by dtype)."""

    seed: int = 0
    rounds: int = 11
    l2_factor: float = 2.0
    max_sets: int = 1024
    max_bytes: int = 8 << 30
    replay_ms: float = 10.0
    warm_ms: float = 20.0
    tolerance: float | None = None
    scale: float = 1.0


@dataclass(frozen=True)
class Kernels:
    """A planned µGraph with its compiled kernels (none on the CPU, where the interpreter runs the sources)."""

    plan: Plan
    artifacts: tuple[KernelArtifact | None, ...] = ()


@dataclass(frozen=True)
class External:
    """Another implementation: ``target`` is ``module:function``, called with (program, name, device); it returns a function from
    inputs by name to outputs by name, all torch tensors."""

    target: str
    name: str


@dataclass(frozen=True)
class Measurement:
    """What became of a candidate; fields as in :class:`search.records.Record`."""

    status: str
    detail: str = ""
    time_us: float | None = None
    min_us: float | None = None
    spread: float | None = None
    error_fro: float | None = None
    error_max: float | None = None
    grid: int = 0
    shared_bytes: int = 0
    registers: int = -1
    spills: int = -1
    kernels: int = 1
    calls: int = 0
    replays: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.status == "ok"


TOLERANCE = {"float16": 1e-2, "bfloat16": 2e-2, "float32": 1e-3, "float64": 1e-6}
"""Largest accepted relative Frobenius error by dtype of the outputs."""


class DeviceLost(Exception):
    """The process cannot use its GPU any more."""


class Session:
    """One program with its input sets and its reference on one device."""

    def __init__(self, program: TensorProgram, options: Options, device: str) -> None:
        import torch

        self.program, self.options, self.device = program, options, device
        io = [program[n] for n in (*program.inputs, *program.outputs)]
        per_set = sum(t.nbytes for t in io)
        if device == "cuda":
            l2 = torch.cuda.get_device_properties(0).L2_cache_size
            self.sets = min(
                max(2, math.ceil(options.l2_factor * l2 / per_set)), options.max_sets, max(2, options.max_bytes // per_set)
            )
        else:
            self.sets = 2
        self.bytes = per_set * self.sets
        generator = torch.Generator(device=device)
        generator.manual_seed(options.seed)
        factors: dict[str, float] = {}
        self.check_inputs = {n: x[0] for n, x in self._draw(generator, factors).items()}
        self.reference = reference(program, self.check_inputs)
        if self._overflows():
            factors = _weight_factors(program)
            self.check_inputs = {n: x[0] for n, x in self._draw(generator, factors).items()}
            self.reference = reference(program, self.check_inputs)
        drawn = self._draw(generator, factors, self.sets)
        self.inputs = [{n: x[i] for n, x in drawn.items()} for i in range(self.sets)]
        self.outputs = [self.empty() for _ in range(self.sets)]

    def _draw(self, generator: Any, factors: dict[str, float], sets: int = 1) -> dict[str, Any]:
        import torch

        found = {}
        for name in self.program.inputs:
            t = self.program[name]
            dtype = getattr(torch, t.dtype)
            shape = (sets, *t.shape)
            if dtype.is_floating_point:
                x = torch.randn(shape, generator=generator, dtype=torch.float32, device=self.device)
                found[name] = (x * (self.options.scale * factors.get(name, 1.0))).to(dtype)
            else:
                found[name] = torch.randint(0, 2, shape, generator=generator, device=self.device).to(dtype)
        return found

    def _overflows(self) -> bool:
        """A result would not fit the dtype of the outputs (a deep chain of matmuls with unscaled weights)."""
        import torch

        for name, y in self.reference.items():
            dtype = getattr(torch, self.program[name].dtype)
            if not bool(torch.isfinite(y).all()) or float(y.abs().max()) > torch.finfo(dtype).max / 4:
                return True
        return False

    def empty(self) -> dict[str, Any]:
        import torch

        return {
            n: torch.empty(self.program[n].shape, dtype=getattr(torch, self.program[n].dtype), device=self.device)
            for n in self.program.outputs
        }

    def errors(self, outputs: dict[str, Any]) -> tuple[str, float, float]:
        """``(status, Frobenius error, largest error)`` of outputs for the check inputs, the worst over the outputs."""
        import torch

        worst, largest = 0.0, 0.0
        for name, ref in self.reference.items():
            out = outputs[name].double().reshape(ref.shape)
            if not bool(torch.isfinite(out).all()):
                return "nan", math.nan, math.nan
            diff = out - ref
            norm, top = float(torch.linalg.vector_norm(ref)), float(ref.abs().max())
            worst = max(worst, float(torch.linalg.vector_norm(diff)) / max(norm, 1e-30))
            largest = max(largest, float(diff.abs().max()) / max(top, 1e-30))
        dtype = self.program[self.program.outputs[0]].dtype
        limit = self.options.tolerance or TOLERANCE.get(dtype, 1e-2)
        return ("ok" if worst < limit else "wrong"), worst, largest


def _weight_factors(program: TensorProgram) -> dict[str, float]:
    """1/√(contracted extent) for inputs that reach, through views and slices only, the right side of a matmul."""
    origin = {n: n for n in program.inputs}
    factors: dict[str, float] = {}
    for node in program.nodes:
        if node.op in ("reshape", "transpose", "broadcast", "slice", "cast") and node.inputs[0] in origin:
            origin[node.output] = origin[node.inputs[0]]
        elif node.op == "matmul" and node.inputs[1] in origin:
            factors[origin[node.inputs[1]]] = program[node.inputs[1]].shape[-2] ** -0.5
    return factors


@dataclass
class _Prepared:
    calls: list[Call]
    one: float
    result: Measurement
    keep: Any = None
    graph: Any = None
    per_replay: int = 0


def sync(device: str) -> None:
    """Wait for the device; :class:`DeviceLost` if an earlier kernel broke it."""
    if device != "cuda":
        return
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        raise DeviceLost(str(error).splitlines()[0]) from error


def prepare(session: Session, candidate: Kernels | External) -> _Prepared:
    """Load, run once on the check inputs, compare, and estimate the time of one call. Every failure but a lost device is a
    result."""
    start = time.perf_counter()
    try:
        done = _prepare(session, candidate)
    except (NoValidKernelError, MemoryError) as error:
        done = _Prepared([], 0.0, Measurement("resources", _line(error)))
    except CudaError as error:
        if error.sticky:
            raise DeviceLost(error.message) from error
        done = _Prepared([], 0.0, Measurement("resources", _line(error)))
    except UnsupportedError as error:
        done = _Prepared([], 0.0, Measurement("unsupported", _line(error)))
    except (FuserError, RuntimeError, ValueError, TypeError, ImportError, NotImplementedError) as error:
        done = _Prepared([], 0.0, _of_runtime_error(session.device, error))
    done.result = replace(done.result, seconds=time.perf_counter() - start)
    return done


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _of_runtime_error(device: str, error: Exception) -> Measurement:
    """Out of memory is a result; anything after which the device still answers too; the rest ends the process."""
    if device == "cuda":
        import torch

        if isinstance(error, torch.cuda.OutOfMemoryError):
            torch.cuda.empty_cache()
            return Measurement("resources", _line(error))
        sync(device)
    return Measurement("invalid", f"{type(error).__name__}: {_line(error)}")


def _prepare(session: Session, candidate: Kernels | External) -> _Prepared:
    outputs = session.empty()
    keep: Any
    if isinstance(candidate, Kernels):
        keep = exe = Executable(candidate.plan, device=session.device, artifacts=candidate.artifacts or None)
        base = _resources(exe)
        for t in outputs.values():
            t.fill_(math.nan)
        exe.workspace.fill_(255)  # all ones is NaN in every float dtype
        exe.run(session.check_inputs, outputs)
        sync(session.device)
        calls = [exe.bind(i, o) for i, o in zip(session.inputs, session.outputs, strict=True)]
    else:
        module, _, name = candidate.target.partition(":")
        keep = function = getattr(import_module(module), name)(session.program, candidate.name, session.device)
        base = Measurement("ok", kernels=0)
        outputs = function(session.check_inputs)
        sync(session.device)
        calls = [lambda i=i: function(i) for i in session.inputs]
    status, fro, top = session.errors(outputs)
    result = replace(base, status=status, error_fro=fro, error_max=top)
    if status != "ok":
        what = "the result has NaN or infinite elements" if status == "nan" else f"relative Frobenius error {fro:.3g}"
        failed = _Prepared([], 0.0, replace(result, detail=what), keep)
        _release(failed)
        return failed
    return _Prepared(calls, _one(session.device, calls), result, keep)


def _resources(exe: Executable) -> Measurement:
    loaded = [k for k in exe.kernels if isinstance(k, LoadedKernel)]
    return Measurement(
        "ok",
        grid=max((s.grid for s in exe.plan.sources if s), default=0),
        shared_bytes=max((k.artifact.shared_bytes for k in loaded), default=0),
        registers=max((k.registers for k in loaded), default=-1),
        spills=max((k.spills for k in loaded), default=-1),
        kernels=len(exe.kernels),
    )


def _one(device: str, calls: Sequence[Call]) -> float:
    """Milliseconds of one call, roughly (launch overhead included)."""
    if device != "cuda":
        start = time.perf_counter()
        calls[-1]()
        return (time.perf_counter() - start) * 1e3
    import torch

    first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    calls[0]()
    first.record()
    calls[-1]()
    second.record()
    sync(device)
    return first.elapsed_time(second)


def time_batch(
    session: Session, prepared: Sequence[_Prepared], alive: Callable[[int], None] = lambda _: None
) -> list[Measurement]:
    """Capture every candidate that is correct, then replay them in turn, ``rounds`` times; the results in order."""
    options = session.options
    live = []
    for i, p in enumerate(prepared):
        if not p.calls:
            continue
        alive(i)
        start = time.perf_counter()
        p.per_replay = min(len(p.calls), max(2, int(options.replay_ms / max(p.one, 1e-3))))
        if session.device == "cuda":
            try:
                p.graph = capture_calls(p.calls[: p.per_replay])
            except (RuntimeError, CudaError) as error:
                p.calls = []
                sync(session.device)
                p.result = replace(p.result, status="invalid", detail=f"cannot be captured: {_line(error)}")
                continue
        p.result = replace(p.result, seconds=p.result.seconds + time.perf_counter() - start)
        live.append(p)
    times = _replay_cuda(session, live, alive) if session.device == "cuda" else _replay_cpu(live)
    for p, found in zip(live, times, strict=True):
        p.result = replace(
            p.result,
            time_us=statistics.median(found),
            min_us=min(found),
            spread=spread(found),
            calls=p.per_replay,
            replays=len(found),
            seconds=p.result.seconds + sum(found) * p.per_replay / 1e6,
        )
        if p.graph is not None:
            p.graph.reset()
        _release(p)
    return [p.result for p in prepared]


def spread(values: Sequence[float]) -> float:
    """10th to 90th percentile over the median."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return (ordered[round(0.9 * last)] - ordered[round(0.1 * last)]) / statistics.median(ordered)


def _release(p: _Prepared) -> None:
    if isinstance(p.keep, Executable):
        p.calls = []
        for kernel in p.keep.kernels:
            if isinstance(kernel, LoadedKernel):
                kernel.unload()
    p.graph = p.keep = None


def _replay_cpu(live: Sequence[_Prepared]) -> list[list[float]]:
    found: list[list[float]] = [[] for _ in live]
    for _ in range(3):
        for p, times in zip(live, found, strict=True):
            start = time.perf_counter()
            p.calls[0]()
            times.append((time.perf_counter() - start) * 1e6)
    return found


def _replay_cuda(session: Session, live: Sequence[_Prepared], alive: Callable[[int], None]) -> list[list[float]]:
    """Microseconds of one call for each candidate and round. Clocks are brought up first; the order turns from round to round."""
    import torch

    if not live:
        return []
    sync(session.device)
    start = time.perf_counter()
    while (time.perf_counter() - start) * 1e3 < session.options.warm_ms:
        for p in live:
            p.graph.replay()
        sync(session.device)
    found: list[list[float]] = [[] for _ in live]
    for r in range(session.options.rounds):
        alive(-1)
        events = []
        for j in range(len(live)):
            i = (j + r) % len(live)
            first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            live[i].graph.replay()
            second.record()
            events.append((i, first, second))
        sync(session.device)
        for i, first, second in events:
            found[i].append(first.elapsed_time(second) * 1e3 / live[i].per_replay)
    return found


def device_info(device: str) -> dict[str, Any]:
    """What a row says about the machine: device name and limits, versions of compiler, torch and driver."""
    import torch
    import triton

    info: dict[str, Any] = {"torch": torch.__version__, "triton": triton.__version__}
    if device != "cuda":
        return {"device": "cpu-interpreter", "arch": 0, **info}
    p = torch.cuda.get_device_properties(0)
    return {
        "device": p.name,
        "arch": 10 * p.major + p.minor,
        "sm_count": p.multi_processor_count,
        "memory_gib": round(p.total_memory / 2**30),
        "l2_bytes": p.L2_cache_size,
        "cuda": torch.version.cuda,
        "driver": _driver_version(),
        **info,
    }


def _driver_version() -> str:
    try:
        with open("/proc/driver/nvidia/version") as file:
            words = file.readline().split()
        return next((w for w in words if w[:1].isdigit() and "." in w), "")
    except OSError:
        return ""
