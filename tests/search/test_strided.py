"""Inputs that lie otherwise than row after row: the program has them as they lie, calls take any."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fuser  # noqa: E402
from fuser.errors import UsageError  # noqa: E402
from search.cover.channels import channels_last  # noqa: E402
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
