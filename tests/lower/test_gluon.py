"""Kernels by warp groups: what is generated computes what it should whoever is faster, and a mistake in it is found."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from typing import NoReturn

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from fuser.agreement import agreements
from fuser.errors import FuserError
from fuser.errors import NoValidKernelError
from fuser.errors import UsageError
from fuser.ir.builder import Builder
from fuser.ir.composites import expand
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.lower import remarks
from fuser.lower.check import random_inputs
from fuser.lower.compile import compile_kernel
from fuser.lower.emulator.language import emulate
from fuser.lower.forms import triton_module
from fuser.lower.kernel_source import KernelSource
from fuser.lower.remarks import SET_ASIDE
from fuser.lower.triton_source import generate_graph
from fuser.superopt.rewrite.stabilize import stabilize_graph
from tests.builders import attention
from tests.builders import chain
from tests.builders import gated_mlp
from tests.builders import postponed
from tests.builders import rms_gemm


def epilogue(m: int = 200, n: int = 192, k: int = 320, dtype: str = "float16") -> TensorProgram:
    b = Builder("gemm", dtype)
    x, w, bias, r = b.input("X", (m, k)), b.input("W", (k, n)), b.input("B", (n,)), b.input("R", (m, n))
    return b.build(Y=b.relu(x @ w + bias) + r)


def online(program: TensorProgram) -> KernelGraph:
    """One kernel, with running maxima where there are exponentials."""
    return stabilize_graph(postponed(program))


def source(graph: KernelGraph, schedule: str) -> KernelSource:
    (made,) = generate_graph(graph, Schedule.parse(f"{schedule} backend=gluon", graph.blocks))
    return made


def wrong(program: TensorProgram, graph: KernelGraph, made: KernelSource, seed: int = 0) -> str:
    """What is wrong with a kernel's results; empty where nothing is."""
    inputs = random_inputs(graph, np.random.default_rng(seed))
    reference = program.evaluate({n: np.asarray(x, np.float64) for n, x in inputs.items()})
    out = emulate(made, inputs, seed=seed)
    dtypes = {n: graph.table[n].dtype for n in graph.outputs}
    return agreements(out, reference, dtypes, 2e-2 if "bfloat16" in dtypes.values() else 1e-2).message


SIZES = st.fixed_dictionaries(
    {
        "groups": st.integers(1, 3),
        "cols": st.sampled_from((32, 64, 128)),
        "stages": st.integers(1, 4),
        "again": st.sampled_from(("", " persistent=1", " persistent=3")),
        "flat": st.booleans(),
        "m": st.integers(2, 260),
        "n": st.integers(2, 50),
        "seed": st.integers(0, 99),
    }
)


@settings(deadline=None, max_examples=15)
@given(SIZES, st.integers(2, 30), st.sampled_from((32, 64)), st.sampled_from(("float16", "bfloat16")))
def test_products_with_an_epilogue_of_any_size(sizes: dict[str, Any], k: int, step: int, dtype: str) -> None:
    v = SimpleNamespace(**sizes)
    program = epilogue(v.m, 8 * v.n, 8 * k, dtype)
    tiles = f"[m={64 * v.groups} n={v.cols} k={step}] warps={4 * v.groups} stages={v.stages}{v.again}"
    made = source(fuse(program), f"{'k' if 8 * k > step else '-'} {tiles}")
    assert wrong(program, fuse(program), made, v.seed) == ""


@settings(deadline=None, max_examples=15)
@given(SIZES, st.sampled_from((16, 40, 64, 80)), st.booleans(), st.booleans())
def test_attention_of_any_size(sizes: dict[str, Any], width: int, causal: bool, masked: bool) -> None:
    v = SimpleNamespace(**sizes)
    keys = v.m if causal else 7 * v.n
    program = attention(v.m, keys, width, 64, heads=2, causal=causal, mask=(2, 1, keys) if masked else ())
    wide = 1 << (width - 1).bit_length()
    tiles = f"[b=1 m={64 * v.groups} n={v.cols} k={wide} h=64] warps={4 * v.groups} stages={v.stages}{v.again}"
    tiles += " flatten=True" * (v.flat and v.again != "" and v.stages > 1 and keys > v.cols)
    made = source(online(program), f"{'n' if keys > v.cols else '-'} {tiles}")
    assert wrong(program, online(program), made, v.seed) == ""


def softmax() -> TensorProgram:
    """Its rows are read twice, in two loops."""
    b = Builder("softmax")
    return b.build(Y=b.softmax(b.input("X", (136, 192))))


def joined() -> TensorProgram:
    """Sums in float32 beside tiles in float16."""
    b = Builder("joined")
    x = b.input("X", (136, 192)) @ b.input("W", (192, 104)) + b.input("C", (136, 104), dtype="float32")
    return b.build(Y=b.op("cast", b.softmax(x), dtype="float32"))


@pytest.mark.parametrize(
    ("program", "schedule"),
    [
        (softmax(), "n [m=16 n=64] warps=8 stages=2"),
        (softmax(), "- [m=4 n=256] warps=4 stages=2 persistent=5"),
        (joined(), "k [m=128 n=128 k=64] warps=8 stages=2 persistent=1"),
        (chain(130, 192, 128, 64), "n [m=64 n=64 k=128 h=64] warps=4 stages=2"),
        (chain(130, 192, 128, 64, "relu", bias=True), "n.k [m=128 n=64 k=64 h=64] warps=8 stages=2"),
        (chain(130, 192, 72, 40, batch=(2,)), "n [b=1 m=64 n=32 k=128 h=64] warps=4 stages=3 persistent=2"),
        (gated_mlp(100, 200, 72), "k [m=64 n=64 k=32] warps=4 stages=3"),
        (rms_gemm(100, 128, 72), "- [m=64 n=32 k=128] warps=4 stages=2"),
        (rms_gemm(100, 192, 72), "k [m=128 n=32 k=64] warps=8 stages=2"),
        (attention(70, 250, 64, 64), "n [b=1 m=64 n=32 h=64 k=64] warps=16 stages=2 persistent=1"),
        (attention(70, 250, 40, 64, heads=2, mask=(2, 1, 250)), "n [b=1 m=64 n=64 h=64 k=64] warps=8 stages=1"),
        (attention(70, 250, 64, 64), "n [b=1 m=64 n=64 h=64 k=64] warps=4 stages=4"),
        (attention(70, 330, 64, 64), "n [b=1 m=64 n=64 h=64 k=64] warps=16 stages=2"),
        (attention(70, 120, 64, 64), "n [b=1 m=64 n=64 h=64 k=64] warps=16 stages=1"),
        (attention(70, 250, 64, 64), "n [b=1 m=128 n=32 h=64 k=64] warps=16 stages=4"),
        (attention(70, 120, 80, 64), "n [b=1 m=64 n=32 h=64 k=128] warps=4 stages=2"),
        (epilogue(200, 64, 80), "- [m=64 n=64 k=128] warps=4 stages=2 persistent=2"),
        (epilogue(130, 128, 640), "k [m=64 n=64 k=64] warps=4 stages=2 specialize=False"),
        (attention(70, 500, 64, 64), "n [b=1 m=64 n=64 h=64 k=64] warps=4 stages=3 specialize=False"),
        (attention(200, 200, 64, 64, causal=True), "n [b=1 m=64 n=32 h=64 k=64] warps=4 stages=2 specialize=False"),
        (epilogue(200, 392, 320), "k [m=128 n=192 k=64] warps=12 stages=3"),
        (epilogue(130, 392, 320, "bfloat16"), "k [m=64 n=384 k=64] warps=12 stages=2 persistent=3"),
        (epilogue(70, 128, 256), "k [m=64 n=64 k=64] warps=8 stages=2"),
        (epilogue(330, 192, 320), "k [m=128 n=64 k=64] warps=8 stages=3 persistent=3 flatten=True"),
        (epilogue(330, 192, 320), "k [m=64 n=64 k=64] warps=12 stages=2 persistent=1 flatten=True"),
    ],
)
def test_other_kernels(program: TensorProgram, schedule: str) -> None:
    graph = online(expand(program))
    for seed in range(3):
        assert wrong(program, graph, source(graph, schedule), seed) == ""


# -- mistakes


CASES = {
    "product": (epilogue(200, 192, 320), "k [m=128 n=64 k=64] warps=8 stages=2", ()),
    "persistent product": (
        epilogue(330, 192, 320),
        "k [m=64 n=64 k=64] warps=4 stages=2 persistent=2",
        ("without fence_async_shared()", "without mbarrier.wait(R_ring_empty"),
    ),
    "attention": (
        attention(130, 330, 64, 64),
        "n [b=1 m=128 n=64 h=64 k=64] warps=8 stages=2",
        # what comes next waits for V too
        ("without mbarrier.wait(K_ring_empty", "without n_K_ring += 1", "early mbarrier.arrive(K_ring_empty"),
    ),
    "products in turn": (
        epilogue(330, 192, 320),
        "k [m=64 n=64 k=64] warps=8 stages=2 persistent=1 flatten=True",
        ("without fence_async_shared()", "without mbarrier.wait(R_ring_empty"),
    ),
    "attention with its keys shared out": (
        attention(64, 250, 64, 64, heads=5),
        "n [b=1 m=64 n=32 h=64 k=64] warps=8 stages=2 persistent=1",
        ("early mbarrier.arrive(", "without mbarrier.wait(Q_ring_empty", "without mbarrier.wait(parts_empty"),
    ),
    "attention that fills its slots": (
        attention(64, 500, 64, 64),
        "n [b=1 m=64 n=64 h=64 k=64] warps=4 stages=3 specialize=False",
        (),
    ),
    "persistent attention": (
        attention(330, 200, 64, 64, heads=3),
        "n [b=1 m=64 n=64 h=64 k=64] warps=4 stages=2 persistent=1",
        ("early mbarrier.arrive(", "without mbarrier.wait(Q_ring_empty"),
    ),
}
"""Kernels, with mistakes that harm nothing there: another barrier that all go through says the same a little later."""


def mutants(text: str) -> Iterator[tuple[str, str]]:
    """Texts with one mistake in what keeps groups apart, each with what it is."""
    lines = text.splitlines()

    def changed(i: int, *new: str) -> str:
        return "\n".join((*lines[:i], *new, *lines[i + 1 :]))

    for i, line in enumerate(lines):
        said = line.strip()
        if said.startswith(("mbarrier.wait(", "mbarrier.arrive(", "mbarrier.expect(", "tma.", "fence_")) or "+= 1" in said:
            yield f"without {said}", changed(i)
        if said.startswith("mbarrier.wait("):
            yield f"other phase of {said}", changed(i, re.sub(r", (n_\w+ [^,)]*|0)", r", (\1) ^ 1", line, count=1))
        if "warpgroup_mma_wait(" in said:
            yield f"one more under way {said}", changed(i, re.sub(r"wait\((\d)", lambda m: f"wait({int(m[1]) + 1}", line))
            if "mbarrier.arrive" in lines[i + 1]:
                yield f"early {lines[i + 1].strip()}", "\n".join((*lines[:i], lines[i + 1], line, *lines[i + 2 :]))
        for old, new in (("count=1", "count=2"), ("count=2", "count=1")):
            if old in said:
                yield f"{new} in {said}", changed(i, line.replace(old, new))
        if said.startswith("mbarrier.expect("):
            yield f"fewer bytes in {said}", changed(i, re.sub(r", (\d+)\)$", r", \1 - 64)", line))
        if found := re.search(r"_empty\.index\(\((n_\w+) \+ (\d+)\)", said):
            yield f"slot in use by {said}", changed(i, line.replace(f"+ {found[2]})", f"+ {int(found[2]) + 1})"))


@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.slow] * (i > 1)) for i, c in enumerate(CASES)])
def test_a_mistake_in_waiting_or_releasing_is_found(case: str) -> None:
    program, schedule, harmless = CASES[case]
    graph = online(program)
    made = source(graph, schedule)
    assert wrong(program, graph, made) == ""
    texts = [(what, replace(made, text=text)) for what, text in mutants(made.text) if text != made.text.rstrip("\n")]
    assert len(texts) > 25
    left = [what for what, text in texts if not any(_found(program, graph, text, seed) for seed in range(3))]
    assert [what for what in left if not what.startswith(harmless or "none")] == []


def _found(program: TensorProgram, graph: KernelGraph, made: KernelSource, seed: int) -> bool:
    try:
        return bool(wrong(program, graph, made, seed))
    except FuserError:
        return True


# -- offline


def test_what_is_loaded_once_needs_no_warp_that_loads() -> None:
    graph = online(attention(130, 256, 64, 64))
    roomy, refilled = (source(graph, f"n [b=1 m=64 n=64 h=64 k=64] warps=4 stages={n}").text for n in (4, 3))
    assert "warp_specialize" not in roomy and "_empty" not in roomy
    assert "warp_specialize" in refilled and "K_ring_empty" in refilled


@pytest.mark.parametrize(
    ("program", "schedule"),
    [
        (epilogue(1000, 1024, 512), "k [m=128 n=128 k=64] warps=8 stages=4 persistent=132"),
        (attention(130, 500, 64, 64, dtype="bfloat16"), "n [b=1 m=64 n=64 h=64 k=64] warps=12 stages=3"),
    ],
)
def test_it_compiles_without_a_gpu(program: TensorProgram, schedule: str) -> None:
    made = source(online(program), schedule)
    artifact = compile_kernel(made, 90)
    assert artifact.spills <= SET_ASIDE
    assert artifact.num_warps >= made.num_warps + 4
    assert "wgmma.mma_async" in artifact.ptx
    assert "setmaxnreg" in artifact.ptx
    assert_handed_over_in_order(artifact.ptx, merges="part" in made.text)
    assert all(d.part for d in artifact.descriptors)
    with pytest.raises(NoValidKernelError, match="sm_90 alone"):
        compile_kernel(made, 100)


@pytest.mark.usefixtures("compiled_here")
def test_it_is_assembled_once_and_triton_does_not_hash_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime import cache

    def never(*_: object) -> NoReturn:
        pytest.fail("asked")

    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path / "ours"))
    monkeypatch.setattr(cache, "triton_key", never)
    monkeypatch.setattr(remarks, "assemble", never)
    made = source(online(epilogue(256, 256, 128)), "k [m=128 n=128 k=64] warps=8 stages=3")
    with triton_module().knobs.cache.scope():
        triton_module().knobs.cache.dir = str(tmp_path / "triton")
        compile_kernel(made, 90)
    assert cache.triton_key is never
    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(remarks, "assemble", lambda *_: (b"", ["(C7510) wgmma is serialized"]))
    with triton_module().knobs.cache.scope(), pytest.raises(NoValidKernelError, match="wait for each other"):
        triton_module().knobs.cache.dir = str(tmp_path / "triton")
        compile_kernel(made, 90)  # of Triton's cache: the assembler is asked


SAID = re.compile(r"(?:st|ld)\.shared\.\S+\s+[^;]*|(?:bar|barrier)\.sync\s+\d+|mbarrier\.(?:arrive(?!\.expect)|try_wait)")


def assert_handed_over_in_order(ptx: str, merges: bool) -> None:
    """What racecheck does not follow: threads of a group that have written meet before one of them arrives, others read behind
    a wait; functions of warps (at fixed places) are read behind the barrier in front of which they were written."""
    said = [m[0] for m in SAID.finditer(ptx)]
    handed = 0
    for i, what in enumerate(said):
        behind, before = ([s.split() for s in part if "bar" in s] for part in (said[i + 1 :], said[:i]))
        if what.startswith("st.shared") and "[global_smem+" in what:
            assert behind[0] == ["barrier.sync", "1"]
        elif what.startswith("ld.shared.b8"):
            assert before[-1] == ["barrier.sync", "1"]
        elif what.startswith("st.shared"):
            handed += 1
            assert [b[0] for b in behind[:2]] == ["bar.sync", "mbarrier.arrive"]
        elif what.startswith("ld.shared"):
            assert before[-1] == ["mbarrier.try_wait"]
    assert (handed > 0) == merges


@pytest.mark.parametrize(
    ("program", "schedule", "why"),
    [
        (epilogue(), "k [m=128 n=128 k=64] warps=6 stages=4", "one to four groups"),
        (epilogue(), "k [m=96 n=128 k=64] warps=8 stages=4", "power of two"),
        (epilogue(), "k [m=128 n=96 k=64] warps=8 stages=4", "not one power of two"),
        (epilogue(), "k [m=192 n=256 k=64] warps=12 stages=2", "registers a thread at first"),
        (epilogue(), "k [m=128 n=128 k=64] warps=8 stages=4 unroll=True", "for kernels in Triton"),
        (epilogue(1024, 1024, 1024), "k [m=128 n=256 k=128] warps=8 stages=4", "bytes of shared memory"),
        (epilogue(dtype="float32"), "k [m=128 n=128 k=32] warps=8 stages=2", "16 bits"),
        (epilogue(), "k [m=64 n=64 k=64] warps=16 stages=2 persistent=4", "4 groups cannot share out 5 trips"),
        (epilogue(), "k [m=64 n=64 k=64] warps=4 stages=2 persistent=4 flatten=True", "nobody to take turns with"),
        (epilogue(64, 128, 128), "n [m=64 n=64 k=128] warps=8 stages=2", "each trip of 'n' stores 'Y'"),
        (epilogue(), "k [m=128 n=64 k=64] warps=8 stages=2 specialize=False", "one group fills what it alone reads"),
        (epilogue(), "k [m=64 n=64 k=64] warps=4 stages=1 specialize=False", "cannot fill its slots again in time"),
        (chain(128, 512, 128, 64), "nk [m=64 n=128 k=64 h=64] warps=4 stages=5 specialize=False", "a loop within a loop"),
        (epilogue(n=100), "k [m=128 n=64 k=64] warps=8 stages=4", "not a multiple of 16 bytes"),
    ],
)
def test_what_has_no_form_is_refused_with_a_reason(program: TensorProgram, schedule: str, why: str) -> None:
    with pytest.raises(NoValidKernelError, match=why):
        source(fuse(program), schedule)


def test_flatten_is_for_kernels_that_stay() -> None:
    with pytest.raises(UsageError, match="'flatten' of 'gemm' is for persistent kernels"):
        source(fuse(epilogue()), "k [m=128 n=64 k=64] warps=8 stages=4 flatten=True")


def test_what_is_interpreted_first_leaves_gluon_alone() -> None:
    """In a process of its own: what Gluon takes over of Triton's library, it does when it is imported, by the interpreter say."""
    code = """if True:
        import numpy as np
        from fuser.ir.schedule import Schedule
        from fuser.lower.compile import interpret_source
        from fuser.lower.triton_source import generate_graph
        from fuser.superopt.structures import one_kernel
        from tests.builders import gemm
        graph = one_kernel(gemm(16, 16, 16))
        (made,) = generate_graph(graph, Schedule.parse("- [m=16 n=16 k=16] warps=1 stages=1", graph.blocks))
        interpret_source(made, {n: np.zeros((16, 16)) for n in "XW"})
        import triton.language as tl
        from triton.experimental.gluon import language as gl
        assert gl.exp2.__wrapped__ is tl.math.exp2"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
