"""Parts that differ only in where slices of their inputs begin: the steps of a loop that Python writes out (``x[:, t]``) are one
search, whose kernels then read elsewhere.

An estimate knows of where a window begins only how its first element is aligned. So every slice is moved to the first place that
is aligned like its own; what is found there has windows, which are moved back.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from typing import TypeVar

import numpy as np

from cost_model.rows import SECTOR
from fuser.errors import UnsupportedError
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Kernel
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.mugraph import Stmt
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from search.cover.shown import moves_only
from search.ranked import Tuned

Cut = TypeVar("Cut", Node, LibraryKernel)


@dataclass(frozen=True)
class Move:
    """Of a slice of an input, or of a view of one: its dimension, where it began, by how much it was moved towards the beginning,
    the input, and how many elements lie between two neighbours there."""

    axis: int
    start: int
    by: int
    source: str
    stride: int


Moves = Mapping[str, Move]
"""The slices that were moved, by their results."""


Cuts = Mapping[tuple[int, int], tuple[Node, int]]
"""The slices between an input and what reads it, and their dimensions: by the elements between two neighbours along that, and
where they begin."""


def from_the_beginning(program: TensorProgram, fixed: Collection[str] = ()) -> tuple[TensorProgram, Moves]:
    """The program with each slice of an input in the first place that is aligned like its own, and how far each was moved. What
    is read in several places stays, but for what these have in common: slices may overlap. Inputs that are ``fixed`` stay, too:
    their rows may be longer."""
    moves: dict[str, Move] = {}
    for name in program.inputs:
        if name not in program.outputs and name not in fixed:
            moves |= _moved(program, name)
    if not moves:
        return program, {}
    nodes = tuple(_shifted(n, -moves[n.output].by) if n.output in moves else n for n in program.nodes)
    return replace(program, nodes=nodes), moves


def _moved(program: TensorProgram, source: str) -> dict[str, Move]:
    """The slices by which an input is read that may begin earlier: where others read it too, those that all of these have."""
    ways = list(_ways(program, source, row_major(program[source].shape), {}))
    alone = len(ways) == 1 and len(ways[0]) == 1
    found: dict[str, Move] = {}
    for stride, start in set.intersection(*map(set, ways)) if ways else ():
        step = stride * DTYPE_BYTES[program[source].dtype]
        first = next(n for n in range(start + 1) if _aligned_alike(n * step, start * step, alone))
        if first < start:
            found |= {
                n.output: Move(axis, start, start - first, source, stride) for n, axis in (way[stride, start] for way in ways)
            }
    return found


def _aligned_alike(first: int, other: int, alone: bool) -> bool:
    """Whether addresses of two bytes are; not ``alone``: whatever is added to both."""
    if alone:
        return math.gcd(SECTOR, first) == math.gcd(SECTOR, other)
    return (other - first) % SECTOR == 0


def _ways(program: TensorProgram, name: str, strides: tuple[int, ...], cuts: Cuts) -> Iterator[Cuts]:
    """Of each that reads an input, or a view of it with such strides, the slices on the way."""
    for node in program.consumers[name]:
        seen = _seen(program, node, strides) if moves_only(node) and node.output not in program.outputs else None
        if seen is None:
            yield cuts
            continue
        axis = node.attr["axis"] % len(strides) if node.op == "slice" else None
        more = cuts if axis is None else {**cuts, (strides[axis], node.attr["start"]): (node, axis)}
        yield from _ways(program, node.output, seen, more)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Elements between two neighbours along each dimension."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def _seen(program: TensorProgram, node: Node, strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """The strides of a view; None where it is a copy, or has no strides."""
    shape = program[node.inputs[0]].shape
    if node.op == "slice":
        return strides
    if node.op == "transpose":
        return tuple(strides[i] for i in node.attr["perm"])
    if node.op != "reshape" or 0 in shape:
        return None
    seen = np.lib.stride_tricks.as_strided(np.empty(1, np.int8), shape, strides)  # nothing reads it
    try:
        seen.shape = program[node.output].shape
    except AttributeError:
        return None
    return tuple(seen.strides)


def _shifted(cut: Cut, by: int) -> Cut:
    attrs = dict(cut.attrs)
    return replace(cut, attrs=tuple(sorted({**attrs, "start": attrs["start"] + by, "stop": attrs["stop"] + by}.items())))


def put_back(tuned: Tuned, program: TensorProgram, moves: Moves) -> Tuned | None:
    """What was found for the program :func:`from_the_beginning`, for the ``program`` itself; None where the best of it reads
    elsewhere than in windows."""
    found = []
    above = {above for name in moves for above in _above(program, name)}
    for ranked in (tuned.winner, *tuned.runners):
        try:
            kernels = tuple(_kernel(k, moves, above) for k in ranked.graph.kernels)
        except UnsupportedError:
            if ranked is tuned.winner:
                return None
            continue
        found.append(replace(ranked, candidate=Candidate(replace(ranked.graph, kernels=kernels), ranked.schedule)))
    return replace(tuned, program=program, winner=found[0], runners=tuple(found[1:]))


def _above(program: TensorProgram, name: str) -> Iterator[str]:
    """What a view is a part of, up to the input."""
    while (node := program.producers.get(name)) is not None:
        (name,) = node.inputs
        yield name


def _kernel(kernel: Kernel, moves: Moves, above: set[str]) -> Kernel:
    """The kernel with its windows, or its slice, where they were. Raises :class:`UnsupportedError` where it reads otherwise."""
    if isinstance(kernel, BlockGraph):
        return replace(kernel, stmts=tuple(_stmt(s, moves, kernel.extents) for s in kernel.stmts))
    if kernel.op == "slice" and kernel.output in moves:
        return _shifted(kernel, moves[kernel.output].by)
    if not moves_only(kernel) and not above.isdisjoint(kernel.inputs):
        raise UnsupportedError(f"{kernel.name!r} reads what is cut as it pleases")
    return kernel


def _stmt(stmt: Stmt, moves: Moves, extents: Mapping[str, int]) -> Stmt:
    mine = {(m.stride, m.start, m.by) for m in moves.values() if stmt.access is not None and m.source == stmt.access.source}
    if stmt.access is None or not mine:
        return stmt
    if (window := stmt.access.window) is None:
        raise UnsupportedError(f"{stmt.value!r} is no box of {stmt.access.source!r}")
    first = window.offset + sum(stride * by for stride, _, by in mine)
    starts = tuple(first // step % n for step, n in zip(row_major(window.seen), window.seen, strict=True))
    if any(x + size > n for x, size, n in zip(starts, stmt.access.shape(extents), window.seen, strict=True)):
        raise UnsupportedError(f"{stmt.value!r} is a box of {stmt.access.source!r} only where it was moved to")
    return replace(stmt, access=replace(stmt.access, window=replace(window, starts=starts)))
