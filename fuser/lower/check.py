"""Check lowered µGraphs without a GPU: the generated Triton runs in Triton's interpreter at a reduced size, against a float64
reference.

Tile sizes, loop order, splits and whether a tile is ragged stay those of the schedule; extents shrink until every loop runs at
least twice. The reference is the program at these sizes. Where one tensor is read, or made, both whole and in windows, which lie
where they are, the program has no such sizes: there the scheduled µGraph in float64 is held against the program at its own size,
and the kernels against it at a reduced one.

Triton decides at import whether it interprets, so the kernels run in a process of their own: ``python -m fuser.lower.check``
reads jobs as JSON lines from its standard input and answers each with a line.
"""

from __future__ import annotations

import base64
import json
import math
import select
import sys
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
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
from fuser.ir.libraries import generated
from fuser.ir.libraries import products
from fuser.ir.libraries import with_library
from fuser.ir.merge import merged
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.ops import Array
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.program import FLOAT_DTYPES
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.ir.program import weight_factors
from fuser.ir.rows import out_of_rows
from fuser.ir.scalar import bound
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.serialize import graph_from_json
from fuser.lower.checker import CHECKER
from fuser.lower.checker import IDLE
from fuser.lower.checker import CheckerEnded
from fuser.lower.descriptors import LEAST_BYTES
from fuser.lower.gluon.reduced import trips_of_groups
from fuser.lower.gluon.reduced import with_stages
from fuser.lower.options import PERSISTENT
from fuser.lower.options import TMA
from fuser.lower.tiles import Tiles

FEW = 48
"""Largest extent of an axis that only a library sees."""
TIMEOUT = 600.0
"""Seconds after which an interpreter that does not answer is given up."""


@dataclass(frozen=True)
class Check:
    """Outcome of a numerical check: relative errors against float64 (largest over largest, and Frobenius), the reduced extents,
    what ran the kernels (``triton`` for the generated source, ``numpy`` for the scheduled µGraph where torch is missing), and
    what is wrong, if something is."""

    max_error: float
    error: float
    extents: tuple[tuple[str, int], ...]
    method: str
    message: str = ""

    @property
    def passed(self) -> bool:
        return not self.message and math.isfinite(self.error)


def reduced_extents(graph: KernelGraph, schedule: Schedule, free: Collection[str] = ()) -> dict[str, int]:
    """Smallest extents at which every loop and every divided axis has at least two tiles, ragged where the real ones are, and
    loops of warp groups as many as show what they do (:mod:`fuser.lower.gluon.reduced`).

    Axes that are not divided keep their extents; those of ``free`` have at most :data:`FEW`. So do those of tensors that are read
    in windows, too, which lie where they are; and all of a graph with library kernels, the axes of whose tensors are not known.
    """
    if len(graph.blocks) < len(graph.kernels):
        return graph.extents
    whole = _beside_windows(graph)
    steps: dict[str, int] = {}
    divided: dict[str, int] = {}
    full: dict[str, int] = {}
    trips: dict[str, int] = {}
    for block, ks in scheduled_blocks(graph, schedule):
        trips |= {a: max(n, trips.get(a, 0)) for a, n in trips_of_groups(block, ks).items()}
        counts = dict(ks.splits)
        split_of = dict(block.splits)
        for axis, extent in block.extents.items():
            if extent == FREE or axis in split_of.values():
                continue
            full[axis] = extent
            if axis in whole:
                continue
            tile = ks.tile.get(axis, extent)
            step = tile * counts.get(split_of.get(axis, ""), 1)
            if axis in split_of and axis not in contracted(block):
                divided[axis] = of_parts(extent, tile, counts[split_of[axis]])
            if tile < extent:
                steps[axis] = math.lcm(steps.get(axis, 1), step)
    for block, ks in scheduled_blocks(graph, schedule):
        for s in block.stmts:
            if s.access and s.access.axes and TMA.of(ks, s.access.source) and s.access.axes[-1] in steps:
                # rows of a described tensor are whole units of memory
                last = s.access.axes[-1]
                steps[last] = math.lcm(steps[last], max(LEAST_BYTES // DTYPE_BYTES[s.dtype], 1))
    sizes = {}
    for axis, extent in full.items():
        step = steps.get(axis)
        tiles = trips[axis] - (extent % step > 0) if step and axis in trips else 2
        small = tiles * step + extent % step if step else FEW if axis in free and axis not in whole else extent
        sizes[axis] = min(extent, divided.get(axis, small))
    tied: set[str] = set()
    while apart := _read_in_shapes(graph, sizes):
        tied |= apart
        alike = {a: _alike({x for x in tied if full[x] == full[a]}, full[a], steps, trips) for a in tied - divided.keys()}
        grown = {a: n for a, n in alike.items() if n > sizes[a]}
        sizes |= grown or {a: full[a] for a in apart}
    return sizes


def _alike(axes: Collection[str], extent: int, steps: Mapping[str, int], trips: Mapping[str, int]) -> int:
    """A reduced extent for axes that index the same dimensions (those of a matrix and its transpose): whole tiles of each."""
    step = math.lcm(*(steps.get(a, 1) for a in axes))
    tiles = max(2, *(trips.get(a, 2) - (extent % step > 0) for a in axes))
    return min(extent, tiles * step + extent % step)


def contracted(block: BlockGraph) -> set[str]:
    """Axes over which a block sums products."""
    return {a for s in block.computes if s.contracts for a in s.reduce}


def of_parts(extent: int, tile: int, parts: int) -> int:
    """An extent at which no part is empty, each has a loop if it really has one, and the last is as ragged."""
    trips = math.ceil(extent / (parts * tile))
    few, rest = few_parts(parts), extent % tile
    if trips * parts * tile == extent:
        return few * tile * min(trips, 2)
    return ((few - 1) * tile + (rest or tile)) if trips == 1 else (2 * few - 1) * tile + rest


def few_parts(parts: int) -> int:
    """Parts of a split at reduced size: as many, or a few where there are hundreds."""
    return parts if parts <= MANY_PARTS else FEW_PARTS if parts & (parts - 1) == 0 else FEW_PARTS - 3


def _read_in_shapes(graph: KernelGraph, sizes: Mapping[str, int]) -> set[str]:
    """Axes that have been reduced and stand for a dimension of a tensor that another access would read at another extent."""
    found: dict[tuple[str, int], tuple[set[int], set[str]]] = {}
    plain = {s.access.tensor for b in graph.blocks for s in b.stmts if s.access and not s.access.window}
    for block in graph.blocks:
        extents = block.extents | {a: n for a, n in sizes.items() if a in block.extents}
        for s in block.stmts:
            if s.access and s.access.source in plain and not any(extents[a] == FREE for a in s.access.axes):
                whole = s.access.whole(block.extents)
                for i, (dim, extent) in enumerate(zip(s.access.dims, s.access.shape(extents), strict=True)):
                    if whole[i]:
                        known, axes = found.setdefault((s.access.source, i), (set(), set()))
                        known.add(extent)
                        axes |= {a for a in dim if sizes.get(a, 0) < block.extents[a]}
    return {a for known, axes in found.values() if len(known) > 1 for a in axes if a in sizes}


def _beside_windows(graph: KernelGraph) -> set[str]:
    """Axes along which tensors are read, or made, that are read in windows as well, which are not all of that dimension."""
    accesses = [(s.access, b.extents) for b in graph.blocks for s in b.stmts if s.access]
    windows = {(a.source, i) for a, extents in accesses if a.window for i, x in enumerate(a.whole(extents)) if not x}
    viewed = {a.source for a, _ in accesses if a.window and a.window.view}
    found = set[str]()
    for a, _ in accesses:
        if not a.window:
            found |= {x for i, dim in enumerate(a.dims) if a.source in viewed or (a.source, i) in windows for x in dim}
    return found


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


def _at_reduced_sizes(program: TensorProgram, graph: KernelGraph, schedule: Schedule) -> tuple[dict[str, int], KernelGraph, bool]:
    """The reduced extents, the graph with them, and whether it has tensors both whole and in windows. A library's products take
    part as blocks that divide nothing."""
    called = tuple(k.name for k in graph.kernels if isinstance(k, LibraryKernel))
    if called and (whole := generated(program, graph)):
        mine = {b.name: s for b, s in scheduled_blocks(graph, schedule)}
        plans = tuple(mine.get(b.name, KernelSchedule()) for b in whole.blocks)
        sizes = reduced_extents(whole, Schedule(plans), whole.extents.keys() - graph.extents.keys())
        small = whole.with_extents(sizes)
        if set(called) & {b.name for b in whole.blocks} <= set(products(small)):
            return sizes, with_library(small, called), bool(_beside_windows(whole))
    sizes = reduced_extents(graph, schedule)
    return sizes, graph.with_extents(sizes), bool(_beside_windows(graph))


MANY_PARTS, FEW_PARTS = 64, 16
"""Parts of a split that are not checked one by one, and how many stand for them."""
PROGRAMS = 3
"""Of a persistent kernel at reduced size, so that each of them computes several places."""


def reduced_schedule(candidate: Candidate, small: KernelGraph) -> Schedule:
    """The schedule with few enough persistent programs for the reduced grid, with few parts, and with few stages."""

    def of(block: BlockGraph, kernel: KernelSchedule) -> KernelSchedule:
        stay = 0 < PERSISTENT.of(kernel) < Tiles.of(block, kernel).places
        kernel = replace(kernel, splits=tuple((a, few_parts(n)) for a, n in kernel.splits))
        return PERSISTENT.set(kernel, min(PERSISTENT.of(kernel), PROGRAMS)) if stay else kernel

    pairs = zip(scheduled_blocks(candidate.graph, candidate.schedule), small.blocks, strict=True)
    return Schedule(tuple(with_stages(block, kernel, fewer, of(block, kernel)) for (block, kernel), fewer in pairs))


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
    graph = candidate.graph
    sizes, small, apart = _at_reduced_sizes(program, graph, candidate.schedule)
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
    if find_spec("torch") is None or find_spec("triton") is None:
        for program, candidate in jobs:
            yield _guarded(program, candidate, seed, "numpy")
        return
    for program, candidate in jobs:
        try:
            a = json.loads(CHECKER.ask(json.dumps(_to_json(program, candidate, seed)), TIMEOUT))
            if "refused" in a:
                raise UsageError(*a["refused"])
            yield Check(a["max_error"], a["error"], tuple((k, v) for k, v in a["extents"]), a["method"], a["message"])
        except CheckerEnded as ended:
            why = f"the interpreter ended before it checked {candidate.graph.name!r}: {ended}"
            yield Check(math.inf, math.inf, (), "triton", why)


def _to_json(program: TensorProgram, candidate: Candidate, seed: int) -> dict[str, Any]:
    graph, schedule = candidate.graph.to_json(), candidate.schedule.to_json()
    entries = base64.b64encode(packed()).decode()
    return {"program": program.to_json(), "graph": graph, "schedule": schedule, "seed": seed, "entries": entries}


def _guarded(program: TensorProgram, candidate: Candidate, seed: int, method: str) -> Check:
    try:
        return check_here(program, candidate, seed, method)
    except FuserError as error:
        return Check(math.inf, math.inf, (), method, error.message)
    except Exception as error:  # noqa: BLE001 - the interpreter raises whatever the kernel's mistake leads to
        return Check(math.inf, math.inf, (), method, f"{type(error).__name__}: {said(error)[:300]}")


def main() -> None:
    """Answer JSON jobs on standard input, one line each, until there is none for a while."""
    while select.select([sys.stdin], [], [], IDLE)[0] and (line := sys.stdin.readline()):
        job = json.loads(line)
        unpack(base64.b64decode(job["entries"]))
        try:
            program = TensorProgram.from_json(job["program"])
            candidate = Candidate(graph_from_json(job["graph"]), Schedule.from_json(job["schedule"]))
        except UsageError as error:  # of an operator that this process could not be given
            print(json.dumps({"refused": [error.message, error.hint]}), flush=True)
            continue
        print(json.dumps(asdict(_guarded(program, candidate, job["seed"], "triton"))), flush=True)


if __name__ == "__main__":
    main()
