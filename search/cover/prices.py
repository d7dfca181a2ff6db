"""What a part costs: the best candidate that fast tuning finds for it. Equal parts are priced once."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from concurrent.futures import Executor
from itertools import repeat

from fuser.device import Device
from fuser.errors import FuserError
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.superopt.structures import structures
from search.cover.parts import Part
from search.cover.parts import moves_only
from search.libraries import with_libraries
from search.space.evolve import Ranked
from search.tune import Tuned
from search.tune import library_seconds
from search.tune import tune_fast


def priced(
    parts: Iterable[Part], device: Device, libraries: bool = True, seed: int = 0, executor: Executor | None = None
) -> Mapping[Part, Tuned]:
    """What fast tuning finds for every part that has a kernel; ``libraries``: products may be left to a library, as operators for
    which no kernel can be generated always are."""
    keys = {part: part.program.stable_hash() for part in parts}
    distinct = {key: part.program for part, key in keys.items()}
    run = executor.map if executor else map
    jobs = len(distinct)
    tuned = run(_best, distinct.values(), repeat(device, jobs), repeat(libraries, jobs), repeat(seed, jobs))
    best = dict(zip(distinct, tuned, strict=True))
    return {part: found for part, key in keys.items() if (found := best[key]) is not None}


def _best(program: TensorProgram, device: Device, libraries: bool, seed: int) -> Tuned | None:
    try:
        graphs = structures(program)
        return tune_fast(program, device, seed=seed, graphs=with_libraries(graphs) if libraries else graphs)
    except FuserError:
        return by_library(program, device)


def by_library(program: TensorProgram, device: Device) -> Tuned | None:
    """A program of one operator, and views, by a library call."""
    if sum(not moves_only(n) for n in program.nodes) > 1:
        return None
    kernels = tuple(
        LibraryKernel(n.output, n.op, n.inputs, n.output, tuple(sorted(program.bound(n).items()))) for n in program.nodes
    )
    ends = (*program.inputs, *program.outputs)
    try:
        graph = KernelGraph(program.name, program.inputs, kernels, program.outputs, tuple(program[n] for n in ends)).validate()
        seconds = sum(library_seconds(graph, k, device) for k in kernels)
    except FuserError:
        return None
    return Tuned(program, device.name, Ranked(Candidate(graph, Schedule(())), seconds), (), 1, 1)
