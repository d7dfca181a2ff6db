"""Tensors of a call: what makes new ones, and copies."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from fuser.runtime.tensors import SEVERAL  # noqa: E402
from fuser.runtime.tensors import copier  # noqa: E402
from fuser.runtime.tensors import maker  # noqa: E402


def test_new_tensors_are_like_the_one() -> None:
    for like in (torch.randn(3, 4), torch.ones(2, 3, 5, dtype=torch.bool).permute(2, 0, 1), torch.tensor(1.0), torch.empty(0, 3)):
        made, other = maker(like)(), maker(like)()
        assert (made.shape, made.stride(), made.dtype, made.device) == (like.shape, like.stride(), like.dtype, like.device)
        assert not made.numel() or made.data_ptr() != other.data_ptr()
    made = maker(torch.empty(4, device="meta"), torch.device("cpu"))()
    assert made.device.type == "cpu"


def test_copies_are_new_and_lie_as_their_origins() -> None:
    origins = {
        "a": torch.randn(3, 4).T,
        "b": torch.randn(7),
        "c": torch.randn(2, 1, 3),
        "d": torch.tensor(1.5),
        "counts": torch.arange(5),
    }
    assert len([x for x in origins.values() if x.is_floating_point()]) >= SEVERAL
    copies = copier(origins)
    first = copies()
    origins["b"].add_(1)
    second = copies()
    for name, x in origins.items():
        assert first[name].stride() == x.stride() and first[name].data_ptr() not in (x.data_ptr(), second[name].data_ptr())
        torch.testing.assert_close(second[name], x, rtol=0, atol=0)
    torch.testing.assert_close(first["b"] + 1, origins["b"], rtol=0, atol=0)
