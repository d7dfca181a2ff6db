"""Check lowered µGraphs without a GPU: the generated Triton runs in Triton's interpreter at a reduced size, against a float64
reference.

Extents are reduced (:mod:`fuser.lower.reduced`). The reference is the program at these sizes. Where one tensor is read, or made,
both whole and in windows, which lie where they are, the program has no such sizes: there the scheduled µGraph in float64 is held
against the program at its own size, and the kernels against it at a reduced one.

Triton decides at import whether it interprets, so the kernels run in a process of their own: ``python -m fuser.lower.check``
reads jobs as JSON lines from its standard input and answers each with a line.
"""

from __future__ import annotations

import base64
import json
import math
import select
import sys
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from fuser.agreement import agreements
from fuser.agreement import poison
from fuser.agreement import tolerance
from fuser.drawing import Draw
from fuser.drawing import drawn
from fuser.errors import FuserError
from fuser.errors import UsageError
from fuser.errors import said
from fuser.interpret.reference import interpret
from fuser.ir.added import packed
from fuser.ir.added import unpack
from fuser.ir.candidate import Candidate
from fuser.ir.candidate import paired
from fuser.ir.candidate import scheduled_blocks
from fuser.ir.domain import input_domains
from fuser.ir.dtypes import rounded
from fuser.ir.fuse import fuse
from fuser.ir.merge import merged
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.ops import Array
from fuser.ir.program import FLOAT_DTYPES
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.ir.program import weight_factors
from fuser.ir.rows import out_of_rows
from fuser.ir.scalar import bound
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.serialize import graph_from_json
from fuser.lower.check_written import check_written
from fuser.lower.checker import CHECKERS
from fuser.lower.checker import IDLE
from fuser.lower.checker import READY
from fuser.lower.checker import Check
from fuser.lower.checker import CheckerEnded
from fuser.lower.reduced import at_reduced_sizes
from fuser.lower.reduced import reduced_schedule
from fuser.lower.reduced import with_tiles_alike

TIMEOUT = 600.0
"""Seconds after which an interpreter that does not answer is given up."""


def _coarser(graph: KernelGraph, schedule: Schedule) -> Schedule:
    """The schedule with tiles so large that each axis that is divided has a few, whole or ragged as before."""

    def of(block: BlockGraph, kernel: KernelSchedule) -> KernelSchedule:
        parts = {a: dict(kernel.splits)[p] for a, p in block.splits}
        few = {a: n * _larger(math.ceil(block.extents[a] / (n * parts.get(a, 1)))) for a, n in kernel.tiles if block.extents[a]}
        return replace(kernel, tiles=tuple((a, few.get(a, n)) for a, n in kernel.tiles))

    return Schedule(tuple(of(block, kernel) for block, kernel in scheduled_blocks(graph, schedule)))


def _larger(tiles: int) -> int:
    """How many tiles are one where two or more are to be left."""
    return math.gcd(tiles, 1 << max(0, tiles.bit_length() - 2)) if tiles > 1 else 1


def _joins(program: TensorProgram, graph: KernelGraph) -> bool:
    """Some kernel sees a tensor of the program with fewer dimensions."""
    accesses = [s.access for b in graph.blocks for s in b.stmts if s.access and s.access.tensor in program.table]
    return any(len(a.dims) < len(program[a.tensor].shape) for a in accesses)


def random_inputs(graph: KernelGraph, rng: np.random.Generator, draw: Draw | None = None) -> dict[str, Array]:
    """Inputs of the graph's shapes as ``draw`` places them (standard normal without it), rounded to their dtypes (bfloat16 is
    kept in float32)."""
    found = {}
    for name in graph.inputs:
        t = graph.table[name]
        x = rng.standard_normal(t.shape)
        if t.dtype not in FLOAT_DTYPES:
            x = x > 0
        elif draw:
            x = draw.place(name, x)
        found[name] = rounded(x, t.dtype)
    return found


def plain(program: TensorProgram, sizes: Mapping[str, int], joined: bool = False) -> Candidate:
    """The program as written, in one block without tiles: the reference at other sizes. ``joined``: they are of axes that were
    merged."""
    graph = fuse(program)
    if joined:
        graph = replace(graph, kernels=tuple(map(merged, graph.blocks)))
    graph = graph.with_extents(sizes)
    return Candidate(graph, Schedule(tuple(KernelSchedule() for _ in graph.blocks)))


def run_graph(graph: KernelGraph, schedule: Schedule, inputs: Mapping[str, Array], poison: float = math.nan) -> dict[str, Array]:
    """Run every kernel's generated source in Triton's interpreter; what they write is filled with ``poison`` first."""
    from fuser.lower.compile import interpret_source
    from fuser.lower.triton_source import generate_graph

    values: dict[str, Any] = dict(inputs)
    for kernel, source in paired(graph, generate_graph(graph, schedule)):
        if source:
            values.update(interpret_source(source, values, poison))
        elif isinstance(kernel, LibraryKernel):
            args = [np.asarray(values[a], np.float32) for a in kernel.args]
            attrs = bound(kernel.attrs, lambda e: values[e.tensor].shape[e.dim])
            values[kernel.output] = kernel.entry.numpy(*args, **attrs)
    return {n: out_of_rows(np.asarray(values[n]), graph.table[n].shape, n) for n in graph.outputs}


def check_here(program: TensorProgram, candidate: Candidate, seed: int, method: str) -> Check:
    """Check in this process; ``method`` is ``triton`` (the interpreter must be on) or ``numpy``."""
    candidate = with_tiles_alike(candidate)
    graph = candidate.graph
    sizes, small, apart = at_reduced_sizes(program, graph, candidate.schedule)
    schedule = reduced_schedule(candidate, small)
    real = apart and all(small.table[n].shape == graph.table[n].shape for n in (*graph.inputs, *graph.outputs))

    def at_its_size(draw: Draw) -> tuple[dict[str, Array], dict[str, Array]]:
        inputs = random_inputs(graph, np.random.default_rng(seed), draw)
        with np.errstate(all="ignore"):
            return inputs, program.evaluate(inputs)

    def reduced(draw: Draw) -> tuple[dict[str, Array], dict[str, Array]]:
        inputs = random_inputs(small, np.random.default_rng(seed), draw)
        with np.errstate(all="ignore"):
            if apart:
                return inputs, interpret(small, schedule, inputs)
            written = plain(program, sizes, _joins(program, graph))
            return inputs, interpret(written.graph, written.schedule, inputs)

    dtypes = {n: small.table[n].dtype for n in graph.outputs}
    limit = tolerance(t.dtype for t in program.tensors)
    attempt = at_its_size if real else reduced
    _, inputs, reference = drawn(program, attempt, dtypes)
    if apart:
        given, wanted = (inputs, reference) if real else drawn(program, at_its_size, dtypes)[1:]
        if not real and (wrong := _computes_otherwise(candidate, given, wanted, limit)):
            return Check(math.inf, math.inf, tuple(sorted(graph.extents.items())), method, wrong)
        weights = weight_factors(program) if any(n.entry.has_exponential for n in program.nodes) else {}
        if weights and not agreements(_in_its_dtypes(program, given), wanted, dtypes, limit).ok:
            inputs, reference = attempt(Draw(input_domains(program), weights))  # large ones make a softmax a choice
    if method == "triton":
        out = run_graph(small, schedule, inputs, poison(reference))
    else:
        with np.errstate(all="ignore"):
            out = interpret(small, schedule, inputs, dtype=np.float32)
    wanted = {n: reference[n].reshape(small.table[n].shape) for n in graph.outputs}
    found = agreements(out, wanted, dtypes, limit)
    return Check(found.max_error, found.error, tuple(sorted(sizes.items())), method, found.message)


def _in_its_dtypes(program: TensorProgram, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs where each operator leaves what its tensor can hold."""

    def apply(node: Node, xs: list[Array]) -> Array:
        with np.errstate(all="ignore"):
            y = np.asarray(node.entry.numpy(*xs, **program.bound(node)))
        return rounded(y, program[node.output].dtype).astype(np.float64)

    return program.run({n: np.asarray(x, np.float64) for n, x in inputs.items()}, apply)


def _computes_otherwise(candidate: Candidate, inputs: Mapping[str, Array], reference: Mapping[str, Array], limit: float) -> str:
    """How a scheduled µGraph in float64 differs from a reference; nothing where it does not. Its size is real, its tiles are
    few."""
    graph = candidate.graph
    with np.errstate(all="ignore"):
        out = interpret(graph, _coarser(graph, candidate.schedule), inputs)
    wanted = {n: reference[n].reshape(graph.table[n].shape) for n in graph.outputs}
    return agreements(out, wanted, dict.fromkeys(graph.outputs, "float64"), limit).message


def check(jobs: Sequence[tuple[TensorProgram, Candidate]], seed: int = 0) -> Iterator[Check]:
    """Check lowered µGraphs one after the other, in an interpreter of their own; without torch, the scheduled µGraphs in numpy.

    A kernel that cannot run or that differs gives a :class:`Check` that has not passed; it never raises for a kernel's sake.
    """
    for program, candidate in jobs:
        yield begun(program, candidate, seed)()


def begun(program: TensorProgram, candidate: Candidate, seed: int = 0) -> Callable[[], Check]:
    """Begin a check; what is returned waits for it."""
    if not _interpreted():
        return lambda: _guarded(program, candidate, seed, "numpy")
    graph, schedule = candidate.graph.to_json(), candidate.schedule.to_json()
    return _asked(candidate.graph.name, {"program": program.to_json(), "graph": graph, "schedule": schedule, "seed": seed})


def _interpreted() -> bool:
    return find_spec("torch") is not None and find_spec("triton") is not None


def begin() -> None:
    """Have an interpreter start, which is asked soon: it takes longer than most checks."""
    if _interpreted():
        CHECKERS.begin()


def check_call(graph: KernelGraph, seed: int = 0) -> Check:
    """Check the source of a library kernel, the only one of a graph, in the interpreter (:mod:`fuser.lower.check_written`)."""
    return begun_call(graph, seed)()


def begun_call(graph: KernelGraph, seed: int = 0) -> Callable[[], Check]:
    """The same, as :func:`begun` is to :func:`check`."""
    if not _interpreted():
        return lambda: Check(0.0, 0.0, (), "none")
    return _asked(graph.name, {"graph": graph.to_json(), "seed": seed})


def _asked(name: str, job: dict[str, Any]) -> Callable[[], Check]:
    entries = base64.b64encode(packed()).decode()
    question = CHECKERS.put(json.dumps(job | {"entries": entries}), TIMEOUT)

    def answer() -> Check:
        try:
            a = json.loads(CHECKERS.answer(question))
        except CheckerEnded as ended:
            return Check(math.inf, math.inf, (), "triton", f"the interpreter ended before it checked {name!r}: {ended}")
        if "refused" in a:
            raise UsageError(*a["refused"])
        return Check(a["max_error"], a["error"], tuple((k, v) for k, v in a["extents"]), a["method"], a["message"])

    return answer


def _guarded(program: TensorProgram, candidate: Candidate, seed: int, method: str) -> Check:
    return _outcome(lambda: check_here(program, candidate, seed, method), method)


def _outcome(run: Callable[[], Check], method: str = "triton") -> Check:
    """What a check finds; one that ends in an error has not passed."""
    try:
        return run()
    except FuserError as error:
        return Check(math.inf, math.inf, (), method, error.message)
    except Exception as error:  # noqa: BLE001 - the interpreter raises whatever the kernel's mistake leads to
        return Check(math.inf, math.inf, (), method, f"{type(error).__name__}: {said(error)[:300]}")


def main() -> None:
    """Answer JSON jobs on standard input, one line each, until there is none for a while."""
    import torch  # noqa: F401 - not at the first job
    import triton.runtime.interpreter  # noqa: F401

    print(READY, flush=True)
    while select.select([sys.stdin], [], [], IDLE)[0] and (line := sys.stdin.readline()):
        job = json.loads(line)
        unpack(base64.b64decode(job["entries"]))
        try:
            run = _read(job)
        except UsageError as error:  # of an operator that this process could not be given
            print(json.dumps({"refused": [error.message, error.hint]}), flush=True)
            continue
        print(json.dumps(asdict(_outcome(run))), flush=True)


def _read(job: Mapping[str, Any]) -> Callable[[], Check]:
    program = TensorProgram.from_json(job["program"]) if "program" in job else None
    graph, seed = graph_from_json(job["graph"]), job["seed"]
    if program is None:
        return lambda: check_written(graph, seed)
    candidate = Candidate(graph, Schedule.from_json(job["schedule"]))
    return lambda: check_here(program, candidate, seed, "triton")


if __name__ == "__main__":
    main()
