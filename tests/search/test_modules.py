"""Every module of the suite compiles and agrees with torch; what has no kernel is torch's."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fuser  # noqa: E402
from fuser.ir.mugraph import LibraryKernel  # noqa: E402
from search.compiled import CompiledProgram  # noqa: E402

from .modules import SUITE  # noqa: E402
from .modules import Fn  # noqa: E402

FAST = ("product of odd sizes", "clamp and where", "cross entropy", "GRU cell", "linear batch norm softmax", "mobile block")
"""Modules that stand for the rest in a quick run."""


def error(got: Any, want: Any) -> float:
    """The largest error of a tensor, relative to its norm; results have to be of one kind."""
    mine, tree = torch.utils._pytree.tree_flatten(got)
    theirs, wanted = torch.utils._pytree.tree_flatten(want)
    assert tree == wanted
    worst = 0.0
    for x, y in zip(mine, theirs, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        torch.testing.assert_close(x.isfinite(), y.isfinite())
        x, y = (t.detach().nan_to_num(0, 0, 0).double() for t in (x, y))
        worst = max(worst, float((x - y).norm() / (y.norm() + 1e-9)))
    return worst


def compiled(name: str, dtype: Any = torch.float32) -> tuple[CompiledProgram, float]:
    """A module of the suite behind ``fuser.compile``, and its error."""
    torch.manual_seed(0)
    module, inputs = SUITE[name]()
    module = module.eval().to(dtype)
    inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
    with torch.no_grad():
        want = module(*inputs)
        run = fuser.compile(module, inputs, device="cpu")
        return run, error(run(*inputs), want)


def row(name: str, run: CompiledProgram, wrong: float) -> str:
    """What became of a module: generated kernels, library calls, and what torch has been left."""
    kernels = [k for k in run.graph.kernels if isinstance(k, LibraryKernel)]
    left = [dict(k.attrs)["callee"].split(".")[1] if k.op == "opaque" else k.op for k in kernels]
    return f"{name:36}{len(run.graph.blocks):4} kernels{len(left):4} calls  {wrong:.0e}  {', '.join(dict.fromkeys(left))}"


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in SUITE])
def test_module_agrees_with_torch(name: str) -> None:
    run, wrong = compiled(name)
    print(row(name, run, wrong))
    assert wrong < 5e-3


def test_a_part_whose_kernels_do_not_hold_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    from fuser.errors import NoValidKernelError
    from search.cover import model

    def realised(tuned: Any) -> Any:
        if any(n.op == "softmax" for n in tuned.program.nodes):
            raise NoValidKernelError("no")
        return before(tuned)

    before = model.verified
    monkeypatch.setattr(model, "verified", realised)
    monkeypatch.setattr("search.choose.is_model", lambda _: True)
    run, wrong = compiled("linear batch norm softmax")
    assert wrong < 1e-3
    assert "softmax" in {k.op for k in run.graph.kernels if isinstance(k, LibraryKernel)}
    assert run.graph.blocks


def test_inactive_dropout_draws_nothing_and_active_one_is_refused() -> None:
    lstm, x = torch.nn.LSTM(4, 4, 2, dropout=0.5), torch.randn(3, 1, 4)
    run = fuser.compile(lstm.eval(), (x,), device="cpu")
    assert error(run(x), lstm(x)) < 1e-6
    with pytest.raises(fuser.FuserError, match=r"aten\.lstm\.input"):
        fuser.compile(lstm.train(), (x,), device="cpu")


def test_bytes_are_read_by_generated_kernels() -> None:
    """Pixels, and weights of eight bits with a scale for each row."""
    pixels, weight = torch.randint(0, 256, (3, 20), dtype=torch.uint8), torch.randint(-128, 128, (5, 20), dtype=torch.int8)
    module = Fn(lambda x, w, s: (x.float() / 255 - 0.5) @ (w.float() * s).T)
    given = pixels, weight, torch.rand(5, 1)
    run = fuser.compile(module, given, device="cpu")
    assert error(run(*given), module(*given)) < 1e-6
    assert not any(isinstance(k, LibraryKernel) for k in run.graph.kernels)


def test_a_product_with_what_has_one_element_is_one_kernel() -> None:
    """No axis says where it lies, and no descriptor moves it."""
    run = fuser.compile(Fn(lambda x: x.view(1, 1).expand(3, 3) @ torch.ones(3, 2)), (torch.tensor(3.0),), device="cpu")
    assert isinstance(run, CompiledProgram)
    torch.testing.assert_close(run(torch.tensor(3.0)), torch.full((3, 2), 9.0))


@pytest.mark.parametrize("rows", [(), (1,)])
def test_a_row_by_what_has_one_element_has_no_columns_that_lie_side_by_side(rows: tuple[int, ...]) -> None:
    row, module = torch.randn(*rows, 40), Fn(lambda v, x: v @ x.view(1, 1).expand(40, 24))
    given = row, torch.tensor(3.0)
    torch.testing.assert_close(fuser.compile(module, given, device="cpu")(*given), module(*given))


def test_powers_of_zero_and_of_what_is_infinite() -> None:
    x = torch.tensor([0.0, -2.0, 1.5, float("inf"), -float("inf"), float("nan")])
    module = Fn(lambda x: torch.stack([x**0, x**-5, x**5, x**-7]))
    torch.testing.assert_close(fuser.compile(module, (x,), device="cpu")(x), module(x), equal_nan=True)


def test_conditions_become_numbers_before_they_are_computed_with() -> None:
    given = torch.tensor([[1, 0, 1], [0, 0, 1]]).bool(), torch.tensor([[1, 1, 0], [0, 1, 1]]).bool()
    module = Fn(
        lambda a, b: (1 - a.float(), a.float() + b.float(), a.half() - b.half(), b.float().sqrt(), a.float() @ b.float().T)
    )
    run = fuser.compile(module, given, device="cpu")
    assert isinstance(run, CompiledProgram)
    for got, want in zip(run(*given), module(*given), strict=True):
        torch.testing.assert_close(got, want)


def test_places_of_the_largest_and_the_least_of_booleans() -> None:
    x = torch.tensor([[0, 1, 1], [0, 0, 0], [1, 1, 1]]).bool()
    module = Fn(lambda x: (*x.max(1), *x.min(0, keepdim=True)))
    for got, want in zip(fuser.compile(module, (x,), device="cpu")(x), module(x), strict=True):
        assert torch.equal(got, want)


def test_remainders_are_those_of_the_quotient_that_is_not_rounded() -> None:
    inf = float("inf")
    x = torch.tensor([3.0, -3.0, 79.9, 1e-3, 0.0, inf, 5.0, -5.0, 1.0, -79.8])
    y = torch.tensor([0.3, 0.3, -0.1, 7.0, 2.0, 2.0, inf, inf, 0.0, 0.3])
    module = Fn(lambda x, y: (torch.fmod(x, y), x % y, x // y, x % 0.3, x // 0.3))
    run = fuser.compile(module, (x, y), device="cpu")
    assert run.graph.blocks
    assert len(run.graph.blocks) == len(run.graph.kernels)
    for got, want in zip(run(x, y), module(x, y), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_who_casts_a_number_there_and_back_asks_for_its_rounding(dtype: Any) -> None:
    x = torch.randn(5, 7)
    module = Fn(
        lambda x: (x.to(dtype).float(), x - x.to(dtype).float(), x.to(dtype).view(-1).float() + 1, x.exp().to(dtype).float())
    )
    run = fuser.compile(module, (x,), device="cpu")
    for got, want in zip(run(x), module(x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_who_compares_what_was_cast_sees_its_rounding(dtype: Any) -> None:
    x, n = torch.tensor([1.0001, 2049.0, -1e39, 1e-9, 1.9999]), torch.tensor([70000, 100, 2049, -4097])
    module = Fn(
        lambda x, n: (x.to(dtype).isinf(), x.to(dtype) > 1, x.to(dtype).floor(), x.to(dtype).sign(), n.to(dtype).float() + 1)
    )
    run = fuser.compile(module, (x, n), device="cpu")
    for got, want in zip(run(x, n), module(x, n), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_infinite_exponents_and_roots_of_what_is_infinite() -> None:
    inf = float("inf")
    x, y = torch.tensor([-inf, inf, -1.0, -1.0, -0.5, 2.0, 0.0]), torch.tensor([0.5, -inf, inf, -inf, inf, inf, -inf])
    module = Fn(lambda x, y: (x ** (1 / 3), x**-0.1, x**y, (-1.0) ** y))
    for got, want in zip(fuser.compile(module, (x, y), device="cpu")(x, y), module(x, y), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)


def test_remainders_of_large_quotients() -> None:
    x, y = torch.tensor([1e8, 1e10, 123456789.0, 99999.0, -1e6, 1e38]), torch.tensor([7.0, -7.0, 10.0, 1.1, 0.3, 3e37])
    module = Fn(lambda x, y: (torch.fmod(x, y), x % y, x // y, x[:-1] % 10))
    for got, want in zip(fuser.compile(module, (x, y), device="cpu")(x, y), module(x, y), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-7)


def test_many_steps_that_read_their_operand_twice_are_walked_once() -> None:
    """There are 2 ** 30 ways from the last step to the input, and another walk for each kind of kernel behind it."""

    def steps(x: Any) -> Any:
        for _ in range(30):
            x = x + 0.1 * x.relu()
        return x

    given = torch.randn(6, 8).half(), torch.randn(8, 8).half()
    module = Fn(lambda x, w: (steps(x).softmax(-1), steps(x) @ w))
    assert error(fuser.compile(module, given, device="cpu")(*given), module(*given)) < 1e-2
