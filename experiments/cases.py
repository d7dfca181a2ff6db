"""Programs with candidates that are compiled on any machine and measured on a GPU: what several experiments do in two steps."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from experiments.searched import compile_all
from fuser.console import note
from fuser.device import Device
from fuser.ir.candidate import Candidate
from fuser.ir.program import TensorProgram
from fuser.outputs import make_folder
from fuser.outputs import write_file
from fuser.pools import SPAWN
from search.measure.measurer import Bench
from search.measure.records import Records
from search.tuner.judges import OPTIONS

T = TypeVar("T")
FILE = "cases.pickle"


@dataclass(frozen=True)
class Case:
    """A program with what is measured of it."""

    program: TensorProgram
    candidates: tuple[Candidate, ...]


def compile_cases(out: Path, make: Callable[[T], Case], jobs: Sequence[T], device: Device, workers: int, budget: float) -> None:
    """Make the cases, each in a process, keep them in the folder, and compile their candidates until the time is up."""
    start = time.monotonic()
    with ProcessPoolExecutor(workers, SPAWN) as pool:
        cases = list(pool.map(make, jobs))
    write_file(make_folder(out) / FILE, pickle.dumps(cases))
    every = [c for x in cases for c in x.candidates]
    done = compile_all(every, device.arch, workers, max(budget - (time.monotonic() - start), 1.0))
    note(f"{done} of {len(every)} compiled")


@dataclass(frozen=True)
class Measured:
    """Where it was measured, and of each case the microseconds of the candidates that were right."""

    environment: str
    cases: tuple[tuple[Case, tuple[tuple[float, Candidate], ...]], ...]


def measure_cases(out: Path, device: str, budget: float, run: str) -> Measured:
    """Measure the cases of a folder until the time is up, which also gets the rows (``rows.jsonl.xz``)."""
    start = time.monotonic()
    cases: list[Case] = pickle.loads((out / FILE).read_bytes())
    found = []
    with Records(":memory:") as records, Bench.open(device, records, OPTIONS, run=run) as bench:
        for n, x in enumerate(cases):
            left = budget - (time.monotonic() - start)
            if left <= 0:
                note(f"time is up after {n} of {len(cases)} programs")
                break
            rows = bench.measure(x.program, list(x.candidates), again=True, compile_timeout=left)
            times = tuple((r.time_us, c) for r, c in zip(rows, x.candidates, strict=True) if r.ok and r.time_us)
            found.append((x, times))
        records.export_lines(out / "rows.jsonl.xz")
        return Measured(bench.environment, tuple(found))
