"""What decides at the real size decides at the reduced ones: masks, counts of parts, constants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import AXIS
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.mugraph import Stmt
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar
from fuser.superopt.rewrite.splits import split_block
from fuser.superopt.rewrite.stabilize import stabilize_graph
from fuser.superopt.verify.masks import Mask
from fuser.superopt.verify.masks import reduced_offsets
from fuser.superopt.verify.reduced import reduction
from fuser.superopt.verify.verifier import verify


def attention(rows: int, keys: int, *offsets: int, scores: Callable[[Builder, Ref], Ref] | None = None) -> TensorProgram:
    """Attention with causal masks of these offsets, one on top of the other."""
    b = Builder("attention")
    q, k, v = b.input("Q", (rows, 32)), b.input("K", (keys, 32)), b.input("V", (keys, 48))
    s = q @ k.T
    for o in offsets:
        s = b.op("causal_mask", s, offset=o)
    return b.build(O=b.softmax(s if scores is None else scores(b, s)) @ v)


@pytest.mark.parametrize(
    ("size", "program", "graph", "equal"),
    [
        ((256, 256), (), (64,), False),
        ((256, 256), (64,), (), False),
        ((256, 256), (100,), (99,), False),
        ((256, 256), (100,), (50,), False),
        ((256, 256), (100,), (), False),
        ((256, 256), (0,), (1,), False),
        ((256, 256), (-1,), (0,), False),
        ((256, 256), (254,), (), False),
        ((256, 256), (255,), (), True),
        ((256, 256), (255,), (1000,), True),
        ((64, 256), (192,), (191,), False),
        ((64, 256), (192,), (0,), False),
        ((64, 256), (100,), (99,), False),
        ((256, 64), (-192,), (0,), False),
        ((256, 64), (-100,), (-101,), False),
        ((64, 256), (192, 0), (0, 192), True),
        ((64, 256), (192, 0), (0,), True),
        ((64, 256), (192, 0), (192,), False),
        ((8, 4), (), (2,), False),
        ((8, 4), (), (3,), True),
    ],
)
def test_masks_that_differ_are_told_apart(
    size: tuple[int, int], program: tuple[int, ...], graph: tuple[int, ...], equal: bool
) -> None:
    wanted = attention(*size, *program)
    for form in (fuse(attention(*size, *graph)), stabilize_graph(fuse(attention(*size, *graph)))):
        verdict = verify(wanted, form)
        assert verdict.accepted == equal, verdict
    verdict = verify(wanted, fuse(attention(*size, *graph)), rounds=1, float_rounds=0)
    assert verdict.accepted == equal, "every single round tells them apart"


def test_masks_of_two_anchors_in_one_program() -> None:
    b = Builder("two")
    q, k, v, w = b.input("Q", (64, 32)), b.input("K", (256, 32)), b.input("V", (256, 48)), b.input("W", (256, 48))
    s = q @ k.T
    early, late = (b.softmax(b.op("causal_mask", s, offset=o)) for o in (0, 192))
    program = b.build(O=early @ v + late @ w)
    graph = fuse(program)
    assert verify(program, graph).accepted
    assert verify(program, stabilize_graph(graph)).accepted
    first, second = (s for s in graph.blocks[0].computes if s.op == "causal_mask")
    for masks in ((first, first), (second, second), (second, first)):
        swap = {first.value: masks[0].attrs, second.value: masks[1].attrs}
        stmts = tuple(replace(s, attrs=swap.get(s.value, s.attrs)) for s in graph.blocks[0].stmts)
        assert not verify(program, replace(graph, kernels=(replace(graph.blocks[0], stmts=stmts),))).accepted


def test_masks_of_a_library_kernel_keep_their_place() -> None:
    """The library's causal attention is the mask of the last rows, and no other."""
    for rows, keys in ((64, 256), (128, 128)):
        program = attention(rows, keys, keys - rows)
        kernel = LibraryKernel("attend", "attention", ("Q", "K", "V"), "O", (("causal", True), ("scale", Scalar())))
        graph = KernelGraph("library", program.inputs, (kernel,), ("O",), (*fuse(program).tensors,))
        assert verify(program, graph).accepted
        assert not verify(attention(rows, keys, keys - rows - 1), graph).accepted
        assert not verify(attention(rows, keys), graph).accepted


def test_reduced_offsets_keep_order_and_corners() -> None:
    rng = np.random.default_rng(0)
    for rows, columns, r, c in ((64, 256, 11, 17), (256, 64, 17, 11), (64, 64, 11, 13), (1, 100, 1, 11)):
        offsets = sorted({-rows - 3, -rows, -1, 0, 1, columns - rows, columns - rows + 1, columns - 2, columns - 1, columns + 5})
        masks = [Mask((0,), (1,), o) for o in offsets]
        found = [reduced_offsets(masks, (rows, columns), (r, c), rng)[m] for m in masks]
        assert found == sorted(found)
        real = [min(max(o, -rows), columns - 1) for o in offsets]
        for a, x in zip(real, found, strict=True):
            assert (a == -rows) == (x == -r), "nothing is kept"
            assert (a == columns - 1) == (x == c - 1), "everything is kept"
            assert (a >= 0) == (x >= 0), "each row sees something"
            assert (a >= columns - rows) == (x >= c - r), "each column is seen"
        assert len(set(found)) == len(set(real))


def with_scale(graph: KernelGraph, kernel: int, value: str, scalar: Scalar) -> KernelGraph:
    """A value of a kernel times a constant, wherever it is read."""
    block = graph.blocks[kernel]
    made = block.by_value[value]
    factor = Stmt("compute", f"{value}_x", made.axes, made.dtype, "scale", (value,), attrs=(("scalar", scalar),))
    stmts: list[Stmt] = []
    for s in block.stmts:
        swapped = replace(s, args=tuple(f"{value}_x" if a == value else a for a in s.args))
        stmts.append(replace(swapped, value=f"{value}_x") if s.kind == "store" and s.value == value else swapped)
        if s is made:
            stmts.append(factor)
    return replace(
        graph, kernels=tuple(replace(block, stmts=tuple(stmts)) if k is block else k for k in graph.kernels)
    ).validate()


def split_product() -> tuple[TensorProgram, KernelGraph]:
    b = Builder("product")
    program = b.build(Y=b.input("X", (64, 512)) @ b.input("W", (512, 64)))
    graph = fuse(program)
    return program, replace(graph, kernels=split_block(graph.blocks[0], "k"))


@pytest.mark.parametrize("count", range(2, 9))
def test_a_stray_factor_of_the_number_of_parts_is_refused(count: int) -> None:
    program, graph = split_product()
    assert verify(program, graph).accepted
    ((_, parts),) = graph.blocks[0].splits
    stored = graph.blocks[0].stores[0].value
    stray = Scalar(Fraction(1, count), ((Extent(parts, AXIS), Fraction(1)),))
    assert not verify(program, with_scale(graph, 0, stored, stray)).accepted
    assert not verify(program, with_scale(graph, 0, stored, stray), rounds=2, float_rounds=0).accepted


@pytest.mark.parametrize("axis", ["m", "n", "k"])
def test_a_literal_that_is_an_extent_by_chance_is_refused(axis: str) -> None:
    """1/N of the axis, times any number that the extent has in some round."""
    program, graph = split_product()
    stored = graph.blocks[0].stores[0].value
    tied = reduction(program, graph)
    seen = {dict(tied.draw(np.random.default_rng(seed), seed).sizes)[axis] for seed in range(40)}
    for number in seen:
        stray = Scalar(Fraction(number), ((Extent(axis, AXIS), Fraction(-1)),))
        assert not verify(program, with_scale(graph, 0, stored, stray), rounds=2, float_rounds=0).accepted, number


def test_two_turns_have_no_extent_in_common() -> None:
    program, graph = split_product()
    for form in (graph, fuse(attention(64, 256, 192, 0))):
        tied = reduction(program if form is graph else attention(64, 256, 192, 0), form)
        for turn in range(6):
            one, other = (tied.draw(np.random.default_rng(turn), t) for t in (turn, turn + 1))
            assert all(x != y for (_, x), (_, y) in zip(one.sizes, other.sizes, strict=True))
            for a, b in zip(one.graph.blocks, other.graph.blocks, strict=True):
                assert all(x != b.extents[n] for n, x in a.extents.items())


def test_a_mask_over_the_parts_of_a_split_is_not_accepted() -> None:
    """It drops parts where a schedule chooses more of them than the mask keeps."""
    program, graph = split_product()
    first, second = graph.blocks
    ((_, parts),) = first.splits
    total = next(s for s in second.computes if s.op == "sum")
    load = next(s for s in second.loads if s.value == total.args[0])
    for rows in ("m", "n", parts):
        attrs = (("cols", parts), ("offset", 1), ("rows", rows))
        zero = Stmt("compute", "zero", load.axes, "float32", "sub", (load.value, load.value))
        steps = (
            zero,
            replace(zero, value="seen", op="causal_mask", args=("zero",), attrs=attrs),
            replace(zero, value="one", op="exp", args=("seen",)),
            replace(zero, value="kept", op="mul", args=(load.value, "one")),
        )
        at = second.stmts.index(total)
        stmts = (*second.stmts[:at], *steps, replace(total, args=("kept",)), *second.stmts[at + 1 :])
        wrong = replace(graph, kernels=(first, replace(second, stmts=stmts)))
        assert not verify(program, wrong).accepted


@pytest.mark.parametrize(
    ("graph", "equal"),
    [(("tril", 3), True), (("tril", 4), False), (("triu", 3), False), (("triu", 2), False), (("tril", 63), False)],
)
def test_triangles_in_front_of_a_product_are_told_apart(graph: tuple[str, int], equal: bool) -> None:
    def product(name: str, offset: int) -> TensorProgram:
        b = Builder("product")
        return b.build(Y=b.op(name, b.input("A", (64, 64)), offset=offset) @ b.input("B", (64, 32)))

    assert verify(product("tril", 3), fuse(product(*graph))).accepted is equal
