"""Several sizes in one library for TVM 0.27: it takes the next larger bucket, whatever size a call has."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fuser
from fuser.frontends.imported import Imported
from fuser.frontends.sized import Sized
from fuser.ir.builder import Builder
from fuser.ir.ops import Array
from fuser.superopt.structures import structures
from search.buckets.bucketed import Bucket
from search.buckets.sizes import all_padded
from tests.tvm_bridge.fake_gpu import FakeGpu
from tvm_bridge import package
from tvm_bridge.back.bucket_recipe import BucketRecipe
from tvm_bridge.back.bucket_recipe import recipe_of_buckets

pytestmark = pytest.mark.relax

Use = Callable[[BucketRecipe], FakeGpu]
Write = Callable[..., Path]

RNG = np.random.default_rng(0)
WEIGHT = (RNG.standard_normal((32, 16)) / 8).astype(np.float16)


def at(sizes: dict[str, int]) -> Imported:
    """Attention of rows to rows, its mean over rows, and a product of two batches' rows joined."""
    b, n = Builder("rows"), sizes["n"]
    x, w = b.input("x", (2, n, 32)), b.input("w", (32, 16))
    y = b.softmax(x @ x.T) @ x
    mean = b.op("mean", y, axis=(1,), keepdims=False)
    joined = x.reshape(2 * n, 32) @ w
    return Imported(b.build(y=y, mean=mean, joined=joined), {"w": WEIGHT}, ("x",))


def wanted(x: Array) -> tuple[Array, Array, Array]:
    x = x.astype(np.float64)
    e = np.exp(x @ x.swapaxes(1, 2))
    y = e / e.sum(-1, keepdims=True) @ x
    return y, y.mean(1), x.reshape(-1, 32) @ WEIGHT


@pytest.fixture(scope="module")
def made() -> tuple[BucketRecipe, dict[str, Array]]:
    sized = Sized("rows", {"n": (("x", 1),)}, {"n": (1, None)}, at)  # type: ignore[arg-type]
    buckets = []
    for p in all_padded(sized, {"n": (16, 32)}):
        known = p.imported
        graph = max(structures(known.program), key=lambda g: len(g.kernels))
        compiled = fuser.compile(known.program, graph=graph, target="h200", checked=False)
        buckets.append(Bucket(p, replace(compiled, params=known.params, inputs=known.inputs)))
    return recipe_of_buckets(buckets)


def test_weights_are_held_once_and_tables_too(made: tuple[BucketRecipe, dict[str, Array]]) -> None:
    recipe, values = made
    assert [n for n, x in values.items() if x.shape == (32, 16)] == ["w"]
    assert set(recipe.weights) <= set(values)
    kinds = [s.entry.partition("_")[0] for s in recipe.buckets[0][1].launches]
    assert (kinds[0], kinds.count("cut"), kinds[-1]) == ("pad", 2, "cut")
    assert "window" in kinds


def test_a_library_takes_any_size(made: tuple[BucketRecipe, dict[str, Array]], gpu: Use, written: Write) -> None:
    spec = importlib.util.spec_from_file_location("mufuser_model", package.DEPLOY / "mufuser_model.py")
    assert spec is not None
    assert spec.loader is not None
    loader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loader)
    recipe, values = made
    device = gpu(recipe)
    path = written(recipe, values, "beside")
    model = loader.Model(path)
    about = json.loads(path.with_name("model.json").read_text())
    assert about["sizes"] == {"n": {"least": 1, "buckets": [16, 32]}}
    assert [s["shape"] for s in about["outputs"]] == [[2, "n", 32], [2, 32], ["2*n", 16]]
    for n in (1, 15, 16, 17, 32, 9):
        device.started.clear()
        x = (RNG.standard_normal((2, n, 32)) / 4).astype(np.float16)
        found = model(model.tensor(model.at(about["inputs"], {"n": n})[0], x.tobytes()))
        for y, z, s in zip(found, wanted(x), model.at(about["outputs"], {"n": n}), strict=True):
            assert list(y.shape) == s["shape"]
            got: Any = np.frombuffer(model.data(y), np.float16).reshape(s["shape"])
            assert np.abs(got - z).max() < 4e-3
        first = recipe.buckets[n > 16][1].launches[0].entry
        assert device.started[0].entry == first
    with pytest.raises(loader.ModelError, match="n must be 1 to 32, got 33"):
        model(model.empty((2, 33, 32), "float16"))
    with pytest.raises(RuntimeError, match="n is at most 32"):
        model.main(model.empty((2, 33, 32), "float16"), model.weights)
