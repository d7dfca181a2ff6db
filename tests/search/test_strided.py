"""Inputs that lie otherwise than row after row: the program has them as they lie, calls take any."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fuser  # noqa: E402
from fuser.errors import UsageError  # noqa: E402
from search.cover.channels import channels_last  # noqa: E402
from search.strided import as_results_lie  # noqa: E402
from search.strided import as_they_lie  # noqa: E402

from .modules import Fn  # noqa: E402


def test_a_transposed_matrix_is_read_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    module, (x, y) = Fn(lambda x, y: (x @ y).relu()), (torch.randn(6, 5).T, torch.randn(6, 4))
    run = fuser.compile(module, (x, y), device="cpu")
    monkeypatch.setattr(torch.Tensor, "clone", lambda *_, **__: pytest.fail("copied"))
    torch.testing.assert_close(run(x, y), module(x, y))
    monkeypatch.undo()
    other = torch.randn(5, 6)  # row after row
    torch.testing.assert_close(run(other, y), module(other, y))
    torch.testing.assert_close(run(**dict(zip(run.inputs, (x, y), strict=True))), module(x, y))
    with pytest.raises(UsageError, match=r"must be .*\[5, 6\]:float32, got \(6, 5\)"):
        run(x.T, y)


def test_constants_of_the_extents_of_an_input_are_those_of_the_input_as_the_module_sees_it() -> None:
    q, k = torch.randn(1, 2, 16, 8).mT, torch.randn(1, 2, 5, 16)
    for run in (
        torch.nn.functional.scaled_dot_product_attention,
        lambda q, k, v: torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v,
    ):
        torch.testing.assert_close(fuser.compile(Fn(run), (q, k, k), device="cpu")(q, k, k), run(q, k, k))


def test_a_transposed_input_that_a_program_of_several_results_does_not_read() -> None:
    module, (x, y) = Fn(lambda x, y: (torch.zeros_like(x), y + 1)), (torch.randn(6, 5).T, torch.randn(5, 6))
    run = fuser.compile(module, (x, y), device="cpu")
    torch.testing.assert_close(run(x, y), module(x, y))


def test_a_convolution_reads_an_image_with_its_channels_last() -> None:
    image = torch.randn(2, 4, 5, 6).to(memory_format=torch.channels_last)
    known = fuser.from_torch(torch.nn.Conv2d(4, 3, 1, bias=False), (image,))
    lying = as_they_lie(known, (image,))
    assert lying.program[lying.program.inputs[0]].shape == (2, 5, 6, 4)
    turned, _ = channels_last(lying.program, lying.params)
    conv = next(n for n in turned.nodes if n.op == "conv2d_last")
    assert conv.inputs[0] == lying.program.inputs[0]


@pytest.mark.parametrize("x", [torch.randn(4, 6)[:, ::2], torch.randn(4, 1).expand(4, 3), torch.randn(4, 3)])
def test_what_has_gaps_or_repeats_stays(x: Any) -> None:
    known = fuser.from_torch(Fn(lambda x: x + 1), (x,))
    assert not as_they_lie(known, (x,)).orders


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x.T.exp(),
        torch.rot90,
        lambda x: {"a": (y := x.T + 1), "b": (y, y.T, y[1:])},
        lambda x: (x.T.softmax(-1), x.view(2, 4, 3, 2).to(memory_format=torch.channels_last) * 2),
    ],
)
def test_results_lie_as_the_modules_do(run: Any) -> None:
    x = torch.randn(8, 6)
    done, want = fuser.compile(Fn(run), (x,), device="cpu"), run(x)
    for mine, theirs in zip(_leaves(done(x)), _leaves(want), strict=True):
        assert mine.stride() == theirs.stride()
        torch.testing.assert_close(mine, theirs)
    out = [torch.empty_like(y) for y in _leaves(want)]
    done(x, out=out if len(out) > 1 else out[0])
    torch.testing.assert_close(out, _leaves(want))


def _leaves(value: Any) -> list[Any]:
    from torch.utils import _pytree

    return _pytree.tree_leaves(value)


def test_what_is_transposed_and_returned_is_computed_where_it_lies() -> None:
    run = fuser.compile(Fn(lambda x: x.T.exp()), (torch.randn(8, 6),), device="cpu")
    (kernel,) = run.graph.kernels
    assert [kernel.extents[a] for a in kernel.stores[0].at.axes] == [8, 6]


def test_torchs_own_graph_gives_results_as_the_program_has_them() -> None:
    x = torch.randn(8, 6)
    known = as_results_lie(fuser.from_torch(Fn(lambda x: (x.T.exp(), x + 1)), (x,)))
    assert known.traced is not None
    whole = known.traced.function(known.program.inputs, known.program.outputs, "cpu")
    assert whole is not None
    torch.testing.assert_close(whole(x), (x.exp(), x + 1))
