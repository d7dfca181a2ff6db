"""The run: prepare and compile on every core, check on the GPU whatever is ready, until all is done or the time is up."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any

from experiments.soundness.cases import Case
from experiments.soundness.cases import select
from experiments.soundness.inputs import target
from experiments.soundness.jobs import Job
from experiments.soundness.jobs import Prepared
from experiments.soundness.jobs import Row
from experiments.soundness.jobs import key_of
from experiments.soundness.jobs import prepare
from experiments.soundness.jobs import read
from experiments.soundness.jobs import row_of
from experiments.soundness.jobs import write
from experiments.soundness.report import table
from experiments.soundness.sanitize import Item
from experiments.soundness.sanitize import Sanitizer
from fuser.console import note
from fuser.outputs import write_file
from fuser.pools import SPAWN
from search.measure.compiling import CompilePool
from search.measure.measurement import Measurement
from search.measure.planned import planned
from search.measure.session import Options
from search.measure.timing import Kernels
from search.measure.worker import Worker

AT_ONCE = 8
"""Most candidates of one case that go to the GPU together."""
TOLERANCE = {"logits": 2e-2, "denormal": 5e-2}
"""Scores of 1e4 in fp32 are off by 1e-3, and so is exp of their differences. A product below fp16's smallest normal number is
rounded to multiples of 6e-8 on its way to the tensor cores, which costs 2 to 4 %; flushed to zero it would be off by 100 %."""
SAMPLE = (
    "odd/attention-197",
    "odd/attention-3000-keys",
    "odd/gated-mlp",
    "odd/chain",
    "odd/rmsnorm-4100",
    "odd/causal-more-queries",
)
"""Small programs whose first kernels go through compute-sanitizer."""
PATIENCE = {"cuda": 25.0, "cpu": 300.0}
"""Seconds without an answer after which a kernel hangs."""
LAST = 20.0
"""Seconds at the end for the report and what is still under way."""


@dataclass(frozen=True)
class Settings:
    """Options of the command (:mod:`experiments.soundness.__main__`)."""

    budget: float = 240.0
    passes: int = 3
    search: float = 5.0
    seed: int = 0
    target: str = "h200"
    device: str = "cuda"
    workers: int | None = None
    suspects: int = 0
    sanitize: int = 12
    resume: tuple[Path, ...] = ()
    out: Path = Path("out")


@dataclass
class State:
    """Rows so far, what is being compiled, and the jobs whose kernels are ready, by case."""

    settings: Settings
    worker: Worker
    pool: CompilePool
    cases: dict[str, Case]
    known: set[tuple[str, ...]]
    rows: list[Row] = field(default_factory=list)
    waiting: list[Job] = field(default_factory=list)
    ready: dict[str, list[tuple[Job, Kernels]]] = field(default_factory=dict)
    structures: dict[str, int] = field(default_factory=dict)
    sample: list[Item] = field(default_factory=list)
    sanitizer: Sanitizer | None = None
    bad: list[Job] = field(default_factory=list)


def run(patterns: Sequence[str], settings: Settings, start: float) -> int:
    """The whole run; returns the exit status."""
    deadline = start + settings.budget
    cases = {c.name: c for c in (make() for make in select(patterns))}
    if settings.device == "cpu":  # the interpreter has no bf16 products, and would take hours for the published sizes
        cases = {n: c for n, c in cases.items() if n.startswith("odd/") and not n.endswith("bf16")}
    earlier = [r for path in settings.resume for r in read(path)]
    cores = settings.workers or max(1, (os.cpu_count() or 2) - 1)
    with (
        Worker(settings.device, patience=PATIENCE[settings.device]) as worker,
        CompilePool(0, cores) as pool,
        _preparers(cores) as preparers,
    ):
        state = State(settings, worker, pool, cases, {r.key for r in earlier}, list(earlier))
        state.structures = dict.fromkeys(cases, 0)
        args = (settings.seed, settings.search, settings.target, settings.passes)
        futures = [preparers.submit(prepare, n, *args) for n in _by_family(list(cases))]
        pool.arch = worker.info["arch"]
        note(f"{worker.info}")
        try:
            _loop(state, futures, deadline - LAST)
        except KeyboardInterrupt:
            note("interrupted: what was checked is kept")
        for future in futures:
            future.cancel()
        pool.close()
        left = len(state.waiting) + sum(len(x) for x in state.ready.values())
        environment = worker.info | {"restarts": worker.restarts, "not_checked": left, "seed": settings.seed}
        write(settings.out / "soundness.jsonl", environment, state.rows, _structures(state))
        verdicts = state.sanitizer.finish(deadline - time.monotonic()) if state.sanitizer else []
        text = table(state.rows, state.structures, verdicts) + f"\n{left} candidates were not reached, {worker.restarts} restarts"
        write_file(settings.out / "soundness.txt", text + "\n")
        print(text, flush=True)
    return int(any(r.bad for r in state.rows) or any(v.status == "errors" for v in verdicts if v.tool == "memcheck"))


def _preparers(cores: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(cores, SPAWN)


def _by_family(names: list[str]) -> list[str]:
    """The small programs first: they are compiled while the large ones are still prepared."""
    return sorted(names, key=lambda n: (not n.startswith("odd/"),))


def _loop(state: State, futures: list[Future[Prepared]], deadline: float) -> None:
    pending = list(futures)
    suspects: list[Job] = []
    while time.monotonic() < deadline:
        done = [f for f in pending if f.done()]
        pending = [f for f in pending if not f.done()]
        for future in done:
            _accept(state, future.result(), suspects)
        if not pending and suspects:
            state.waiting += suspects[: state.settings.suspects]
            suspects.clear()
        state.waiting.sort(key=lambda j: j.order)
        _feed(state, deadline)
        if state.sanitizer is not None:
            state.sanitizer.poll()
        best = max(state.ready, key=lambda n: len(state.ready[n]), default="")
        few = best and len(state.ready[best]) < AT_ONCE and (state.waiting or pending)
        if not best or not state.ready[best]:
            if not pending and not state.waiting:
                return
            time.sleep(0.05)
        elif few and any(j.case == best for j in state.waiting[: state.pool.workers]) and time.monotonic() < deadline - 10:
            time.sleep(0.05)  # more of this case is being compiled
        else:
            _check(state, best, deadline)


def _accept(state: State, found: Prepared, suspects: list[Job]) -> None:
    state.structures[found.case] = found.structures
    if found.error:
        note(f"{found.case} left out: {found.error}")
    for job in found.jobs:
        todo = [i for i in state.cases[found.case].inputs if key_of(job, i) not in state.known]
        if todo:
            (suspects if job.suspect else state.waiting).append(job)


def _feed(state: State, deadline: float) -> None:
    """Keep the compilers busy, and take what they have done."""
    ahead = state.waiting[: 3 * state.pool.workers]
    for job in ahead:
        made = planned(job.candidate)
        if isinstance(made, Measurement):
            _record(state, job, "normal", made)
            state.waiting.remove(job)
            continue
        state.pool.submit(made)
        if not state.pool.ready(made):
            continue
        built = state.pool.result(made, max(0.0, deadline - time.monotonic()))
        state.waiting.remove(job)
        if not built.result.ok:
            _record(state, job, "normal", built.result)
            continue
        kernels = Kernels(made, built.artifacts)
        state.ready.setdefault(job.case, []).append((job, kernels))
        _keep_for_sanitizer(state, job, kernels)


def _keep_for_sanitizer(state: State, job: Job, kernels: Kernels) -> None:
    s = state.settings
    if not s.sanitize or s.device != "cuda" or state.sanitizer is not None or job.suspect or job.case not in SAMPLE:
        return
    share = -(-s.sanitize // len(SAMPLE))
    if sum(p.name == job.case for p, _, _ in state.sample) < share:
        name = state.cases[job.case].inputs[0]
        state.sample.append((state.cases[job.case].program, kernels, _options(s, name)))
    if len(state.sample) >= min(s.sanitize, share * sum(n in state.cases for n in SAMPLE)):
        state.sanitizer = Sanitizer(state.sample, Path(os.environ["MUFUSER_CACHE"]) / "sanitize")


def _options(settings: Settings, inputs: str) -> Options:
    return Options(seed=settings.seed, rounds=0, l2_factor=0.0, inputs=target(inputs), tolerance=TOLERANCE.get(inputs))


def _check(state: State, name: str, deadline: float) -> None:
    batch, state.ready[name] = state.ready[name][:AT_ONCE], state.ready[name][AT_ONCE:]
    case = state.cases[name]
    for inputs in case.inputs:
        todo = [(j, k) for j, k in batch if key_of(j, inputs) not in state.known]
        if not todo or time.monotonic() > deadline + LAST / 2:
            continue
        results = state.worker.run(case.program, [k for _, k in todo], _options(state.settings, inputs))
        for (job, _), result in zip(todo, results, strict=True):
            _record(state, job, inputs, result)


def _record(state: State, job: Job, inputs: str, m: Measurement) -> None:
    row = row_of(
        job,
        inputs,
        m.status,
        error=_digits(m.error_fro),
        top=_digits(m.error_max),
        detail=m.detail[:200],
        registers=m.registers,
        spills=m.spills,
    )
    state.rows.append(row)
    state.known.add(row.key)
    if row.bad:
        state.bad.append(job)
        note(f"WRONG {row.case} #{row.number} {row.kind} on {row.inputs}: {row.status} {row.detail} ({row.schedule})")


def _digits(x: float | None) -> float | None:
    return None if x is None or x != x else float(f"{x:.3g}")


def _structures(state: State) -> list[dict[str, Any]]:
    """What is needed to run a wrong one again."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for job in state.bad:
        graph, schedule = job.candidate.graph, job.candidate.schedule
        key = (graph.stable_hash(), str(schedule))
        found[key] = {"structure": key[0], "of": job.case, "graph": graph.to_json(), "schedule": schedule.to_json()}
    return list(found.values())
