"""Images with channels last between convolutions, and copies of views."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fuser
from fuser.device import load_device
from search.cover.channels import channels_last
from search.cover.channels import moved_once
from search.cover.prices import elementwise


def convolution(b: Any, x: Any, name: str, out: int, k: int = 3, **attrs: Any) -> Any:
    rank = len(x.shape) - 2
    return b.op(f"conv{rank}d", x, b.input(name, (out, x.shape[1], *(k,) * rank)), padding=(k // 2,) * rank, **attrs)


def values(program: Any, rng: np.random.Generator) -> dict[str, Any]:
    return {n: rng.standard_normal(program[n].shape).astype(np.float32) for n in program.inputs}


def agree(before: Any, rng: np.random.Generator, live: tuple[str, ...] = ()) -> Any:
    given = values(before, rng)
    after, params = channels_last(before, {n: x for n, x in given.items() if n not in ("x", *live)})
    got = after.evaluate({n: x for n, x in given.items() if n in after.inputs} | params)
    for name, want in before.evaluate(given).items():
        np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-4)
    return after


def test_what_stands_between_convolutions_stays_so(rng: np.random.Generator) -> None:
    b = fuser.Builder("net", "float32")
    x = b.input("x", (2, 3, 8, 8))
    y = b.relu(b.op("add", convolution(b, x, "w", 4), b.input("bias", (4,)).reshape(4, 1, 1)))
    z = b.op("max_pool2d", b.relu(convolution(b, y, "v", 4) + y), kernel_size=(2, 2))
    z = b.op("batch_norm", z, *(b.input(n, (4,)) for n in ("mean",)), b.exp(b.input("var", (4,))), eps=1e-5)
    program = b.build(z=b.op("concat", z, convolution(b, z, "u", 2, 1), axis=1), y=y)
    after = agree(program, rng)
    ops = [n.op for n in after.nodes]
    assert ops.count("conv2d_last") == 3
    assert "max_pool2d_last" in ops
    images = [n for n in after.nodes if n.op == "transpose" and after[n.output].shape[0] == 2]
    assert len(images) == 3, "the one at the beginning, and two results"


def test_other_operators_get_tensors_as_they_were(rng: np.random.Generator) -> None:
    b = fuser.Builder("net", "float32")
    y = convolution(b, b.input("x", (2, 3, 20)), "w", 4)
    program = b.build(s=b.op("softmax", y, axis=1), m=b.op("sum", y, axis=(2,), keepdims=False), c=b.op("cumsum", y, dim=2), y=y)
    agree(program, rng, live=("w",))


@pytest.mark.parametrize(("shape", "k", "stride"), [((2, 3, 8, 8), 1, 1), ((2, 1, 8, 8), 3, 1), ((2, 3, 8, 8), 4, 4)])
def test_convolutions_that_are_as_fast_stay(shape: tuple[int, ...], k: int, stride: int) -> None:
    b = fuser.Builder("net", "float32")
    x, w = b.input("x", shape), b.input("w", (4, shape[1], k, k))
    program = b.build(y=b.op("conv2d", x, w, stride=(stride, stride)))
    assert channels_last(program, {})[0] is program


@pytest.mark.parametrize(("dtype", "side", "stays"), [("float16", 7, False), ("float16", 8, True), ("float32", 7, True)])
def test_single_pixels_at_odd_addresses_have_their_channels_last(dtype: str, side: int, stays: bool) -> None:
    b = fuser.Builder("net", dtype)
    x, w = b.input("x", (2, 16, side, side)), b.input("w", (8, 16, 1, 1))
    program = b.build(y=b.op("relu", b.op("conv2d", x, w)))
    assert (channels_last(program, {})[0] is program) == stays


@pytest.mark.parametrize(("dtype", "channels", "stays"), [("float16", 24, True), ("float16", 16, False), ("float32", 24, False)])
def test_groups_of_half_precision_with_more_channels_behind_stay(dtype: str, channels: int, stays: bool) -> None:
    b = fuser.Builder("net", dtype)
    x, w = b.input("x", (2, 16, 8, 8)), b.input("w", (channels, 4, 3, 3))
    program = b.build(y=b.op("conv2d", x, w, groups=4))
    assert (channels_last(program, {})[0] is program) == stays


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("times", "stays"), [(1, False), (2, True)])
def test_channels_that_become_several_stay(dtype: str, times: int, stays: bool) -> None:
    b = fuser.Builder("net", dtype)
    x, w = b.input("x", (2, 16, 8, 8)), b.input("w", (16 * times, 1, 3, 3))
    program = b.build(y=b.op("conv2d", x, w, groups=16))
    assert (channels_last(program, {})[0] is program) == stays


@pytest.mark.parametrize("shape", [(2, 3, 4, 64), (2, 12, 64), (2, 3, 2, 2, 8, 8), (2, 12, 4, 16)])
def test_heads_of_such_an_image_are_a_view(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    """Turned back in memory, keys and values of 32 images of 14 × 14 pixels took an H100 28 µs."""
    b = fuser.Builder("net", "float32")
    heads = convolution(b, b.input("x", (2, 4, 8, 8)), "w", 12).reshape(*shape)
    after = agree(b.build(y=b.op("sum", heads, axis=(1,))), rng)
    (fold,) = (n for n in after.nodes if n.op == "sum")
    view = after.producers[fold.inputs[0]]
    assert view.op == "transpose" and after.producers[view.inputs[0]].op == "reshape"
    assert after.producers[after.producers[view.inputs[0]].inputs[0]].op == "conv2d_last"


@pytest.mark.parametrize("shape", [(24, 64), (2, 6, 2, 64), (4, 6, 64), (2, 768)])
def test_other_shapes_of_it_are_as_they_were(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    b = fuser.Builder("net", "float32")
    heads = convolution(b, b.input("x", (2, 4, 8, 8)), "w", 12).reshape(*shape)
    agree(b.build(y=b.op("sum", heads, axis=(1,))), rng)


@pytest.mark.parametrize(("groups", "stays"), [(2, True), (1, False)])
def test_transposed_volumes_in_groups_stay(groups: int, stays: bool) -> None:
    b = fuser.Builder("net", "float32")
    x, w = b.input("x", (2, 4, 4, 4, 4)), b.input("w", (4, 4, 3, 3, 3))
    program = b.build(y=b.op("conv_transpose3d", x, w, groups=groups))
    assert (channels_last(program, {})[0] is program) == stays


def test_turned_views_and_repetitions_are_copied_by_kernels(rng: np.random.Generator) -> None:
    b = fuser.Builder("views", "float32")
    x = b.input("x", (4, 6))
    program = b.build(t=x.T, r=b.op("repeat", b.op("repeat", x, axis=0, times=2), axis=1, times=3), s=x.reshape(24))
    after = moved_once(program)
    assert [n.op for n in after.nodes].count("scale") == 2
    given = values(program, rng)
    for name, want in program.evaluate(given).items():
        np.testing.assert_array_equal(after.evaluate(given)[name], want)


def test_a_copy_of_a_view_may_be_a_kernel_of_elements() -> None:
    b = fuser.Builder("view", "float32")
    program = b.build(y=b.op("scale", b.input("x", (4, 6)).T, scalar=1))
    found = elementwise(program, load_device("h200"))
    assert found is not None
    assert [k.outputs for k in found.winner.graph.kernels] == [("y",)]
    b = fuser.Builder("product", "float32")
    assert elementwise(b.build(y=b.input("x", (4, 6)) @ b.input("w", (6, 4))), load_device("h200")) is None


def test_steps_along_two_axes_that_no_block_takes_are_one_kernel_of_elements(rng: np.random.Generator) -> None:
    b = fuser.Builder("steps", "float32")
    x = b.op("slice", b.input("x", (30, 40, 20)).reshape(10, 3, 40, 20), axis=1, start=0, stop=1).reshape(10, 40, 20)
    y = b.op("slice", x.reshape(10, 40, 10, 2), axis=3, start=0, stop=1).reshape(10, 40, 10)
    program = b.build(y=b.op("exp", y))
    run = fuser.compile(program, device="cpu")
    assert len(run.graph.kernels) == 1
    given = rng.standard_normal((30, 40, 20)).astype(np.float32)
    np.testing.assert_allclose(run(given), np.exp(given[::3, :, ::2]), rtol=1e-5)


def test_an_image_of_one_element_may_be_a_scalar(rng: np.random.Generator) -> None:
    b = fuser.Builder("net", "float32")
    y = b.op("conv2d", b.input("x", (1, 3, 3, 3)), b.input("w", (1, 3, 3, 3)))
    agree(b.build(y=b.op("exp", b.op("reshape", y, shape=()))), rng)
