"""Triangles of matrices are masked where a kernel loads, or computes, them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fuser  # noqa: E402

from .modules import Fn  # noqa: E402


@pytest.mark.parametrize(
    "run",
    [
        lambda a, b: torch.mv(a.tril(-1), b[0]) + a.triu(1).T.mv(b[0]),
        lambda a, b: (a.triu() @ b).tril(2),
        lambda a, b: (a.relu().triu(-2) * 2).softmax(-1) + b.tril(30),
        lambda a, b: torch.where((b > 0).triu(1), a.tril(3), -1.0),
    ],
)
def test_triangles_are_one_kernel_in_which_what_is_hidden_is_zero(run: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(20, 20), torch.randn(20, 20)
    found = fuser.compile(Fn(run), (a, b), device="cpu")
    assert len(found.graph.kernels) == 1
    a.diagonal(4).fill_(torch.nan)
    a.diagonal(-3).fill_(torch.inf)
    torch.testing.assert_close(found(a, b), run(a, b), equal_nan=True)


def test_whole_numbers_and_bits_too() -> None:
    def run(n: Any, c: Any) -> Any:
        return n.tril(-1).float() * 2, n.triu(1), c.triu(), c.tril(1).float().sum(-1)

    given = torch.arange(2 * 9 * 7).view(2, 9, 7) - 60, torch.arange(9 * 7).view(9, 7) % 3 > 0
    found = fuser.compile(Fn(run), given, device="cpu")
    assert not {n.op for n in found.program.nodes} & {"opaque"}
    for got, want in zip(found(*given), run(*given), strict=True):
        assert torch.equal(got, want)
