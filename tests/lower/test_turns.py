"""Sine and cosine behind products: they do not branch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fuser.ir.builder import Builder

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

import fuser  # noqa: E402
from fuser.runtime.plan import plan  # noqa: E402


def text_of(run: Any) -> str:
    """The source of its kernels."""
    return "".join(s.text for s in plan(run.realised.candidate).sources if s is not None)


@pytest.mark.parametrize("op", ["sin", "cos"])
@pytest.mark.parametrize("size", [1e-3, 1.0, 100.0, 3e3])  # the interpreter has no multiply-add, which is exact further on
def test_they_are_as_near_as_the_library_s(op: str, size: float) -> None:
    class Turned(torch.nn.Module):
        def forward(self, x: Any, w: Any) -> Any:
            return getattr(torch, op)(x @ w)

    x = torch.randn(64, 16)
    x[:, 0] *= size
    w = torch.zeros(16, 16)
    w[0] = torch.linspace(0.5, 2, 16)  # products of two numbers
    run = fuser.compile(Turned(), (x, w), device="cpu", target="h100")
    assert f"{op}_without_branch(" in text_of(run)
    exact = getattr(np, op)((x @ w).double().numpy())
    assert abs(run(x, w).numpy() - exact).max() < 5e-7


def test_alone_they_are_the_library_s() -> None:
    b = Builder("alone", "float32")
    run = fuser.compile(b.build(Y=b.op("sin", b.input("X", (64, 64)))), device="cpu", target="h100")
    assert "tl.sin(" in text_of(run)
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    np.testing.assert_allclose(run(torch.from_numpy(x)).numpy(), np.sin(x), rtol=1e-6, atol=1e-7)
