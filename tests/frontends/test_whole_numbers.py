"""Arithmetic of whole numbers that is exact: kernels compute it, in torch's dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fuser  # noqa: E402
from fuser.frontends.torch_export import from_torch  # noqa: E402
from fuser.ir.mugraph import KernelGraph  # noqa: E402
from fuser.ir.mugraph import LibraryKernel  # noqa: E402
from fuser.ir.program import Tensor  # noqa: E402
from fuser.lower.check import check_call  # noqa: E402
from fuser.runtime.torch_program import run_program  # noqa: E402
from tests.functions import Fn  # noqa: E402

LONG = torch.tensor([[3, -5, 2**40 + 1], [7, 0, -(2**62)]])
INT = torch.tensor([2**31 - 1, -(2**31), 17], dtype=torch.int32)
BYTE = torch.tensor([1, 0, 200], dtype=torch.uint8)


def results(x: Any, i: Any, u: Any) -> dict[str, Any]:
    """With what does not fit, which wraps around."""
    return {
        "products": x * 3, "sums": x + i, "opposites": -i, "sizes": x.abs(), "less": 5 - x, "scaled": torch.add(x, i, alpha=4),
        "more": i + 1, "bytes": u * 3, "larger": torch.maximum(x, x.flip(1)), "smaller": torch.minimum(i, i.flip(0)),
        "within": x.clamp(-4, 5), "masked": x.masked_fill(x < 0, 9), "chosen": torch.where(x > 3, x, i.long()),
        "narrow": x.int(), "narrower": x.to(torch.uint8), "wider": u.long() * 2**33, "bits": (x > 0).long() + (x < 3).int(),
        "squares": i.long() ** 2, "quotients": x // 3, "halves": i // 2, "thirds of bytes": u // 3, "rest": x % 7,
        "rest of bytes": u % 7, "down": torch.div(i, 5, rounding_mode="floor"),
        "places": ((x > 0).long().cumsum(1) * 2).int() - 1, "bools": x.bool(),
        "of bytes": u.to(torch.bool), "far": x.bool() & (i != 0),
    }  # fmt: skip


def by_torch(known: Any, given: Any) -> list[Any]:
    """The results of a program, operator by operator."""
    params = {k: torch.from_numpy(v) for k, v in known.params.items()}
    found = run_program(known.program, dict(zip(known.inputs, given, strict=True)) | params)
    return [found[r.name] for r in known.called.results]


def test_it_is_exact_and_torchs() -> None:
    """By kernels too."""
    module = Fn(results).eval()
    known = from_torch(module, (LONG, INT, BYTE))
    assert "opaque" not in {n.op for n in known.program.nodes}
    run = fuser.compile(module, (LONG, INT, BYTE), device="cpu")
    for given in ((LONG, INT, BYTE), (LONG.flip(0, 1), INT.flip(0), BYTE.flip(0)), (LONG // 1000 + 1, INT + 5, BYTE + 100)):
        wanted = module(*given)
        for (name, made), other in zip(run(*given).items(), by_torch(known, given), strict=True):
            assert made.dtype == other.dtype == wanted[name].dtype, name
            assert torch.equal(made, wanted[name]) and torch.equal(other, wanted[name]), name


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x // -3,
        lambda x: x // x.abs().clamp(min=1),
        lambda x: torch.div(x, 3, rounding_mode="trunc"),
        lambda x: ~x,
        lambda x: x + (2**53 + 1),
        lambda x: x * (2**53 + 1),
        lambda x: (x.bfloat16() * 10.3).int(),  # what is rounded where it is stored
    ],
)
def test_what_is_not_is_torchs_own(f: Callable[[Any], Any]) -> None:
    known = from_torch(Fn(f), (LONG,))
    assert "opaque" in {n.op for n in known.program.nodes}
    (found,) = by_torch(known, (LONG,))
    assert torch.equal(found, f(LONG))


def test_bounds_beyond_what_numbers_hold() -> None:
    known = from_torch(Fn(lambda x: x.clamp(-(2**62 + 1), 2**53 + 1)), (LONG,))
    assert torch.equal(by_torch(known, (LONG,))[0], LONG.clamp(-(2**62 + 1), 2**53 + 1))


def test_a_quotient_of_numbers_is_rounded_down() -> None:
    x = torch.tensor([1.5, -1.5, 7.25, float("inf")])
    known = from_torch(Fn(lambda x: x // 0.5), (x,))
    assert [n.op for n in known.program.nodes] == ["floor_div"]
    torch.testing.assert_close(fuser.compile(Fn(lambda x: x // 0.5), (x,), device="cpu")(x), x // 0.5, equal_nan=True)


@pytest.mark.parametrize("so_far", [False, True])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_counts(so_far: bool, dtype: str) -> None:
    """In the interpreter, and as numpy has it; what is no number of them is not counted."""
    attrs = (("bins", 40), ("dtype", "int32"), ("so_far", so_far))
    kernel = LibraryKernel("n", "counts", ("x",), "y", attrs)
    graph = KernelGraph("n", ("x",), (kernel,), ("y",), (Tensor("x", (1300,), dtype), Tensor("y", (40,), "int32")))
    outcome = check_call(graph)
    assert outcome.passed and outcome.method == "triton"
    x = np.array([3, -1, 40, 0, 3, 39])
    counted = kernel.entry.numpy(x, **dict(attrs))
    assert counted.sum() == (4 if not so_far else 40 + 2 * 37 + 1)


def test_where_groups_end_is_one_operator() -> None:
    """How transformers finds it, on a CPU by way of numbers and on a GPU not."""
    ids = torch.tensor([2, 0, 2, 5, 5, 5, 1])

    def ends(x: Any) -> Any:
        return torch.cumsum(torch.histc(x.sort().values.float(), bins=6, min=0, max=5), 0, dtype=torch.int32)

    known = from_torch(Fn(ends), (ids,))
    assert [n.op for n in known.program.nodes if n.op in ("counts", "opaque", "cumsum")] == ["counts"]
    assert torch.equal(by_torch(known, (ids,))[0], ends(ids))
    assert torch.equal(fuser.compile(Fn(ends), (ids,), device="cpu")(ids), ends(ids))


@pytest.mark.parametrize("bins", [6, 5000])
def test_other_sums_of_counts(bins: int) -> None:
    """Of sums, of numbers, of so many bins that torch takes some for the next."""
    x = torch.tensor([0, 1, 3, 3, 5, 5]) * (bins // 6)

    def sums(x: Any) -> Any:
        found = torch.histc(x.float(), bins, 0, bins - 1)
        return found.cumsum(0, dtype=torch.int64).cumsum(0), (found[None] @ torch.ones(bins, 2)), found

    known = from_torch(Fn(sums), (x,))
    for made, want in zip(by_torch(known, (x,)), sums(x), strict=True):
        assert made.dtype == want.dtype and torch.equal(made, want)
