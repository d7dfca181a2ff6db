"""A GPU that does not exist: numbers and constants of the model changed by a seed, times with noise, some of them far off, some
schedules that fail. A calibration can be tried on it anywhere, and one that is right finds the constants again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cost_model.calibrate import BOUNDS
from cost_model.constants import constants_of
from cost_model.device_file import fitted
from fuser.device import Device
from fuser.ir.candidate import Candidate
from fuser.ir.program import TensorProgram
from fuser.runtime.plan import Plan
from search.calibrate.rates import AGAIN
from search.calibrate.rates import DTYPES
from search.measure.compiling import Built
from search.measure.compiling import CompilePool
from search.measure.measurement import Measurement
from search.measure.measurer import Bench
from search.measure.records import Records
from search.measure.session import Options
from search.measure.timing import External
from search.measure.timing import Kernels
from search.measure.worker import Worker
from search.tune import graph_seconds

FEWER = 0.75
"""Part of the multiprocessors that it has."""
SPREAD = 0.35
"""Deviation of the logarithm of each constant."""
NOISE, ODD, FAR, FAILING = 0.02, 0.02, 3.0, 0.03
"""Deviation of the logarithm of a time; part of all times that are odd, and how many times too long those are; part of all
schedules that fail."""


def truth(base: Device, seed: int) -> Device:
    """The device that is pretended: fewer multiprocessors, a slower memory, other constants."""
    rng = np.random.default_rng([seed, 3])
    rates = {k: FEWER * getattr(base, k) for k in (*DTYPES.values(), "fp32_flops") if getattr(base, k)}
    made = replace(
        base,
        **rates,
        name=f"pretended-{seed}",
        title=f"Pretended {base.title} {seed}",
        aliases=(),
        sm_count=round(FEWER * base.sm_count),
        memory_bandwidth=0.75 * base.memory_bandwidth,
        copy_bandwidth=0.75 * base.copy_bandwidth,
    )
    drawn = {n: float(np.exp(SPREAD * rng.standard_normal())) for n in BOUNDS}
    found = {n: min(max(getattr(constants_of(base), n) * x, 1.1 * BOUNDS[n][0]), 0.9 * BOUNDS[n][1]) for n, x in drawn.items()}
    return fitted(made, replace(constants_of(base), **found), {})


class Pretending(Worker):
    """Answers as the process of a GPU would, at once."""

    def __init__(self, base: Device, seed: int) -> None:
        super().__init__("pretended")
        self.truth, self.seed = truth(base, seed), seed
        self._info = {"device": self.truth.title, "arch": base.arch, "sm_count": self.truth.sm_count, "torch": "", "triton": ""}

    def limits(self) -> dict[str, int]:
        """What its driver says."""
        d = self.truth
        clocks = {"clock": int(d.clock / 1e3), "memory_clock": int(d.memory_bandwidth / 2e3), "memory_bits": 8}
        return clocks | {k: int(getattr(d, k)) for k in ("sm_count", "l2_bytes", "memory_bytes")}

    def run(self, program: TensorProgram, candidates: Sequence[Kernels | External], options: Options) -> list[Measurement]:
        return [self._measurement(program, c) for c in candidates]

    def _measurement(self, program: TensorProgram, item: Kernels | External) -> Measurement:
        if isinstance(item, External):
            return Measurement("ok", time_us=1e6 * self._rate(program))
        rng = self._rng(item.plan.candidate)
        if rng.random() < FAILING:
            return Measurement("wrong", "as the pretended GPU has it")
        far = FAR if rng.random() < ODD else 1.0
        us = 1e6 * graph_seconds(item.plan.candidate, self.truth) * far * float(np.exp(NOISE * rng.standard_normal()))
        return Measurement("ok", time_us=us, min_us=us, spread=NOISE, kernels=len(item.plan.graph.kernels))

    def _rng(self, candidate: Candidate) -> np.random.Generator:
        name = f"{self.seed} {candidate.graph.stable_hash()} {candidate.schedule.stable_hash()}"
        return np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big"))

    def _rate(self, program: TensorProgram) -> float:
        """Seconds of one of the programs of :mod:`search.calibrate.rates`."""
        d, c = self.truth, constants_of(self.truth)
        moved = sum(t.nbytes for t in program.tensors if t.name in (*program.inputs, *program.outputs))
        kind, *size = program.name.partition("/")[2].split("-")
        if kind == "product":
            return 2 * int(size[0]) ** 3 / (0.8 * float(getattr(d, DTYPES[size[1]])))
        rate = d.l2_bandwidth * c.l2_rate if kind == "cached" else d.memory_bandwidth * c.memory_rate
        return (d.launch_latency + moved / rate) * (AGAIN if kind == "cached" else 1)


class Idle(CompilePool):
    """Processes with nothing to compile."""

    def ready(self, planned: Plan) -> bool:
        return True

    def submit(self, planned: Plan) -> None:
        """Nothing."""

    def result(self, planned: Plan, timeout: float | None = None) -> Built:
        return Built(Measurement())


def pretending(base: Device, seed: int, records: Records, jobs: int | None, run: str) -> Bench:
    worker = Pretending(base, seed)
    return Bench(worker, Idle(base.arch, jobs), records, Options(), run)


def errors(found: Device, true: Device) -> dict[str, float]:
    """Logarithm of each constant that was found over the true one; of rates, with the peaks that they are parts of."""
    mine, theirs = constants_of(found), constants_of(true)
    away = {n: float(np.log(getattr(mine, n) / getattr(theirs, n))) for n in BOUNDS}
    return away | {"l2_rate": away["l2_rate"] + float(np.log(found.l2_bandwidth / true.l2_bandwidth))}
