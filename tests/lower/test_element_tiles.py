"""How a kernel of elements divides them over blocks, and what it is said to read."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.ir.builder import Builder
from fuser.ir.element_program import by_elements
from fuser.ir.elements import Recipe
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.lower import element_tiles
from fuser.lower.element_tiles import Tiling
from fuser.lower.element_tiles import Traffic
from fuser.lower.element_tiles import tiled
from fuser.runtime.graph_executor import Executable


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


def causal(rows: int, columns: int, taps: int = 4) -> TensorProgram:
    """A short convolution along rows by weights that lie a few elements apart, the same for all rows."""
    b = Builder("causal", "float32")
    x, w = b.input("X", (rows, columns)), b.input("W", (columns, taps))
    weights = [b.op("slice", w, axis=1, start=i, stop=i + 1).reshape(columns) for i in range(taps)]
    y = x * weights[0]
    for i in range(1, taps):
        more = b.op("slice", x, axis=0, start=0, stop=rows - i) * weights[i]
        front, rest = (b.op("slice", y, axis=0, start=s, stop=e) for s, e in ((0, i), (i, rows)))
        y = b.op("concat", front, rest + more, axis=0)
    return b.build(Y=y)


def test_weights_of_all_rows_are_loaded_once_for_a_tile() -> None:
    """Row by row they ask for several times what the tensor itself does: each is a sector of its own."""
    (kernel,) = by_elements(causal(4096, 512))
    tiling, traffic = tiled(Recipe.read(dict(kernel.attrs)["program"]))
    assert tiling.across == 0
    rows = element_tiles.traffic(element_tiles.neighbours(tiling.tape))
    assert traffic.asked < rows.asked / 3


@pytest.mark.parametrize("shape", [(64, 64), (70, 33), (9, 130)])
def test_a_tile_computes_what_rows_do(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(element_tiles, "SHARED", 1e9)  # tiles wherever there are some
    element_tiles._tiled.cache_clear()
    program = causal(*shape)
    kernels = by_elements(program)
    assert tiled(Recipe.read(dict(kernels[0].attrs)["program"]))[0].across == 0
    ends = (*program.inputs, *program.outputs)
    graph = KernelGraph(program.name, program.inputs, kernels, program.outputs, tuple(program[n] for n in ends)).validate()
    values = program.random_inputs(np.random.default_rng(0))
    run = Executable(graph, Schedule(()), device="cpu")
    found = run.run({n: torch.from_numpy(np.asarray(x, np.float32)) for n, x in values.items()})["Y"]
    np.testing.assert_allclose(found.numpy(), program.evaluate(values)["Y"], rtol=1e-5, atol=1e-5)
    element_tiles._tiled.cache_clear()


@pytest.mark.parametrize("named", [False, True])
def test_a_place_that_all_of_a_part_have_in_common_is_loaded_without_a_mask(named: bool) -> None:
    """A number that an index names, spread over a part: a pointer without dimensions has no mask with some, which a condition on
    a place that was read (``named``) may have."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    b = Builder("named", "float32")
    x, t, i = b.input("X", (37,)), b.input("T", (9,)), b.input("I", (1,), "int64")
    y = b.op("concat", x, b.op("broadcast", b.op("index_select", t, i, dim=0), shape=(5,)), axis=0)
    program = b.build(Y=b.op("square", b.op("index", y, b.input("J", (1,), "int64"), dims=(0,)) if named else y))
    ends, kernels = (*program.inputs, *program.outputs), by_elements(program)
    graph = KernelGraph(program.name, program.inputs, kernels, program.outputs, tuple(program[n] for n in ends)).validate()
    for j in (-1, 12):
        given = {"X": torch.randn(37), "T": torch.randn(9), "I": torch.tensor([4]), "J": torch.tensor([j])}
        want = torch.cat([given["X"], given["T"][4].expand(5)]).square()
        given = {n: x for n, x in given.items() if n in program.inputs}
        found = Executable(graph, Schedule(()), device="cpu").run(given)["Y"]
        torch.testing.assert_close(found, want[j : j + 1 or None] if named else want)
