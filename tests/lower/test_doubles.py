"""Elements in float64: angles of positions, which many models compute so, and what is made of them."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.ir.builder import Builder
from fuser.ir.element_program import by_elements
from fuser.ir.elements import Recipe
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.lower.compile import compile_kernel
from fuser.lower.element_tiles import operations
from fuser.lower.element_tiles import tiled
from fuser.lower.written import written
from fuser.runtime.graph_executor import Executable


def angles(last: str = "float32") -> TensorProgram:
    """Sines and cosines of positions times frequencies, beside one another."""
    b = Builder("angles")
    at, steps = b.input("at", (5, 33), "float32"), b.input("steps", (33,), "float64")
    x = b.op("mul", b.op("cast", at, dtype="float64"), steps)
    y = b.op("scale", b.op("concat", b.op("cos", x), b.op("neg", b.op("sin", x)), axis=-1), scalar=0.1)
    return b.build(y=b.op("cast", y, dtype=last), x=x)


def graph(program: TensorProgram) -> KernelGraph:
    kernels = by_elements(program)
    assert kernels
    ends = (*program.inputs, *program.outputs)
    return KernelGraph(program.name, program.inputs, kernels, program.outputs, tuple(program[n] for n in ends)).validate()


@pytest.mark.parametrize("last", ["float32", "bfloat16", "float64"])
def test_they_are_what_numpy_makes_of_them(last: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    at, steps = np.random.default_rng(0).normal(0, 1e4, (5, 33)).astype(np.float32), 1e-2 ** (np.arange(33) / 33)
    run = Executable(graph(angles(last)), Schedule(()), device="cpu")
    y, x = run(torch.from_numpy(at), torch.from_numpy(steps))
    wide = at.astype(np.float64) * steps
    want = torch.from_numpy(np.concatenate([np.cos(wide), -np.sin(wide)], -1) * 0.1).to(getattr(torch, last))
    torch.testing.assert_close(x, torch.from_numpy(wide), rtol=0, atol=0)
    torch.testing.assert_close(y, want, rtol=1e-15 if last == "float64" else 0, atol=1e-15 if last == "float64" else 0)


def test_the_compiler_takes_them() -> None:
    made = graph(angles("float64"))
    for kernel in made.kernels:
        assert isinstance(kernel, LibraryKernel)
        source = written(kernel, dict(kernel.attrs), made.device_tensors, {})
        assert source is not None and "float64" in source.text
        assert compile_kernel(source, 90).cubin


def test_sines_of_float64_are_arithmetic() -> None:
    def of(dtype: str) -> tuple[float, float]:
        b = Builder("sine")
        kernel = graph(b.build(y=b.op("sin", b.input("x", (64,), dtype)))).kernels[0]
        assert isinstance(kernel, LibraryKernel)
        return operations(tiled(Recipe.read(dict(kernel.attrs)["program"]))[0].tape)

    assert of("float64")[0] > 100 > of("float32")[0]
    assert of("float64")[1] == 0 < of("float32")[1]


def test_what_is_only_good_in_float32_has_no_kernel() -> None:
    b = Builder("exponential")
    made = graph(b.build(y=b.op("exp", b.input("x", (64,), "float64"))))
    (kernel,) = made.kernels
    assert isinstance(kernel, LibraryKernel)
    assert written(kernel, dict(kernel.attrs), made.device_tensors, {}) is None
