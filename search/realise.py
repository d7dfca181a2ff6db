"""From a ranked list to kernels: compile the best candidate, check it, and fall back to the next where it does not hold.

What the compiler says is weighed against what the model assumed: a candidate that does not fit the device's shared memory,
spills many registers, or differs from the reference is counted by class, and the next one is tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path

from fuser.device import Device
from fuser.errors import FuserError
from fuser.errors import NoValidKernelError
from fuser.lower.check import Check
from fuser.lower.check import check
from fuser.lower.compile import KernelArtifact
from fuser.lower.compile import compile_graph
from search.tune import Candidate
from search.tune import Tuned

SPILL_LIMIT = 64
"""Bytes of local memory a thread beyond which the next candidate is tried."""
TRIES = 6
"""Candidates of one program that are compiled at most."""


@dataclass(frozen=True)
class Realised:
    """A winner that compiles: its kernels, its check (None if it was not asked for), and why better-ranked candidates fell out,
    by class.
    """

    tuned: Tuned
    candidate: Candidate
    artifacts: tuple[KernelArtifact, ...]
    check: Check | None = None
    rejected: dict[str, int] = field(default_factory=dict)


def compile_candidate(candidate: Candidate, device: Device, folder: Path | None = None) -> tuple[KernelArtifact, ...]:
    """Compile for a device. Raises :class:`NoValidKernelError` where the result cannot run there."""
    artifacts = compile_graph(candidate.graph, candidate.schedule, device.arch, folder)
    for a in artifacts:
        if a.shared_bytes > device.smem_per_block:
            raise NoValidKernelError(
                f"{a.name} needs {a.shared_bytes} bytes of shared memory, {device.title} has {device.smem_per_block}"
            )
    return artifacts


def _compiled(job: tuple[tuple[Candidate, ...], Device]) -> tuple[int, tuple[KernelArtifact, ...], dict[str, int]]:
    """The first candidate that compiles without heavy spills (else the one that spills least), its index, and failures by
    class.
    """
    candidates, device = job
    rejected: Counter[str] = Counter()
    fallback: tuple[int, int, tuple[KernelArtifact, ...]] | None = None
    last: FuserError | None = None
    for i, candidate in enumerate(candidates):
        try:
            artifacts = compile_candidate(candidate, device)
        except FuserError as error:
            rejected["shared memory" if "shared memory" in error.message else "does not compile"] += 1
            last = error
            continue
        spills = max((a.spills for a in artifacts), default=0)
        if spills <= SPILL_LIMIT:
            return i, artifacts, dict(rejected)
        rejected["spills"] += 1
        if fallback is None or spills < fallback[0]:
            fallback = (spills, i, artifacts)
    if fallback is None:
        raise last or NoValidKernelError("there is no candidate to compile")
    return fallback[1], fallback[2], dict(rejected)


def realise(
    tuned: Sequence[Tuned], device: Device, executor: Executor | None = None, checked: bool = True, seed: int = 0
) -> list[Realised]:
    """Kernels for each tuned program, in order; compilation is spread over ``executor``.

    A winner that fails its numerical check is dropped for the next candidate; :class:`NoValidKernelError` if none is left.
    """
    pending = [tuple([t.winner, *t.runners][:TRIES]) for t in tuned]
    found: list[Realised | None] = [None] * len(tuned)
    rejected: list[Counter[str]] = [Counter() for _ in tuned]
    todo = list(range(len(tuned)))
    while todo:
        jobs = [(pending[i], device) for i in todo]
        results = list(executor.map(_compiled, jobs)) if executor else [_compiled(j) for j in jobs]
        for i, (at, artifacts, failures) in zip(todo, results, strict=True):
            rejected[i].update(failures)
            found[i] = Realised(tuned[i], pending[i][at], artifacts)
            pending[i] = pending[i][at + 1 :]
        if not checked:
            break
        checks = check([(tuned[i].program, r.candidate.graph, r.candidate.schedule) for i in todo if (r := found[i])], seed)
        again: list[int] = []
        for i, outcome in zip(list(todo), checks, strict=True):
            r = found[i]
            assert r is not None
            found[i] = Realised(r.tuned, r.candidate, r.artifacts, outcome)
            if not outcome.passed:
                rejected[i]["wrong result"] += 1
                again.append(i)
                if not pending[i]:
                    detail = outcome.message or f"relative error {outcome.error:.1e}"
                    raise NoValidKernelError(f"no kernel of {tuned[i].program.name!r} passes its numerical check: {detail}")
        todo = again
    return [Realised(r.tuned, r.candidate, r.artifacts, r.check, dict(rejected[i])) for i, r in enumerate(found) if r is not None]
