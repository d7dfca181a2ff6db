"""Check and time candidates on one GPU, inside the process that owns it (:mod:`search.worker`).

Correct first: outputs and workspace are filled with NaN, the result is compared with float64 on inputs drawn for that purpose,
and only then is anything timed. Time is that of CUDA-graph replays over so many input sets that the L2 cache cannot hold them,
all candidates of a batch in turn.
"""

from __future__ import annotations

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
from fuser.errors import first_line
from fuser.lower.compile import KernelArtifact
from fuser.runtime.capture import capture_calls
from fuser.runtime.cuda_driver import CudaError
from fuser.runtime.graph_executor import Executable
from fuser.runtime.launch import LoadedKernel
from fuser.runtime.plan import Plan
from search.session import Session

Call = Callable[[], Any]


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


REPEATS = 6
"""So often a result must come out the same."""


class DeviceLost(Exception):
    """The process cannot use its GPU any more."""


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
        raise DeviceLost(first_line(error)) from error


def prepare(session: Session, candidate: Kernels | External) -> _Prepared:
    """Load, run once on the check inputs, compare, and estimate the time of one call. Every failure but a lost device is a
    result."""
    start = time.perf_counter()
    try:
        done = _prepare(session, candidate)
    except (NoValidKernelError, MemoryError) as error:
        done = _Prepared([], 0.0, Measurement("resources", first_line(error)))
    except CudaError as error:
        if error.sticky:
            raise DeviceLost(error.message) from error
        done = _Prepared([], 0.0, Measurement("resources", first_line(error)))
    except UnsupportedError as error:
        done = _Prepared([], 0.0, Measurement("unsupported", first_line(error)))
    except (FuserError, RuntimeError, ValueError, TypeError, ImportError, NotImplementedError) as error:
        done = _Prepared([], 0.0, _of_runtime_error(session.device, error))
    done.result = replace(done.result, seconds=time.perf_counter() - start)
    return done


def _of_runtime_error(device: str, error: Exception) -> Measurement:
    """Out of memory is a result; anything after which the device still answers too; the rest ends the process."""
    if device == "cuda":
        import torch

        if isinstance(error, torch.cuda.OutOfMemoryError):
            torch.cuda.empty_cache()
            return Measurement("resources", first_line(error))
        sync(device)
    return Measurement("invalid", f"{type(error).__name__}: {first_line(error)}")


def _prepare(session: Session, candidate: Kernels | External) -> _Prepared:
    keep: Any
    if isinstance(candidate, Kernels):
        keep = exe = Executable(candidate.plan, device=session.device, artifacts=candidate.artifacts or None)
        base = _resources(exe)
        outputs = session.poisoned()
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
    found = session.compare(outputs)
    status, what = found.status, found.message
    if status == "ok" and isinstance(keep, Executable) and not _repeats(session, keep, calls, outputs):
        status, what = "wrong", "the result differs from run to run: a race"
    result = replace(base, status=status, error_fro=found.error, error_max=found.max_error)
    if status != "ok":
        failed = _Prepared([], 0.0, replace(result, detail=what), keep)
        _release(failed)
        return failed
    return _Prepared(calls, _one(session.device, calls), result, keep)


def _repeats(session: Session, exe: Executable, calls: Sequence[Call], first: dict[str, Any]) -> bool:
    """The same inputs give the same bits, also while the device is busy. Nothing that is generated adds in an order of its own,
    so that any difference is a race; and a race may well stay under the tolerance once."""
    import torch

    if session.device != "cuda":
        return True
    found = []
    for n in range(REPEATS):
        for call in calls[n * REPEATS : (n + 1) * REPEATS]:
            call()
        outputs = session.poisoned()
        exe.run(session.check_inputs, outputs)
        found.append(outputs)
    sync(session.device)
    return all(torch.equal(_bits(o[n]), _bits(first[n])) for o in found for n in first)


def _bits(x: Any) -> Any:
    """A tensor as bytes, which are equal where NaN is not."""
    import torch

    return x.contiguous().view(torch.uint8)


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
    """Capture every candidate that is correct, then replay them in turn, ``rounds`` times; the results in order. Without rounds
    there are no times."""
    options = session.options
    if not options.rounds:
        for p in prepared:
            _release(p)
        return [p.result for p in prepared]
    live = []
    for i, p in enumerate(prepared):
        if not p.calls:
            continue
        alive(i)
        start = time.perf_counter()
        p.per_replay = min(len(p.calls), max(2, int(options.replay_ms / max(p.one, 1e-3))))
        if session.device == "cuda":
            try:
                # what others compile may set itself up at its first call on a new stream
                p.graph = capture_calls(p.calls[: p.per_replay], warm=not isinstance(p.keep, Executable))
            except (RuntimeError, CudaError) as error:
                p.calls = []
                sync(session.device)
                p.result = replace(p.result, status="invalid", detail=f"cannot be captured: {first_line(error)}")
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
