"""What is read of the order of a warp's instructions."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from fuser.lower.pace import BRANCH
from fuser.lower.pace import LATENCY
from fuser.lower.pace import PRODUCT
from fuser.lower.pace import SIZE
from fuser.lower.pace import Pace
from fuser.lower.pace import pace

NONE, LOAD = 7, 0x83B


def instruction(opcode: int, cycles: int = 2, sets: int = NONE, frees: int = NONE, waits: int = 0, back: int = 0) -> bytes:
    """One of 16 bytes; ``back``: instructions from itself that a branch goes back."""
    far = -(back + 1) * SIZE // 4 if back else 0
    low = opcode | (far & 0xFF) << 16 | (far >> 8 & 0x3FFFFFFF) << 34
    high = (cycles | sets << 5 | frees << 8 | waits << 11) << 41 | (far >> 38 & 0x3FFFF)
    return struct.pack("<QQ", low, high)


def cubin(code: Sequence[bytes]) -> bytes:
    """An ELF file with a section of names and one of code."""
    names, text = b"\0.shstrtab\0.text.kernel\0", b"".join(code)
    at = 64 + len(names) + len(text)
    head = b"\x7fELF\x02" + bytes(35) + struct.pack("<Q", at) + bytes(10) + struct.pack("<HHH", 64, 2, 0)
    sections = [(1, 64, len(names)), (11, 64 + len(names), len(text))]
    table = b"".join(struct.pack("<IIQQQQ", n, 1, 0, 0, o, length) + bytes(24) for n, o, length in sections)
    return head + names + text + table


def test_loads_that_wait_for_the_product_before_them_are_paid_for() -> None:
    """Four steps: with one register for fragments each load waits for the product before, with four all are under way at once."""
    step = [instruction(LOAD, sets=0, waits=2), instruction(PRODUCT, sets=1, waits=1)]
    apart = [instruction(LOAD, sets=0) for _ in range(4)] + [instruction(PRODUCT, waits=1) for _ in range(4)]
    slow, fast = (pace(cubin([*body, instruction(BRANCH, back=8)])) for body in (step * 4, apart))
    assert slow.products == fast.products == 4
    assert slow.cycles >= 4 * (LATENCY[LOAD] + LATENCY[PRODUCT])
    assert fast.cycles < 2 * LATENCY[LOAD]


def test_the_loop_that_has_the_products_counts() -> None:
    """Neither what stands around it, nor a loop around it, nor one that has none; without a loop all counts."""
    loop = [instruction(PRODUCT, 8), instruction(PRODUCT, 8), instruction(BRANCH, 4, back=2)]
    idle = [instruction(LOAD, 8), instruction(BRANCH, 4, back=1)]
    assert pace(cubin([*idle, *loop, instruction(LOAD, 100 & 15), instruction(BRANCH, 4, back=6)])) == Pace(2, 20)
    assert pace(cubin(loop[:2])) == Pace(2, 16)


@pytest.mark.parametrize("what", [b"", b"\x7fELF\x02", bytes(100)])
def test_what_is_no_code_has_no_products(what: bytes) -> None:
    assert pace(what) == Pace(0, 0)
