"""What a worker does for a search elsewhere: compile candidates, measure parts of generations on its GPU."""

from __future__ import annotations

import multiprocessing
import threading
import time
from dataclasses import dataclass

from fuser.device import Device
from fuser.errors import EnvironmentError_
from fuser.ir.candidate import Candidate
from search.measure.compiling import CompilePool
from search.measure.measurement import Measurement
from search.measure.measurement import Turn
from search.measure.measurer import Bench
from search.measure.planned import planned
from search.measure.planned import source_hash
from search.measure.records import Records
from search.measure.rows import Record
from search.measure.session import Options
from search.measure.timing import Kernels
from search.tuner.simulated import Simulated


@dataclass(frozen=True)
class Made:
    """A candidate with its plan, and its kernels; ``seconds`` they took to compile."""

    candidate: Candidate
    kernels: Kernels
    seconds: float = 0.0


@dataclass(frozen=True)
class Part:
    """Candidates for one worker; ``made`` has the kernels of those that are compiled already. ``simulated`` is the
    seed of a made-up device, ``jobs`` how many processes may compile."""

    turn: Turn[Candidate]
    options: Options
    device: Device
    made: tuple[tuple[str, Kernels], ...] = ()
    simulated: int | None = None
    jobs: int | None = None


@dataclass(frozen=True)
class Answer:
    """``rows`` are to be kept: none of a made-up device. ``seconds`` is how long the GPU was there for it alone."""

    found: tuple[Measurement, ...]
    beside: tuple[Measurement, ...]
    rows: tuple[Record, ...] = ()
    seconds: float = 0.0


_HERE = threading.local()
_BENCH: list[Bench] = []
_TURN = threading.Lock()


def make(candidate: Candidate, arch: int, seconds: int) -> Made | Measurement:
    """Generate and compile a candidate, or why that fails; for architecture 0 nothing is compiled."""
    plan = planned(candidate)
    if isinstance(plan, Measurement):
        return plan
    source_hash(candidate)
    if arch not in (pools := vars(_HERE).setdefault("pools", {})):
        _may_have_children()
        pools[arch] = CompilePool(arch, 1)
    pools[arch].seconds = seconds
    built = pools[arch].result(plan)
    return Made(candidate, Kernels(plan, built.artifacts), built.result.seconds) if built.result.ok else built.result


def answer(part: Part) -> Answer:
    """Compile what is not compiled, check and time a part; one part at a time."""
    if part.simulated is not None:
        measured, beside = Simulated(part.device, part.simulated).compare(part.turn)
        return Answer(tuple(measured), beside)
    with _TURN:
        bench = _bench(part.options, part.jobs)
        if bench.worker.info["arch"] != part.device.arch:
            raise EnvironmentError_(f"a worker has a {bench.worker.info['device']}, not {part.device.title}", "start others")
        bench.kernels.update(part.made)
        start = time.perf_counter()
        rows, beside = bench.measured(part.turn)
        seconds = time.perf_counter() - start
    return Answer(tuple(r.measurement for r in rows), beside, tuple(rows), seconds)


def _bench(options: Options, jobs: int | None) -> Bench:
    """One for each worker; its GPU is the first that the worker sees."""
    if not _BENCH:
        _may_have_children()
        _BENCH.append(Bench.open("cuda", Records(":memory:"), options, jobs, run="search"))
    return _BENCH[0]


def _may_have_children() -> None:
    """Workers of Dask are daemons, which Python lets have none. Ours end by themselves when their parent does."""
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
