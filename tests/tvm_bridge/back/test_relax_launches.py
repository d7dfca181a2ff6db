"""A library on TVM's own virtual machine and CUDA runtime, over a GPU in the memory of the host: every launch is what our own
runtime would launch, and the results are right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fuser
from fuser.ir.ops import Array
from fuser.runtime.tensor_map import encoding
from search.compiled import CompiledProgram
from tests.paths import RELAY
from tests.tvm_bridge.fake_gpu import FakeGpu
from tests.tvm_bridge.fake_gpu import Map
from tvm_bridge.back.recipe import Recipe
from tvm_bridge.back.recipe import recipe_of
from tvm_bridge.flavour import import_tvm

pytestmark = pytest.mark.relax

Use = Callable[[Recipe], FakeGpu]
Write = Callable[..., Path]
Wanted = Callable[[Array], Array]


def machine(path: Path) -> Any:
    tvm = import_tvm()
    return tvm.relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cuda())


def on_device(x: Array) -> Any:
    tvm = import_tvm()
    return tvm.runtime.tensor(x, device=tvm.cuda())


def given(rng: np.random.Generator) -> Array:
    return (rng.standard_normal((64, 64)) / 8).astype(np.float16)


def test_launches_have_all_that_ours_have(chain: CompiledProgram, gpu: Use, written: Write, rng: np.random.Generator) -> None:
    recipe = recipe_of(chain)
    device = gpu(recipe)
    path = written(recipe, chain.params, graphs=False)
    machine(path)["main"](on_device(given(rng)))
    assert [s.entry for s in device.started] == [a.name for a in chain.artifacts]
    for started, artifact in zip(device.started, chain.artifacts, strict=True):
        assert started.grid == artifact.grid
        assert started.block == (32 * artifact.num_warps, 1, 1)
        assert started.shared == artifact.shared_bytes
        assert started.dependent == artifact.source.pdl
    assert [s.dependent for s in device.started] == [False, True, True]


def test_a_descriptor_is_encoded_as_ours_is(chain: CompiledProgram, gpu: Use, written: Write, rng: np.random.Generator) -> None:
    recipe = recipe_of(chain)
    device = gpu(recipe)
    machine(written(recipe, chain.params, graphs=False))["main"](on_device(given(rng)))
    (described,) = chain.artifacts[1].descriptors
    maps = [v for v in device.started[1].values if isinstance(v, Map)]
    assert len(maps) == 1
    found = maps[0]
    kind, rank, start, sizes, strides, box, _, _, swizzle, *_ = encoding(described, found.address)
    assert (found.type, found.rank, found.address, found.swizzle) == (kind.value, rank.value, start.value, swizzle.value)
    assert list(found.sizes)[: found.rank] == list(sizes)
    assert list(found.strides)[: found.rank - 1] == list(strides)[: found.rank - 1]
    assert list(found.box)[: found.rank] == list(box)
    extents = device.started[1].values[device.started[1].values.index(found) + 1 :][: 2 * found.rank]
    assert extents == (*described.shape, *described.strides)


@pytest.mark.parametrize("weights", ["inside", "beside"])
@pytest.mark.parametrize("code", ["cubin", "ptx"])
def test_results_are_right_in_every_call(
    weights: str, code: str, chain: CompiledProgram, wanted: Wanted, gpu: Use, written: Write, rng: np.random.Generator
) -> None:
    tvm = import_tvm()
    recipe = recipe_of(chain)
    device = gpu(recipe)
    path = written(recipe, chain.params, weights, code=code)
    run = machine(path)["main"]
    more: list[Any] = []
    if weights == "beside":
        values = tvm.runtime.load_param_dict_from_file(str(path.with_suffix(".params")))
        more = [tuple(values[n].copyto(tvm.cuda()) for n in recipe.weights)]
    for _ in range(3):  # the first warms up and captures, the others replay
        x = given(rng)
        assert np.abs(run(on_device(x), *more).numpy() - wanted(x)).max() < 2e-3
    assert device.replays == 2
    assert [s.entry for s in device.started if s.captured] == [chain.artifacts[1].name], "all but what meets the caller's tensors"


def test_without_dependent_launches(
    chain: CompiledProgram, wanted: Wanted, gpu: Use, written: Write, rng: np.random.Generator
) -> None:
    recipe = recipe_of(chain, dependent=False)
    device, x = gpu(recipe), given(rng)
    found = machine(written(recipe, chain.params, graphs=False))["main"](on_device(x)).numpy()
    assert np.abs(found - wanted(x)).max() < 2e-3
    assert not any(s.dependent for s in device.started)


def test_code_that_the_driver_refuses_is_an_error(
    chain: CompiledProgram, gpu: Use, written: Write, rng: np.random.Generator
) -> None:
    recipe = recipe_of(chain)
    device = gpu(recipe)
    device.fail_load = 209  # no binary for this GPU
    run = machine(written(recipe, chain.params, graphs=False))["main"]
    with pytest.raises(Exception, match="CUDA_ERROR_FAKE"):
        run(on_device(given(rng)))


def test_a_relay_model_from_a_file_runs_there(gpu: Use, written: Write, rng: np.random.Generator) -> None:
    """Saved by TVM 0.19, run by TVM 0.27."""
    found = fuser.optimize(RELAY / "encoder_torch.json", RELAY / "encoder_torch.params", runtime="torch", on="none", jobs=1)
    made = found.made
    recipe = recipe_of(made)
    gpu(recipe)
    run = machine(written(recipe, made.params))["main"]
    values = {n: rng.standard_normal(made.program[n].shape).astype(made.program[n].dtype) for n in made.inputs}
    (original,) = found.imported.original_outputs(values)
    assert np.abs(run(*(on_device(values[n]) for n in made.inputs)).numpy() - original).max() < 1e-5
