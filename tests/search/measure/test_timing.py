"""Whether results repeat bit for bit."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from search.measure.timing import bits  # noqa: E402


@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (4, 5)])
def test_equal_bits_are_equal_nan_too(shape: tuple[int, ...]) -> None:
    """A loss is a number alone, which torch has no view of as bytes."""
    x = torch.full(shape, float("nan"))
    assert torch.equal(bits(x), bits(x.clone()))
    assert x.numel() == 0 or not torch.equal(bits(x), bits(torch.zeros(shape)))
