"""Views of a tensor that are taken again and again: one call of torch, and what the views themselves give."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from fuser.frontends.torch_views import seen  # noqa: E402
from fuser.frontends.torch_views import viewer  # noqa: E402

ATEN = torch.ops.aten
SPLIT = ((ATEN.split.Tensor, (2, 1), {}, 1), (ATEN.transpose.int, (0, 1), {}, None), (ATEN.unsqueeze.default, (0,), {}, None))


def alike(found: Any, want: Any) -> bool:
    place = found.data_ptr() == want.data_ptr() and (found.shape, found.stride()) == (want.shape, want.stride())
    return place and found.dtype is want.dtype and torch.equal(found, want)


@pytest.mark.parametrize("views", [SPLIT, SPLIT[1:], (), ((ATEN.view.dtype, (torch.int32,), {}, None),)])
def test_they_are_where_they_were(views: Any) -> None:
    view, x = viewer(views), torch.randn(6, 9)
    lying = [x, x, torch.randn(6, 9), x[:, :6], torch.randn(40)[4:].reshape(6, 6), torch.randn(9, 6).T, torch.randn(4, 4), x]
    for y in lying:
        assert alike(view(y), seen(y, views))


def test_what_is_the_tensor_itself_stays_it() -> None:
    views = ((ATEN.reshape.default, ((6, 9),), {}, None),)
    view, x = viewer(views), torch.randn(6, 9)
    assert (view(x) is x) == (view(x) is x) == (seen(x, views) is x)


def test_tensors_with_a_history_keep_it() -> None:
    view, x = viewer(SPLIT), torch.randn(6, 9, requires_grad=True)
    view(x.detach())
    assert view(x).grad_fn is not None


def test_negatives_that_lie_as_their_opposites_are_seen_as_such() -> None:
    view, z = viewer(SPLIT), torch.randn(6, 9, dtype=torch.complex64)
    x = z.conj().imag  # a view of what lies in memory, with a sign
    plain = torch.view_as_real(z)[..., 1]
    assert (plain.shape, plain.stride()) == (x.shape, x.stride())
    assert torch.equal(view(plain), seen(plain, SPLIT))
    assert torch.equal(view(x), seen(x, SPLIT))
