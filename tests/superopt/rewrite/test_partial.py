"""Reductions without products in parts: axes that go together are one, and partial results are joined exactly."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fuser.errors import UnsupportedError
from fuser.interpret.reference import interpret
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.composites import expand
from fuser.ir.fuse import fuse
from fuser.ir.merge import merged
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.superopt.rewrite.partial import parted
from fuser.superopt.structures import structures
from fuser.superopt.verify.verifier import verify


def program(make: Callable[..., Ref], *shapes: tuple[int, ...], dtype: str = "float32") -> TensorProgram:
    b = Builder("reduction", dtype)
    return b.build(Y=make(b, *(b.input(f"X{i}", s) for i, s in enumerate(shapes))))


def mean(b: Builder, x: Ref, *axes: int) -> Ref:
    return b.op("mean", x, axis=axes, keepdims=True)


PROGRAMS = {
    "mean square error": program(lambda b, x, y: b.op("mean", b.op("square", x - y), axis=(0, 1)), (60, 70), (60, 70)),
    "column sums": program(lambda b, x: b.op("sum", x, axis=(0,)), (4099, 6)),
    "largest of all": program(lambda b, x: b.op("max", b.op("abs", x), axis=(0, 1, 2)), (7, 11, 53)),
    "variance": program(lambda b, x: b.op("var", x, axis=(0, 1), correction=1), (61, 67)),
    "statistics of channels": program(lambda b, x: b.op("std", x, axis=(0, 2, 3)), (3, 4, 29, 31)),
    "softmax of long rows": program(lambda b, x: b.softmax(x), (2, 4099)),
    "log softmax": program(lambda b, x: b.op("log_softmax", x, axis=1), (2, 4099)),
    "entropy": program(lambda b, x, y: b.op("sum", y * b.op("log_softmax", x, axis=1), axis=(0, 1)), (2, 4099), (2, 4099)),
    "weighted by softmax": program(lambda b, x, y: b.op("sum", b.softmax(x) * y, axis=(1,)), (2, 4099), (2, 4099)),
    "instance norm": program(lambda b, x: b.op("instance_norm", x, eps=1e-5), (2, 3, 46, 47)),
    "group norm": program(lambda b, x, g: b.op("group_norm", x, g, groups=2, eps=1e-5), (2, 4, 33, 35), (4,)),
    "range": program(
        lambda b, x: (x - b.op("min", x, axis=(0, 1), keepdims=True)) / b.op("max", x, axis=(0, 1), keepdims=True), (59, 73)
    ),
}


def in_parts(graph: KernelGraph, parts: int = 5, tile: int = 64) -> Schedule:
    def of(block):
        splits = tuple((a.name, parts) for a in block.axes if a.extent == FREE)
        return KernelSchedule(tuple((a, tile) for a, _ in block.splits), splits=splits)

    return Schedule(tuple(map(of, graph.blocks)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_is_offered_in_parts_and_computes_the_program(name: str, rng: np.random.Generator) -> None:
    whole = PROGRAMS[name]
    graphs = [g for g in structures(whole) if any(b.splits for b in g.blocks)]
    assert graphs
    inputs = whole.random_inputs(rng)
    wanted = whole.evaluate(inputs)["Y"]
    for graph in graphs:
        assert len(graph.blocks) == 2
        assert verify(whole, graph, rounds=1, float_rounds=0).accepted
        if name in ("statistics of channels", "group norm") and graph.blocks[0].extents[graph.blocks[0].splits[0][0]] < 64:
            continue
        found = interpret(graph, in_parts(graph), inputs)["Y"]
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-9)


def test_parts_that_are_joined_wrongly_are_refused() -> None:
    from dataclasses import replace

    whole = PROGRAMS["variance"]
    (graph,) = (g for g in structures(whole) if len(g.blocks) == 2)
    first, second = graph.blocks
    far = next(s for s in second.computes if s.op == "mul")
    without = replace(second, stmts=tuple(s if s != far else replace(s, args=far.args[1:] * 2) for s in second.stmts))
    assert not verify(whole, replace(graph, kernels=(first, without))).accepted


def test_a_large_mean_cancels_nothing(rng: np.random.Generator) -> None:
    whole = program(lambda b, x: b.op("var", x, axis=(0,)), (4096,))
    (graph,) = (g for g in structures(whole) if len(g.blocks) == 2)
    x = (rng.standard_normal(4096) + 4096).astype(np.float32)
    found = interpret(graph, in_parts(graph, 4, 1024), {"X0": x}, dtype=np.float32)["Y"]
    np.testing.assert_allclose(found, x.astype(np.float64).var(), rtol=1e-4)


def test_rows_that_are_masked_in_a_whole_part(rng: np.random.Generator) -> None:
    whole = PROGRAMS["softmax of long rows"]
    (graph,) = (g for g in structures(whole) if len(g.blocks) == 2)
    x = rng.standard_normal((2, 4099))
    x[0, :2000] = -np.inf
    found = interpret(graph, in_parts(graph), {"X0": x})["Y"]
    np.testing.assert_allclose(found, whole.evaluate({"X0": x})["Y"], rtol=1e-6, atol=1e-12)


def test_axes_are_merged_where_nothing_tells_them_apart() -> None:
    def axes(make: Callable[..., Ref], *shapes: tuple[int, ...]) -> list[int]:
        (block,) = fuse(expand(program(make, *shapes))).blocks
        return sorted(merged(block).extents.values())

    assert axes(lambda b, x, y: b.op("relu", x + y), (4, 5, 6), (4, 5, 6)) == [120]
    assert axes(lambda b, x, y: b.op("relu", x + y), (4, 5, 6), (6,)) == [6, 20]
    assert axes(lambda b, x: b.op("mean", x, axis=(2, 3)), (4, 5, 6, 7)) == [20, 42]
    assert axes(lambda b, x: b.op("sum", x, axis=(1,)), (4, 5, 6, 7)) == [4, 5, 42]
    assert axes(lambda b, x, y: x + b.op("transpose", y, perm=(1, 0)), (4, 5), (5, 4)) == [4, 5]


def test_rows_of_several_sentences_are_one_axis_of_a_product(rng: np.random.Generator) -> None:
    whole = program(lambda b, x, w, y: b.op("relu", x @ w) + y, (3, 13, 16), (16, 8), (3, 13, 8))
    assert sorted(structures(whole)[0].blocks[0].extents.values()) == [8, 16, 39]
    own = program(lambda b, x, w: x @ w, (3, 13, 16), (3, 16, 8))
    assert sorted(structures(own)[0].blocks[0].extents.values()) == [3, 8, 13, 16], "each has weights of its own"
    inputs = whole.random_inputs(rng)
    tiles = KernelSchedule((("b", 32), ("k", 8), ("n", 8)), TilingExpr(("k",)))
    found = interpret(structures(whole)[0], Schedule((tiles,)), inputs)["Y"]
    np.testing.assert_allclose(found, whole.evaluate(inputs)["Y"], rtol=1e-6, atol=1e-9)


def test_a_fold_of_another_fold_has_no_parts() -> None:
    whole = expand(program(lambda b, x: b.op("max", b.op("abs", x - mean(b, x, 0)), axis=(0,)), (4096,)))
    with pytest.raises(UnsupportedError, match="what another sum over it has made"):
        parted(fuse(whole).blocks[0], fuse(whole).blocks[0].reduced[0])


def test_results_by_other_axes_have_no_parts_or_are_right() -> None:
    b = Builder("norms", "float32")
    x = b.input("X", (64, 2048))
    y = b.build(A=b.op("sum", x, axis=(0, 1), keepdims=False), B=b.op("sum", x, axis=(1,), keepdims=False))
    assert all({o for k in g.blocks for o in k.outputs} >= {"A", "B"} for g in structures(y))


@pytest.mark.parametrize("name", ["instance norm", "softmax of long rows"])
def test_what_parts_leave_is_joined_as_it_lies(name: str) -> None:
    """Nothing is transposed on the way: with rows side by side in a tile that is a trip through shared memory."""
    _, tail = next(g for g in structures(PROGRAMS[name]) if len(g.blocks) == 2).blocks
    loaded = {s.value: s.axes for s in tail.loads}
    left = {axes for axes in loaded.values() if any(a.endswith("_part") for a in axes)}
    assert len(left) == 1
    assert {s.axes for s in tail.computes if any(a.endswith("_part") for a in s.axes)} == left
