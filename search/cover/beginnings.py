"""Parts that differ only in where slices of their inputs begin: the steps of a loop that Python writes out (``x[:, t]``) are one
search, whose kernels then read elsewhere.

An estimate knows of where a window begins only how its first element is aligned. So every slice is moved to the first place that
is aligned like its own; what is found there has windows, which are moved back.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

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
from search.ranked import Tuned

Cut = TypeVar("Cut", Node, LibraryKernel)
Moves = Mapping[str, tuple[int, int]]
"""For each input that is read in one slice alone: its dimension, and by how much the slice was moved towards the beginning."""


def from_the_beginning(program: TensorProgram, fixed: Collection[str] = ()) -> tuple[TensorProgram, Moves]:
    """The program with each slice of an input, which nothing else reads, in the first place that is aligned like its own; and
    how far each was moved. Inputs that are ``fixed`` stay: their rows may be longer."""
    moves: dict[str, tuple[int, int]] = {}
    nodes = []
    for node in program.nodes:
        moved = _moved(program, node, fixed)
        if moved is not None:
            moves[node.inputs[0]] = moved
        nodes.append(_shifted(node, -moved[1]) if moved else node)
    return (replace(program, nodes=tuple(nodes)), moves) if moves else (program, {})


def _moved(program: TensorProgram, node: Node, fixed: Collection[str]) -> tuple[int, int] | None:
    """The dimension of a slice of an input, and by how much it may begin earlier; None where that is nothing."""
    if node.op != "slice" or node.inputs[0] not in set(program.inputs) - {*program.outputs, *fixed}:
        return None
    source = program[node.inputs[0]]
    if len(program.consumers[source.name]) > 1:  # two slices may overlap
        return None
    axis, start = node.attr["axis"] % len(source.shape), node.attr["start"]
    step = math.prod(source.shape[axis + 1 :]) * DTYPE_BYTES[source.dtype]
    first = next(n for n in range(start + 1) if math.gcd(SECTOR, n * step) == math.gcd(SECTOR, start * step))
    return (axis, start - first) if first < start else None


def _shifted(cut: Cut, by: int) -> Cut:
    attrs = dict(cut.attrs)
    return replace(cut, attrs=tuple(sorted({**attrs, "start": attrs["start"] + by, "stop": attrs["stop"] + by}.items())))


def put_back(tuned: Tuned, program: TensorProgram, moves: Moves) -> Tuned | None:
    """What was found for the program :func:`from_the_beginning`, for the ``program`` itself; None where the best of it reads
    elsewhere than in windows."""
    found = []
    for ranked in (tuned.winner, *tuned.runners):
        try:
            kernels = tuple(_kernel(k, moves) for k in ranked.graph.kernels)
        except UnsupportedError:
            if ranked is tuned.winner:
                return None
            continue
        found.append(replace(ranked, candidate=Candidate(replace(ranked.graph, kernels=kernels), ranked.schedule)))
    return replace(tuned, program=program, winner=found[0], runners=tuple(found[1:]))


def _kernel(kernel: Kernel, moves: Moves) -> Kernel:
    """The kernel with its windows, or its slice, where they were. Raises :class:`UnsupportedError` where it reads otherwise."""
    if not moves.keys() & set(kernel.inputs):
        return kernel
    if isinstance(kernel, BlockGraph):
        return replace(kernel, stmts=tuple(_stmt(s, moves) for s in kernel.stmts))
    if kernel.op != "slice":
        raise UnsupportedError(f"{kernel.name!r} reads {' and '.join(sorted(moves))} as it pleases")
    return _shifted(kernel, moves[kernel.args[0]][1])


def _stmt(stmt: Stmt, moves: Moves) -> Stmt:
    if stmt.access is None or stmt.access.source not in moves:
        return stmt
    window, (axis, by) = stmt.access.window, moves[stmt.access.source]
    if window is None or window.view:
        raise UnsupportedError(f"{stmt.value!r} is no box of {stmt.access.source!r} as it is")
    starts = tuple(x + by * (i == axis) for i, x in enumerate(window.starts))
    return replace(stmt, access=replace(stmt.access, window=replace(window, starts=starts)))
