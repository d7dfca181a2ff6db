"""Tensors in longer rows: what is between them is zero in memory, and whole vectors are moved."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from fuser.errors import NoValidKernelError
from fuser.errors import ProgramError
from fuser.ir.builder import Builder
from fuser.ir.candidate import Candidate
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import KernelGraph
from fuser.ir.pitched import laid
from fuser.ir.pitched import rows_of
from fuser.ir.program import Tensor
from fuser.ir.program import TensorProgram
from fuser.ir.rows import in_rows
from fuser.ir.rows import out_of_rows
from fuser.ir.rows import pitch_of
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.serialize import graph_from_json
from fuser.ir.tiling import TilingExpr
from fuser.lower.compile import compile_graph
from fuser.lower.options import TMA
from fuser.lower.triton_source import generate_graph
from fuser.superopt.structures import structures
from tests.interpreted import checked


def wide(columns: int = 37) -> TensorProgram:
    """Rows of 37 columns behind an epilogue whose value at zero is not zero."""
    b = Builder("wide")
    x, w, v = b.input("X", (48, 64)), b.input("W", (columns, 64)), b.input("B", (columns,))
    return b.build(Y=b.op("exp", x @ b.op("transpose", w, perm=(1, 0))) + v)


def back(columns: int = 37) -> TensorProgram:
    """A sum over 37 columns."""
    b = Builder("back")
    h, v = b.input("H", (48, columns)), b.input("V", (64, columns))
    return b.build(Y=h @ b.op("transpose", v, perm=(1, 0)))


def pitched(program: TensorProgram, *names: str) -> KernelGraph:
    graph = laid(fuse(program), [(n, pitch_of(program[n])) for n in names])
    assert graph is not None
    return graph


def tiled(order: str = "k", **tiles: int) -> Schedule:
    names = tuple(sorted(tiles))
    return Schedule((KernelSchedule(tuple(sorted(tiles.items())), TilingExpr.parse(order, names)),))


def test_rows_are_multiples_of_what_a_thread_moves() -> None:
    found = {n: pitch_of(Tensor("T", (4, n))) for n in (5, 8, 9, 37, 40, 197)}
    assert found == {5: 0, 8: 0, 9: 16, 37: 40, 40: 0, 197: 200}
    assert pitch_of(Tensor("T", (6,), "float32")) == 8
    assert pitch_of(Tensor("T", ())) == 0
    x = np.arange(6.0).reshape(2, 3)
    there = in_rows(x, (2, 8))
    assert np.array_equal(there, [[0, 1, 2, 0, 0, 0, 0, 0], [3, 4, 5, 0, 0, 0, 0, 0]])
    assert np.array_equal(out_of_rows(there, (2, 3), "X"), x)
    there[1, 7] = np.nan
    with pytest.raises(NoValidKernelError, match="between the rows of 'X'"):
        out_of_rows(there, (2, 3), "X")


@pytest.mark.parametrize("tile", [16, 37, 48, 64])
def test_stores_leave_zeros_between_rows(tile: int) -> None:
    """The check compares what is stored, and refuses anything but zeros behind it."""
    program = wide()
    graph = pitched(program, "Y", "B")
    found = checked(program, graph, tiled(m=16, n=tile, k=32))
    assert found.passed, found.message
    assert rows_of(graph) == {"Y": 40, "B": 40}


@pytest.mark.parametrize("tile", [16, 37, 64])
def test_sums_over_longer_rows(tile: int) -> None:
    program = back()
    graph = pitched(program, "H", "V")
    found = checked(program, graph, tiled(m=16, n=32, k=tile))
    assert found.passed, found.message


def test_a_tile_that_ends_before_the_row_does_is_refused() -> None:
    with pytest.raises(NoValidKernelError, match="leave what is behind 36 columns unwritten"):
        generate_graph(pitched(wide(36), "Y"), tiled(m=16, n=4, k=32))


def test_descriptors_do_not_store_them() -> None:
    graph, schedule = pitched(wide(), "Y"), tiled(m=16, n=64, k=32)
    with pytest.raises(NoValidKernelError, match="between its rows would stay as it was"):
        generate_graph(graph, Schedule((TMA.set(schedule.kernels[0], True, "Y"),)))
    aligned = pitched(back(), "H", "V")
    (source,) = generate_graph(aligned, Schedule((TMA.set(tiled(m=16, n=32, k=64).kernels[0], True, "H"),)))
    assert [(d.shape, d.strides) for d in source.descriptors] == [((48, 37), (40, 1))]


def test_rows_are_kept_in_json_and_follow_the_sizes() -> None:
    graph = pitched(wide(), "Y", "B")
    assert graph_from_json(json.loads(json.dumps(graph.to_json()))) == graph
    assert rows_of(graph.with_extents({"n": 43})) == {"Y": 48, "B": 48}
    assert "Y[m, n] in rows of 40" in str(graph)


def test_what_is_read_otherwise_stays() -> None:
    """Rows of two axes, rows that a view makes of others, windows."""
    for seen in ((38, 2, 37), (76, 37)):
        b = Builder("read")
        x = b.input("X", (38, 74))
        assert laid(fuse(b.build(Y=b.op("square", b.op("reshape", x, shape=seen)))), [("X", 80)]) is None
    b = Builder("read")
    x = b.input("X", (38, 74))
    program = b.build(Y=b.relu(b.op("slice", x, axis=1, start=0, stop=37)))
    (graph,) = structures(program)[:1]
    assert laid(graph, [("X", 80)]) is None
    assert laid(graph, [("Y", 40)]) is not None
    with pytest.raises(ProgramError, match="longer"):
        laid(graph, [("Y", 32)])


def test_whole_vectors_are_moved() -> None:
    """The compiler sees it: no load of two bytes is left."""
    program = back()
    schedule = tiled(m=16, n=32, k=48)
    plain, longer = (compile_graph(g, schedule, 90)[0].ptx for g in (fuse(program), pitched(program, "H", "V")))
    assert re.search(r"ld\.global\S*\.b16", plain)
    assert not re.search(r"ld\.global\S*\.b16", longer)
    assert re.search(r"cp\.async\.cg|ld\.global\S*\.v4", longer)


def test_nothing_else_changes() -> None:
    graph = fuse(wide())
    assert laid(graph, []) == graph
    assert laid(pitched(wide(), "Y"), [("Y", 0)]) == graph
    candidate = Candidate(graph, tiled(m=16, n=16, k=32))
    assert "in rows" not in "".join(s.text for s in generate_graph(candidate.graph, candidate.schedule))
