"""What is a memory-bound compute-intensive chain: the paper's tables are on every device, large products are on none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost_model.mbci import Product
from cost_model.mbci import intensity
from cost_model.mbci import products
from cost_model.mbci import saving
from cost_model.refined import matmul_choice
from cost_model.refined import matmul_seconds
from fuser.device import Device
from fuser.device import list_devices
from fuser.device import load_device
from fuser.ir.builder import Builder
from fuser.ir.program import TensorProgram
from fuser.workloads import match
from fuser.workloads import workload
from search.regions import find_chains

DEVICES = list_devices()
each_device = pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)


def chain(m: int, n: int, k: int, h: int, act: str = "", dtype: str = "float16", batch: tuple[int, ...] = ()) -> TensorProgram:
    b = Builder("chain", dtype)
    x, w, v = b.input("X", (*batch, m, k)), b.input("W", (*batch, k, n)), b.input("V", (*batch, n, h))
    y = x @ w
    return b.build(Y=(b.op(act, y) if act else y) @ v)


def one_attention(heads: int, rows: int, keys: int, width: int) -> TensorProgram:
    b = Builder("attention")
    q, k, v = b.input("Q", (heads, rows, width)), b.input("K", (heads, keys, width)), b.input("V", (heads, keys, width))
    return b.build(O=b.op("attention", q, k, v, scale=width**-0.5))


def found(program: TensorProgram, device: Device) -> bool:
    regions, reasons = find_chains(program, device)
    if not regions:
        assert any(why.startswith("compute-bound: φ = ") for why in reasons.values()), reasons
    return bool(regions)


@each_device
def test_the_chains_of_the_paper_are_candidates(device: Device) -> None:
    assert [n for n in match(["mcfuser/*"]) if not found(workload(n), device)] == []


@each_device
@pytest.mark.parametrize("size", [4096, 6144, 8192, 16384])
def test_large_products_are_none(device: Device, size: int) -> None:
    assert not found(chain(size, size, size, size), device)
    assert not found(chain(size, size, size, size, "relu"), device)
    assert not found(chain(size, size, size, size, batch=(4,)), device)
    assert not found(one_attention(1, size, size, size), device)


@each_device
def test_large_feed_forward_of_a_language_model_is_none(device: Device) -> None:
    assert not found(chain(4096, 14336, 4096, 4096, "silu", "bfloat16"), device)


@each_device
def test_skinny_and_memory_bound_ones_are_candidates(device: Device) -> None:
    assert found(chain(1, 11008, 4096, 4096, "silu"), device)
    assert found(chain(16, 4096, 4096, 4096), device)
    assert found(chain(8192, 8192, 32, 32), device)
    for width in (64, 80, 128):
        assert found(one_attention(16, 4096, 4096, width), device)
        assert found(one_attention(32, 1, 8192, width), device)


@each_device
def test_a_large_product_alone_says_so(device: Device) -> None:
    b = Builder("alone")
    program = b.build(Y=b.input("X", (4096, 4096)) @ b.input("W", (4096, 4096)))
    _, reasons = find_chains(program, device)
    assert reasons["Y"].startswith("compute-bound: φ = ") and reasons["Y"].endswith("no contraction follows on it")


def test_one_compute_bound_contraction_is_enough_where_little_can_be_saved() -> None:
    device = load_device("h200")
    thin_then_large = chain(8192, 8192, 16, 8192)
    first, second = (products(thin_then_large, n)[0] for n in thin_then_large.nodes)
    assert intensity(first, device) < device.balance() < intensity(second, device)
    assert saving(thin_then_large, [n.output for n in thin_then_large.nodes], device) < 0.125
    assert not found(thin_then_large, device)


def test_phi_by_hand() -> None:
    """One wave reads the whole product once; of several waves each reads its own rows and columns."""
    a100 = load_device("a100")
    one = Product(1, 512, 512, 1024, "float16")
    assert intensity(one, a100) == pytest.approx(2 * 512 * 512 * 1024 / (2 * (512 * 512 + 2 * 512 * 1024)))
    choice = matmul_choice(1, 4096, 4096, 4096, "float16", a100)
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
        assert matmul_choice(*shape, "float16", device).seconds == matmul_seconds(*shape, "float16", device)
