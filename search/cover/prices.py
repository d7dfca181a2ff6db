"""What a part costs: the best candidate that fast tuning finds for it. Equal parts are priced once, and what was found stays in
the cache folder, by the hash of the program, the device's numbers and our own source."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from typing import Any

from fuser import kept
from fuser.device import Device
from fuser.errors import FuserError
from fuser.files import BAD_VALUE
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.ir.serialize import graph_from_json
from fuser.lower.compile import cache_dir
from fuser.runtime.library import output_of
from fuser.superopt.structures import structures
from search.cover.parts import Part
from search.cover.parts import moves_only
from search.libraries import with_libraries
from search.space.evolve import Ranked
from search.tune import Tuned
from search.tune import library_seconds
from search.tune import tune_fast


def priced(
    parts: Iterable[Part],
    device: Device,
    libraries: bool = True,
    seed: int = 0,
    executor: Executor | None = None,
    known: dict[str, Tuned | None] | None = None,
) -> Mapping[Part, Tuned]:
    """What fast tuning finds for every part that has a kernel; ``libraries``: products may be left to a library, as operators for
    which no kernel can be generated always are. ``known`` are prices by the hash of a part's program; new ones are added."""
    best = {} if known is None else known
    keys = {part: part.program.stable_hash() for part in parts}
    distinct = {key: part.program for part, key in keys.items() if key not in best}
    files = {key: _file(key, device, libraries, seed) for key in distinct}
    for key, program in distinct.items():
        with suppress(*BAD_VALUE, FuserError):  # a value that this program did not write
            (value,) = kept.read(files[key])
            best[key] = _tuned(value, program, device)
    left = {key: program for key, program in distinct.items() if key not in best}
    run = executor.map if executor else map
    jobs = len(left)
    found = run(_best, left.values(), repeat(device, jobs), repeat(libraries, jobs), repeat(seed, jobs))
    for key, tuned in zip(left, found, strict=True):
        best[key] = tuned
        kept.write(files[key], _document(tuned))
    return {part: tuned for part, key in keys.items() if (tuned := best[key]) is not None}


def _file(program: str, device: Device, libraries: bool, seed: int) -> Path:
    source = kept.source_hash("fuser", "cost_model", "search")
    return cache_dir("prices") / f"{kept.text_hash(source, program, repr(device), f'{libraries} {seed}')}.json"


def _document(tuned: Tuned | None) -> dict[str, Any] | None:
    """What was found as JSON, each structure once."""
    if tuned is None:
        return None
    ranked = (tuned.winner, *tuned.runners)
    graphs = list({id(r.graph): r.graph for r in ranked}.values())
    places = {id(g): i for i, g in enumerate(graphs)}
    return {
        "graphs": [g.to_json() for g in graphs],
        "ranked": [[places[id(r.graph)], r.schedule.to_json(), r.estimate] for r in ranked],
        "structures": tuned.structures,
        "candidates": tuned.candidates,
        "notes": tuned.notes,
    }


def _tuned(value: Any, program: TensorProgram, device: Device) -> Tuned | None:
    if value is None:
        return None
    graphs = [graph_from_json(g) for g in value["graphs"]]
    winner, *runners = (Ranked(Candidate(graphs[i], Schedule.from_json(s)), estimate) for i, s, estimate in value["ranked"])
    return Tuned(program, device.name, winner, tuple(runners), value["structures"], value["candidates"], tuple(value["notes"]))


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
        made = {n: program[n] for n in program.inputs}
        for kernel in kernels:
            made[kernel.output] = output_of(kernel, made)
    except FuserError:
        return None
    if any(made[n].dtype != program[n].dtype for n in program.outputs):  # a product of float16 that is float32, say
        return None
    return Tuned(program, device.name, Ranked(Candidate(graph, Schedule(())), seconds), (), 1, 1)
