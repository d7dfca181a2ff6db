"""Check and time candidates on one GPU, inside the process that owns it (:mod:`search.measure.worker`).

Correct first: outputs and workspace are filled with NaN, the result is compared with float64 on inputs drawn for that purpose,
and only then is anything timed. Time is that of CUDA-graph replays over so many input sets that the L2 cache cannot hold them,
all candidates of a batch in turn.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from importlib import import_module
from typing import Any

from fuser.errors import first_line
from fuser.ir.pitched import rows_of
from fuser.lower.compile import KernelArtifact
from fuser.runtime.capture import capture_calls
from fuser.runtime.cuda_driver import CudaError
from fuser.runtime.graph_executor import Executable
from fuser.runtime.launch import LoadedKernel
from fuser.runtime.plan import Plan
from search.measure.contest import undecided
from search.measure.measurement import Measurement
from search.measure.measurement import failed
from search.measure.session import Session
from search.measure.session import stored

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


REPEATS = 6
"""So often a result must come out the same."""


class DeviceLost(Exception):
    """The process cannot use its GPU any more."""


class Watch:
    """Who is at work, as the process that waits has to know it; this one tells nobody."""

    def doing(self, number: int) -> None:
        """Before a candidate does something, by itself; -1 for several at once."""

    def done(self, number: int) -> None:
        """After it, the device idle again."""


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
    except DeviceLost:
        raise
    except Exception as error:  # noqa: BLE001 - peers and what they call raise anything
        done = _Prepared([], 0.0, _failed(session.device, error))
    done.result = replace(done.result, seconds=time.perf_counter() - start)
    return done


def _failed(device: str, error: Exception) -> Measurement:
    """The result of what raised an error, if the device still answers; if not, the process is at its end."""
    if isinstance(error, CudaError) and error.sticky:
        raise DeviceLost(error.message) from error
    if device == "cuda":
        import torch

        if isinstance(error, torch.cuda.OutOfMemoryError):
            torch.cuda.empty_cache()
        sync(device)
    return failed(error)


def _prepare(session: Session, candidate: Kernels | External) -> _Prepared:
    keep: Any
    if isinstance(candidate, Kernels):
        keep = exe = Executable(candidate.plan, device=session.device, artifacts=candidate.artifacts or None)
        base = _resources(exe)
        sizes = _sizes(exe)
        inputs, outputs = stored(session.check_inputs, sizes), session.poisoned(sizes)
        exe.workspace.fill_(255)  # all ones is NaN in every float dtype
        exe.run(inputs, outputs)
        sync(session.device)
        calls = [exe.bind(stored(i, sizes), stored(o, sizes)) for i, o in zip(session.inputs, session.outputs, strict=True)]
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
    found, sizes = [], _sizes(exe)
    inputs = stored(session.check_inputs, sizes)
    for n in range(REPEATS):
        for call in calls[n * REPEATS : (n + 1) * REPEATS]:
            call()
        outputs = session.poisoned(sizes)
        exe.run(inputs, outputs)
        found.append(outputs)
    sync(session.device)
    return all(torch.equal(bits(o[n]), bits(first[n])) for o in found for n in first)


def _sizes(exe: Executable) -> Mapping[str, Any]:
    """Tensors of its plan, where some lie in longer rows than the program's."""
    return exe.plan.table if rows_of(exe.plan.graph) else {}


def bits(x: Any) -> Any:
    """A tensor as bytes, which are equal where NaN is not."""
    import torch

    return x.reshape(-1).view(torch.uint8)  # a number alone has no dimension to view


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


def time_batch(session: Session, prepared: Sequence[_Prepared], watch: Watch | None = None) -> list[Measurement]:
    """Capture every candidate that is correct and replay each once by itself, then all in turn, ``rounds`` times; the results in
    order. Without rounds there are no times."""
    watch = watch or Watch()
    if not session.options.rounds:
        for p in prepared:
            _release(p)
        return [p.result for p in prepared]
    live: dict[int, _Prepared] = {}
    for i, p in enumerate(prepared):
        if not p.calls:
            continue
        watch.doing(i)
        start = time.perf_counter()
        try:
            _begin(session, p)
            live[i] = p
        except DeviceLost:
            raise
        except Exception as error:  # noqa: BLE001 - peers and what they call raise anything
            _give_up(session, p, error, "cannot be captured: ")
        watch.done(i)
        p.result = replace(p.result, seconds=p.result.seconds + time.perf_counter() - start)
    times = _replay_cuda(session, live, watch) if session.device == "cuda" else _replay_cpu(session, live, watch)
    for i, p in live.items():
        if p.result.ok:
            p.result = _timed(p, times[i])
        if p.graph is not None:
            p.graph.reset()
        _release(p)
    return [p.result for p in prepared]


def _begin(session: Session, p: _Prepared) -> None:
    p.per_replay = min(len(p.calls), max(2, int(session.options.replay_ms / max(p.one, 1e-3))))
    if session.device == "cuda":
        # what others compile may set itself up at its first call on a new stream
        p.graph = capture_calls(p.calls[: p.per_replay], warm=not isinstance(p.keep, Executable))
        p.graph.replay()
        sync(session.device)


def _give_up(session: Session, p: _Prepared, error: Exception, what: str) -> None:
    found = _failed(session.device, error)
    p.calls, p.result = [], replace(p.result, status=found.status, detail=what + found.detail, lasting=found.lasting)


def _timed(p: _Prepared, found: Sequence[float]) -> Measurement:
    median = statistics.median(found)
    if not all(map(math.isfinite, found)) or median <= 0:
        return replace(p.result, status="invalid", detail=f"the clock says {median} µs", lasting=False)
    return replace(
        p.result,
        time_us=median,
        min_us=min(found),
        spread=spread(found),
        calls=p.per_replay,
        replays=len(found),
        seconds=p.result.seconds + sum(found) * p.per_replay / 1e6,
    )


def spread(values: Sequence[float]) -> float:
    """10th to 90th percentile over the median."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return (ordered[round(0.9 * last)] - ordered[round(0.1 * last)]) / statistics.median(ordered)


def _release(p: _Prepared) -> None:
    if isinstance(p.keep, Executable):
        p.calls = []
        p.keep.unload()
    p.graph = p.keep = None


def _replay_cpu(session: Session, live: Mapping[int, _Prepared], watch: Watch) -> dict[int, list[float]]:
    """Microseconds of one call for each candidate and round."""
    found: dict[int, list[float]] = {i: [] for i in live}
    for _ in range(3):
        for i, p in live.items():
            if not p.calls:
                continue
            watch.doing(i)
            start = time.perf_counter()
            try:
                p.calls[0]()
            except Exception as error:  # noqa: BLE001 - peers and what they call raise anything
                _give_up(session, p, error, "cannot be timed: ")
            found[i].append((time.perf_counter() - start) * 1e6)
            watch.done(i)
    return found


def _replay_cuda(session: Session, live: Mapping[int, _Prepared], watch: Watch) -> dict[int, list[float]]:
    """Microseconds of one call for each candidate and round. Clocks are brought up first; the order turns from round to round.
    Nothing waits between two candidates, so that nobody in particular is at work."""
    import torch

    found: dict[int, list[float]] = {i: [] for i in live}
    if not live:
        return found
    start = time.perf_counter()
    watch.doing(-1)
    while (time.perf_counter() - start) * 1e3 < session.options.warm_ms:
        for p in live.values():
            p.graph.replay()
        sync(session.device)
    order = list(live)
    for done in range(max(session.options.rounds, session.options.most_rounds)):
        if done >= session.options.rounds and not (order := undecided(found)):
            break
        watch.doing(-1)
        events = []
        for i in order:
            first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            live[i].graph.replay()
            second.record()
            events.append((i, first, second))
        sync(session.device)
        for i, first, second in events:
            found[i].append(first.elapsed_time(second) * 1e3 / live[i].per_replay)
        order = order[1:] + order[:1]
    watch.done(-1)
    return found
