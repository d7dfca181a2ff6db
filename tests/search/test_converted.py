"""Modules of float32 in a narrower type, with the error that this costs."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fuser  # noqa: E402
from fuser.errors import UsageError  # noqa: E402

nn = torch.nn


class Masked(nn.Module):
    """A mask of large negative numbers, integer inputs, a cast to float32 by name, and a result that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.linear, self.norm = nn.Embedding(10, 32), nn.Linear(32, 32), nn.LayerNorm(32)

    def forward(self, ids: Any, keep: Any, shift: Any = None) -> Any:
        x = self.norm(self.linear(self.words(ids)) + shift)
        scores = x @ x.transpose(-1, -2) + (1.0 - keep.to(torch.float32)) * torch.finfo(torch.float32).min
        return {"out": scores.softmax(-1) @ x, "ids": ids, "n": 3}


def example() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    torch.manual_seed(0)
    keep = torch.ones(8, 8, dtype=torch.int64).tril()
    return Masked().eval(), (torch.randint(0, 10, (8,)), keep), {"shift": torch.randn(8, 32)}


@pytest.mark.parametrize(("dtype", "most"), [("float16", 2e-3), ("bfloat16", 2e-2)])
def test_a_module_is_converted_and_the_error_stated(dtype: str, most: float) -> None:
    module, args, named = example()
    run = fuser.compile(module, args, example_kwargs=named, device="cpu", dtype=dtype)
    with torch.no_grad():
        got, want = run(*args, **named), module(*args, **named)
    assert got["out"].dtype == getattr(torch, dtype)
    assert (got["n"], got["ids"].dtype) == (3, torch.int64)
    wrong = float((got["out"].float() - want["out"]).norm() / want["out"].norm())
    assert wrong < most
    assert run.conversion is not None
    assert 0 < run.conversion.error < most
    assert f"converted to {dtype}: relative error" in run.explain()
    assert {t.dtype for t in run.program.tensors} == {dtype, "int64"}


def test_parameters_that_do_not_fit_are_named() -> None:
    module = nn.Linear(8, 8)
    module.bias.data[2] = 1e5
    run = fuser.compile(module, (torch.randn(2, 8),), device="cpu", dtype="float16")
    assert run.conversion is not None
    assert run.conversion.bounded == ("bias",)
    assert "numbers beyond ±65504 in bias became that" in run.explain()


def test_the_error_says_where_a_model_does_not_fit() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    errors = []
    for size in (3e4, 2e7):
        run = fuser.compile(module, (torch.full((2, 8), size),), device="cpu", dtype="float16")
        assert run.conversion is not None
        errors.append(run.conversion.error)
    assert errors[0] < 1e-2
    assert errors[1] == math.inf


@pytest.mark.parametrize(
    ("program", "inputs", "dtype", "said"),
    [
        (nn.Linear(2, 2), (torch.ones(1, 2),), "int8", "nothing can be converted to 'int8'"),
        (nn.Linear(2, 2).half(), (torch.ones(1, 2).half(),), "float16", "has no float32"),
        ("mirage/rmsnorm", (), "float16", "is no module"),
    ],
)
def test_what_cannot_be_converted(program: Any, inputs: Any, dtype: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        fuser.compile(program, inputs, target="h200", dtype=dtype)


class Rotary(nn.Module):
    """Embeddings of positions that the caller gives; ``slope``: they are also added to what is turned."""

    def __init__(self, slope: float = 0.0) -> None:
        super().__init__()
        self.linear, self.slope = nn.Linear(16, 16), slope
        self.register_buffer("rates", 1.0 / 10000 ** (torch.arange(0, 16, 2).float() / 16))

    def forward(self, x: Any, positions: Any) -> Any:
        places = positions.float()
        angles = places[:, None] * self.rates
        angles = torch.cat((angles, angles), -1)
        a, b = (y := self.linear(x)).chunk(2, -1)
        turned = y * angles.cos() + torch.cat((-b, a), -1) * angles.sin()
        return turned + self.slope * places[:, None] if self.slope else turned


@pytest.mark.parametrize("slope", [0.0, 1e-4])
@pytest.mark.parametrize(("dtype", "most"), [("float16", 2e-3), ("bfloat16", 1e-2)])
def test_angles_of_positions_stay_float32(dtype: str, most: float, slope: float) -> None:
    """In half precision they were those of other positions: 69 % off."""
    module, x, positions = Rotary(slope).eval(), torch.randn(24, 16), torch.arange(3000, 3024)
    run = fuser.compile(module, (x, positions), dtype=dtype, device="cpu")
    found = run(x.to(getattr(torch, dtype)), positions)
    with torch.no_grad():
        wanted = module(x, positions)
    assert found.dtype == getattr(torch, dtype)
    assert float((found.float() - wanted).norm() / wanted.norm()) < most
    assert run.conversion is not None and run.conversion.error < most


def test_angles_of_what_the_caller_gives_are_converted() -> None:
    class Waves(nn.Module):
        def forward(self, x: Any, positions: Any) -> Any:
            return (x * positions.float()).sin()

    run = fuser.compile(Waves(), (torch.randn(4, 8), torch.arange(8)), dtype="float16", device="cpu")
    assert {t.dtype for t in run.program.tensors} == {"float16", "int64"}
