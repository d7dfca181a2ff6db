"""What a module returns as views is not copied: the callable returns views too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fuser  # noqa: E402
from fuser.errors import UsageError  # noqa: E402
from search.views import with_views  # noqa: E402

from .modules import Fn  # noqa: E402


def by_torch(module: Any, _: Any) -> Any:
    return torch.compile(module, backend=fuser.torch_backend, options={"device": "cpu"})  # type: ignore[arg-type]


def outputs(run: Callable[..., Any], x: Any) -> tuple[str, ...]:
    return with_views(fuser.from_torch(Fn(run), (x,))).program.outputs


@pytest.mark.parametrize(
    ("run", "left"),
    [
        (lambda x: (x.T, x + 1), 1),
        (lambda x: (x.chunk(2, 1), x.exp()), 1),
        (lambda x: ((x + 1).chunk(2, 1), x.exp().T), 2),
        (lambda x: ((x + 1)[:, :2], x.exp()), 2),  # the rest is not wanted
        (lambda x: ((y := x.exp())[:, 0], y), 1),
        (lambda x: (x.clone().T, x.T.contiguous()), 2),  # tensors of their own
        (lambda x: (x.float(), x.half()), 1),
        (lambda x: ((y := x + 1)[0], y[:, 0]), 1),  # both have the first element
        (lambda x: ((y := x + 1)[0], y[2]), 2),
    ],
)
def test_only_what_is_no_view_is_an_output(run: Callable[..., Any], left: int) -> None:
    assert len(outputs(run, torch.randn(4, 6))) == left


def test_views_lie_where_torch_has_them() -> None:
    x = torch.randn(4, 6)
    module = Fn(lambda x: {"a": x.unbind(0)[1:], "b": (x, 3), "c": (x + 1).transpose(0, 1), "d": x[None].expand(2, 4, 6)})
    run, want = fuser.compile(module, (x,), device="cpu"), module(x)
    got = run(x)
    assert got["b"] == (x, 3)
    assert got["b"][0] is x
    for mine, theirs in zip((*got["a"], got["c"], got["d"]), (*want["a"], want["c"], want["d"]), strict=True):
        assert mine.stride() == theirs.stride()
        torch.testing.assert_close(mine, theirs)
    assert got["a"][0].data_ptr() == want["a"][0].data_ptr()
    assert len(run.graph.kernels) == 1


def test_what_the_module_copies_is_copied() -> None:
    """The columns of a transposed matrix are no view of it where it lies row after row, and would be one of a copy."""
    x = torch.randn(3, 4, 5)
    module = Fn(lambda x: x.view(12, 5).t().reshape(5, 3, 4).permute(2, 0, 1).flatten(1))
    got = fuser.compile(module, (x,), device="cpu")(x)
    assert got.is_contiguous()
    torch.testing.assert_close(got, module(x))


def test_what_is_written_to_lies_as_it_did() -> None:
    """Through a view of it that lies otherwise."""

    def run(x: Any) -> Any:
        y = x.clone()
        y.t()[0] = 9
        return y

    x = torch.randn(5, 6)
    got = fuser.compile(Fn(run), (x,), device="cpu")(x)
    assert got.stride() == (6, 1)
    torch.testing.assert_close(got, run(x))


class Shared(torch.nn.Module):
    """Results that have memory in common with its input, or with one another."""

    def __init__(self) -> None:
        super().__init__()
        self.held = torch.nn.Parameter(torch.arange(6.0))

    def forward(self, x: Any) -> tuple[Any, ...]:
        y, z = x.exp(), x + 1
        given = x.view_as(x), x.view(torch.int32), x.to(x.dtype), x[None].squeeze(0)
        return *given, y, y.T, y.view(torch.float16), z[0], z[:, 0], self.held[1:], self.held.view(2, 3)


@pytest.mark.parametrize("door", [lambda f, x: fuser.compile(f, (x,), device="cpu"), by_torch])
def test_what_lies_in_one_tensor_does_so(door: Callable[..., Any]) -> None:
    """What is written to one is written to the others."""
    module, x = Shared().eval(), torch.randn(4, 6)
    with torch.no_grad():
        got, given = door(Shared().eval(), x)(x), x.clone()
        want = module(given)
        for mine, theirs in ((x, given), *zip(got, want, strict=True)):
            assert mine.stride() == theirs.stride()
            mine[..., 0] = 7
            theirs[..., 0] = 7
        for mine, theirs in ((x, given), *zip(got, want, strict=True)):
            torch.testing.assert_close(mine, theirs.detach(), equal_nan=True, rtol=1e-2, atol=1e-5)


def test_results_of_a_grid_are_views_of_what_spans_it() -> None:
    x, y = torch.randn(3), torch.randn(4)
    module = Fn(lambda x, y: (*torch.meshgrid(x, y + 1, indexing="xy"), *torch.broadcast_tensors(x[:, None], y)))
    run, want = fuser.compile(module, (x, y), device="cpu"), module(x, y)
    got = run(x, y)
    for mine, theirs in zip(got, want, strict=True):
        assert mine.stride() == theirs.stride()
        torch.testing.assert_close(mine, theirs)
    assert [z.data_ptr() for z in got] == [x.data_ptr(), got[1].data_ptr(), x.data_ptr(), y.data_ptr()]


def test_views_are_copied_into_tensors_that_are_passed_in() -> None:
    x, out = torch.randn(4, 6), (torch.empty(6, 4), torch.empty(4, 6))
    run = fuser.compile(Fn(lambda x: (x.T, x + 1)), (x,), device="cpu")
    assert run(x, out=out)[0] is out[0]
    torch.testing.assert_close(out, (x.T, x + 1))
    with pytest.raises(UsageError, match=r"pass tensors for \(6, 4\) torch.float32, \(4, 6\)"):
        run(x, out=out[1])


def test_what_views_are_made_of_does_not_lie_in_longer_rows() -> None:
    """A view across rows can be taken only of rows that follow one another."""
    line = torch.nn.Linear(16, 7).eval()

    class Both(torch.nn.Module):
        def __init__(self, viewed: bool) -> None:
            super().__init__()
            self.line, self.viewed = line, viewed

        def forward(self, x: Any) -> Any:
            y = self.line(x)
            return (y, y.view(-1)) if self.viewed else y

    x = torch.randn(6, 16)
    for viewed in (False, True):
        run = fuser.compile(Both(viewed), (x,), device="cpu")
        assert bool(run._as_they_come) is not viewed
