"""Indices that are tensors of one number are gathers in a program, and take the rows that torch takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from fuser.errors import FuserError  # noqa: E402
from fuser.frontends.torch_export import from_torch  # noqa: E402
from tests.functions import Fn  # noqa: E402

ALL = slice(None)


def same(run: Callable[..., Any], *inputs: Any, others: Any = ()) -> None:
    """The program gives what torch gives, on these inputs and with ``others`` in the place of the second one."""
    known = from_torch(Fn(run), inputs)
    for t in (inputs[1], *others):
        given = (inputs[0], t, *inputs[2:])
        values = {n: x.numpy() for n, x in zip(known.inputs, given, strict=True)}
        (found,) = known.program.evaluate({**known.params, **values}, np.float64).values()
        want = run(*given).numpy()
        assert found.shape == want.shape
        np.testing.assert_allclose(found, want, rtol=1e-6)


def number(n: int, dtype: Any = torch.int64) -> Any:
    return torch.tensor(n, dtype=dtype)


@pytest.mark.parametrize(
    "at",
    [
        lambda t: t,
        lambda t: (ALL, t),
        lambda t: (..., t),
        lambda t: (t, ALL, t),
        lambda t: (t, None, slice(1, None)),
        lambda t: (1, ..., t),
        lambda t: (t, t, t),
        lambda t: (t, torch.tensor([0, 2])),
        lambda t: (t, [3, 1], slice(0, 5, 2)),
        lambda t: (None, t, None, t),
    ],
)
def test_rows_are_read(at: Callable[[Any], Any]) -> None:
    x = torch.arange(6.0 * 7 * 8).reshape(6, 7, 8)
    same(lambda x, t: x[at(t)] * 2, x, number(2), others=(number(5), number(-1), number(-6)))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
def test_numbers_of_other_types(dtype: Any) -> None:
    same(lambda x, t: x[1:][t - 1] + x[t][t], torch.randn(6, 7), number(3, dtype))


def test_a_number_that_is_computed() -> None:
    x = torch.randn(5, 9)
    same(lambda x, w: x[(x * w).sum(1).argmin()], x, torch.ones(9), others=(-torch.ones(9),))


@pytest.mark.parametrize(
    ("at", "shape"),
    [
        (lambda t: t, (7, 8)),
        (lambda t: (ALL, t), (6, 8)),
        (lambda t: (..., t), ()),
        (lambda t: (t, ALL, t), (7,)),
        (lambda t: (t, slice(1, 3)), (2, 8)),
        (lambda t: (t, t, t), ()),
        (lambda t: (t, None), (1, 7, 8)),
    ],
)
def test_rows_are_written(at: Callable[[Any], Any], shape: tuple[int, ...]) -> None:
    def run(x: Any, t: Any, v: Any) -> Any:
        y = x + 1
        y[at(t)] = v
        return y

    same(run, torch.randn(6, 7, 8), number(2), torch.ones(shape) * 3, others=(number(-1), number(4)))


def test_what_is_no_number_stays() -> None:
    x = torch.randn(6, 7)
    same(lambda x, t: x[t[None]] + x[1], x, number(2), others=(number(0),))


def written_row(x: Any, t: Any) -> Any:
    y = x + 1
    y[t].mul_(2)
    return y


def written_origin(x: Any, t: Any) -> Any:
    y = x + 1
    row = y[t]
    y.add_(1)
    return row * 1


def written_view(x: Any, t: Any) -> Any:
    y = x + 1
    y[t][1:].unsqueeze(0).zero_()
    return y


def read_between(x: Any, t: Any) -> Any:
    y = x + 1
    row = y[t]
    row += 1
    before = y.sum()
    y[t] = row
    return y + before


@pytest.mark.parametrize("run", [written_row, written_origin, written_view, read_between])
def test_rows_that_share_memory_with_what_is_written_are_no_copies(run: Callable[..., Any]) -> None:
    """Torch reads the number then, and no program is made."""
    with pytest.raises(FuserError, match=r"depends on values|data-dependent"):
        from_torch(Fn(run), (torch.randn(5, 6), number(2)))


def test_a_row_is_changed_and_put_back() -> None:
    def run(x: Any, t: Any) -> Any:
        y = x + 1
        y[t] += 3
        return y * 2

    same(run, torch.randn(5, 6), number(2), others=(number(-1),))
