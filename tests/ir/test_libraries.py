"""Blocks that are products, as calls of a library: the same values, one call without copies, and what is none."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import assume
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from fuser.ir.builder import Builder
from fuser.ir.fuse import fuse
from fuser.ir.libraries import generated
from fuser.ir.libraries import library_kernels
from fuser.ir.libraries import products
from fuser.ir.libraries import with_library
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule


def by_library(program: TensorProgram) -> KernelGraph | None:
    """The program as one call, if it is a product."""
    graph = fuse(program)
    names = products(graph)
    return with_library(graph, names) if names else None


def values(program: TensorProgram, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {n: rng.standard_normal(program[n].shape).astype(program[n].dtype) for n in program.inputs}


@st.composite
def programs(draw: st.DrawFn) -> TensorProgram:
    """A matmul of operands that lie in memory in any order of their dimensions, some of them joined, with or without a batch."""
    batch = draw(st.lists(st.integers(1, 3), max_size=2))
    m, n, k = (draw(st.integers(1, 5)) for _ in range(3))
    b = Builder("product")
    operands = []
    for name, matrix in (("A", (m, k)), ("B", (k, n))):
        shape = (*batch[draw(st.integers(0, len(batch))) :], *matrix)
        perm = draw(st.sampled_from(list(permutations(range(len(shape))))))
        stored = [shape[i] for i in perm]
        at = draw(st.integers(0, len(stored) - 1))
        joined = (*stored[:at], math.prod(stored[at : at + 2]), *stored[at + 2 :])
        x = b.input(name, joined, dtype="float32")
        x = b.op("reshape", x, shape=tuple(stored)) if joined != tuple(stored) else x
        operands.append(b.op("transpose", x, perm=tuple(int(i) for i in np.argsort(perm))))
    left, right = operands
    if draw(st.booleans()) and len(left.shape) == len(right.shape):
        swap = (*range(len(left.shape) - 2), len(left.shape) - 1, len(left.shape) - 2)
        return b.build(Y=b.op("transpose", right, perm=swap) @ b.op("transpose", left, perm=swap))
    return b.build(Y=left @ right)


@settings(max_examples=60, deadline=None)
@given(program=programs(), seed=st.integers(0, 99))
def test_a_product_by_the_library_is_one_call_without_copies(program: TensorProgram, seed: int) -> None:
    torch = pytest.importorskip("torch")
    from fuser.runtime.graph_executor import Executable
    from fuser.runtime.library import bind_library
    from fuser.runtime.library import matmul_parts
    from fuser.runtime.library import view

    graph = by_library(program)
    assume(graph is not None)
    assert graph is not None
    given_ = values(program, np.random.default_rng(seed))
    inputs = {n: torch.from_numpy(x) for n, x in given_.items()}
    want = torch.from_numpy(program.evaluate(given_)["Y"])
    found = Executable(graph, Schedule(()), device="cpu").run(inputs)["Y"]
    torch.testing.assert_close(found.double(), want, rtol=1e-5, atol=1e-5)
    for kernel in graph.kernels:
        assert isinstance(kernel, LibraryKernel)
        if kernel.op != "matmul":
            x = inputs[kernel.args[0]]
            inputs[kernel.output] = view(kernel, x)
            assert inputs[kernel.output].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
            continue
        out = torch.empty(program["Y"].shape)
        left, right = (inputs[a] for a in kernel.args)
        parts = matmul_parts(left, right, out)
        assert len(parts) == 1
        for operand in parts[0]:
            sides = [s for n, s in zip(operand.shape[-2:], operand.stride()[-2:], strict=True) if n > 1]
            assert not sides or 1 in sides
        bind_library("matmul", {}, [left, right], out)()
        torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)


def test_products_of_usual_layouts_are_found() -> None:
    b = Builder("linear")
    x, w = b.input("X", (2, 8, 16)), b.input("W", (32, 16))
    assert by_library(b.build(Y=x @ b.op("transpose", w, perm=(1, 0)))) is not None
    b = Builder("scores")
    q, k = (b.op("transpose", b.op("reshape", b.input(n, (1, 8, 64)), shape=(1, 8, 4, 16)), perm=(0, 2, 1, 3)) for n in "QK")
    graph = by_library(b.build(S=q @ b.op("transpose", k, perm=(0, 1, 3, 2))))
    assert graph is not None
    assert [k.op for k in graph.kernels if isinstance(k, LibraryKernel)] == ["reshape", "transpose"] * 2 + ["matmul"]


def test_what_is_more_than_a_product_or_would_be_copied_is_none() -> None:
    b = Builder("relu")
    x, w = b.input("X", (8, 16)), b.input("W", (16, 16))
    assert by_library(b.build(Y=b.relu(x @ w))) is None
    b = Builder("slice")
    part = b.op("slice", b.input("W", (16, 32)), axis=1, start=16, stop=32)
    assert by_library(b.build(Y=b.input("X", (8, 16)) @ part)) is None
    b = Builder("columns")  # of batches: no side of the matrix is contiguous
    x = b.op("transpose", b.input("X", (8, 16, 4)), perm=(2, 0, 1))
    assert by_library(b.build(Y=x @ b.input("W", (4, 16, 8)))) is None
    assert library_kernels(fuse(workload_of_two()).blocks[0]) == ()


def workload_of_two() -> TensorProgram:
    b = Builder("two")
    return b.build(E=(b.input("A", (8, 16)) @ b.input("B", (16, 8))) @ b.input("D", (8, 16)))


def test_calls_become_blocks_again() -> None:
    b = Builder("linear")
    x, w = b.input("X", (2, 8, 16)), b.input("W", (32, 16))
    program = b.build(Y=x @ b.op("transpose", w, perm=(1, 0)))
    graph = by_library(program)
    assert graph is not None
    whole = generated(program, graph)
    assert whole is not None
    assert whole.kernels == fuse(program).kernels
    other = Builder("other")
    assert generated(other.build(Z=other.relu(other.input("X", (2, 2)))), graph) is None
