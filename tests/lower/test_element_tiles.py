"""How a kernel of elements divides them over blocks, and what it is said to read."""

from __future__ import annotations

from fuser.ir.builder import Builder
from fuser.ir.element_program import by_elements
from fuser.ir.elements import Recipe
from fuser.lower.element_tiles import Tiling
from fuser.lower.element_tiles import Traffic
from fuser.lower.element_tiles import tiled


def joined(batch: int, first: int, second: int, pixels: int) -> tuple[Tiling, Traffic]:
    """Channels of two images one behind the other; of the second, they lie last."""
    b = Builder("joined")
    x, y = b.input("X", (batch, first, pixels), dtype="float32"), b.input("Y", (batch, pixels, second), dtype="float32")
    program = b.build(Z=b.op("concat", x, b.op("transpose", y, perm=(0, 2, 1)), axis=1))
    kernel = by_elements(program)[0]
    return tiled(Recipe.read(dict(kernel.attrs)["program"]))


def test_what_few_blocks_read_counts_and_is_read_along_its_rows() -> None:
    """A fifth of the blocks turns the second image's pixels: tiles of both dimensions, and nothing is read twice."""
    for second in (32, 64):
        tiling, traffic = joined(16, 128, second, 784)
        assert tiling.across >= 0
        assert 0.5 < traffic.tensors["Y"] / (16 * 784 * second * 4) < 1.5
        assert 0.7 < traffic.tensors["X"] / (16 * 784 * 128 * 4) < 1.3


def test_a_bias_does_not_ask_for_tiles() -> None:
    """It stays near each multiprocessor: two neighbours' maximum is read row by row."""
    b = Builder("pooled")
    x, bias = b.input("X", (1024, 2048), dtype="float32"), b.input("B", (2048,), dtype="float32")
    pairs = (x + bias).reshape(1024, 1024, 2)
    program = b.build(Y=b.op("maximum", *(b.op("slice", pairs, axis=2, start=i, stop=i + 1) for i in (0, 1))))
    tiling, traffic = tiled(Recipe.read(dict(by_elements(program)[0].attrs)["program"]))
    assert tiling.across < 0
    assert traffic.far < traffic.asked
