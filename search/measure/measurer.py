"""Measure candidates: generate, compile in parallel, check, time, record.

Two kinds of process do the work: a pool compiles on every core without touching the GPU (:mod:`search.measure.compiling`), one
:class:`search.measure.worker.Worker` for each GPU checks and times.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from datetime import UTC
from datetime import datetime
from functools import cached_property
from typing import TypeVar

from fuser.ir.candidate import Candidate
from fuser.ir.program import TensorProgram
from fuser.lower.assembler import choose as choose_assembler
from fuser.lower.assembler import compiler
from fuser.runtime.plan import Plan
from search.measure.compiling import CompilePool
from search.measure.machine import Conditions
from search.measure.measurement import Found
from search.measure.measurement import Measurement
from search.measure.measurement import Turn
from search.measure.planned import planned
from search.measure.planned import source_hash
from search.measure.records import Records
from search.measure.records import generator_version
from search.measure.rows import Record
from search.measure.session import Options
from search.measure.timing import External
from search.measure.timing import Kernels
from search.measure.versions import made_with
from search.measure.worker import Worker

T = TypeVar("T")
R = TypeVar("R")


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
    conditions: Conditions = field(default_factory=Conditions)
    kernels: dict[str, Kernels] = field(default_factory=dict)
    """What was compiled, by the hash of its sources."""

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
        self.conditions.close()
        self.pool.close()
        self.worker.close()

    @property
    def compiler(self) -> str:
        """See :func:`fuser.lower.assembler.compiler`."""
        return compiler()

    @cached_property
    def generator(self) -> str:
        return generator_version()

    @property
    def environment(self) -> str:
        """The machine, and its clocks at the last batches."""
        now = self.conditions.ask() if self.worker.device == "cuda" else {}
        return json.dumps({**self.worker.info, **now}, sort_keys=True)

    # -- rows ---------------------------------------------------------------------------------------------------------------

    def rows(self, program: TensorProgram, items: Sequence[Candidate | External], again: bool = False) -> list[Record]:
        """The row of each item, with everything but a measurement."""
        name, digest, dtype = program.name, program.stable_hash()[:16], program[program.outputs[0]].dtype
        info, options = self.worker.info, {"dtype": dtype, "seed": self.options.seed, "environment": self.environment}
        found: list[Record] = []
        for item in items:
            if isinstance(item, External):
                torch = f"torch {info['torch']}"
                row = Record(name, digest, item.name, "", "", info["device"], torch, kind="peer", repeat=self.run, **options)
            else:
                what = (item.graph.stable_hash(), item.schedule.text, source_hash(item))
                repeat = self.run if again else ""
                row = Record(
                    name, digest, *what, info["device"], made_with(item), repeat=repeat, generator=self.generator, **options
                )
            found.append(row)
        return found

    def known(self, program: TensorProgram, item: Candidate | External) -> Record | None:
        """The row of this candidate, if it was ever measured on such a device with this compiler."""
        return self.records.find(self.rows(program, [item])[0].key)

    # -- measuring ----------------------------------------------------------------------------------------------------------

    def submit(self, candidates: Sequence[Candidate | External]) -> None:
        """Begin to compile in the background."""
        for c in candidates:
            if isinstance(c, Candidate) and isinstance(made := planned(c), Plan) and source_hash(c) not in self.kernels:
                self.pool.submit(made)

    def each(self, work: Callable[[T], R], jobs: Sequence[T]) -> Iterable[R]:
        """Work for the processes that compile, in order; by this one where they cannot do it."""
        return self.pool.each(work, jobs)

    def foresee(self, candidates: Sequence[Candidate]) -> None:
        """Generate their kernels."""
        for c in candidates:
            source_hash(c)

    def ahead(self, candidates: Sequence[Candidate]) -> None:
        """Begin to compile what may be asked for soon."""
        self.submit(candidates)

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
        return self.measured(Turn(program, tuple(items), (), again, compile_timeout))[0]

    def compare(self, turn: Turn[Candidate]) -> Found:
        """As :meth:`measure`, with those ``beside`` timed in turn with what is new, if anything is."""
        rows, other = self.measured(turn)
        return [r.measurement for r in rows], other

    def measured(self, turn: Turn[Candidate | External]) -> tuple[list[Record], tuple[Measurement, ...]]:
        """A row of each item, and what was measured of those ``beside``."""
        items = turn.items
        rows = self.rows(turn.program, items, turn.again)
        kept = {} if turn.again else {i: r for i, row in enumerate(rows) if (r := self.records.find(row.key))}
        known = {i: r for i, r in kept.items() if r.ok == r.measurement.ok}  # others were judged less strictly
        fresh = [i for i in range(len(items)) if i not in known]
        self.submit([items[i] for i in fresh])
        deadline = math.inf if turn.seconds is None else time.monotonic() + turn.seconds
        jobs: dict[int, Kernels | External] = {}
        results: dict[int, Measurement] = {}
        spent: dict[int, float] = {}
        for i in fresh:
            made = self._compiled(items[i], deadline)
            if isinstance(made, Measurement):
                results[i] = made
            else:
                jobs[i], spent[i] = made
        others = {-1 - i: self._compiled(c, deadline) for i, c in enumerate(turn.beside)} if jobs else {}
        jobs |= {i: made[0] for i, made in others.items() if isinstance(made, tuple)}
        batch = f"{self.run}/{self.mark}-{self.batches}"
        self.batches += 1
        found = self.worker.run(turn.program, list(jobs.values()), self.options) if jobs else []
        results |= dict(zip(jobs, found, strict=True))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        for i in fresh:
            m = replace(results[i], seconds=results[i].seconds + spent.get(i, 0.0))
            rows[i] = replace(rows[i], measurement=m, batch=batch if i in jobs else "", timestamp=now)
            if m.lasting:
                self._keep(items[i], rows[i])
        told = tuple(made if isinstance(made, Measurement) else results[i] for i, made in others.items())
        return [known.get(i, row) for i, row in enumerate(rows)], told

    def _compiled(self, item: Candidate | External, deadline: float) -> tuple[Kernels | External, float] | Measurement:
        """What the worker measures and the seconds that it cost, or why there is nothing."""
        if isinstance(item, External):
            return item, 0.0
        made = planned(item)
        if isinstance(made, Measurement):
            return made
        name = source_hash(item)
        if name in self.kernels:
            return self.kernels[name], 0.0
        try:
            built = self.pool.result(made, None if math.isinf(deadline) else max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            return Measurement("timeout", "the compiler was not done in the time of the run", lasting=False)
        if not built.result.ok:
            return built.result
        self.kernels[name] = Kernels(made, built.artifacts)
        return self.kernels[name], built.result.seconds

    def _keep(self, item: Candidate | External, row: Record) -> None:
        if isinstance(item, Candidate):
            self.records.add_structure(item.graph, row.structure)
        self.records.add(row, again=bool(row.repeat))
