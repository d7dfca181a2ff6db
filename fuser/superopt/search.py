"""The superoptimizer: generate, stabilize, verify, collect.

Candidates come from :mod:`.generate` in one fixed order, exponentials are made stable where the algebra licenses it, and every
µGraph is verified by random tests over finite fields (:mod:`.verify`) before anything else sees it. With two processes
candidates are verified in parallel and collected in the same order, so that the result is the same.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace

import numpy as np

from fuser.errors import DiedError
from fuser.errors import UnsupportedError
from fuser.files import counted
from fuser.interrupts import Terminated
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.windows import Windowed
from fuser.ir.windows import copies_data
from fuser.ir.windows import windowed
from fuser.pools import FORK
from fuser.pools import Children
from fuser.pools import Job
from fuser.superopt.generate.generator import Candidate
from fuser.superopt.generate.generator import Limits
from fuser.superopt.generate.generator import Report
from fuser.superopt.generate.generator import generate
from fuser.superopt.generate.partition import Piece
from fuser.superopt.generate.partition import partition
from fuser.superopt.rewrite.stabilize import stabilize_graph
from fuser.superopt.rewrite.stabilize import unstable
from fuser.superopt.verify.verdict import Accepted
from fuser.superopt.verify.verdict import Rejected
from fuser.superopt.verify.verdict import Unknown
from fuser.superopt.verify.verdict import Verdict
from fuser.superopt.verify.verifier import verify

AHEAD = 8
"""Candidates under verification at once, for each process."""


STOPPED = ("interrupted", "terminated")
"""Why a search ended that somebody ended."""


@dataclass(frozen=True)
class Found:
    """A verified structure: its stable µGraph (tile sizes free), the cost of its operator graph (passes, operators, axes),
    which axes its kernels split, the verifier's evidence, and exponentials that stayed bare (their inputs must be small)."""

    graph: KernelGraph
    cost: tuple[int, int, int]
    splits: tuple[str, ...]
    verdict: Accepted
    bare: tuple[str, ...] = ()


@dataclass
class Result:
    """``structures`` in the generator's order. ``stopped`` says why the search ended; ``rejected`` and ``unknown`` why
    candidates fell."""

    program: TensorProgram
    structures: list[Found] = field(default_factory=list)
    report: Report = field(default_factory=Report)
    rejected: list[tuple[KernelGraph, str]] = field(default_factory=list)
    unknown: list[tuple[KernelGraph, str]] = field(default_factory=list)
    seconds: float = 0.0
    stopped: str = ""


def superoptimize(
    program: TensorProgram,
    limits: Limits | None = None,
    *,
    processes: int = 1,
    most: int = 200,
    rounds: int = 1,
    until: Callable[[Found], bool] | None = None,
) -> Result:
    """Verified structures of a program that is one LAX subprogram, at most ``most``, or until ``until`` says that one is enough.

    ``rounds`` are those of the verifier here, on top of the generator's fingerprints; confirm a winner with more
    (:func:`.verify.verify`). ``limits.budget`` seconds bound generation and verification together. Ctrl-C ends the search with
    what was found, if there is something (:data:`STOPPED`). Raises :class:`UnsupportedError` for a program that is not one LAX
    subprogram: see :func:`superoptimize_pieces`.
    """
    limits = limits or Limits()
    boxes = windowed(program)
    pieces = partition(boxes.program)
    if len(pieces) != 1 or not all(p.lax for p in pieces):
        why = next((p.why for p in pieces if p.why), f"{counted(len(pieces), 'piece')}")
        raise UnsupportedError(f"{program.name!r} is not one LAX subprogram: {why}", "superoptimize its pieces one by one")
    started = time.monotonic()
    result = Result(program, stopped="exhausted")
    candidates = itertools.islice(generate(boxes.program, limits, result.report), most)
    try:
        _collect(
            result, boxes, _checked(boxes.program, candidates, processes, rounds, limits.seed), until, started + limits.budget
        )
    except KeyboardInterrupt as error:
        if not result.structures:
            raise
        result.stopped = _why(error)
    if result.stopped == "exhausted":
        full = result.report.kernel_graphs >= most
        result.stopped = f"the first {most} structures" if full else result.report.stopped
    result.seconds = time.monotonic() - started
    return result


def _why(error: KeyboardInterrupt) -> str:
    return "terminated" if isinstance(error, Terminated) else "interrupted"


def _collect(
    result: Result,
    boxes: Windowed,
    checked: Iterable[tuple[Candidate, Outcome]],
    until: Callable[[Found], bool] | None,
    deadline: float,
) -> None:
    """Sort what was verified into ``result``, until it is enough."""
    for candidate, (graph, verdict, bare) in checked:
        if isinstance(verdict, Accepted):
            try:
                found = Found(boxes.attach(graph), candidate.cost, candidate.splits, verdict, bare)
            except UnsupportedError as error:
                result.unknown.append((graph, error.message))
                continue
            result.structures.append(found)
            if until and until(found):
                result.stopped = "found"
                return
        elif isinstance(verdict, Rejected):
            result.rejected.append((graph, str(verdict)))
        elif isinstance(verdict, Unknown):
            result.unknown.append((graph, str(verdict)))
        if time.monotonic() > deadline:
            result.stopped = "budget"
            return


def superoptimize_pieces(
    program: TensorProgram, limits: Limits | None = None, *, processes: int = 1, most: int = 200
) -> list[tuple[Piece, Result | None]]:
    """The same for each LAX piece of any program, None for the rest; the budget is shared evenly. What is interrupted ends with
    the piece at which it was."""
    limits = limits or Limits()
    pieces = _pieces(program)
    share = replace(limits, budget=limits.budget / max(1, sum(p.lax for p in pieces)))
    found: list[tuple[Piece, Result | None]] = []
    for p in pieces:
        try:
            result = superoptimize(p.program, share, processes=processes, most=most) if p.lax else None
        except KeyboardInterrupt as error:
            if not any(r is not None for _, r in found):
                raise
            result = Result(p.program, stopped=_why(error))
        found.append((p, result))
        if result is not None and result.stopped in STOPPED:
            break
    return found


def _pieces(program: TensorProgram) -> tuple[Piece, ...]:
    """The pieces of a program; one with slices is one piece if it is one where these are only places to load from."""
    if copies_data(program):
        try:
            whole = partition(windowed(program).program)
        except UnsupportedError:
            whole = ()
        if len(whole) == 1 and whole[0].lax:
            return (Piece(program),)
    return partition(program)


Outcome = tuple[KernelGraph, Verdict, tuple[str, ...]]


def check(program: TensorProgram, graph: KernelGraph, seed: int, index: int, rounds: int) -> Outcome:
    """Stabilize and verify one candidate; the random numbers depend on its index alone."""
    stable = stabilize_graph(graph)
    verdict = verify(program, stable, rng=np.random.default_rng((seed, index)), rounds=rounds)
    return stable, verdict, unstable(stable)


def _checked(
    program: TensorProgram, candidates: Iterable[Candidate], processes: int, rounds: int, seed: int
) -> Iterator[tuple[Candidate, Outcome]]:
    if processes < 2:
        for i, c in enumerate(candidates):
            yield c, check(program, c.graph, seed, i, rounds)
        return
    with Children(processes, FORK) as pool:
        waiting: list[tuple[Candidate, Job[Outcome]]] = []
        numbered = enumerate(candidates)
        try:
            while True:
                for i, c in itertools.islice(numbered, AHEAD * processes - len(waiting)):
                    waiting.append((c, pool.submit(check, program, c.graph, seed, i, rounds)))
                if not waiting:
                    return
                candidate, job = waiting.pop(0)
                yield candidate, _outcome(candidate, job)
        finally:
            pool.shutdown(cancel_futures=True)


def _outcome(candidate: Candidate, job: Job[Outcome]) -> Outcome:
    try:
        return job.result()
    except DiedError as error:
        return candidate.graph, Unknown(error.message), ()
