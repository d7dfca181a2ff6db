"""Slices and concatenations as places to load from."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from fuser.errors import ProgramError
from fuser.errors import UnsupportedError
from fuser.interpret.reference import interpret
from fuser.ir.access import Window
from fuser.ir.boxes import cuts_through_reshape
from fuser.ir.boxes import through_reshape
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.composites import expand
from fuser.ir.fuse import fuse
from fuser.ir.late_slices import with_late_slices
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import Access
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.serialize import graph_from_json
from fuser.ir.windows import detach
from fuser.ir.windows import windowed
from fuser.superopt.structures import structures
from fuser.superopt.verify.verdict import Accepted
from fuser.superopt.verify.verdict import Rejected
from fuser.superopt.verify.verifier import verify
from fuser.workloads import workload
from tests.interpreted import checked


def cut(b: Builder, x: Ref, axis: int, start: int, stop: int) -> Ref:
    return b.op("slice", x, axis=axis, start=start, stop=stop)


def joint_gated_mlp(m: int = 6, k: int = 8, n: int = 10) -> TensorProgram:
    """silu(X W₁) ⊙ (X W₂), where W₁ and W₂ are one weight."""
    b = Builder("joint")
    both = b.input("X", (m, k)) @ b.input("W", (k, 2 * n))
    return b.build(Y=b.silu(cut(b, both, 1, 0, n)) * cut(b, both, 1, n, 2 * n))


def joint_attention(s: int = 6, heads: int = 2, d: int = 8) -> TensorProgram:
    """GPT-2: one product for queries, keys and values."""
    width = heads * d
    b = Builder("qkv")
    qkv = b.input("X", (s, width)) @ b.input("W", (width, 3 * width)) + b.input("v", (3 * width,))
    parts = [cut(b, qkv, 1, i * width, (i + 1) * width).reshape(s, heads, d).transpose(1, 0, 2) for i in range(3)]
    return b.build(O=b.attention(*parts, causal=True).transpose(1, 0, 2).reshape(s, width))


def rotary(b: Builder, x: Ref, cos: Ref, sin: Ref) -> Ref:
    half = x.shape[-1] // 2
    turned = b.op("concat", -cut(b, x, len(x.shape) - 1, half, 2 * half), cut(b, x, len(x.shape) - 1, 0, half), axis=-1)
    return x * cos + turned * sin


def rotary_attention(s: int = 6, heads: int = 2, d: int = 8) -> TensorProgram:
    """LLaMA: queries and keys are rotated in front of attention."""
    b = Builder("rotary")
    q, k, v = (b.input(n, (heads, s, d)) for n in "QKV")
    cos, sin = b.input("cos", (s, d)), b.input("sin", (s, d))
    return b.build(O=b.attention(rotary(b, q, cos, sin), rotary(b, k, cos, sin), v))


def packed_rotary_attention(s: int = 6, heads: int = 4, shared: int = 2, d: int = 8) -> TensorProgram:
    """One product for queries, keys and values; heads of the first two are rotated, several queries share a key."""
    b = Builder("packed")
    qkv, cos, sin = b.input("QKV", (s, (heads + 2 * shared) * d)), b.input("cos", (s, d)), b.input("sin", (s, d))
    ends = [0, heads * d, (heads + shared) * d, (heads + 2 * shared) * d]
    q, k, v = (cut(b, qkv, 1, i, j).reshape(s, (j - i) // d, d).transpose(1, 0, 2) for i, j in pairwise(ends))
    q = rotary(b, q, cos, sin).reshape(shared, heads // shared * s, d)
    return b.build(O=b.attention(q, rotary(b, k, cos, sin), v))


CASES = {
    "packed rotary attention": packed_rotary_attention(),
    "joint gated MLP": joint_gated_mlp(),
    "joint attention": joint_attention(),
    "rotary attention": rotary_attention(),
    "layers": workload("graphene/mlp20", layers=3, M=5, D=6),
}


def agree(program: TensorProgram, graph: KernelGraph, schedule: Schedule) -> None:
    inputs = program.random_inputs(np.random.default_rng(0))
    got = interpret(graph, schedule, inputs)
    for name, wanted in program.evaluate(inputs).items():
        np.testing.assert_allclose(got[name], wanted, rtol=1e-9, atol=1e-9)


def trivial(graph: KernelGraph) -> Schedule:
    """Whole tiles, splits into two parts."""
    return Schedule(tuple(KernelSchedule(splits=tuple((a.name, 2) for a in b.axes if a.extent == FREE)) for b in graph.blocks))


@pytest.mark.parametrize("name", CASES)
def test_chains_through_slices_and_concatenations_are_one_kernel(name: str) -> None:
    graph = fuse(CASES[name])
    assert len(graph.kernels) == 1
    assert graph.inputs == CASES[name].inputs
    agree(CASES[name], graph, trivial(graph))


@pytest.mark.parametrize("name", CASES)
def test_every_structure_computes_the_program_and_is_read_back(name: str) -> None:
    found = structures(CASES[name])
    assert {len(g.kernels) for g in found} >= {1, 2}
    for graph in found:
        agree(CASES[name], graph, trivial(graph))
        assert graph_from_json(graph.to_json()) == graph


@pytest.mark.parametrize("name", CASES)
def test_structures_are_verified(name: str) -> None:
    for graph in structures(CASES[name])[:3]:
        assert isinstance(verify(CASES[name], graph, rounds=1), Accepted)


def test_a_cut_in_front_of_slices_leaves_one_tensor_that_is_read_in_windows() -> None:
    whole = [g for g in structures(joint_attention()) if len(g.kernels) == 2 and not g.blocks[0].splits]
    accesses = [(b.name, s.access.window) for g in whole for b in g.blocks for s in b.loads if s.access]
    tensors = {(name, window.tensor) for name, window in accesses if window}
    assert ("qkv_1", "add_1") in tensors


def skinned(bones: int = 6, vertices: int = 5) -> TensorProgram:
    """Linear blend skinning: matrices of 4 × 4 are mixed as rows of 16, their last column meets ones."""
    b = Builder("skinned")
    moves = (b.input("W", (vertices, bones)) @ b.input("B", (bones, 16))).reshape(vertices, 4, 4)
    columns = b.op("concat", b.relu(b.input("v", (vertices, 3))), b.input("ones", (vertices, 1)), axis=1)
    return b.build(Y=moves @ columns.reshape(vertices, 4, 1))


def test_a_tensor_that_is_read_in_boxes_of_another_shape_alone_is_stored() -> None:
    program = skinned()
    cut_after_the_first = [g for g in structures(program) if g.blocks[0].outputs == ("matmul_0",)]
    assert cut_after_the_first
    for graph in cut_after_the_first:
        assert isinstance(verify(program, graph, rounds=1), Accepted)


def wrong(graph: KernelGraph, old: tuple[int, ...], new: tuple[int, ...]) -> KernelGraph:
    """One weight read from elsewhere."""
    (block,) = graph.blocks
    stmts = tuple(
        replace(s, access=replace(s.access, window=replace(s.access.window, starts=new)))
        if s.access and s.access.window and s.access.window.starts == old
        else s
        for s in block.stmts
    )
    return replace(graph, kernels=(replace(block, stmts=stmts),))


def test_a_window_in_the_wrong_place_is_refused() -> None:
    program = CASES["layers"]
    graph = fuse(program)
    assert isinstance(verify(program, wrong(graph, (1, 0, 0), (2, 0, 0))), Rejected)
    joint = CASES["joint gated MLP"]
    # not the program's boxes: they are read where they lie
    assert isinstance(verify(joint, wrong(fuse(joint), (0, 10), (0, 9))), Rejected)
    with pytest.raises(ProgramError, match="not inside"):
        wrong(fuse(joint), (0, 10), (0, 11)).validate()


def test_windows_are_printed_as_places() -> None:
    lines = str(fuse(joint_gated_mlp())).splitlines()
    assert "  W[:,10:20][n,k] = load W[k, 10+n]" in lines
    assert "  v[2][p] = load v[2, p]" in str(fuse(CASES["layers"])).splitlines()


def test_parts_of_the_columns_of_each_head_are_boxes_of_the_reshaped_tensor() -> None:
    """Rotary embedding of [rows, heads · d]: the halves of d lie in each head's columns."""
    b = Builder("heads")
    q, cos, sin = b.input("q", (6, 16)), b.input("cos", (6, 8)), b.input("sin", (6, 8))
    k = b.input("k", (2, 6, 8))
    program = b.build(S=rotary(b, q.reshape(6, 2, 8).transpose(1, 0, 2), cos, sin) @ k.transpose(0, 2, 1))
    graph = fuse(program)
    assert "  q(6,2,8)[:,:,4:8][b,m,k] = load q(6,2,8)[m, b, 4+k]" in str(graph).splitlines()
    assert graph_from_json(graph.to_json()) == graph
    agree(program, graph, trivial(graph))
    assert isinstance(verify(program, graph), Accepted)
    outcome = checked(program, graph, trivial(graph))
    assert outcome.passed


def test_strides_and_offset_are_those_of_the_tensor() -> None:
    access = Access("W[:,10:20]", (("a", "b"), ("n",)), Window("W", (12, 20), (2, 10)))
    extents = {"a": 2, "b": 3, "n": 10}
    assert access.strides(extents) == {"n": 1, "b": 20, "a": 60}
    assert access.window is not None and access.window.offset == 50
    assert access.shape(extents) == (6, 10)


def test_a_program_without_slices_stays_itself() -> None:
    program = workload("mirage/lora")
    assert windowed(program).program is program
    graph = fuse(program)
    assert detach(graph) == (graph, frozenset())


def test_what_is_only_a_copy_or_stored_in_parts_is_left() -> None:
    b = Builder("copy")
    x = b.input("X", (4, 6))
    with pytest.raises(UnsupportedError, match="only a copy"):
        fuse(b.build(Y=cut(b, x, 0, 1, 3)))
    b = Builder("parts")
    x, y = b.input("X", (4, 6)), b.input("Z", (4, 6))
    with pytest.raises(UnsupportedError, match="in parts of a concatenation"):
        fuse(b.build(Y=b.exp(b.op("concat", x, y, axis=0))))


@pytest.mark.parametrize(
    ("axis", "start", "stop", "shape", "late"),
    [
        (1, 8, 20, (6, 3, 4), (6, 6, 4)),
        (1, 8, 20, (6, 3, 2, 2), (6, 6, 2, 2)),
        (0, 2, 6, (2, 2, 24), (3, 2, 24)),
        (0, 2, 6, (2, 48), (3, 48)),
        (1, 8, 20, (6, 2, 6), ()),  # from the second element of a row on
        (1, 8, 20, (72,), ()),  # rows of the result have parts of several
        (0, 1, 5, (2, 48), ()),
        (1, 0, 12, (6, 1, 12), (6, 2, 12)),
    ],
)
def test_slices_behind_reshapes(axis: int, start: int, stop: int, shape: tuple[int, ...], late: tuple[int, ...]) -> None:
    b = Builder("late")
    x = b.exp(b.input("X", (6, 24)))
    before = b.build(Y=b.exp(cut(b, x, axis, start, stop).reshape(*shape)), Z=b.exp(x))
    after = with_late_slices(before)
    assert (after is before) == (not late)
    assert [n.op for n in after.nodes][1:3] == (["reshape", "slice"] if late else ["slice", "reshape"])
    assert not late or after[after.nodes[1].output].shape == late
    inputs = before.random_inputs(np.random.default_rng(0))
    for name, wanted in before.evaluate(inputs).items():
        np.testing.assert_array_equal(after.evaluate(inputs)[name], wanted)


def test_boxes_through_reshapes() -> None:
    # [3 · 2 · 4] to [3, 2, 4]: one third of the long dimension
    assert through_reshape(((1, 2), (0, 2), (0, 4)), (3, 2, 4), (24,)) == ((8, 16),)
    assert through_reshape(((8, 16),), (24,), (3, 2, 4)) == ((1, 2), (0, 2), (0, 4))
    assert through_reshape(((5, 7),), (24,), (3, 8)) == ((0, 1), (5, 7))
    with pytest.raises(UnsupportedError):
        through_reshape(((5, 12),), (24,), (3, 8))
    with pytest.raises(UnsupportedError):
        through_reshape(((0, 3), (1, 2)), (3, 8), (24,))
    assert cuts_through_reshape(((8,),), (24,), (3, 2, 4)) == ((1,), (), ())
    with pytest.raises(UnsupportedError):
        cuts_through_reshape(((), (2,)), (3, 8), (24,))


# -- random programs ----------------------------------------------------------------------------------------------------------


@st.composite
def programs(draw: st.DrawFn) -> TensorProgram:
    """Up to ten operators on small matrices of odd sizes: slices at random places, concatenations, and what stands between."""
    b = Builder("random", "float64")
    values: list[Ref] = []
    made: list[Ref] = []

    def operand(shape: tuple[int | None, ...] = (None, None)) -> Ref:
        fits = [v for v in values if all(e in (None, n) for e, n in zip(shape, v.shape, strict=True))]
        if fits and draw(st.integers(0, 9)) > 2:
            return draw(st.sampled_from(fits))
        values.append(b.input(f"x{len(values)}", tuple(e or draw(st.integers(2, 7)) for e in shape)))
        return values[-1]

    for _ in range(draw(st.integers(3, 10))):
        op = draw(st.sampled_from(["slice", "slice", "slice", "concat", "concat", "add", "tanh", "matmul", "matmul", "T", "sum"]))
        x = operand()
        if op == "slice":
            axis = draw(st.integers(0, 1))
            start = draw(st.integers(0, x.shape[axis] - 1))
            y = cut(b, x, axis, start, draw(st.integers(start + 1, x.shape[axis])))
        elif op == "concat":
            axis = draw(st.integers(0, 1))
            y = b.op("concat", x, operand((None, x.shape[1]) if axis == 0 else (x.shape[0], None)), axis=axis)
        elif op == "add":
            y = x + operand((draw(st.sampled_from([1, x.shape[0]])), x.shape[1]))
        elif op == "matmul":
            y = x @ operand((x.shape[1], None))
        elif op == "T":
            y = x.transpose(1, 0).reshape(1, x.shape[1], x.shape[0]).reshape(x.shape[1], x.shape[0])
        elif op == "sum":
            y = b.sum(x, draw(st.integers(0, 1)), keepdims=True)
        else:
            y = b.op(op, x)
        values.append(y)
        made.append(y)
    last = made[-1]
    return b.build(Y=b.sum(b.op("tanh", last), 0, 1) if draw(st.booleans()) else b.op("tanh", last))


def boxes_of(program: TensorProgram, inputs: dict[str, np.ndarray], windows: dict[str, Window], small: TensorProgram):
    def value(name: str) -> np.ndarray:
        if name not in windows:
            return inputs[name]
        w = windows[name]
        return inputs[w.tensor][tuple(slice(a, a + n) for a, n in zip(w.starts, small[name].shape, strict=True))]

    return {n: value(n) for n in small.inputs}


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_random_programs(data: st.DataObject) -> None:
    program = data.draw(programs())
    inputs = program.random_inputs(np.random.default_rng(0))
    wanted = program.evaluate(inputs)["Y"]
    try:
        found = windowed(program)
    except UnsupportedError:
        return  # an output that is stored in parts
    assert not any(n.op in ("slice", "concat") for n in found.program.nodes)
    got = found.program.evaluate(boxes_of(program, inputs, dict(found.windows), found.program))["Y"]
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9)
    try:
        graph = fuse(expand(program))
    except UnsupportedError:
        return  # its axes contradict each other
    (block,) = graph.blocks
    tiles = tuple((a, data.draw(st.integers(1, block.extents[a]))) for a in block.spatial)
    np.testing.assert_allclose(interpret(graph, Schedule((KernelSchedule(tiles),)), inputs)["Y"], wanted, rtol=1e-9, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(programs())
def test_structures_of_random_programs(program: TensorProgram) -> None:
    """Cut anywhere: what is between kernels is read in windows too, and the verifier agrees."""
    try:
        found = structures(program)
    except UnsupportedError:
        return
    for graph in found[:6]:
        agree(program, graph, trivial(graph))
    assert isinstance(verify(program, found[-1], rounds=1), Accepted)


def test_steps_that_read_ever_more_boxes_are_no_block():
    def program(steps: int) -> TensorProgram:
        b = Builder("diagonals")
        x, y = b.input("X", (8, 40)), b.input("Y", (8, 40))
        for _ in range(steps):
            shifted = b.op(
                "concat", b.op("slice", y, axis=1, start=0, stop=1), b.op("slice", x, axis=1, start=0, stop=39), axis=1
            )
            x = b.op("exp", x + shifted)
        return b.build(Z=b.sum(x, 1))

    assert len(windowed(program(4)).program.nodes) < 100
    with pytest.raises(UnsupportedError, match="operators where each is done in the parts"):
        windowed(program(64))
