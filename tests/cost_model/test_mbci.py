"""How intense products are, and what a chain saves by being one kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost_model.mbci import Product
from cost_model.mbci import intensity
from cost_model.mbci import products
from cost_model.mbci import saving
from cost_model.refined import matmul_choice
from cost_model.refined import matmul_seconds
from fuser.device import load_device
from fuser.workloads import workload
from tests.builders import chain


def test_one_compute_bound_contraction_is_enough_where_little_can_be_saved() -> None:
    device = load_device("h200")
    thin_then_large = chain(8192, 8192, 16, 8192)
    first, second = (products(thin_then_large, n)[0] for n in thin_then_large.nodes)
    assert intensity(first, device) < device.balance() < intensity(second, device)
    assert saving(thin_then_large, [n.output for n in thin_then_large.nodes], device) < 0.125


def test_phi_by_hand() -> None:
    """One wave reads the whole product once; of several waves each reads its own rows and columns."""
    a100 = load_device("a100")
    one = Product(1, 512, 512, 1024, "float16")
    assert intensity(one, a100) == pytest.approx(2 * 512 * 512 * 1024 / (2 * (512 * 512 + 2 * 512 * 1024)))
    choice = matmul_choice(Product(1, 4096, 4096, 4096, "float16"), a100)
    whole = 2 * 4096**3 / (2 * 3 * 4096**2)
    tile = (
        2 * choice.rows * choice.columns * 4096 / (2 * (choice.rows * choice.columns + sum((choice.rows, choice.columns)) * 4096))
    )
    assert tile < a100.balance() < intensity(Product(1, 4096, 4096, 4096, "float16"), a100) < whole


def test_phi_follows_the_device() -> None:
    """More SMs make larger waves; the dtype's bytes count."""
    a100 = load_device("a100")
    p = Product(1, 8192, 8192, 8192, "float16")
    assert intensity(p, a100) > intensity(p, replace(a100, name="few", sm_count=20))
    assert intensity(replace(p, dtype="float32"), a100) < intensity(p, a100)


def test_saving_counts_launches_and_the_way_of_what_is_between() -> None:
    device = load_device("h200")
    plain, softmax = chain(512, 512, 64, 64), workload("mcfuser/S1")
    assert 0 < saving(plain, [n.output for n in plain.nodes], device) < 1
    alone = saving(plain, [plain.nodes[0].output], device)
    assert alone == 0
    slow = replace(device, name="slow", launch_latency=1e-3)
    assert saving(plain, [n.output for n in plain.nodes], slow) == pytest.approx(0.5, abs=0.01)
    assert saving(softmax, [n.output for n in softmax.nodes], device) > 0.4


def test_the_choice_is_the_time() -> None:
    device = load_device("h200")
    for shape in ((1, 512, 512, 512), (8, 1024, 128, 1024), (1, 16, 4096, 4096)):
        product = Product(*shape, "float16")
        assert matmul_choice(product, device).seconds == matmul_seconds(product, device)
