"""Modules of Relax, as TVM 0.27 imports them, as programs."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fuser.errors import ModelFileError
from fuser.errors import UnsupportedError
from fuser.errors import UsageError
from fuser.ir.ops import Array
from search.buckets.sizes import all_padded
from search.buckets.sizes import resolved
from tests.tvm_bridge.fake_gpu import FakeGpu
from tvm_bridge.api import partition_and_optimize
from tvm_bridge.read.relax_module import is_relax
from tvm_bridge.to_program.relax_import import relax_model
from tvm_bridge.to_program.relax_import import sized_relax
from tvm_bridge.to_program.relay_import import to_program

pytestmark = pytest.mark.relax


class Layer(nn.Module):
    """What an encoder has, and some slices."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(32, 32) for _ in range(4))
        self.norm = nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        b, n, w = x.shape
        q, k, v = (f(x).view(b, n, 2, 16).transpose(1, 2) for f in (self.q, self.k, self.v))
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = self.norm(x + self.o(a.transpose(1, 2).reshape(b, n, w)))
        low, high = y.chunk(2, -1)
        z = nn.functional.gelu(low) * nn.functional.silu(high)  # (what is left to TVM the GPU of these tests cannot run)
        return z, y[:, 3:7].pow(2).mean(-1) * 2.0


@pytest.fixture(scope="module")
def layer() -> tuple[Layer, torch.Tensor]:
    torch.manual_seed(0)
    return Layer().eval(), torch.randn(1, 16, 32)


def imported(net: nn.Module, x: torch.Tensor, **options: Any) -> Any:
    read: Any = import_module("tvm.relax.frontend.torch").from_exported_program
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        return read(torch.export.export(net, (x,)), run_ep_decomposition=False, **options)


def results(net: nn.Module, x: torch.Tensor) -> list[Array]:
    with torch.no_grad():
        return [y.numpy() for y in net(x)]


def test_graph_and_program_compute_what_torch_does(layer: tuple[Layer, torch.Tensor]) -> None:
    net, x = layer
    module = imported(net, x)
    assert is_relax(module)
    model = relax_model(module, None)
    assert [v.name for v in model.inputs] == ["x"]
    program = to_program(model)
    assert "opaque" not in {n.op for n in program.program.nodes}
    assert {"gelu", "layer_norm", "softmax"} <= {n.op for n in program.program.nodes}
    found = program.evaluate({"x": x.numpy()})
    for y, z, name in zip(results(net, x), model.evaluate({"x": x.numpy()}), program.program.outputs, strict=True):
        np.testing.assert_allclose(z, y, atol=1e-5)
        np.testing.assert_allclose(found[name], y, atol=1e-5)


def test_symbolic_sizes_have_buckets(layer: tuple[Layer, torch.Tensor]) -> None:
    net, _ = layer
    read: Any = import_module("tvm.relax.frontend.torch").from_exported_program
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        size = torch.export.Dim("tokens", min=7, max=64)
        exported = torch.export.export(net, (torch.randn(1, 9, 32),), dynamic_shapes={"x": {1: size}})
        sized = sized_relax(read(exported, run_ep_decomposition=False), None)
    (name,) = sized.places
    assert sized.places[name] == (("x", 1),)
    (padded,) = all_padded(sized, resolved({"x:1": (16,)}, sized))
    assert padded.least == {name: 7}
    for n in (7, 15, 16):
        x = torch.randn(1, n, 32)
        given = {"x": np.pad(x.numpy(), ((0, 0), (0, 16 - n), (0, 0)), "edge")} | dict(padded.known.params)
        given |= {e.name: e.value(16, n).reshape(padded.known.program[e.name].shape) for e in padded.extras}
        for y, z in zip(results(net, x), padded.known.program.evaluate(given).values(), strict=True):
            np.testing.assert_allclose(z[:, : y.shape[1]], y, atol=1e-5)


def test_weights_as_arguments(layer: tuple[Layer, torch.Tensor]) -> None:
    from tvm import relax

    net, x = layer
    module, params = relax.frontend.detach_params(imported(net, x, keep_params_as_input=True))  # type: ignore[attr-defined]
    model = relax_model(module, params)
    assert [v.name for v in model.inputs] == ["x"]
    for y, z in zip(results(net, x), model.evaluate({"x": x.numpy()}), strict=True):
        np.testing.assert_allclose(z, y, atol=1e-5)
    with pytest.raises(ModelFileError, match="'other' is not in the model"):
        relax_model(module, {"other": np.zeros(3)})


def test_rms_norms_are_written_out(rng: np.random.Generator) -> None:
    from tvm import relax

    kind = relax.TensorType  # type: ignore[attr-defined]
    builder, x, gain = relax.BlockBuilder(), relax.Var("x", kind((3, 8), "float32")), relax.Var("g", kind((8,), "float32"))
    with builder.function("main", [x, gain]):
        builder.emit_func_output(builder.emit(relax.op.nn.rms_norm(x, gain, axes=[-1], epsilon=1e-5)))  # type: ignore[attr-defined]
    values = {"x": rng.standard_normal((3, 8), np.float32), "g": rng.standard_normal(8, np.float32)}
    (found,) = relax_model(builder.get(), None).evaluate(values)
    wanted = nn.functional.rms_norm(torch.from_numpy(values["x"]), (8,), torch.from_numpy(values["g"]), 1e-5)
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-6)


def test_what_has_no_static_shape_is_named() -> None:
    from tvm import relax

    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((2, 2), "float32"))  # type: ignore[attr-defined]
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.shape_of(x)))  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedError, match="no static shape"):
        relax_model(builder.get(), None)


def test_modules_without_a_main_are_errors() -> None:
    """None goes to what reads Relay: TVM ends the process where it saves such a module."""
    import tvm
    from tvm import relax

    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((2, 2), "float32"))  # type: ignore[attr-defined]
    with builder.function("forward", [x]):
        builder.emit_func_output(builder.emit(relax.op.nn.relu(x)))  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedError, match=r"no function main \(its functions: forward"):
        partition_and_optimize(builder.get())
    with pytest.raises(UsageError, match="neither a function of Relax nor one of Relay"):
        partition_and_optimize(tvm.IRModule({}))


def test_a_reduction_over_no_axes_is_none() -> None:
    from tvm import relax

    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((2, 2), "float32"))  # type: ignore[attr-defined]
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.max(x, axis=[])))  # type: ignore[attr-defined]
    values = {"x": np.arange(4, dtype=np.float32).reshape(2, 2)}
    (found,) = relax_model(builder.get(), None).evaluate(values)
    np.testing.assert_array_equal(found, values["x"])


def test_a_module_becomes_a_library(layer: tuple[Layer, torch.Tensor], gpu: Any, written: Any) -> None:
    from tvm_bridge.back.recipe import recipe_of
    from tvm_bridge.flavour import import_tvm

    net, x = layer
    result = partition_and_optimize(imported(net, x))
    assert result.made is not None
    assert result.library is not None
    assert [s["name"] for s in result.library.about["inputs"]] == ["x"]
    recipe, tvm = recipe_of(result.made), import_tvm()
    device: FakeGpu = gpu(recipe)
    machine = tvm.relax.VirtualMachine(
        tvm.runtime.load_module(str(written(recipe, result.made.params))),
        tvm.cuda(),
    )
    found = machine["main"](tvm.runtime.tensor(x.numpy(), device=tvm.cuda()))
    assert device.started
    for y, z in zip(results(net, x), found, strict=True):
        np.testing.assert_allclose(z.numpy(), y, atol=1e-3)
