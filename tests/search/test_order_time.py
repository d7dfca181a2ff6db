"""Prices of orders: ours where a kernel of ours is taken, torch's elsewhere."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuser.device import load_device
from fuser.lower.order_code import Order
from search.order_time import order_seconds
from search.order_time import torch_seconds

H200 = load_device("h200")


@given(st.integers(2, 20000), st.integers(1, 100000), st.integers(1, 64), st.sampled_from(["float32", "int64", "float64"]))
def test_what_is_taken_is_the_faster(n: int, rows: int, first: int, dtype: str) -> None:
    for asked in (n, min(first, n)):
        order = Order(dtype, n, rows, 1, asked, False)
        ours, torchs = order_seconds(order, H200), torch_seconds(order, H200)
        assert ours > 0 and math.isfinite(ours)
        assert ours <= 1.05 * torchs if order.in_turn or order.by_rank else ours == torchs


@pytest.mark.parametrize(
    ("order", "torchs", "ours"),
    [
        (Order("float32", 64, 512, 1, 8, True), 12.7, 4.1),
        (Order("float32", 1024, 4096, 1, 20, True), 134.2, 51.6),
        (Order("int64", 1024, 1, 1, 1024, False), 32.3, 4.5),
        (Order("float32", 4096, 4096, 1, 4096, False), 540.4, 540.4),
        (Order("int64", 32, 65536, 1, 32, False), 415.6, 77.6),
    ],
)
def test_they_are_near_what_an_h200_took(order: Order, torchs: float, ours: float) -> None:
    """experiments/results/h200-routing/orders.txt, in µs."""
    assert torch_seconds(order, H200) * 1e6 == pytest.approx(torchs, rel=0.35)
    assert order_seconds(order, H200) * 1e6 == pytest.approx(ours, rel=0.45)


def test_nothing_is_faster_than_memory() -> None:
    for shape in ((1, 1 << 27), (2, 1 << 25), (4096, 65536)):
        order = Order("float32", *shape, 1, 1, True)
        assert order_seconds(order, H200) > order.rows * (4 * order.n + 8) / H200.memory_bandwidth
    across = Order("float32", 4096, 65536, 65536, 1, True)
    assert order_seconds(across, H200) > 1.5 * order_seconds(Order("float32", 4096, 65536, 1, 1, True), H200)
