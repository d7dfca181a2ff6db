"""Measure candidates: generate, compile in parallel, check, time, record.

Two kinds of process do the work: a pool compiles on every core without touching the GPU, one
:class:`search.measure.worker.Worker` for each GPU checks and times.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import time
import uuid
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from datetime import UTC
from datetime import datetime
from functools import cached_property
from typing import Any

from fuser.errors import EnvironmentError_
from fuser.errors import FuserError
from fuser.errors import NoValidKernelError
from fuser.errors import UnsupportedError
from fuser.interrupts import without_interrupts
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.lower.assembler import VARIABLE as ASSEMBLER
from fuser.lower.assembler import choose as choose_assembler
from fuser.lower.compile import KernelArtifact
from fuser.lower.compile import compile_kernel
from fuser.runtime.plan import Plan
from fuser.runtime.plan import plan
from search.measure.records import Record
from search.measure.records import Records
from search.measure.records import generator_version
from search.measure.records import schedule_text
from search.measure.records import text_hash
from search.measure.session import Options
from search.measure.timing import External
from search.measure.timing import Kernels
from search.measure.timing import Measurement
from search.measure.timing import of_the_machine
from search.measure.worker import OUTSIDE
from search.measure.worker import Worker
from search.processes import ignore_interrupts

COMPILE_SECONDS = 60
"""After that long a kernel is not worth waiting for."""


@dataclass(frozen=True)
class Candidate:
    """A structure under a schedule."""

    graph: KernelGraph
    schedule: Schedule

    @cached_property
    def planned(self) -> Plan | Measurement:
        """Its plan, or why there is none."""
        try:
            return plan(self.graph, self.schedule)
        except UnsupportedError as error:
            return Measurement("unsupported", error.message)
        except FuserError as error:
            return Measurement("invalid", error.message)

    @cached_property
    def source_hash(self) -> str:
        if isinstance(self.planned, Measurement):
            return ""
        launch = [f"{s.num_warps} {s.num_stages} {s.grid}" for s in self.planned.sources if s]
        paired = zip(self.graph.kernels, self.planned.sources, strict=True)
        return text_hash(*(s.text if s else str(k) for k, s in paired), *launch)


@dataclass(frozen=True)
class Built:
    """Compiled kernels of a plan, or the class of the failure and what the compiler said; ``lasting`` as in
    :class:`search.measure.timing.Measurement`."""

    status: str
    detail: str = ""
    artifacts: tuple[KernelArtifact | None, ...] = ()
    seconds: float = 0.0
    lasting: bool = True


class _TooLong(Exception):
    pass


def _alarm(*_: object) -> None:
    raise _TooLong


@contextlib.contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    """Interrupts the compiler after ``seconds``, in the main thread of a process."""
    before = signal.signal(signal.SIGALRM, _alarm)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def build(planned: Plan, arch: int, seconds: int = COMPILE_SECONDS) -> Built:
    """Compile every generated kernel of a plan for ``arch``; runs in a process of the pool."""
    start = time.perf_counter()

    def failed(status: str, detail: str, lasting: bool = True) -> Built:
        return Built(status, detail, (), time.perf_counter() - start, lasting)

    try:
        with _at_most(seconds):
            artifacts = tuple(compile_kernel(s, arch) if s else None for s in planned.sources)
    except (_TooLong, SystemError, RecursionError) as error:
        return failed("compile", f"{type(error).__name__} after {time.perf_counter() - start:.0f} s")
    except (NoValidKernelError, EnvironmentError_, OSError, MemoryError) as error:
        text = str(getattr(error, "message", error)) or type(error).__name__
        if of_the_machine(error) or not isinstance(error, NoValidKernelError):
            return failed("compile", text, lasting=False)
        return failed("resources" if "OutOfResources" in text or "shared memory" in text else "compile", text)
    return Built("ok", "", artifacts, time.perf_counter() - start)


def _quiet_start(cache: str) -> None:
    """A pool process ignores Ctrl-C (its parent ends it)."""
    ignore_interrupts()
    if cache:
        os.environ["TRITON_CACHE_DIR"] = cache


class CompilePool:
    """Compiles plans in parallel; a compiler that crashes costs its own candidate only. ``arch`` 0 compiles nothing
    (interpreter). ``seconds`` is the time limit of each plan."""

    def __init__(self, arch: int, workers: int | None = None, cache: str = "") -> None:
        self.arch, self.cache = arch, cache
        self.seconds = COMPILE_SECONDS
        self.workers = workers or max(1, (os.cpu_count() or 1) - 1)  # one core for the process that measures
        self._pool: ProcessPoolExecutor | None = None
        self._futures: dict[int, Future[Built]] = {}
        self._plans: dict[int, Plan] = {}

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, workers: int) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(workers, mp_context=context, initializer=_quiet_start, initargs=(self.cache,))

    def _begin(self, pool: ProcessPoolExecutor, planned: Plan) -> Future[Built]:
        with without_interrupts():  # the first one starts the processes
            return pool.submit(build, planned, self.arch, self.seconds)

    def submit(self, planned: Plan) -> None:
        """Begin to compile; ``result`` waits for it."""
        if not self.arch or id(planned) in self._futures:
            return
        if self._pool is None:
            self._pool = self._start(self.workers)
        try:
            self._futures[id(planned)] = self._begin(self._pool, planned)
        except BrokenProcessPool:
            self._restart()
            self._futures[id(planned)] = self._begin(self._pool, planned)
        self._plans[id(planned)] = planned  # keeps the id taken

    def ready(self, planned: Plan) -> bool:
        return not self.arch or (id(planned) in self._futures and self._futures[id(planned)].done())

    def result(self, planned: Plan, timeout: float | None = None) -> Built:
        """The compiled kernels. Raises :class:`TimeoutError` if they are not there in ``timeout`` seconds."""
        if not self.arch:
            return Built("ok")
        self.submit(planned)
        future = self._futures[id(planned)]
        try:
            built = future.result(timeout)
        except BrokenProcessPool:
            built = self._alone(planned)
        del self._futures[id(planned)], self._plans[id(planned)]
        return built

    def _restart(self) -> None:
        """A compiler process died and took the pool with it: everything that is not done goes to a new one."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = self._start(self.workers)
        for key, future in self._futures.items():
            if not future.done() or future.cancelled() or future.exception() is not None:
                self._futures[key] = self._begin(self._pool, self._plans[key])

    def _alone(self, planned: Plan) -> Built:
        """Some compiler process died: this candidate by itself, in a process of its own; the others start again. One that is
        killed from outside even so is not the candidate's fault."""
        processes: list[Any] = []
        try:
            with self._start(1) as pool:
                future = self._begin(pool, planned)
                processes = list((pool._processes or {}).values())
                built = future.result(2 * self.seconds)
        except (BrokenProcessPool, TimeoutError):
            killed = any(-(p.exitcode or 0) in OUTSIDE for p in processes)
            built = Built("compile", "the compiler was killed" if killed else "the compiler crashed", lasting=not killed)
        self._futures[id(planned)] = Future()
        self._futures[id(planned)].set_result(built)
        self._restart()
        return built

    def close(self) -> None:
        """Stop at once; what is not compiled yet is given up."""
        if self._pool is None:
            return
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        self._pool = None
        self._futures.clear()
        self._plans.clear()


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
            "" if peer else item.source_hash,
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
            if isinstance(c, Candidate) and isinstance(c.planned, Plan):
                self.pool.submit(c.planned)

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
            elif isinstance(item.planned, Measurement):
                results[i] = item.planned
            else:
                try:
                    built = self.pool.result(item.planned, None if deadline is None else max(0.0, deadline - time.monotonic()))
                except TimeoutError:
                    results[i] = Measurement("timeout", "the compiler was not done in the time of the run", lasting=False)
                    continue
                spent[i] = built.seconds
                if built.status == "ok":
                    jobs[i] = Kernels(item.planned, built.artifacts)
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
