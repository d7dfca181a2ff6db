"""A calibration on the GPU at hand, in stages, each of which may be interrupted: rows are kept as they come."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from cost_model.calibrate import Each
from cost_model.constants import REFERENCE
from cost_model.constants import constants_of
from fuser.device import Device
from fuser.device import list_devices
from fuser.device import load_device
from fuser.errors import EnvironmentError_
from fuser.errors import UsageError
from fuser.ir.program import TensorProgram
from search.calibrate.choose import Offer
from search.calibrate.choose import offers
from search.calibrate.choose import ordered
from search.calibrate.choose import with_constants
from search.calibrate.describe import described
from search.calibrate.describe import known
from search.calibrate.fitting import Calibration
from search.calibrate.fitting import calibrated
from search.calibrate.fitting import started
from search.calibrate.programs import calibration_programs
from search.calibrate.rates import SUITE
from search.calibrate.rates import measured
from search.calibrate.rates import programs
from search.calibrate.rates import rates_of
from search.calibrate.samples import samples
from search.measure.measurement import Turn
from search.measure.measurer import Bench
from search.measure.records import Records
from search.measure.rows import Record
from search.measure.session import Options
from search.measure.turns import take_turns
from search.tuner.memory import names_of

RUN = "calibrate"
"""Of the rows of rates: a later run reads them back."""
ROUNDS = Options(rounds=7, replay_ms=3.0, warm_ms=5.0)
COMPILE_SECONDS = 20
"""A kernel that takes longer to compile says little of the GPU."""
EACH = 2
"""Programs of each kind."""
CHOOSING = 0.15
"""Part of the time after which no further programs are looked at."""
FIT = 0.2
"""Part of the time that is left to the fits, 40 s at most."""
Progress = Callable[[str, int], AbstractContextManager[Callable[[str], None]]]
"""Of a stage with so many steps: what hears of each."""


@dataclass(frozen=True)
class Asked:
    """A GPU by its name, what its driver says (:func:`search.calibrate.describe.limits`), and the device to begin with; seconds
    of the whole run; the seed of what is drawn, and of a GPU that is ``pretended``."""

    base: Device
    title: str
    limits: Mapping[str, Any]
    budget: float
    seed: int = 0
    pretended: int | None = None

    @property
    def device(self) -> Device:
        """As far as it is known before anything was measured, with constants to begin with."""
        return with_constants(described(self.base, self.title, self.limits, rates_of(())), constants_of(self.base))


def base_for(title: str, arch: int, asked: str = "") -> Device:
    """The device whose numbers stand for what nobody says of a GPU. Raises :class:`UsageError` where it is of another
    architecture, :class:`EnvironmentError_` where there is none of this one."""
    if asked:
        base = load_device(asked)
        if base.hypothetical:
            raise UsageError(f"nobody has the base {base.title}", "--base DEVICE names one that exists")
        if base.arch != arch:
            fit = ", ".join(d.name for d in list_devices() if d.arch == arch)
            raise UsageError(
                f"the base {base.name} is {base.sm}, and {title} is sm_{arch}",
                f"--base {fit or 'FILE: a device file with arch = ' + str(arch)}",
            )
        return base
    same = sorted((d for d in list_devices() if d.arch == arch), key=lambda d: (d.name != REFERENCE, not d.constants))
    found = known(title) or next(iter(same), None)
    if found is None:
        raise EnvironmentError_(
            f"no device of the architecture sm_{arch} ({title}) is known to begin with",
            f"copy the nearest file of fuser/devices, set arch = {arch}, and give it as --base FILE.toml",
        )
    return found


def measure(bench: Bench, asked: Asked, progress: Progress) -> None:
    """Measure rates and schedules until all is done or the time is up; the rows are in the records of ``bench``."""
    start = time.monotonic()
    bench.batches = len(bench.records)
    info, begin, limits = bench.worker.info, asked.device, asked.limits
    memory, l2 = limits["memory_bytes"], limits["l2_bytes"]
    with progress("rates", len(programs(memory, l2))) as step:
        info["limits"] = dict(limits)  # rows of rates say where they come from
        measured(bench, memory, l2, step)
        del info["limits"]
    drawn, every = list[TensorProgram](), list[list[Offer]]()
    for turn in range(EACH):
        if turn and time.monotonic() - start > CHOOSING * asked.budget:
            break
        more = calibration_programs(asked.seed, turn)
        with progress("choosing schedules", len(more)) as step:
            jobs = [(p, begin, constants_of(begin), asked.seed) for p in more]
            for program, found in zip(more, bench.each(offers, jobs), strict=True):
                every.append(found)
                step(program.name)
        drawn += more
    there = {(r.workload, r.structure, r.schedule) for r in _mine(bench.records, info["device"]) if r.kind == "kernel"}
    todo = []
    for number, candidates in ordered(every):
        of = drawn[number]
        new = tuple(c for c in candidates if (of.name, c.graph.stable_hash(), c.schedule.text) not in there)
        if new:
            todo.append(Turn(of, new))
    end = start + asked.budget - min(FIT * asked.budget, 40.0)
    with progress("measuring", len(todo)) as step:
        ok = len(there)

        def tell(rows: Sequence[Record]) -> None:
            nonlocal ok
            ok += sum(r.ok for r in rows)
            step(f"{ok} schedules, {max(end - time.monotonic(), 0):.0f} s left")

        take_turns(todo, bench, end - time.monotonic(), tell)


def _mine(records: Records, device: str) -> Iterable[Record]:
    return records.rows(device=device)


def fitted_to(records: Records, title: str, base: str, source: Mapping[str, str], each: Each = map) -> Calibration:
    """The device with that name, fitted to its rows. ``base`` as in :func:`base_for`. Raises :class:`UsageError` where they are
    too few."""
    rows = list(_mine(records, title))
    said = facts(rows)
    start_at = base_for(title, int(said.get("arch") or base_arch(title, base)), base)
    rates = rates_of(rows)
    device = described(start_at, title, said.get("limits") or _older(said), rates)
    start = started(device, start_at, rates)
    environment = {k: str(said[k]) for k in ("driver", "torch", "triton", "ptxas") if said.get(k)}
    compilers = Counter(r.compiler for r in rows if r.kind == "kernel" and r.ok)
    about = {"gpu": title, **environment, "compiler": ", ".join(compilers), "base": start_at.name, **source}
    return calibrated(device, start, samples(rows, records.structure), rates, about, each)


def base_arch(title: str, base: str) -> int:
    """Of a GPU whose rows do not say it."""
    found = load_device(base) if base else known(title)
    if found is None:
        raise UsageError(f"the rows of {title} do not say its architecture", "name a device of the same one: --base a100, say")
    return found.arch


def facts(rows: Iterable[Record]) -> dict[str, Any]:
    """What rows say of their machine: the last that says most."""
    found: dict[str, Any] = {}
    for row in rows:
        try:
            value = json.loads(row.environment) if row.environment else {}
        except ValueError:
            continue
        if isinstance(value, dict) and (row.workload.startswith(f"{SUITE}/") or "limits" not in found):
            found = found | value
    return found


def _older(said: Mapping[str, Any]) -> dict[str, Any]:
    """Limits that every row says."""
    return {k: said[k] for k in ("sm_count", "l2_bytes") if k in said}


def device_in(records: Records, base: str) -> str:
    """The GPU that rows are of; where there are several, the one that ``base`` means. Raises :class:`UsageError` where there are
    no rows, or none of it."""
    counts = Counter(r.device for r in records.rows(kind="kernel", status="ok"))
    if not counts:
        raise UsageError(
            "there are no correct measurements of kernels in these rows", "measure first: mufuser calibrate, on a GPU"
        )
    if len(counts) == 1:
        return next(iter(counts))
    wanted = set(names_of(load_device(base))) if base else set()
    named = [d for d in counts if d in wanted]
    if len(named) != 1:
        listed = ", ".join(f"{d} ({n})" for d, n in counts.most_common())
        raise UsageError(f"the rows are of several GPUs: {listed}", "--base names the one that is meant")
    return named[0]
