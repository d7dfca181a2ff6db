"""Large constants that are made within a module: what repeats along an axis is there once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fuser  # noqa: E402
from fuser.frontends.torch_call import LARGE  # noqa: E402
from fuser.frontends.torch_call import once  # noqa: E402

ROWS = LARGE // 256


class Fn(torch.nn.Module):
    def __init__(self, run: Callable[[Any], Any]) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: Any) -> Any:
        return self.run(x)


def signs(x: Any) -> Any:
    halves = torch.zeros(ROWS // 2, 256), torch.full((ROWS // 2, 256), -0.0)
    return torch.copysign(x, torch.cat(halves))


PLACES = (torch.arange(256) * 37 % 256).reshape(1, 256)
CASES: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "zeros to add to": (lambda x: torch.zeros(ROWS, 256).scatter_add(0, (x > 0).long(), x), True),
    "no number": (lambda x: torch.where(x > 0, x, torch.full((ROWS, 256), float("nan"))), True),
    "zeros of both signs": (signs, False),
    "places that heads share": (lambda x: x.unsqueeze(0).expand(3, -1, -1).gather(2, PLACES.expand(3, ROWS, -1)), True),
    "a mask for all": (lambda x: torch.where((PLACES > 7).expand(2, ROWS, -1) & (x > 0), x, -x), True),
    "written into": (
        lambda x: torch.ones(ROWS, 256, dtype=torch.bfloat16).slice_scatter(x.bfloat16()[:, :9], 1, 3, 12) * 2,
        True,
    ),
    "a triangle": (lambda x: x * torch.ones(ROWS, 256).tril(), False),
}


@pytest.mark.parametrize("name", CASES)
def test_they_are_the_same(name: str) -> None:
    run, repeats = CASES[name]
    x = torch.randn(ROWS, 256)
    known = fuser.from_torch(Fn(run), (x,))
    assert (max(p.size for p in known.params.values()) < LARGE) is repeats
    torch.testing.assert_close(fuser.compile(Fn(run), (x,), device="cpu")(x), run(x), equal_nan=True, rtol=1e-2, atol=1e-2)


def test_results_that_share_memory_do_so() -> None:
    def run(x: Any) -> Any:
        y = torch.zeros(ROWS, 256)
        return x + 1, y, y, y[3:7]

    _, a, b, c = fuser.compile(Fn(run), (torch.randn(2),), device="cpu")(torch.randn(2))
    a[3, 5] = 7
    assert b[3, 5] == c[0, 5] == 7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64])
def test_bits_are_compared(dtype: Any) -> None:
    x = torch.ones(LARGE, dtype=dtype)
    assert once(x).shape == (1,) and once(x[1:]).shape == (LARGE - 1,)
    assert once(x.reshape(256, -1).T).shape == (1, 1)
    x[-1] = 0
    assert once(x) is x
    assert once(x.reshape(2, -1).expand(5, -1, -1)).shape == (1, 2, LARGE // 2)
