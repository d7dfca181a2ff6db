"""What the assembler made of a kernel, in seconds beyond its estimate."""

from __future__ import annotations

from cost_model.refined import estimate
from cost_model.walks import longer
from fuser.device import load_device
from fuser.ir.fuse import fuse
from fuser.lower.pace import Pace
from tests.builders import gemm
from tests.builders import schedule

H200 = load_device("h200")
NOTHING = Pace(0, 0)


def test_blocks_that_have_no_room_beside_each_other_take_longer() -> None:
    """Two blocks of 8 warps fit an SM with 128 registers a thread, one with more."""
    (block,) = fuse(gemm(4096, 3072, 768)).blocks
    mine = schedule("k", warps=8, stages=3, m=128, n=128, k=64)
    assert estimate(block, mine, H200)["occupancy"] == 2
    assert longer(block, mine, NOTHING, 128, H200) == 0
    assert longer(block, mine, NOTHING, 136, H200) > 0.1 * estimate(block, mine, H200)["seconds"]
