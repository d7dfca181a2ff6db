"""Large products are no candidates on any device, the chains of the paper are on every one."""

from __future__ import annotations

import pytest

from fuser.device import Device
from fuser.device import list_devices
from fuser.device import load_device
from fuser.ir.builder import Builder
from fuser.ir.program import TensorProgram
from fuser.workloads import match
from fuser.workloads import workload
from search.regions import find_chains
from tests.builders import attention
from tests.builders import chain

DEVICES = list_devices()
each_device = pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)


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


@each_device
@pytest.mark.parametrize("size", [6144, 8192, 16384])
def test_attention_of_large_products_is_none(device: Device, size: int) -> None:
    """Of 4096 it is at the border: the scores that it need not move are an eighth of its time on an H100."""
    assert not found(attention(size, size, size, size, 1), device)


@each_device
def test_large_feed_forward_of_a_language_model_is_none(device: Device) -> None:
    assert not found(chain(4096, 14336, 4096, 4096, "silu", dtype="bfloat16"), device)


@each_device
def test_skinny_and_memory_bound_ones_are_candidates(device: Device) -> None:
    assert found(chain(1, 11008, 4096, 4096, "silu"), device)
    assert found(chain(16, 4096, 4096, 4096), device)
    assert found(chain(8192, 8192, 32, 32), device)
    for width in (64, 80, 128):
        assert found(attention(4096, 4096, width, width, 16), device)
        assert found(attention(1, 8192, width, width, 32), device)


@each_device
def test_a_large_product_alone_says_so(device: Device) -> None:
    b = Builder("alone")
    program = b.build(Y=b.input("X", (4096, 4096)) @ b.input("W", (4096, 4096)))
    _, reasons = find_chains(program, device)
    assert reasons["Y"].startswith("compute-bound: φ = ") and reasons["Y"].endswith("no contraction follows on it")


def test_one_compute_bound_contraction_is_enough_where_little_can_be_saved() -> None:
    assert not found(chain(8192, 8192, 16, 8192), load_device("h200"))
