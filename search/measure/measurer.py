"""Measure candidates: generate, compile in parallel, check, time, record.

Two kinds of process do the work: a pool compiles on every core without touching the GPU (:mod:`search.measure.compiling`), one
:class:`search.measure.worker.Worker` for each GPU checks and times.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from datetime import UTC
from datetime import datetime
from functools import cached_property
from typing import Any

from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.lower.assembler import VARIABLE as ASSEMBLER
from fuser.lower.assembler import choose as choose_assembler
from fuser.runtime.plan import Plan
from search.measure.compiling import CompilePool
from search.measure.compiling import planned
from search.measure.compiling import source_hash
from search.measure.records import Record
from search.measure.records import Records
from search.measure.records import generator_version
from search.measure.records import schedule_text
from search.measure.session import Options
from search.measure.timing import External
from search.measure.timing import Kernels
from search.measure.timing import Measurement
from search.measure.worker import Worker


@dataclass
class Bench:
    """Everything a run of measurements shares: worker, pool, records, options. ``run`` names the batches of this run in the
    rows, ``mark`` those of this process."""

    worker: Worker
    pool: CompilePool
    records: Records
    options: Options = Options()
    run: str = ""
    batches: int = 0
    mark: str = field(default_factory=lambda: uuid.uuid4().hex[:6])

    @staticmethod
    def open(
        device: str = "cuda",
        records: Records | None = None,
        options: Options | None = None,
        workers: int | None = None,
        run: str = "",
    ) -> Bench:
        choose_assembler()  # before the processes start: they inherit it
        worker = Worker(device)
        pool = CompilePool(worker.info["arch"], workers)
        return Bench(worker, pool, records if records is not None else Records(":memory:"), options or Options(), run)

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.close()
        self.worker.close()

    @cached_property
    def compiler(self) -> str:
        """Triton's version, and that of the assembler where it is not the one that comes with it."""
        info = self.worker.info
        own = ASSEMBLER in os.environ and "ptxas" in info
        return f"triton {info['triton']}" + (f", ptxas {info['ptxas']}" if own else "")

    @cached_property
    def generator(self) -> str:
        return generator_version()

    @cached_property
    def environment(self) -> str:
        return json.dumps(self.worker.info, sort_keys=True)

    # -- rows ---------------------------------------------------------------------------------------------------------------

    def record(
        self, program: TensorProgram, item: Candidate | External, m: Measurement, batch: str = "", again: bool = False
    ) -> Record:
        """The row of a measurement."""
        peer = isinstance(item, External)
        found = {k: v for k, v in asdict(m).items() if k in Record.__dataclass_fields__}
        return Record(
            program.name,
            program.stable_hash()[:16],
            item.name if peer else item.graph.stable_hash(),
            "" if peer else schedule_text(item.schedule),
            "" if peer else source_hash(item),
            self.worker.info["device"],
            f"torch {self.worker.info['torch']}" if peer else self.compiler,
            kind="peer" if peer else "kernel",
            repeat=self.run if peer or again else "",
            dtype=program[program.outputs[0]].dtype,
            seed=self.options.seed,
            generator="" if peer else self.generator,
            environment=self.environment,
            batch=batch,
            timestamp=datetime.now(UTC).isoformat(timespec="seconds"),
            **found,
        )

    def known(self, program: TensorProgram, item: Candidate | External) -> Record | None:
        """The row of this candidate, if it was ever measured on such a device with this compiler."""
        return self.records.find(self.record(program, item, Measurement("ok")).key)

    # -- measuring ----------------------------------------------------------------------------------------------------------

    def submit(self, candidates: Sequence[Candidate | External]) -> None:
        """Begin to compile in the background."""
        for c in candidates:
            if isinstance(c, Candidate) and isinstance(made := planned(c), Plan):
                self.pool.submit(made)

    def measure(
        self,
        program: TensorProgram,
        items: Sequence[Candidate | External],
        again: bool = False,
        compile_timeout: float | None = None,
    ) -> list[Record]:
        """One row for each item, in order; those measured before are read back unless ``again`` (a row of its own then: times of
        one run compare with each other only). New rows are committed at once.

        Items are checked, then timed in turn with each other. ``compile_timeout`` seconds are waited for the whole batch's
        compiler; what is not ready then gets a ``timeout`` result. That, and whatever else may not be the candidate's fault, is
        not recorded, so that a later run tries it again.
        """
        rows: dict[int, Record] = {}
        results: dict[int, Measurement] = {}
        jobs: dict[int, Kernels | External] = {}
        fresh = [i for i, c in enumerate(items) if again or not self._read_back(program, i, c, rows)]
        self.submit([items[i] for i in fresh])
        deadline = None if compile_timeout is None else time.monotonic() + compile_timeout
        spent: dict[int, float] = {}
        for i in fresh:
            item = items[i]
            if isinstance(item, External):
                jobs[i] = item
            elif isinstance(made := planned(item), Measurement):
                results[i] = made
            else:
                try:
                    built = self.pool.result(made, None if deadline is None else max(0.0, deadline - time.monotonic()))
                except TimeoutError:
                    results[i] = Measurement("timeout", "the compiler was not done in the time of the run", lasting=False)
                    continue
                spent[i] = built.seconds
                if built.status == "ok":
                    jobs[i] = Kernels(made, built.artifacts)
                else:
                    results[i] = Measurement(built.status, built.detail, lasting=built.lasting)
        batch = f"{self.run}/{self.mark}-{self.batches}"
        self.batches += 1
        found = self.worker.run(program, list(jobs.values()), self.options) if jobs else []
        results |= dict(zip(jobs, found, strict=True))
        for i in fresh:
            m = results[i]
            rows[i] = self.record(program, items[i], m, batch if i in jobs else "", again)
            rows[i] = replace(rows[i], seconds=m.seconds + spent.get(i, 0.0))
            if m.lasting:
                self._keep(items[i], rows[i])
        return [rows[i] for i in range(len(items))]

    def _read_back(self, program: TensorProgram, i: int, item: Candidate | External, rows: dict[int, Record]) -> bool:
        row = self.known(program, item)
        if row is not None:
            rows[i] = row
        return row is not None

    def _keep(self, item: Candidate | External, row: Record) -> None:
        if isinstance(item, Candidate):
            self.records.add_structure(item.graph)
        self.records.add(row, again=bool(row.repeat))


def measure_many(
    program: TensorProgram,
    items: Sequence[Candidate | External],
    *,
    device: str = "cuda",
    options: Options | None = None,
    records: Records | None = None,
    workers: int | None = None,
) -> list[Record]:
    """Compile, check and time several candidates of one program, interleaved; one row for each."""
    with Bench.open(device, records, options, workers) as bench:
        return bench.measure(program, items)


def measure(program: TensorProgram, graph: KernelGraph, schedule: Schedule, **options: Any) -> Record:
    """One candidate, as :func:`measure_many`."""
    return measure_many(program, [Candidate(graph, schedule)], **options)[0]
