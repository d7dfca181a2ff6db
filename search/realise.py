"""From a ranked list to kernels: verify the best candidate, compile and check it, and fall back to the next where it does not
hold.

A µGraph that the verifier does not accept is never lowered. What the compiler says is weighed against what the model assumed: a
candidate that does not fit the device's shared memory, spills many registers, or differs from the reference is counted by class,
and the next one is tried.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from typing import TYPE_CHECKING

from fuser.device import Device
from fuser.errors import DiedError
from fuser.errors import FuserError
from fuser.errors import NoValidKernelError
from fuser.errors import OutOfResourcesError
from fuser.ir.candidate import Candidate
from fuser.ir.program import TensorProgram
from fuser.lower.compile import KernelArtifact
from fuser.lower.compile import compile_kernel
from fuser.lower.compile import kept_kernel
from fuser.lower.kernel_source import KernelSource
from fuser.lower.pace import pace
from fuser.lower.triton_source import generate_graph
from fuser.superopt.verify.verdict import Verdict
from fuser.superopt.verify.verdicts import kept_verdict
from fuser.superopt.verify.verdicts import known_verdict
from search.kept_checks import kept_check
from search.kept_checks import sound_calls
from search.ranked import Ranked
from search.ranked import Tuned
from search.spilled import keep_spills
from search.spilled import known_spills

if TYPE_CHECKING:
    from fuser.lower.checker import Check

SPILL_LIMIT = 64
"""Bytes of local memory a thread beyond which the next candidate is tried."""
HEAVY = 512
"""Bytes of local memory a thread with which kernels took 3 to 470 times as long as others on an H200."""
AGAIN = 3
"""Times as many candidates are compiled where none does with less."""
REGISTER_STEP = 8
"""Registers of a thread are given in steps."""
TRIES = 6
"""Candidates of one program that are compiled at most."""
SLOWED = 1.02
"""Times its estimate, as the assembler made it, from which a candidate is held against the next ones."""
FAILURES = ((OutOfResourcesError, "shared memory"), (DiedError, "the compiler died"))
"""Classes of candidates that the compiler refuses, by its error."""
NO_SOURCE = "does not compile"
"""Others that it refuses, or of which there is no source."""
WRONG = "wrong result"
"""The class of kernels that differ from the reference."""
NOT_VERIFIED = "not verified"
"""The class of candidates that the verifier has refused or could not decide."""


@dataclass(frozen=True)
class Realised:
    """A verified winner that compiles: its verdict, its kernels, its check (None if it was not asked for), and why better-ranked
    candidates fell out, by class.
    """

    tuned: Tuned
    candidate: Ranked
    verdict: Verdict
    artifacts: tuple[KernelArtifact, ...]
    check: Check | None = None
    rejected: dict[str, int] = field(default_factory=dict)


def compile_candidate(
    candidate: Candidate, device: Device, sources: Sequence[KernelSource] | None = None
) -> tuple[KernelArtifact, ...]:
    """Compile for a device; ``sources``: what was generated of it, if it was. Raises :class:`NoValidKernelError` where the result
    cannot run there."""
    sources = generate_graph(candidate.graph, candidate.schedule) if sources is None else sources
    artifacts = tuple(compile_kernel(s, device.arch) for s in sources)
    for a in artifacts:
        if why := too_large(a, device):
            raise OutOfResourcesError(why)
    return artifacts


def too_large(a: KernelArtifact, device: Device) -> str:
    """Why a block of a kernel has no room on an SM of a device; nothing where it has."""
    if a.shared_bytes > device.smem_per_block:
        return f"{a.name} needs {a.shared_bytes} bytes of shared memory, {device.title} has {device.smem_per_block}"
    registers = -(-a.registers // REGISTER_STEP) * REGISTER_STEP * 32 * a.num_warps
    if registers > device.registers_per_sm:
        return f"{a.name} needs {registers} registers for a block, an SM of {device.title} has {device.registers_per_sm}"
    return ""


def as_made(ranked: Ranked, artifacts: Sequence[KernelArtifact], device: Device) -> float:
    """Seconds of a candidate with the code that the assembler made of its kernels: its estimate, and what their warps take longer
    than the model takes them to. What was measured takes what was measured."""
    if ranked.measured is not None:
        return ranked.seconds
    from cost_model.walks import longer  # what was measured needs no model

    made = zip(ranked.candidate.blocks, artifacts, strict=True)
    return ranked.seconds + math.fsum(longer(b, s, pace(a.cubin), a.registers, device) for (b, s), a in made)


def verified(tuned: Tuned) -> Realised:
    """The first verified candidate of which there is source, without its kernels: for Triton's interpreter. Raises
    :class:`NoValidKernelError` where there is none."""
    rejected: Counter[str] = Counter()
    verdict: Verdict | None = None
    last: FuserError | None = None
    for candidate in (tuned.winner, *tuned.runners):
        verdict = kept_verdict(tuned.program, candidate.graph)
        if not verdict.accepted:
            rejected[NOT_VERIFIED] += 1
            continue
        try:
            generate_graph(candidate.graph, candidate.schedule)
        except FuserError as error:
            rejected[NO_SOURCE] += 1
            last = error
            continue
        return Realised(tuned, candidate, verdict, (), rejected=dict(rejected))
    raise last or _unverified(tuned.program, verdict)


def _unverified(program: TensorProgram, verdict: Verdict | None) -> NoValidKernelError:
    return NoValidKernelError(f"no µGraph of {program.name!r} is verified: {verdict or 'there is none'}")


@dataclass(frozen=True)
class _Outcome:
    """The candidate that compiles, as an index, its verdict and its kernels; how many were compiled, and failures by class."""

    at: int
    verdict: Verdict
    artifacts: tuple[KernelArtifact, ...]
    compiled: int = 0
    rejected: dict[str, int] = field(default_factory=dict)


_Job = tuple[TensorProgram, tuple[Ranked, ...], Device, int]
"""A program, its candidates, best first, the device, and how many may be compiled."""


def _compiled(job: _Job) -> _Outcome:
    """The first verified candidate that compiles without heavy spills (else the one that spills least), of as many as may be
    compiled (more where all of these spill hundreds of bytes). One whose warps the assembler made slower than the model takes
    them to be is left for one of the next that are expected to be faster than it has become. One with a kernel that is known to
    spill is compiled only where it may spill least, and counts as compiled unless one before it has that kernel.
    """
    program, candidates, device, most = job
    rejected: Counter[str] = Counter()
    heavy: list[_Heavy] = []
    spilled = set[str]()
    slow: tuple[float, _Outcome] | None = None
    last: FuserError | None = None
    compiled = 0
    for i, candidate in enumerate(candidates):
        hopeless = slow is None and bool(heavy) and all(x.spills > HEAVY for x in heavy)
        if compiled >= (AGAIN * most if hopeless else most):
            break
        if slow is not None and candidate.seconds >= slow[0]:
            continue
        verdict = kept_verdict(program, candidate.graph)
        if not verdict.accepted:
            rejected[NOT_VERIFIED] += 1
            last = last or _unverified(program, verdict)
            continue
        compiled += 1
        try:
            sources = generate_graph(candidate.graph, candidate.schedule)
            known = known_spills(sources, device.arch) if candidate.measured is None else {}
            if known:
                if spilled.isdisjoint(known):
                    spilled |= known.keys()
                else:
                    compiled -= 1
                rejected["spills"] += 1
                heavy.append(_Heavy(max(known.values()), _Outcome(i, verdict, ())))
                continue
            outcome = _Outcome(i, verdict, compile_candidate(candidate.candidate, device, sources))
        except FuserError as error:
            rejected[next((c for e, c in FAILURES if isinstance(error, e)), NO_SOURCE)] += 1
            last = error
            continue
        spills = max((a.spills for a in outcome.artifacts), default=0)
        if spills <= SPILL_LIMIT or candidate.measured is not None:
            seconds = as_made(candidate, outcome.artifacts, device)
            if seconds <= SLOWED * candidate.seconds:
                return replace(outcome, compiled=compiled, rejected=dict(rejected))
            slow = min((x for x in (slow, (seconds, outcome)) if x), key=lambda x: x[0])
            rejected["slow code"] += 1
            continue
        rejected["spills"] += 1
        spilled |= keep_spills(outcome.artifacts, SPILL_LIMIT)
        heavy.append(_Heavy(spills, outcome))
    if slow is not None:
        rejected["slow code"] -= 1
        return replace(slow[1], compiled=compiled, rejected=dict(+rejected))
    if (least := _least(heavy, candidates, device)) is None:
        raise last or NoValidKernelError("there is no candidate to compile")
    return replace(least, compiled=compiled, rejected=dict(rejected))


@dataclass(frozen=True)
class _Heavy:
    """A candidate that spills at least so many bytes a thread; without artifacts where it is not compiled."""

    spills: int
    outcome: _Outcome

    @property
    def order(self) -> tuple[int, int]:
        return self.spills, self.outcome.at


def _least(heavy: Sequence[_Heavy], candidates: Sequence[Ranked], device: Device) -> _Outcome | None:
    """The one that spills least, the first of several."""
    best: _Heavy | None = None
    for one in sorted(heavy, key=lambda x: x.order):
        if best is not None and best.order <= one.order:
            break
        found = one.outcome
        if not found.artifacts:
            with suppress(FuserError):
                found = replace(found, artifacts=compile_candidate(candidates[found.at].candidate, device))
        if found.artifacts:
            made = _Heavy(max(a.spills for a in found.artifacts), found)
            best = made if best is None else min(best, made, key=lambda x: x.order)
    return best.outcome if best else None


def _outcomes(jobs: Sequence[_Job], executor: Executor | None) -> Iterator[_Outcome]:
    """What is made of each of ``jobs``, in order, as soon as it is there; other processes, if there are any, go on with the next
    ones."""
    found = {i: r for i, job in enumerate(jobs) if (r := _at_hand(job)) is not None}
    run = executor.map if executor else map
    made = iter(run(_compiled, [job for i, job in enumerate(jobs) if i not in found]))
    for i in range(len(jobs)):
        yield found[i] if i in found else next(made)


def _at_hand(job: _Job) -> _Outcome | None:
    """The first candidate where it was verified and compiled before, without heavy spills."""
    program, (first, *_), device, _ = job
    verdict = known_verdict(program, first.graph)
    if verdict is None or not verdict.accepted:
        return None
    artifacts: list[KernelArtifact] = []
    with suppress(FuserError):
        for source in generate_graph(first.graph, first.schedule):
            known = kept_kernel(source, device.arch)
            if known is None or known.spills > SPILL_LIMIT or too_large(known, device):
                return None
            artifacts.append(known)
        if as_made(first, artifacts, device) <= SLOWED * first.seconds:
            return _Outcome(0, verdict, tuple(artifacts), 1)
    return None


def compiled_candidates(tuned: Sequence[Tuned], device: Device, executor: Executor) -> list[Ranked | None]:
    """Of each the candidate that :func:`realise` compiles first and keeps, not checked; None where there is none."""
    jobs = [(t.program, (t.winner, *t.runners), device, TRIES) for t in tuned]
    places = executor.map(_place, jobs)
    return [None if at is None else candidates[at] for at, (_, candidates, _, _) in zip(places, jobs, strict=True)]


def _place(job: _Job) -> int | None:
    with suppress(FuserError):
        return _compiled(job).at
    return None


def realise(
    tuned: Sequence[Tuned], device: Device, executor: Executor | None = None, checked: bool = True, seed: int = 0
) -> list[Realised]:
    """Kernels for each tuned program, in order; compilation is spread over ``executor``, and what is compiled is checked while
    others are.

    A winner that is not verified or fails its numerical check is dropped for the next candidate; :class:`NoValidKernelError` if
    none is left. What was measured was checked where it ran, at its real size.
    """
    pending: list[tuple[Ranked, ...]] = [(t.winner, *t.runners) for t in tuned]
    found: list[Realised | None] = [None] * len(tuned)
    rejected: list[Counter[str]] = [Counter() for _ in tuned]
    left = [TRIES] * len(tuned)
    todo = list(range(len(tuned)))
    while todo:
        jobs = [(tuned[i].program, pending[i], device, left[i]) for i in todo]
        again: list[int] = []
        wrong: NoValidKernelError | None = None
        asked: dict[int, tuple[Realised, Callable[[], Check], Callable[[], Realised]]] = {}
        for i, r in zip(todo, _outcomes(jobs, executor), strict=True):
            rejected[i].update(r.rejected)
            found[i] = mine = Realised(tuned[i], pending[i][r.at], r.verdict, r.artifacts)
            pending[i] = pending[i][r.at + 1 :]
            left[i] -= r.compiled
            if checked and mine.candidate.measured is None:
                check = kept_check(tuned[i].program, mine.candidate.candidate, seed)
                asked[i] = mine, check, sound_parts(mine, seed)
        for i, (mine, check, sound) in asked.items():
            outcome = check()
            found[i] = replace(sound(), check=outcome)
            if not outcome.passed:
                rejected[i][WRONG] += 1
                again.append(i)
                # another schedule of this structure may be right, another structure is likelier to be
                pending[i] = tuple(sorted(pending[i], key=lambda r, wrong=mine.candidate.graph: r.graph == wrong))
                if not pending[i] or not left[i]:
                    detail = outcome.message or f"relative error {outcome.error:.1e}"
                    wrong = NoValidKernelError(f"no kernel of {tuned[i].program.name!r} passes its numerical check: {detail}")
        if wrong is not None:
            raise wrong
        todo = again
    return [replace(r, rejected=dict(rejected[i] + Counter(r.rejected))) for i, r in enumerate(found) if r is not None]


def sound_parts(realised: Realised, seed: int) -> Callable[[], Realised]:
    """Begin to check the sources of its library kernels: torch computes what a wrong one would. What is returned waits for it."""
    ranked = realised.candidate
    calls = sound_calls(ranked.candidate, [a.source for a in realised.artifacts], seed)

    def sound() -> Realised:
        kept, wrong = calls()
        return replace(realised, candidate=replace(ranked, candidate=kept), rejected={WRONG: wrong}) if wrong else realised

    return sound
