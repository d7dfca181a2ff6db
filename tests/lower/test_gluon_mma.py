"""Kernels in Gluon by asynchronous copies and ``mma``: what sm_80 runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from fuser.errors import NoValidKernelError
from fuser.ir.composites import expand
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.lower.compile import compile_kernel
from fuser.lower.kernel_source import KernelSource
from fuser.lower.triton_source import generate_graph
from tests.builders import attention
from tests.builders import chain
from tests.builders import gated_mlp
from tests.builders import rms_gemm
from tests.lower.test_gluon import epilogue
from tests.lower.test_gluon import online
from tests.lower.test_gluon import softmax
from tests.lower.test_gluon import wrong


def source(graph: KernelGraph, schedule: str) -> KernelSource:
    (made,) = generate_graph(graph, Schedule.parse(f"{schedule} backend=gluon_mma", graph.blocks))
    return made


SIZES: dict[str, Any] = {
    "warps": st.sampled_from((1, 2, 4)),
    "stages": st.integers(1, 4),
    "again": st.sampled_from(("", " persistent=3")),
    "m": st.integers(2, 150),
    "n": st.integers(2, 50),
    "seed": st.integers(0, 99),
}


@settings(deadline=None, max_examples=12)
@given(**SIZES, k=st.integers(2, 30), dtype=st.sampled_from(("float16", "bfloat16")))
def test_products_of_any_size(warps: int, stages: int, again: str, m: int, n: int, seed: int, k: int, dtype: str) -> None:
    program = epilogue(m, 4 * n, 6 * k, dtype)
    tiles = f"[m={32 * warps} n=32 k=32] warps={warps} stages={stages}{again}"
    made = source(online(program), f"{'k' if 6 * k > 32 else '-'} {tiles}")
    assert wrong(program, online(program), made, seed) == ""


@settings(deadline=None, max_examples=12)
@given(**SIZES, width=st.sampled_from((16, 40, 80)), causal=st.booleans())
def test_attention_of_any_size(warps: int, stages: int, again: str, m: int, n: int, seed: int, width: int, causal: bool) -> None:
    keys = m if causal else 7 * n
    program = attention(m, keys, width, 64, heads=2, causal=causal)
    wide = 1 << (width - 1).bit_length()
    tiles = f"[b=1 m={16 * warps} n=32 k={wide} h=64] warps={warps} stages={stages}{again}"
    made = source(online(program), f"{'n' if keys > 32 else '-'} {tiles}")
    assert wrong(program, online(program), made, seed) == ""


@pytest.mark.parametrize(
    ("program", "schedule"),
    [
        (gated_mlp(100, 200, 72), "k [m=64 n=64 k=32] warps=4 stages=3"),
        (rms_gemm(100, 128, 72), "- [m=64 n=32 k=128] warps=4 stages=2"),
        (chain(130, 192, 128, 64, "relu", bias=True), "n.k [m=64 n=64 k=64 h=64] warps=4 stages=2"),
        (attention(70, 300, 64, 64, mask=(2, 1, 300)), "n.h [b=1 m=32 n=32 h=64 k=64] warps=2 stages=2"),
        (epilogue(64, 128, 640), "nk [m=64 n=64 k=64] warps=4 stages=2"),
    ],
)
def test_other_kernels(program: TensorProgram, schedule: str) -> None:
    graph = online(expand(program))
    assert wrong(program, graph, source(graph, schedule)) == ""


def test_a_missing_wait_is_found() -> None:
    program = attention(70, 300, 64, 64)
    graph = online(program)
    made = source(graph, "n [b=1 m=32 n=32 h=64 k=64] warps=2 stages=3")
    assert made.text.count("wait_group(1)") == made.text.count("wait_group(0)") == 1
    for old, new in (("wait_group(1)", "wait_group(2)"), ("+ 2) % 3", "+ 1) % 3")):
        with pytest.raises(NoValidKernelError, match="while a copy fills it"):
            wrong(program, graph, replace(made, text=made.text.replace(old, new)))


def test_it_compiles_without_a_gpu_for_sm_80_and_later() -> None:
    made = source(online(attention(200, 200, 80, 64)), "n [b=1 m=64 n=32 h=64 k=128] warps=4 stages=2")
    for arch in (80, 90):
        artifact = compile_kernel(made, arch)
        assert all(x in artifact.ptx for x in ("cp.async.cg.shared.global", "ldmatrix", "mma.sync.aligned.m16n8k16"))
        assert "wgmma" not in artifact.ptx and artifact.num_warps == 4 and not artifact.descriptors


@pytest.mark.parametrize(
    ("program", "schedule", "why"),
    [
        (epilogue(130, 101, 70), "k [m=64 n=64 k=32] warps=4 stages=2", "vectors of 4 bytes"),
        (softmax(), "n [m=16 n=64] warps=4 stages=2", "it has no products"),
        (epilogue(), "k [m=32 n=64 k=64] warps=4 stages=2", "not 16 for each of 4 warps"),
        (epilogue(), "k [m=64 n=64 k=64] warps=4 stages=2 pdl=early", "'pdl' has no meaning there"),
        (epilogue(dtype="float32"), "k [m=64 n=64 k=64] warps=4 stages=2", "16 bits"),
        (epilogue(1024, 1024, 1024), "k [m=256 n=256 k=128] warps=8 stages=4", "bytes of shared memory"),
    ],
)
def test_what_has_no_form_is_refused_with_a_reason(program: TensorProgram, schedule: str, why: str) -> None:
    with pytest.raises(NoValidKernelError, match=why):
        source(online(program), schedule)
