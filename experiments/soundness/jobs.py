"""The candidates of a case, in the order in which they are worth checking, and what became of each."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.soundness.cases import case
from experiments.soundness.schedules import KINDS
from experiments.soundness.schedules import choose
from experiments.soundness.schedules import suspect
from fuser.device import load_device
from fuser.errors import FuserError
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import KernelGraph
from fuser.outputs import replacing
from fuser.superopt.structures import searched
from fuser.superopt.structures import structures
from search.measure.lines import read_lines
from search.measure.planned import source_hash

PASSES = 3
"""The superoptimizer's structures are spread over so many passes, another share first for each case: a family of cases covers
them all early."""
STEP = 3
"""The kind of schedule that a structure gets moves so far from pass to pass; no divisor in common with the number of kinds."""
REFUSED = ("unsupported", "invalid", "compile", "resources")
BAD = ("wrong", "nan", "crash", "timeout")


@dataclass(frozen=True)
class Job:
    """A structure (by its place among ``structures`` of the case) under a schedule of some kind. ``suspect``: a class that the
    compiler is known to get wrong; ``place``: within its turn."""

    case: str
    number: int
    kind: str
    suspect: bool
    turn: int
    place: int
    candidate: Candidate

    @property
    def order(self) -> tuple[bool, int, int]:
        """All cases get their first candidates before any gets its second."""
        return (self.suspect, self.turn, self.place)


@dataclass(frozen=True)
class Prepared:
    """All jobs of a case, or why there is none."""

    case: str
    structures: int
    jobs: tuple[Job, ...]
    error: str = ""


@dataclass(frozen=True)
class Row:
    """One job on one kind of input. ``error``: relative Frobenius error against float64; ``top``: largest error over the largest
    value; ``source``: hash of the kernels' text."""

    case: str
    number: int
    structure: str
    kernels: int
    kind: str
    schedule: str
    inputs: str
    source: str
    status: str
    error: float | None = None
    top: float | None = None
    detail: str = ""
    suspect: bool = False
    registers: int = -1
    spills: int = -1

    @property
    def key(self) -> tuple[str, ...]:
        """What need not be checked again: the same kernels on the same inputs."""
        return (self.case, self.structure, self.schedule, self.inputs, self.source)

    @property
    def bad(self) -> bool:
        """Wrong, although nothing says that it would be."""
        return self.status in BAD and not self.suspect


def prepare(name: str, seed: int, seconds: float, target: str, passes: int) -> Prepared:
    """The jobs of a case: every structure that needs no search in every pass, the superoptimizer's in turn; each with a schedule
    of another kind. ``seconds`` is the superoptimizer's budget."""
    try:
        program = case(name).program
        plain = structures(program)
        graphs = searched(program, seconds) if seconds else plain
    except FuserError as error:
        return Prepared(name, 0, (), error.message)
    salt = zlib.crc32(name.encode())
    found: dict[tuple[str, str], Job] = {}
    for turn in range(passes):
        before = len(found)
        for i, graph in enumerate(graphs):
            if i >= len(plain) and (i + turn + salt) % PASSES:
                continue
            rng = np.random.default_rng([seed, salt, turn, i])
            job = _job(name, graph, i, (i + salt + STEP * turn) % len(KINDS) if i or turn else 0, rng, target)
            if job is not None:
                placed = replace(job, turn=turn, place=len(found) - before)
                found.setdefault((source_hash(job.candidate), str(i)), placed)
    return Prepared(name, len(graphs), tuple(found.values()))


def _job(name: str, graph: KernelGraph, number: int, first: int, rng: np.random.Generator, target: str) -> Job | None:
    """The first kind, from ``first`` on, that has a schedule for this structure; the sources are generated here."""
    device = load_device(target)
    for step in range(len(KINDS)):
        kind = KINDS[(first + step) % len(KINDS)]
        schedule = choose(graph, kind, rng, device)
        if schedule is not None:
            candidate = Candidate(graph, schedule)
            source_hash(candidate)  # stays with the candidate
            return Job(name, number, kind, suspect(graph, schedule, device), 0, 0, candidate)
    return None


def key_of(job: Job, inputs: str) -> tuple[str, ...]:
    c = job.candidate
    return (job.case, c.graph.stable_hash(), str(c.schedule), inputs, source_hash(c))


def row_of(job: Job, inputs: str, status: str, **found: Any) -> Row:
    name, structure, schedule, inputs, source = key_of(job, inputs)
    kernels = len(job.candidate.graph.kernels)
    return Row(name, job.number, structure, kernels, job.kind, schedule, inputs, source, status, suspect=job.suspect, **found)


def write(path: Path, environment: dict[str, Any], rows: Iterable[Row], wrong: Iterable[dict[str, Any]]) -> None:
    """JSON lines: the environment, the structures of what is wrong, then the rows without what is at its default."""
    usual = {k: f.default for k, f in Row.__dataclass_fields__.items()}
    with replacing(path) as file:
        for item in (
            {"environment": environment},
            *wrong,
            *({k: v for k, v in asdict(r).items() if v != usual[k]} for r in rows),
        ):
            file.write(json.dumps(item, separators=(",", ":")).encode() + b"\n")


def read(path: Path) -> Iterator[Row]:
    """The rows that :func:`write` wrote."""
    for item in read_lines(path):
        if "case" in item:
            yield Row(**item)
