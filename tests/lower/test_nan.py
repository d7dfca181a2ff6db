"""NaN goes through every kernel as it goes through numpy and torch: what is poisoned must not come out as a number."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

import fuser
from fuser.agreement import agreement
from fuser.ir.ops import OPS
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.lower.check import run_graph
from fuser.lower.compile import compile_kernel
from fuser.lower.triton_source import generate_graph
from fuser.runtime.torch_program import reference
from fuser.superopt.structures import one_kernel
from fuser.superopt.structures import structures
from tests.builders import attention
from tests.builders import schedule
from tests.lower.test_triton import map_names
from tests.lower.test_triton import map_program
from tests.lower.test_triton import rows_of_16

NAN, INF = math.nan, math.inf


def maximum(op: str) -> TensorProgram:
    b = fuser.Builder(op)
    x = b.input("X", (48, 40))
    if op == "max":
        return b.build(Y=b.op("max", x, axis=(1,)))
    if op == "relu":
        return b.build(Y=b.relu(x))
    return b.build(Y=b.op("maximum", x, b.input("Z", (48, 40))))


def run(program: TensorProgram, inputs: dict[str, np.ndarray], *kernels: KernelSchedule) -> dict[str, np.ndarray]:
    return run_graph(one_kernel(program), Schedule(kernels), inputs)


@pytest.mark.parametrize("name", [n for n in map_names() if n != "log1p_unit"])  # formulas give it numbers from 0 to 1 alone
def test_element_wise_operators_keep_nan_and_infinity(name: str) -> None:
    program = map_program(name)
    rng = np.random.default_rng(0)
    inputs = {n: rng.standard_normal(program[n].shape).astype(np.float32) for n in program.inputs}
    inputs["X"][0, :3] = NAN, INF, -INF
    if "Y" in inputs and OPS[name].arity > 1:
        inputs["Y"][5] = NAN
    got = run(program, inputs, rows_of_16(program))["Z"]
    wanted = reference(program, {n: torch.from_numpy(x) for n, x in inputs.items()})["Z"].numpy()
    assert agreement(got, wanted, "float32", 1e-5).message == ""
    assert np.isnan(got).any() == np.isnan(wanted).any()


@pytest.mark.parametrize("order", ["", "k"])
@pytest.mark.parametrize("tile", [8, 16])
def test_a_largest_element_is_nan_where_one_of_them_is(order: str, tile: int) -> None:
    program = maximum("max")
    x = np.random.default_rng(0).standard_normal((48, 40)).astype(np.float16)
    x[3, 0] = x[4, 39] = x[5, 17] = NAN
    x[6] = NAN
    x[7], x[8, 2] = -INF, INF
    graph = one_kernel(program)
    (row,), (fold,) = graph.blocks[0].spatial, [s for s in graph.blocks[0].computes if s.op == "max"]
    tiles = {row: 16} | ({fold.reduce[0]: tile} if order else {})
    kernel = KernelSchedule(tuple(sorted(tiles.items())), TilingExpr.parse(fold.reduce[0] if order else ""))
    got = run(program, {"X": x}, kernel)["Y"]
    np.testing.assert_array_equal(got, x.max(1).astype(np.float32))


@pytest.mark.parametrize(("arch", "ops"), [(80, ("relu", "maximum", "max")), (90, ("max",)), (100, ("relu", "max"))])
def test_what_the_compiler_makes_keeps_nan(arch: int, ops: tuple[str, ...]) -> None:
    for op in ops:
        graph = one_kernel(maximum(op))
        kernel = KernelSchedule(tuple((a, 16) for a in graph.blocks[0].spatial[:1]))
        (source,) = generate_graph(graph, Schedule((kernel,)))
        found = set(re.findall(r"\bmax(?:imum)?\.[\w.]+", compile_kernel(source, arch).ptx))
        assert found
        assert all(".NaN" in f for f in found if f.endswith(("f32", "f16", "bf16"))), found


def rows(shape: tuple[int, ...]) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
    x[..., 0, 0] = NAN
    x[..., 1, -1] = NAN
    x[..., 2, :] = NAN
    x[..., 3, :] = -INF
    x[..., 4, 5] = INF
    x[..., 5, :7] = -INF
    x[..., 6, 3], x[..., 6, 4] = NAN, INF
    return x


@pytest.mark.parametrize("order", ["", "k"])
def test_a_softmax_whose_running_maximum_passes_over_nan(order: str) -> None:
    b = fuser.Builder("softmax")
    program = b.build(Y=b.softmax(b.input("X", (32, 48))))
    x = rows((32, 48))
    graph = next(g for g in structures(program) if len(g.kernels) == 1)
    (fold,) = [s for s in graph.blocks[0].computes if s.op == "max"]
    (inner,) = fold.reduce
    (row,) = fold.axes
    tiles = {row: 16} | ({inner: 16} if order else {})
    kernel = KernelSchedule(tuple(sorted(tiles.items())), TilingExpr.parse(inner if order else ""))
    (source,) = generate_graph(graph, Schedule((kernel,)))
    assert "tl.max(" in source.text
    assert "propagate_nan" not in source.text
    got = run_graph(graph, Schedule((kernel,)), {"X": x})["Y"]
    wanted = program.evaluate({"X": x})["Y"]
    assert agreement(got, wanted, "float16", 1e-2).message == ""
    assert np.isnan(got[[0, 1, 2, 4, 6]]).all()
    assert not got[3].any()
    eager = torch.softmax(torch.from_numpy(x).double(), -1).numpy()
    np.testing.assert_array_equal(np.isnan(eager[:3]), np.isnan(got[:3]))
    np.testing.assert_array_equal(np.isnan(eager[4:]), np.isnan(got[4:]))


@pytest.mark.parametrize("parts", [1, 3])
def test_attention_with_nan_in_the_scores(parts: int) -> None:
    program = attention(m=32, n=48, k=16, h=16, heads=1, mask=(1, 32, 48))
    rng = np.random.default_rng(0)
    inputs = {n: rng.standard_normal(program[n].shape).astype(np.float16) for n in program.inputs}
    mask = rows((1, 32, 48))
    inputs["mask"] = mask
    if parts == 1:
        graph, kernels = one_kernel(program), (schedule("n", b=1, m=16, n=16),)
    else:
        graph = next(g for g in structures(program) if any("n" in dict(b.splits) for b in g.blocks) and len(g.blocks) == 2)
        parts_of = {dict(graph.blocks[0].splits)["n"]: 3}
        kernels = (schedule("", parts_of, b=1, m=16, n=16), schedule("", parts_of, m=16))
    got = run_graph(graph, Schedule(kernels), inputs)["O"]
    wanted = reference(program, {n: torch.from_numpy(x) for n, x in inputs.items()})["O"].numpy()
    assert agreement(got, wanted, "float16", 1e-2).message == ""
    assert np.isnan(got[0, [0, 1, 2, 4, 6]]).all()
    assert not got[0, 3].any()
    np.testing.assert_array_equal(np.isnan(program.evaluate(inputs)["O"]), np.isnan(wanted))
