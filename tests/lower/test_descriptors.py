"""Tensor descriptors, persistent grids and specialized warps: what is allowed, what is generated, what it computes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fuser.errors import NoValidKernelError
from fuser.errors import UsageError
from fuser.ir.builder import Builder
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.lower.check import check
from fuser.lower.descriptors import Descriptor
from fuser.lower.descriptors import why_not
from fuser.lower.descriptors import with_metadata
from fuser.lower.reduced import reduced_extents
from fuser.lower.tiles import Tiles
from fuser.lower.triton_source import generate
from fuser.lower.triton_source import generate_graph
from fuser.superopt.structures import one_kernel
from fuser.superopt.structures import structures
from tests.builders import attention
from tests.builders import chain
from tests.builders import gemm
from tests.builders import schedule
from tests.builders import three_gemms


def layer(m=64, n=64, k=64) -> TensorProgram:
    """Rows of several heads, weights whose rows are the outputs, and a bias."""
    b = Builder("layer")
    x, w = b.input("X", (2, m, k)), b.input("W", (n, k))
    return b.build(Y=b.op("relu", x @ w.T + b.input("bias", (n,))))


def with_knobs(kernel: KernelSchedule, **knobs: object) -> KernelSchedule:
    return replace(kernel, knobs=tuple(sorted((kernel.knob | knobs).items())))


def all_described(graph: KernelGraph, sched: Schedule) -> Schedule:
    """The schedule with descriptors for every tensor that can have one."""
    kernels = []
    for block, kernel in zip(graph.blocks, sched.kernels, strict=True):
        names = [t for t in (*block.inputs, *block.outputs) if not why_not(Tiles.of(block, kernel), t)]
        kernels.append(with_knobs(kernel, **{f"tma_{t}": True for t in names}))
    return Schedule(tuple(kernels))


def cases() -> dict[str, tuple[TensorProgram, KernelGraph, Schedule]]:
    found: dict[str, tuple[TensorProgram, KernelGraph, Schedule]] = {}

    def add(name: str, program: TensorProgram, *kernels: KernelSchedule, structure: int = 0, **knobs: object) -> None:
        graph = structures(program)[structure] if structure else one_kernel(program)
        described = all_described(graph, Schedule(kernels))
        found[name] = (program, graph, Schedule(tuple(with_knobs(k, **knobs) for k in described.kernels)))

    plain = schedule("k", m=32, n=32, k=16)
    add("gemm", gemm(), plain)
    add("gemm, ragged", gemm(m=50, n=72, k=40), plain)
    add("gemm, grouped", gemm(), plain, group=2)
    add("gemm, persistent", gemm(m=160), plain, persistent=4)
    add("gemm, persistent and flat", gemm(m=160), plain, persistent=4, flatten=True, group=2)
    add("gemm, specialized", gemm(), plain, specialize=True)
    add("gemm, persistent and specialized", gemm(), plain, specialize=True, persistent=4)
    add("float32", gemm(dtype="float32"), plain)
    add("transposed weights", layer(), schedule("k", b=1, m=32, n=32, k=16))
    add("attention", attention(), schedule("n", b=1, m=32, n=16))
    add("attention, 197 tokens", attention(m=197, n=197, causal=True), schedule("n", b=1, m=64, n=64))
    add("attention, persistent", attention(), schedule("n", b=1, m=16, n=16), persistent=4)
    add("padded head", attention(k=80, h=80), schedule("n", b=1, m=16, n=16, knobs={"pad": True}))
    add("chain", chain(), schedule("n(k,h)", m=32, n=32, k=16, h=16))
    add("three products", three_gemms(), schedule("hnk", m=16, n=32, h=16, k=16, p=48))
    split = next(i for i, g in enumerate(structures(chain())) if any(b.splits for b in g.blocks) and len(g.blocks) == 2)
    parts = {"n_part": 3}
    add("split", chain(), schedule("n", parts, m=32, n=16, h=32), schedule("", parts, m=16, h=32), structure=split)
    add(
        "split, persistent behind a dependent launch",
        chain(),
        schedule("n", parts, m=32, n=16, h=32),
        schedule("", parts, m=16, h=32),
        structure=split,
        persistent=2,
        pdl="early",
    )
    return found


CASES = cases()


@pytest.fixture(scope="module")
def outcomes():
    pytest.importorskip("torch")
    return dict(zip(CASES, check([(p, Candidate(g, s)) for p, g, s in CASES.values()]), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_kernels_agree_with_float64(name, outcomes):
    assert outcomes[name].message == ""
    assert outcomes[name].error < (1e-5 if name == "float32" else 2e-3)


@pytest.mark.parametrize("name", CASES)
def test_every_case_has_a_descriptor(name):
    _, graph, sched = CASES[name]
    assert any(s.descriptors for s in generate_graph(graph, sched))


@pytest.mark.parametrize("name", ["gemm, grouped", "gemm, persistent and flat", "attention", "gemm, specialized"])
def test_source_is_readable(name, golden):
    _, graph, sched = CASES[name]
    text = generate(graph.blocks[0], sched.kernels[0]).text
    golden.check(f"triton/descriptors_{name.replace(' ', '_').replace(',', '')}.py.txt", text)


@pytest.mark.parametrize(
    ("program", "kernel", "tensor", "why"),
    [
        (gemm(n=100), schedule("k", m=32, n=32, k=16), "W", "a stride is not a multiple of 16 bytes"),
        (gemm(), schedule("k", m=32, n=48, k=16), "W", "the tile 48 of 'n' is not one power of two"),
        (gemm(), schedule("k", m=32, n=48, k=16, knobs={"pad": True}), "W", "the padding would read the next tile"),
        (gemm(m=512, n=512), schedule("k", m=512, n=32, k=16), "Y", "the tile of 'm' is larger than 256"),
        (gemm(), schedule("k", m=1, n=32, k=4), "X", "its innermost 16 bytes are not in one tile"),
    ],
)
def test_what_a_descriptor_cannot_do_is_refused(program, kernel, tensor, why):
    block = one_kernel(program).blocks[0]
    assert why in why_not(Tiles.of(block, kernel), tensor)
    with pytest.raises(NoValidKernelError, match=why):
        generate(block, with_knobs(kernel, **{f"tma_{tensor}": True}))


def test_options_that_exclude_each_other_are_refused():
    block, kernel = one_kernel(gemm()).blocks[0], schedule("k", m=32, n=32, k=16)
    with pytest.raises(UsageError, match="eviction hint"):
        generate(block, with_knobs(kernel, tma_W=True, evict_W="evict_last"))
    with pytest.raises(UsageError, match="for persistent kernels"):
        generate(block, with_knobs(kernel, flatten=True))
    with pytest.raises(UsageError, match="0 persistent programs"):
        generate(block, with_knobs(kernel, persistent=0))
    with pytest.raises(NoValidKernelError, match="cannot be specialized"):
        generate(block, with_knobs(kernel, specialize=True))
    with pytest.raises(NoValidKernelError, match="cannot be specialized"):
        generate(block, with_knobs(schedule("", m=32, n=32), specialize=True, tma_X=True))


def test_a_tensor_read_in_two_kinds_of_boxes_keeps_its_pointer():
    b = Builder("gram")
    x = b.input("X", (64, 64))
    block = one_kernel(b.build(Y=x @ x.T)).blocks[0]
    axes = [a.name for a in block.axes]
    tiles = dict(zip(axes, (16, 32, 64), strict=True))
    assert "different boxes" in why_not(Tiles.of(block, KernelSchedule(tuple(sorted(tiles.items())))), "X")


def test_a_persistent_kernel_has_no_more_programs_than_places():
    block, kernel = one_kernel(gemm()).blocks[0], schedule("k", m=32, n=32, k=16)
    assert generate(block, with_knobs(kernel, persistent=5)).grid == 5
    assert generate(block, with_knobs(kernel, persistent=500)).grid == generate(block, kernel).grid == 12


def test_reduced_sizes_keep_rows_that_descriptors_can_move():
    program = gemm(m=4096, n=4096, k=4096)
    graph = one_kernel(program)
    plain = schedule("k", m=1, n=1, k=16)
    assert reduced_extents(graph, Schedule((plain,)))["n"] == 2
    assert reduced_extents(graph, Schedule((with_knobs(plain, tma_Y=True),)))["n"] == 16


def test_the_copies_of_the_compiled_kernel_decide_the_box():
    d = Descriptor("X", ("b", "m", "k"), 0, (4, 512, 64), (32768, 64, 1), (1, 128, 64), 2)
    meta = {"swizzle": 3, "elem_size": 2, "elem_type": 10, "block_size": [1, 128, 64], "fp4_padded": False}
    line = "ttng.async_tma_copy_global_to_local %X_desc[%0, %1, %2] %3, %4, %true : !tt.tensordesc<tensor<1x128x64xbf16, #s>>, "
    line += "!ttg.memdesc<1xi64, #s1, #smem, mutable> -> !ttg.memdesc<{}x64xbf16, #s, #smem, mutable> loc(#loc)\n"
    (whole,) = with_metadata([d], [meta], line.format(128), ["X_desc"])
    (half,) = with_metadata([d], [meta], line.format(64) * 2, ["X_desc"])
    assert (whole.part, half.part) == ((1, 128, 64), (1, 64, 64))
    assert (whole.data_type, whole.swizzle) == (9, 3)
    with pytest.raises(NoValidKernelError, match="not in one kind of box"):
        with_metadata([d], [meta], line.format(64) + line.format(128), ["X_desc"])
    with pytest.raises(NoValidKernelError, match="left 1 tensor descriptors out"):
        with_metadata([d], [], "", ["X_desc"])
