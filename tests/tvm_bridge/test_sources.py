"""Every source of a model beside every runtime: it runs there, or the error says what does."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fuser
from fuser.errors import EnvironmentError_
from fuser.errors import UsageError
from tests.tvm_bridge.relay_writer import RelayWriter
from tests.tvm_bridge.relay_writer import write_params

SHAPE = (16, 32)
WEIGHT = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)
Model = tuple[Any, Any]
"""What ``optimize`` is given: a model and its parameters."""


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(WEIGHT))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.nn.functional.linear(x, self.w))


def relay_file(folder: Path) -> Model:
    w = RelayWriter()
    body = w.call("nn.relu", w.call("nn.dense", w.input("x", SHAPE), w.input("w", WEIGHT.shape), units=0))
    (folder / "m.json").write_text(w.module(body))
    write_params(folder / "m.params", {"w": WEIGHT})
    return folder / "m.json", folder / "m.params"


def relay_module(folder: Path) -> Model:
    tvm: Any = import_module("tvm")
    x, w = (tvm.relay.var(n, shape=s) for n, s in (("x", SHAPE), ("w", WEIGHT.shape)))
    return tvm.IRModule.from_expr(tvm.relay.Function([x, w], tvm.relay.nn.relu(tvm.relay.nn.dense(x, w)))), {"w": WEIGHT}


def saved_file(folder: Path) -> Model:
    tvm: Any = import_module("tvm")
    (folder / "m.json").write_text(tvm.ir.save_json(relay_module(folder)[0]))
    write_params(folder / "m.params", {"w": WEIGHT})
    return folder / "m.json", folder / "m.params"


def torch_file(folder: Path) -> Model:
    torch.export.save(torch.export.export(Net().eval(), (torch.zeros(SHAPE),)), folder / "m.pt2")
    return folder / "m.pt2", None


def relax_module(folder: Path) -> Model:
    read: Any = import_module("tvm.relax.frontend.torch").from_exported_program
    with torch.no_grad():
        return read(torch.export.export(Net().eval(), (torch.zeros(SHAPE),)), run_ep_decomposition=False), None


def onnx_file(folder: Path) -> Model:
    onnx: Any = pytest.importorskip("onnx")
    make, kind = onnx.helper, onnx.TensorProto.FLOAT
    x, y = (make.make_tensor_value_info(n, kind, SHAPE) for n in "xy")
    nodes = [make.make_node("MatMul", ["x", "w"], ["h"]), make.make_node("Relu", ["h"], ["y"])]
    weight = onnx.numpy_helper.from_array(np.ascontiguousarray(WEIGHT.T), "w")
    model = make.make_model(make.make_graph(nodes, "g", [x], [y], [weight]), opset_imports=[make.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx", None


RELAY, RELAX = pytest.mark.relay, pytest.mark.relax
NO_RELAY = (UsageError, "is no Relay model")
NO_RELAX = (EnvironmentError_, "needs TVM 0.27")
TABLE = [
    pytest.param(relay_file, "torch", None),
    pytest.param(saved_file, "relay", None, marks=[RELAY, pytest.mark.slow]),
    pytest.param(relay_file, "relax", None, marks=RELAX),
    pytest.param(relay_file, "relax", NO_RELAX, marks=RELAY),
    pytest.param(relay_module, "torch", None, marks=[RELAY, pytest.mark.slow]),
    pytest.param(relay_module, "relay", None, marks=[RELAY, pytest.mark.slow]),
    pytest.param(relay_module, "relax", NO_RELAX, marks=RELAY),
    pytest.param(relax_module, "torch", None, marks=RELAX),
    pytest.param(relax_module, "relay", NO_RELAY, marks=RELAX),
    pytest.param(relax_module, "relax", None, marks=RELAX),
    pytest.param(onnx_file, "torch", None),
    pytest.param(onnx_file, "relay", NO_RELAY),
    pytest.param(onnx_file, "relax", None, marks=RELAX),
    pytest.param(torch_file, "torch", None),
    pytest.param(torch_file, "relay", NO_RELAY),
    pytest.param(torch_file, "relax", None, marks=RELAX),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("source", "runtime", "refused"), TABLE)
def test_a_model_of_any_source_for_any_runtime(source: Any, runtime: str, refused: Any, tmp_path: Path) -> None:
    model, params = source(tmp_path)
    options = {"runtime": runtime, "on": "cpu" if runtime == "torch" else "none", "check": False, "jobs": 1}
    if refused:
        with pytest.raises(refused[0], match=refused[1]) as caught:
            fuser.optimize(model, params, **options)
        assert caught.value.hint
        return
    found = fuser.optimize(model, params, **options)
    assert found.made is not None and found.made.artifacts
    if runtime == "torch":
        assert found.trial is not None and found.trial.ok and found.built is None and found.library is None
    elif runtime == "relay":
        assert found.built is not None and found.comparison is not None and found.comparison.relative < 1e-5
    else:
        assert found.library is not None
