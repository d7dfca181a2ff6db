"""Rows in which everything is masked: NaN where torch has NaN (a softmax), zeros where torch has zeros (its attention)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fuser  # noqa: E402

from .modules import Fn  # noqa: E402

attention = torch.nn.functional.scaled_dot_product_attention
KEEP = torch.tensor([[0] * 6, [1] * 6, [1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1]]).bool()


def scores(q: Any, k: Any, keep: Any) -> Any:
    return (q @ k.mT).masked_fill(~keep, -math.inf)


def written_out(x: Any) -> Any:
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("run", "nan"),
    [
        (lambda q, k, v, keep: scores(q, k, keep).softmax(-1), True),
        (lambda q, k, v, keep: written_out(scores(q, k, keep)), True),
        (lambda q, k, v, keep: scores(q, k, keep).softmax(-1) @ v, True),
        (lambda q, k, v, keep: (q @ k.mT + torch.where(keep, 0.0, -math.inf)).softmax(-1) @ v, True),
        (lambda q, k, v, keep: scores(q, k, keep).log_softmax(-1), True),
        (lambda q, k, v, keep: scores(q, k, keep).logsumexp(-1), False),
        (attention, False),
        (
            lambda q, k, v, keep: attention(q, k, v, torch.where(keep, 0.0, -math.inf)),
            False,
        ),
    ],
)
def test_masked_rows_are_as_in_torch(run: Callable[..., Any], nan: bool) -> None:
    torch.manual_seed(0)
    given = torch.randn(2, 4, 8), torch.randn(2, 6, 8), torch.randn(2, 6, 8), KEEP
    want, got = run(*given), fuser.compile(Fn(run), given, device="cpu")(*given)
    assert bool(want.isnan().any()) is nan
    torch.testing.assert_close(got, want, equal_nan=True)


def below(x: Any) -> Any:
    return x - x.amax(-1, keepdim=True)


def weights(x: Any) -> Any:
    return below(x).exp()


@pytest.mark.parametrize(
    ("run", "kernels"),
    [
        (below, 1),
        (lambda x: weights(x).sum(-1), 1),
        (lambda x: weights(x) / (weights(x).sum(-1, keepdim=True) + 1e-6), 1),
        (lambda x: weights(x) @ x.T / weights(x).sum(-1, keepdim=True).clamp(min=1e-6), 1),
        (lambda x: x.amax(-1) + weights(x).sum(-1).log(), 1),
        (lambda x: x[2:] - x[:2].amax(-1, keepdim=True), 1),  # of what is not masked it is infinite
        (lambda x: weights(x) @ x.T / weights(x).sum(-1, keepdim=True), 1),
    ],
)
def test_differences_to_a_maximum_are_those_of_torch(run: Callable[..., Any], kernels: int) -> None:
    """-inf - -inf is NaN, unless a softmax is made of it, whose quotient is."""
    torch.manual_seed(0)
    x = torch.randn(4, 6).masked_fill(~KEEP, -math.inf)
    made = fuser.compile(Fn(run), (x,), device="cpu")
    torch.testing.assert_close(made(x), run(x), equal_nan=True)
    assert len(made.graph.blocks) == kernels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_the_least_number_are_even(dtype: Any) -> None:
    """What transformers take for minus infinity; times log2(e) it is no number."""
    torch.manual_seed(0)
    x, least = torch.randn(4, 6, dtype=dtype), torch.finfo(dtype).min
    module = Fn(
        lambda x, keep: (x.masked_fill(~keep, least).softmax(-1), (x + torch.where(keep, 0.0, least).to(dtype)).softmax(-1))
    )
    got, want = fuser.compile(module, (x, KEEP), device="cpu")(x, KEEP), module(x, KEEP)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_a_factor_makes_the_least_number_are_even(dtype: Any) -> None:
    """As transformers add it to the scores of an attention: nothing of the least number is read there."""
    torch.manual_seed(0)
    least = torch.finfo(dtype).min
    module = Fn(lambda q, k, v, keep: (q @ k.mT + (1 - keep.to(dtype)) * least).softmax(-1) @ v)
    given = *(torch.randn(2, n, 8, dtype=dtype) for n in (4, 6, 6)), KEEP
    made = fuser.compile(module, given, device="cpu")
    torch.testing.assert_close(made(*given), module(*given))
    assert len(made.graph.kernels) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_the_least_number_may_be_given_or_come_from_a_library(dtype: Any) -> None:
    x = torch.where(KEEP, torch.randn(4, 6), torch.finfo(dtype).min).to(dtype)
    module = Fn(lambda x: (x.softmax(-1), x.log_softmax(-1), x.logsumexp(-1), x.sort(-1)[0].softmax(-1)))
    want = tuple(y.to(dtype) for y in module(x.float()))
    torch.testing.assert_close(fuser.compile(module, (x,), device="cpu")(x), want)


def test_a_log_softmax_of_large_numbers_keeps_the_logarithm_of_the_sum() -> None:
    x = torch.randn(4, 6) + torch.tensor([[1e30], [1e6], [-1e6], [0.0]])
    got = fuser.compile(Fn(lambda x: x.log_softmax(-1)), (x,), device="cpu")(x)
    torch.testing.assert_close(got, x.log_softmax(-1))


def test_the_logarithm_of_a_sum_with_infinity_is_infinite() -> None:
    x = torch.tensor([[math.inf, 1.0, 2.0], [-math.inf] * 3, [math.nan, math.inf, 1.0], [1.0, 2.0, 3.0]])
    module = Fn(lambda x: (x.logsumexp(1), x.log_softmax(1), x.softmax(1)))
    torch.testing.assert_close(fuser.compile(module, (x,), device="cpu")(x), module(x), equal_nan=True)
