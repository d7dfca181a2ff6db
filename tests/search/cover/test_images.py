"""Convolutions with the normalization behind them in their weights, and biases in what stands behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fuser
from search.cover.images import lean

STATS = ("mean", "var", "gain", "shift")


def program(kind: str, *, norm: bool = False, end: str = "relu", groups: int = 1, biased: bool = True) -> Any:
    b = fuser.Builder("net", "float32")
    rank = int(kind[-2])
    shape = (4, 6 // groups) if "transpose" in kind else (6, 4 // groups)
    x, w = b.input("x", (2, 4, *(7,) * rank)), b.input("w", (*shape, *(3,) * rank))
    y = b.op(kind, x, w, *([b.input("b", (6,))] if biased else []), groups=groups, padding=(1,) * rank)
    if norm:
        y = b.op("batch_norm", y, *(b.input(n, (6,)) for n in STATS), eps=1e-3)
    return b.build(y=b.op(end, y, dim=1) if end == "cumsum" else b.op(end, y))


def values(made: Any, rng: np.random.Generator) -> dict[str, Any]:
    found = {n: rng.standard_normal(made[n].shape).astype(np.float32) for n in made.inputs}
    return {n: abs(x) + 0.5 if n == "var" else x for n, x in found.items()}


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("kind", "groups"), [("conv1d", 1), ("conv2d", 2), ("conv3d", 1), ("conv_transpose2d", 1)])
def test_a_normalization_by_parameters_is_in_the_weights(kind: str, groups: int, biased: bool, rng: np.random.Generator) -> None:
    before = program(kind, norm=True, groups=groups, biased=biased)
    given = values(before, rng)
    after, params = lean(before, {n: x for n, x in given.items() if n != "x"})
    assert [n.op for n in after.nodes if n.op != "reshape"] == [kind, "add", "relu"]
    assert len(after.producers[after.nodes[0].output].inputs) == 2
    kept = [n.output for n in before.nodes if n.output in after.table]  # a name that stays has the value that it had
    got, wanted = after.evaluate({"x": given["x"]} | params, keep=kept), before.evaluate(given, keep=kept)
    for n in kept:
        np.testing.assert_allclose(got[n], wanted[n], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize(("groups", "padding", "dilation"), [(1, 0, 1), (2, 1, 1), (1, 2, 2), (4, 1, 1)])
def test_transposed_ones_that_move_one_by_one_are_plain(
    rank: int, groups: int, padding: int, dilation: int, rng: np.random.Generator
) -> None:
    b = fuser.Builder("net", "float32")
    x, w = b.input("x", (2, 4, *range(6, 6 + rank))), b.input("w", (4, 8 // groups, *range(2, 2 + rank)))
    around = (min(padding, dilation),) * rank
    y = b.op(f"conv_transpose{rank}d", x, w, b.input("b", (8,)), groups=groups, padding=around, dilation=(dilation,) * rank)
    before = b.build(y=b.op("relu", y))
    given = values(before, rng)
    after, params = lean(before, {n: a for n, a in given.items() if n != "x"}, ours=True)
    assert f"conv{rank}d" in [n.op for n in after.nodes]
    (got,), (wanted,) = after.evaluate({"x": given["x"]} | params).values(), before.evaluate(given).values()
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    kept, _ = lean(before, {}, ours=True)  # weights that are no parameters stay
    assert f"conv_transpose{rank}d" in [n.op for n in kept.nodes]


@pytest.mark.parametrize("how", [{"stride": (2, 2)}, {"output_padding": (1, 1), "dilation": (2, 2)}, {"padding": (3, 3)}])
def test_transposed_ones_that_plain_ones_are_not_stay(how: dict[str, Any]) -> None:
    b = fuser.Builder("net", "float32")
    y = b.op("conv_transpose2d", b.input("x", (2, 4, 7, 7)), b.input("w", (4, 6, 3, 3)), **how)
    after, _ = lean(b.build(y=b.op("relu", y)), {"w": np.ones((4, 6, 3, 3), np.float32)}, ours=True)
    assert after.nodes[0].op == "conv_transpose2d"


def test_a_bias_leaves_where_element_wise_operators_are_all_that_reads(rng: np.random.Generator) -> None:
    before = program("conv2d")
    given = values(before, rng)
    after, _ = lean(before, {})
    assert [n.op for n in after.nodes] == ["conv2d", "reshape", "add", "relu"]
    (got,), (wanted,) = after.evaluate(given).values(), before.evaluate(given).values()
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    other = program("conv2d", end="cumsum")
    assert lean(other, {})[0] is other


def test_statistics_that_are_no_parameters_and_weights_beyond_the_dtype_stay(rng: np.random.Generator) -> None:
    before = program("conv2d", norm=True, biased=False)
    given = values(before, rng)
    params = {n: x for n, x in given.items() if n not in ("x", "var")}
    assert lean(before, params)[0] is before
    given["gain"] = np.full(6, 3e38, np.float32)
    given["var"] = np.full(6, 1e-8, np.float32)
    assert lean(before, {n: x for n, x in given.items() if n != "x"})[0] is before


def test_a_transposed_convolution_of_groups_stays(rng: np.random.Generator) -> None:
    before = program("conv_transpose2d", norm=True, groups=2, biased=False)
    before_values = values(before, rng)
    assert lean(before, {n: x for n, x in before_values.items() if n != "x"})[0] is before


@pytest.mark.parametrize(
    ("window", "stride", "channels", "product"), [((4, 5), (4, 5), 3, 1), ((4, 5), (4, 4), 3, 0), ((4, 4), (4, 4), 4, 0)]
)
def test_large_windows_side_by_side_are_rows_of_a_product(
    window: tuple[int, int], stride: tuple[int, int], channels: int, product: int, rng: np.random.Generator
) -> None:
    b = fuser.Builder("patches", "float32")
    x, w, bias = b.input("x", (2, channels, 9, 11)), b.input("w", (6, channels, *window)), b.input("b", (6,))
    before = b.build(y=b.op("relu", b.op("conv2d", x, w, bias, stride=stride)))
    given = values(before, rng)
    after, params = lean(before, {n: given[n] for n in "wb"}, ours=True)
    assert [sum(n.op == op for n in after.nodes) for op in ("matmul", "conv2d")] == [product, 1 - product]
    got, wanted = after.evaluate({"x": given["x"]} | params), before.evaluate(given)
    np.testing.assert_allclose(got["y"], wanted["y"], rtol=1e-4, atol=1e-5)
