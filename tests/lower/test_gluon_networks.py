"""Kernels by warp groups as networks want them: they read views of one tensor, and stand among other kernels."""

from __future__ import annotations

import ast
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from fuser.errors import NoValidKernelError
from fuser.ir.builder import Builder
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import Tensor
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.lower.check import random_inputs
from fuser.lower.compile import compile_kernel
from fuser.lower.compile import neutral
from fuser.lower.emulator.language import emulate
from fuser.lower.frame_code import Chain
from fuser.lower.kernel_source import KernelSource
from fuser.lower.triton_source import generate
from fuser.lower.triton_source import generate_graph
from fuser.superopt.structures import structures
from tests.builders import packed
from tests.lower.test_gluon import epilogue
from tests.lower.test_gluon import source
from tests.lower.test_gluon import wrong


def one(program: TensorProgram) -> KernelGraph:
    return next(g for g in structures(program) if len(g.blocks) == 1)


@settings(deadline=None, max_examples=12)
@given(
    sizes=st.tuples(st.integers(1, 2), st.integers(3, 200), st.just(2), st.sampled_from((16, 40, 64, 80))),
    causal=st.booleans(),
    by_head=st.booleans(),
    groups=st.integers(1, 2),
    stages=st.integers(1, 3),
    again=st.sampled_from(("", " persistent=3")),
    seed=st.integers(0, 99),
)
def test_queries_keys_and_values_are_views_of_one_tensor(
    sizes: tuple[int, int, int, int], causal: bool, by_head: bool, groups: int, stages: int, again: str, seed: int
) -> None:
    program = packed(*sizes, causal, by_head=by_head)
    _, tokens, _, width = sizes
    graph = one(program)
    wide = 1 << (width - 1).bit_length()
    ones = " ".join(f"{a.name}=1" for a in graph.blocks[0].axes if a.name.startswith("b"))
    tiles = f"[{ones} m={64 * groups} n=64 k={wide} h={wide}] warps={4 * groups} stages={stages}{again}"
    made = source(graph, f"{'n' if tokens > 64 else '-'} {tiles}")
    assert made.args == ("X", "Y")
    assert [d.tensor for d in made.descriptors].count("X") == 3
    assert wrong(program, graph, made, seed) == ""


def test_a_tensor_that_is_read_in_boxes_and_by_elements_is_refused() -> None:
    b = Builder("rows")
    x = b.input("X", (192, 192))
    program = b.build(Y=b.relu(x @ b.input("W", (192, 192))) + b.op("slice", x, axis=0, start=3, stop=4))
    with pytest.raises(NoValidKernelError, match="'X' is read in boxes and element by element"):
        source(fuse(program), "k [m=64 n=64 k=64] warps=4 stages=2")


def behind(tiles: str, when: str, wide: int = 192) -> KernelSource:
    """A product in the middle of a chain."""
    graph = fuse(epilogue(n=wide))
    (mine,) = Schedule.parse(f"k {tiles} pdl=early backend=gluon", graph.blocks).kernels
    chain = Chain(frozenset({"X"}), True, when, (Tensor("V", (64, 100), "float16"),))
    return generate(graph.blocks[0], mine, "middle", chain=chain)


@pytest.mark.parametrize("tiles", ["[m=128 n=64 k=64] warps=8 stages=2", "[m=64 n=64 k=64] warps=8 stages=2"])
@pytest.mark.parametrize("when", ["early", "loop", "late", ""])
def test_it_waits_before_it_reads_and_says_when_the_next_may_start(tiles: str, when: str) -> None:
    text = behind(tiles, when).text
    entry = text[text.rindex("def ") :]
    consumer, producer = text[text.index("def consumer(") : text.index("def producer(")], text[text.index("def producer(") :]
    early, late = producer.split("gdc_wait()")  # weights come while it waits
    assert "W_desc, [" in early and "X_desc, [" not in early and "R_desc, [" not in early
    assert "X_desc, [" in late and "R_desc, [" in late
    assert ("gdc_launch_dependents()" in entry) == (when == "early")
    assert ("gdc_launch_dependents()" in consumer) == (when in ("loop", "late"))
    places = [consumer.index(x) for x in ("for t_i_k", "bring_l2(V_ptr", "async_copy_shared_to_global(Y")]
    assert places == sorted(places)
    ast.parse(text)


def test_equal_kernels_of_other_tensors_have_one_neutral_text() -> None:
    (block,) = one(packed(1, 128, 2, 64)).blocks
    stmts = [replace(s, access=replace(s.access, tensor="b.1.y")) if s.access and s.kind == "store" else s for s in block.stmts]
    (mine,) = Schedule.parse("n [b=1 m=64 n=64 k=64 h=64] warps=8 stages=2 backend=gluon", (block,)).kernels
    first, other = generate(block, mine, "first"), generate(replace(block, stmts=tuple(stmts)), mine, "other")
    assert (first.args, other.args) == (("X", "Y"), ("X", "b.1.y"))
    assert "b_1_y_out_bufs" in other.text
    assert neutral(first) == neutral(other)


def test_groups_wait_where_they_read_by_pointers_what_was_written() -> None:
    graph = fuse(epilogue())
    (mine,) = Schedule.parse("k [m=64 n=64 k=64] warps=4 stages=2 pdl=early backend=gluon", graph.blocks).kernels
    texts = [generate(graph.blocks[0], mine, "k", chain=Chain(frozenset(x), True)).text for x in ("X", "XR", "XB")]
    assert [text.count("gdc_wait()") for text in texts] == [1, 1, 2]  # B is a row, which groups read by themselves
    (alone,) = Schedule.parse("k [m=64 n=64 k=64] warps=4 stages=5 pdl=early backend=gluon", graph.blocks).kernels
    text = generate(graph.blocks[0], alone, "k", chain=Chain(frozenset("X"), True)).text
    assert text.index("gdc_wait()") > text.rindex("def ") and "warp_specialize" not in text


def test_programs_that_stay_wait_once() -> None:
    made = behind("[m=64 n=64 k=64] warps=4 stages=2 persistent=2", "late")
    entry = made.text[made.text.rindex("def ") :]
    assert made.pdl and made.text.count("gdc_launch_dependents()") == made.text.count("gdc_wait()") == 1
    assert entry.index("gdc_launch_dependents()") < entry.index("bring_l2(V_ptr") < entry.index("gl.warp_specialize(")
    inputs = {n: np.ones(s, np.float32) for n, s in zip(made.args, made.shapes, strict=True)}
    assert set(emulate(made, inputs)["Y"].flat) == {322.0}


def test_chains_compile_with_views_without_a_gpu() -> None:
    graph = one(packed(1, 197, 2, 80))
    (mine,) = Schedule.parse("n [b=1 m=64 n=64 k=128 h=128] warps=4 stages=2 pdl=early backend=gluon", graph.blocks).kernels
    made = generate(
        graph.blocks[0], mine, "attending", chain=Chain(frozenset({"X"}), True, "early", (Tensor("V", (64, 100), "float16"),))
    )
    artifact = compile_kernel(made, 90)
    assert [i for i, _ in artifact.passed] == [0, 0, 0, 1, 2]
    assert artifact.parameters == sum(d.parameters for d in artifact.descriptors) + 1
    assert all(d.part for d in artifact.descriptors)
    assert all(x in artifact.ptx for x in ("griddepcontrol.wait", "griddepcontrol.launch_dependents", "cp.async.bulk.prefetch"))


def test_parts_of_a_sum_are_kernels_by_warp_groups_too() -> None:
    b = Builder("split")
    graph = next(g for g in structures(b.build(Y=b.input("X", (200, 512)) @ b.input("W", (512, 128)))) if g.blocks[0].splits)
    text = "k [k=64 m=128 n=64 k_part=2] warps=8 stages=2 pdl=early backend=gluon"
    parts, _ = generate_graph(graph, Schedule.parse(f"{text} ; - [m=1 n=128 k_part=2] warps=1 stages=1", graph.blocks))
    inputs = random_inputs(graph, np.random.default_rng(0))
    x, w = (np.asarray(inputs[n], np.float64) for n in ("X", "W"))
    found = emulate(parts, inputs)["Y_part"]
    assert np.abs(found - np.stack([x[:, s] @ w[s] for s in (slice(256), slice(256, 512))])).max() < 1e-3


@settings(deadline=None, max_examples=10)
@given(
    groups=st.integers(1, 3),
    stages=st.integers(1, 4),
    k=st.integers(2, 60),
    earlier=st.sampled_from(("X", "XR", "W", "XWR")),
    shared=st.booleans(),
    hoist=st.sampled_from(("", " hoist=True")),
    seed=st.integers(0, 99),
)
def test_what_comes_while_it_waits_is_what_comes_otherwise(
    groups: int, stages: int, k: int, earlier: str, shared: bool, hoist: str, seed: int
) -> None:
    program = epilogue(200, 128, 8 * k)
    graph = fuse(program)
    rows = 64 if shared and k > 8 else 64 * groups  # groups with the same rows share out trips
    tiles = f"[m={rows} n=64 k=64] warps={4 * groups} stages={stages}{hoist}"
    text = f"{'k' if k > 8 else '-'} {tiles} pdl=early backend=gluon"
    (mine,) = Schedule.parse(text, graph.blocks).kernels
    made = generate(graph.blocks[0], mine, "middle", chain=Chain(frozenset(earlier), True, "early"))
    assert wrong(program, graph, made, seed) == ""


@pytest.mark.parametrize("groups", [2, 4])
def test_few_columns_beside_a_product(groups: int) -> None:
    """Sums of a row that another kernel left in four parts: a tile narrower than what four lanes hold."""
    b = Builder("parts")
    x, sums = b.input("X", (200, 192)), b.input("S", (200, groups), dtype="float32")
    program = b.build(Y=x @ b.input("W", (192, 96)) - b.op("sum", sums, axis=(-1,), keepdims=True))
    graph = one(program)
    (folded,) = (a.name for a in graph.blocks[0].axes if a.extent == groups)
    made = source(graph, f"k [m=64 n=32 k=64 {folded}={groups}] warps=4 stages=2")
    assert wrong(program, graph, made) == ""
    assert compile_kernel(made, 90).cubin
