"""Places in order: by rank, or the first few one after another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from fuser.ir.mugraph import LibraryKernel
from fuser.ir.program import Tensor

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="Triton is not installed")

from fuser.lower.compile import compile_kernel  # noqa: E402
from fuser.lower.compile import interpret_source  # noqa: E402
from fuser.lower.kernel_source import KernelSource  # noqa: E402
from fuser.lower.written import written  # noqa: E402

SHAPES = st.lists(st.integers(1, 4), min_size=0, max_size=2)
DTYPES = st.sampled_from(["float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool"])


def source(shape: tuple[int, ...], dtype: str, op: str = "argsort", **attrs: Any) -> tuple[LibraryKernel, KernelSource | None]:
    kernel = LibraryKernel("o", op, ("x",), "y", tuple(sorted(attrs.items())))
    dim, k = attrs.get("dim", -1) % len(shape), attrs.get("k", 0)
    out = (*shape[:dim], k, *shape[dim + 1 :]) if op == "argtopk" else shape
    return kernel, written(kernel, attrs, {"x": Tensor("x", shape, dtype), "y": Tensor("y", out, "int64")}, {})


def drawn(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray[Any, Any]:
    """Of few different numbers, so that many are equal; floats with NaN, infinity and zeros of both signs."""
    rng = np.random.default_rng(seed)
    if dtype.startswith(("float", "bfloat")):
        return rng.choice(np.array([np.nan, -np.inf, np.inf, 0.0, -0.0, 1.5, -1.5, 0.25, -3.0]), shape).astype(np.float32)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    values = rng.integers(0 if dtype == "uint8" else -4, 5, shape)
    return (values << 40 if dtype == "int64" else values).astype(dtype)


@settings(max_examples=10)
@given(SHAPES, st.integers(1, 70), SHAPES, DTYPES, st.booleans(), st.integers(0, 99), st.integers(1, 40))
def test_they_are_those_of_the_interpreter(
    outer: list[int], n: int, inner: list[int], dtype: str, turned: bool, seed: int, first: int
) -> None:
    """Along any axis, of equal elements and of NaN."""
    shape, dim = (*outer, n, *inner), len(outer)
    x = drawn(shape, dtype, seed)
    for attrs in ({"op": "argsort", "descending": turned}, {"op": "argtopk", "k": min(first, n), "largest": turned}):
        kernel, found = source(shape, dtype, dim=dim, **attrs)
        assert found is not None
        wanted = kernel.entry.numpy(x, **dict(kernel.attrs))
        np.testing.assert_array_equal(interpret_source(found, {"x": x}, -1)["y"], wanted, f"{attrs}\n{found.text}")


@pytest.mark.parametrize("shape", [(1, 200), (20, 64), (3, 130)])
def test_rows_of_other_lengths(shape: tuple[int, ...]) -> None:
    x = drawn(shape, "float32", 0)
    for op, attrs in (("argsort", {"descending": False}), ("argtopk", {"k": 9}), ("argtopk", {"k": 60, "largest": False})):
        kernel, found = source(shape, "float32", op, dim=-1, **attrs)
        assert found is not None
        wanted = kernel.entry.numpy(x, **dict(kernel.attrs))
        np.testing.assert_array_equal(interpret_source(found, {"x": x}, -1)["y"], wanted)


def test_zeros_of_either_sign_are_equal_and_torch_agrees() -> None:
    x = np.array([[0.0, -0.0, 0.0, -0.0, np.nan, 1.0, 1.0]], np.float32)
    _, found = source(x.shape, "float32", dim=1, descending=True)
    assert found is not None
    places = interpret_source(found, {"x": x}, -1)["y"]
    np.testing.assert_array_equal(places, torch.argsort(torch.from_numpy(x), dim=1, descending=True, stable=True).numpy())


def test_what_torch_is_faster_at_is_left() -> None:
    """Long axes, and dtypes without a key."""
    assert source((64, 5000), "float32", dim=1)[1] is None
    assert source((1, 9000), "float32", "argtopk", k=4)[1] is None
    assert source((4, 40), "float64", dim=1)[1] is None
    assert source((1 << 26, 40), "float32", "argtopk", k=4)[1] is None


@pytest.mark.parametrize("case", [((4096, 1024), "argtopk", {"k": 20}), ((1, 4096), "argsort", {}), ((8, 9, 50), "argsort", {})])
def test_they_compile_without_spills(case: Any) -> None:
    shape, op, attrs = case
    for dtype in ("float32", "bfloat16"):
        _, found = source(shape, dtype, op, dim=1, **attrs)
        assert found is not None
        assert compile_kernel(found, 90).spills == 0
