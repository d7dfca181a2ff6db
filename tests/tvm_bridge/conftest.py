"""What all tests with TVM share: for TVM 0.27 a program of three kernels, one of them with all that a launch can have, and a GPU
in the memory of the host."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import fuser
from fuser.ir.ops import Array
from fuser.superopt.structures import structures
from search.compiled import CompiledProgram
from tests.builders import three_gemms
from tests.builders import tiles_of_16
from tests.tvm_bridge.fake_gpu import FakeGpu
from tvm_bridge.back.recipe import Recipe
from tvm_bridge.relaxed import ABOUT

WEIGHTS = ("W0", "W1", "W2")


@pytest.fixture(scope="session", autouse=True)
def build_options_are_read_once() -> Iterator[None]:
    """TVM reads all of its build options, which never change, for each shape that it lowers: a third of the time of a build."""
    if find_spec("tvm") is None or find_spec("tvm.relay") is None:
        yield
        return
    from tvm.relay.backend import te_compiler

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(te_compiler, "libinfo", functools.cache(te_compiler.libinfo))
        yield


@pytest.fixture(scope="session")
def chain() -> CompiledProgram:
    """X W0 W1 W2 by three kernels: the second moves its weights by tensor descriptor, all but the first may start early."""
    program = three_gemms(64, (64, 64, 64, 64))
    graph = next(g for g in structures(program) if len(g.kernels) == 3 and not any(b.splits for b in g.blocks))
    schedule = tiles_of_16(graph, pdl="early")
    first, second, last = schedule.kernels
    schedule = replace(schedule, kernels=(first, replace(second, knobs=(("pdl", "early"), ("tma_W1", True))), last))
    made = fuser.compile(program, graph=graph, schedule=schedule, target="h200", checked=False)
    rng = np.random.default_rng(0)
    values = {n: (rng.standard_normal(program[n].shape) / 8).astype(np.float16) for n in WEIGHTS}
    return replace(made, params=values, inputs=("X",))


@pytest.fixture(scope="session")
def wanted(chain: CompiledProgram) -> Callable[[Array], Array]:
    """The program in float64."""

    def compute(x: Array) -> Array:
        for n in WEIGHTS:
            x = x.astype(np.float64) @ chain.params[n].astype(np.float64)
        return x

    return compute


@pytest.fixture(scope="session")
def _installed(tmp_path_factory: pytest.TempPathFactory) -> FakeGpu:
    from torch import cuda

    if cuda.is_available():
        pytest.skip("there is a GPU here, whose driver would be found first")
    gpu = FakeGpu({})
    gpu.install(tmp_path_factory.mktemp("gpu"))
    return gpu


@pytest.fixture
def gpu(_installed: FakeGpu) -> Callable[[Recipe], FakeGpu]:
    """The GPU, on which the kernels of a recipe can be run."""

    def use(recipe: Recipe) -> FakeGpu:
        _installed.clear({s.entry: s for s in recipe.launches})
        return _installed

    return use


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """Writes a library in this process, into a folder of its own."""
    count = itertools.count()

    def write(recipe: Recipe, values: Mapping[str, Array], weights: str = "inside", **options: object) -> Path:
        from tvm_bridge.back.relax import write_library

        folder = tmp_path / f"made{next(count)}"
        folder.mkdir()
        about = write_library(recipe, values, folder / "model.so", weights, **options)  # type: ignore[arg-type]
        (folder / ABOUT).write_text(json.dumps(about))
        return folder / "model.so"

    return write
