"""The kernels of a model as a chain: what each does since it follows another one, and what the assembler leaves of it. Their
schedules are kept in the cache folder."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

from fuser import kept
from fuser.device import Device
from fuser.errors import FuserError
from fuser.errors import NoValidKernelError
from fuser.files import BAD_VALUE
from fuser.ir.candidate import Candidate
from fuser.ir.schedule import Schedule
from fuser.lower.assembler import compiler
from fuser.lower.compile import KernelArtifact
from fuser.lower.compile import cache_dir
from fuser.lower.compile import compile_kernel
from fuser.lower.compile import compile_sources
from fuser.lower.compile import neutral
from fuser.lower.kernel_source import KernelSource
from fuser.lower.options import AHEAD
from fuser.lower.options import HOIST
from fuser.lower.options import PDL
from fuser.lower.triton_source import generate_graph
from search.realise import SPILL_LIMIT
from search.space.launches import chained
from search.space.stays import with_stays


def as_chain(
    alone: Candidate, device: Device, executor: Executor | None, known: dict[str, KernelArtifact] | None
) -> tuple[Candidate, tuple[KernelArtifact, ...]]:
    """Kernels that were chosen each for itself, as those of a model, and compiled; ``known`` are such by content, None where
    nothing is to be compiled. Raises :class:`fuser.errors.NoValidKernelError` where one cannot be."""
    file = _file(alone, device, known is not None)
    before = _read(file, alone)
    chain, artifacts = before or alone, tuple[KernelArtifact, ...]()
    if before is None and device.arch >= PDL.capability:
        chain = with_stays(chained(alone, device), device)
    if known is not None:
        chain, artifacts = _compiled(chain, alone, device, executor, known)
    if before is None or chain.schedule != before.schedule:
        kept.write(file, chain.schedule.to_json())
    return chain, artifacts


def _file(alone: Candidate, device: Device, compiled: bool) -> Path:
    ours, by = kept.source_hash("fuser", "cost_model", "search"), compiler() if compiled else ""
    asked = alone.graph.stable_hash(), repr(alone.schedule), repr(device)
    return cache_dir("chains") / f"{kept.text_hash(ours, by, *asked)}.json"


def _read(file: Path, alone: Candidate) -> Candidate | None:
    """The chain as it was before, if it was."""
    try:
        (value,) = kept.read(file)
        schedule = Schedule.from_json(value)
        return Candidate(alone.graph, schedule) if len(schedule.kernels) == len(alone.schedule.kernels) else None
    except (*BAD_VALUE, FuserError):
        return None


def _compiled(
    candidate: Candidate, alone: Candidate, device: Device, executor: Executor | None, known: dict[str, KernelArtifact]
) -> tuple[Candidate, tuple[KernelArtifact, ...]]:
    """The chain with its kernels; one that has no room for what it does as one of a chain, or for the one behind it, is as it was
    ``alone``."""
    while True:
        sources = generate_graph(candidate.graph, candidate.schedule)
        try:
            artifacts = compile_sources(sources, device.arch, executor, known)
            break
        except NoValidKernelError:
            eased = _eased(candidate, alone, _refused(sources, device.arch, executor, known))
            if eased.schedule == candidate.schedule:
                raise
            candidate = eased
    lighter = _within_registers(candidate, artifacts)
    if lighter.schedule != candidate.schedule:
        sources = generate_graph(lighter.graph, lighter.schedule)
        artifacts = compile_sources(sources, device.arch, executor, known)
    return lighter, artifacts


def _refused(
    sources: Sequence[KernelSource], arch: int, executor: Executor | None, known: Mapping[str, KernelArtifact]
) -> list[int]:
    """Those that do not compile; equal ones are asked for once."""
    texts = [neutral(s) for s in sources]
    left = {t: s for t, s in zip(texts, sources, strict=True) if t not in known}
    run = executor.map if executor else map
    fails = dict(zip(left, run(_fails, left.values(), [arch] * len(left)), strict=True))
    return [i for i, t in enumerate(texts) if fails.get(t)]


def _fails(source: KernelSource, arch: int) -> bool:
    try:
        compile_kernel(source, arch)
    except NoValidKernelError:
        return True
    return False


def _eased(candidate: Candidate, alone: Candidate, refused: Sequence[int]) -> Candidate:
    """With ``refused`` kernels as they were ``alone``, which bring no weights to L2 for the one behind either; where that has not
    been enough, with that one as it was, too, so that it does not start early."""
    before, kernels, own = candidate.schedule.kernels, list(candidate.schedule.kernels), alone.schedule.kernels
    for i in refused:
        kernels[i] = own[i]
        if i + 1 < len(kernels):
            if brought := AHEAD.named(kernels[i + 1]):
                kernels[i + 1] = AHEAD.set(kernels[i + 1], None, *brought)
            elif before[i] == own[i]:
                kernels[i + 1] = own[i + 1]
    return Candidate(candidate.graph, Schedule(tuple(kernels)))


def _within_registers(candidate: Candidate, artifacts: Sequence[KernelArtifact]) -> Candidate:
    """The chain whose kernels load behind their main loop what they have no registers for in front of it: parts are compiled
    without that. Of eight sentences' BERT such a kernel takes several times as long on an H200."""
    pairs = zip(candidate.schedule.kernels, artifacts, strict=True)
    kernels = tuple(HOIST.set(mine, None) if a.spills > SPILL_LIMIT else mine for mine, a in pairs)
    return Candidate(candidate.graph, Schedule(kernels))
