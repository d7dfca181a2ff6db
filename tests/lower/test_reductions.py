"""Kernels of reductions in parts: their source, and what they compute in Triton's interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuser.ir.builder import Builder
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.lower.compile import compile_kernel
from fuser.lower.pieces import split_tile
from fuser.lower.reduced import few_parts
from fuser.lower.reduced import of_parts
from fuser.lower.triton_source import generate_graph
from fuser.superopt.structures import structures
from tests.conftest import Golden
from tests.interpreted import checked


def normalized(rows: int = 3, columns: int = 5000) -> TensorProgram:
    b = Builder("long rows", "float32")
    return b.build(Y=b.layer_norm(b.input("X", (rows, columns))))


def softmax() -> TensorProgram:
    b = Builder("long softmax", "float32")
    return b.build(Y=b.softmax(b.input("X", (3, 5000))))


def error(*shape: int) -> TensorProgram:
    b = Builder("error", "float32")
    difference = b.input("X", shape) - b.input("Z", shape)
    return b.build(Y=b.op("mean", b.op("square", difference), axis=tuple(range(len(shape)))))


def parts(program: TensorProgram) -> KernelGraph:
    (graph,) = (g for g in structures(program) if len(g.blocks) == 2)
    return graph


def schedule(graph: KernelGraph, count: int, tile: int, then: int) -> Schedule:
    first, second = graph.blocks
    ((axis, part),) = first.splits
    rows = {a: 1 for a in first.spatial if a != part}
    wide = {a: then for a in second.extents if a == axis and a in second.spatial}
    kernels = (rows | {axis: tile}, rows | wide)
    return Schedule(tuple(KernelSchedule(tuple(sorted(tiles.items())), splits=((part, count),)) for tiles in kernels))


def test_the_source_of_a_normalization_of_long_rows(golden: Golden) -> None:
    graph = parts(normalized())
    sources = generate_graph(graph, schedule(graph, 5, 1024, 2048))
    golden.check("reduction_in_parts.txt", "\n\n".join(s.text for s in sources))


@pytest.mark.parametrize("program", [normalized(), softmax(), error(50, 100), error(7, 11, 13, 5)], ids=lambda p: p.name)
@pytest.mark.parametrize(("count", "tile"), [(5, 1024), (5, 512), (3, 256)])
def test_parts_of_one_tile_and_of_several(program: TensorProgram, count: int, tile: int) -> None:
    graph = parts(program)
    found = checked(program, graph, schedule(graph, count, tile, 1024))
    assert found.passed, found.message


@pytest.mark.parametrize(
    ("extent", "tile", "count"), [(1 << 20, 1024, 1024), (1000003, 4096, 245), (10 * 1024, 1024, 5), (9000, 64, 64)]
)
def test_no_part_is_empty_at_a_reduced_size(extent: int, tile: int, count: int) -> None:
    small, few = of_parts(extent, tile, count), few_parts(count)
    trips = -(-small // (few * tile))
    assert small <= extent
    assert (few - 1) * trips * tile < small <= few * trips * tile
    assert (trips == 1) == (count * tile >= extent)
    assert bool(small % tile) == bool(extent % tile)


def columns(rows: int, count: int, op: str = "sum", batch: int = 1) -> TensorProgram:
    b = Builder("columns", "float32")
    return b.build(Y=b.op(op, b.input("X", (batch, rows, count)), axis=(1,), keepdims=False))


def folds(program: TensorProgram, warps: int, **tiles: int) -> tuple[KernelGraph, Schedule]:
    graph = structures(program)[0]
    order = TilingExpr(tuple(a for a in graph.blocks[0].reduced if tiles[a] < graph.extents[a]))
    return graph, Schedule((KernelSchedule(tuple(tiles.items()), order, num_warps=warps),))


@pytest.mark.parametrize("op", ["sum", "max"])
@pytest.mark.parametrize(
    ("count", "width", "warps", "apart"),
    [(2048, 1024, 4, True), (2048, 512, 4, False), (2048, 256, 1, True), (2047, 64, 1, True), (2048, 32, 1, False)],
)
def test_columns_that_a_thread_holds_several_runs_of_are_not_mixed_up(
    op: str, count: int, width: int, warps: int, apart: bool
) -> None:
    """Triton lets each thread accumulate by itself what a loop folds of a load's last dimension, and mixes up columns in that."""
    program = columns(600, count, op)
    graph, schedule = folds(program, warps, k=128, n=width)
    (source,) = generate_graph(graph, schedule)
    assert ("tl.permute" in source.text) == apart
    if width <= 64:
        assert checked(program, graph, schedule).passed


@pytest.mark.usefixtures("compiled_here")
@pytest.mark.parametrize(("batch", "tiles"), [(1, {"k": 16, "n": 512}), (4, {"m": 4, "k": 16, "n": 128})])
def test_the_compiler_reorders_no_columns(
    batch: int, tiles: dict[str, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    triton = pytest.importorskip("triton")
    compiled: list[str] = []
    compile_ = triton.compile

    def keeping(*args: object, **options: object) -> object:
        made = compile_(*args, **options)
        compiled.append(made.asm["ttgir"])
        return made

    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path))
    monkeypatch.setattr(triton, "compile", keeping)
    (source,) = generate_graph(*folds(columns(64, 512, batch=batch), 1, **tiles))
    compile_kernel(source, 90)
    assert "tt.reduce" in compiled[0]
    assert "allow_reorder" not in compiled[0]


@pytest.mark.parametrize(
    ("tile", "least", "pieces"),
    [
        (32000, 1, [(32768, 32000)]),
        (12000, 1, [(8192, 8192), (4096, 3808)]),
        (240, 1, [(256, 240)]),
        (208, 1, [(128, 128), (64, 64), (16, 16)]),
        (768, 1, [(512, 512), (256, 256)]),
        (240, 16, [(128, 128), (64, 64), (32, 32), (16, 16)]),
        (9, 1, [(16, 9)]),
    ],
)
def test_a_tile_that_is_nearly_a_power_of_two_is_one_piece(tile: int, least: int, pieces: list[tuple[int, int]]) -> None:
    """But of what is multiplied: lanes of no element cost a product as much as others."""
    found = split_tile(tile, least, pad=False)
    assert [(p.size, p.limit) for p in found] == pieces
    assert [p.offset for p in found] == [sum(n for n, _ in pieces[:i]) for i in range(len(pieces))]
    assert sum(p.limit for p in found) == tile
