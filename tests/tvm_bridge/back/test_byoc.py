"""Regions carved out of a Relay model: every executor, in this process and another, gives what the model gave before."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.relay
relay = pytest.importorskip("tvm.relay")
pytest.importorskip("torch")

from fuser.errors import NoValidKernelError  # noqa: E402
from fuser.errors import ProgramError  # noqa: E402
from fuser.errors import UsageError  # noqa: E402
from fuser.ir.builder import Builder  # noqa: E402
from tests.paths import ROOT  # noqa: E402
from tests.tvm_bridge.encoder import encoder  # noqa: E402
from tests.tvm_bridge.encoder import regions  # noqa: E402
from tvm_bridge.back.carve import RegionSpec  # noqa: E402
from tvm_bridge.back.carve import carve  # noqa: E402
from tvm_bridge.back.carve import op_name  # noqa: E402
from tvm_bridge.back.carve import region_functions  # noqa: E402
from tvm_bridge.back.carve import region_symbols  # noqa: E402
from tvm_bridge.back.relay import BuiltModel  # noqa: E402
from tvm_bridge.back.relay import _compiled  # noqa: E402
from tvm_bridge.back.relay import build  # noqa: E402
from tvm_bridge.back.relay import check_region  # noqa: E402
from tvm_bridge.back.relay import load  # noqa: E402
from tvm_bridge.back.relay import run_region  # noqa: E402
from tvm_bridge.to_program.numbering import ExprRef  # noqa: E402
from tvm_bridge.to_program.numbering import number  # noqa: E402

FRESH = """
import sys, numpy as np
from tvm_bridge.back.relay import load
inputs = dict(np.load(sys.argv[1]))
np.save(sys.argv[2], [load(library).run(inputs)[0] for library in sys.argv[3:]])
"""


@pytest.fixture(scope="module")
def model() -> Any:
    return encoder(layers=2)


@pytest.fixture(scope="module")
def expected(model: Any) -> Any:
    mod, params, inputs, _ = model
    return build(mod, params).run(inputs)[0]


@pytest.fixture(scope="module")
def built(model: Any) -> BuiltModel:
    mod, params, _, _ = model
    return build(carve(mod, regions(mod)), params)


def test_post_order_is_relays_own(model: Any) -> None:
    mod = model[0]
    visited: list[Any] = []
    relay.analysis.post_order_visit(mod["main"].body, lambda e: visited.append(e) if isinstance(e, relay.Call) else None)
    calls = number(mod).calls
    assert len(calls) == len(visited) > 100
    assert all(a.same_as(b) for a, b in zip(calls, visited, strict=True))


def test_carved_module_calls_shared_functions(model: Any) -> None:
    mod = model[0]
    carved = carve(mod, regions(mod))
    symbols = region_symbols(carved)
    assert symbols["attention0"] == symbols["attention1"] != symbols["mlp0"] == symbols["mlp1"]
    assert len(region_functions(carved)) == 2
    for function in region_functions(carved).values():
        assert str(function.attrs["Compiler"]) == "mufuser"
        assert int(function.attrs["Primitive"]) == 1
        constants = [e for e in number({"main": function}).constants if e.data.shape]
        assert not constants, "weights are arguments"
    left = [op_name(c) for c in number(carved).calls]
    assert "nn.softmax" not in left
    assert "erf" not in left
    assert left.count("GlobalVar") == 4
    assert len(region_functions(carve(mod, regions(mod), share=False))) == 4


def test_carved_module_stays_valid_relay() -> None:
    """Without the external compiler, Relay alone can compile what was carved: the bodies are all there."""
    mod, params, inputs, reference = encoder()
    carved = carve(mod, regions(mod))
    for symbol, function in region_functions(carved).items():
        carved[symbol] = relay.Function(function.params, function.body, function.ret_type)
    result = relay.create_executor("vm", mod=relay.transform.Inline()(carved), target="llvm").evaluate()(inputs["x"], **params)
    assert np.abs(result.numpy() - reference).max() < 1e-5


def test_graph_executor(built: BuiltModel, model: Any, expected: Any) -> None:
    _, _, inputs, reference = model
    assert {"mufuser_attention0", "mufuser_mlp0"} <= {
        n["attrs"]["func_name"] for n in json.loads(built.factory.graph_json)["nodes"] if n["op"] == "tvm_op"
    }
    (result,) = built.run(inputs)
    assert np.abs(result - expected).max() < 1e-5
    assert np.abs(result - reference).max() < 1e-5


def test_virtual_machine(built: BuiltModel, model: Any, expected: Any) -> None:
    vm = built.vm()
    assert "mufuser_attention0" in vm.module.bytecode or "mufuser_attention0" in str(vm.module.primitive_ops)
    assert np.abs(vm.run(model[2])[0] - expected).max() < 1e-5


def test_exported_libraries_run_in_a_fresh_process(built: BuiltModel, model: Any, expected: Any, tmp_path: Path) -> None:
    libraries = [str(built.export(tmp_path / f"{executor}.so", executor)) for executor in ("graph", "vm")]
    np.savez(tmp_path / "inputs.npz", **model[2])
    command = [sys.executable, "-c", FRESH, str(tmp_path / "inputs.npz"), str(tmp_path / "out.npy"), *libraries]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    for found in np.load(tmp_path / "out.npy"):
        assert np.abs(found - expected).max() < 1e-5


def test_attention_of_torch_with_a_mask_of_zeros() -> None:
    """Torch's fused attention adds a constant mask and a dropout: the region takes them in."""
    mod, params, inputs, reference = encoder(fused=True)
    specs = regions(mod)
    carved = carve(mod, specs)
    assert len(region_functions(carved)) == len(specs) == 2
    (result,) = build(carved, params).run(inputs)
    assert np.abs(result - reference).max() < 1e-5


def test_several_outputs_and_a_let() -> None:
    x, w = relay.var("x", shape=(4, 8)), relay.var("w", shape=(8, 8))
    h = relay.var("h", shape=(4, 8))
    total = relay.nn.dense(relay.nn.relu(h), w)
    body = relay.Let(h, relay.nn.dense(x, w), relay.Tuple([relay.exp(total), relay.add(h, total)]))
    mod = _module([x, w], body)
    names = [op_name(c) for c in number(mod).calls]
    assert names == ["nn.dense", "nn.relu", "nn.dense", "exp", "add"]
    spec = RegionSpec("two", frozenset({0, 1, 2}), (ExprRef("var", "x"),), (ExprRef("call", 0), ExprRef("call", 2)))
    carved = carve(mod, [spec])
    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((4, 8)).astype("float32"), "w": rng.standard_normal((8, 8)).astype("float32")}
    first, second = build(carved, {"w": inputs["w"]}).run({"x": inputs["x"]})
    hidden = inputs["x"] @ inputs["w"].T
    result = np.maximum(hidden, 0) @ inputs["w"].T
    assert np.allclose(first, np.exp(result), rtol=1e-4)
    assert np.allclose(second, hidden + result, atol=1e-4)
    assert len(run_region(carved, "mufuser_two", [inputs["x"], inputs["w"]])) == 2


def _module(params: list[Any], body: Any) -> Any:
    import tvm

    return relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function(params, body)))


def _chain() -> Any:
    """Calls: 0 dense, 1 relu, 2 dense, 3 add of 0 and 2."""
    x, w = relay.var("x", shape=(4, 8)), relay.var("w", shape=(8, 8))
    h = relay.nn.dense(x, w)
    return _module([x, w], relay.add(h, relay.nn.dense(relay.nn.relu(h), w)))


X, H, R, D, S = ExprRef("var", "x"), *(ExprRef("call", i) for i in range(4))


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([RegionSpec("leak", frozenset({0, 1, 2}), (X,), (D,))], "used outside its region 'leak'"),
        ([RegionSpec("hole", frozenset({0, 2}), (X,), (D,))], "needs nn.relu"),
        ([RegionSpec("far", frozenset({0, 3}), (X,), (H,))], r"call 3 \(add\) of region 'far' is not between"),
        ([RegionSpec("ring", frozenset({0, 3}), (X, D), (H, S))], "not convex"),
        ([RegionSpec("gone", frozenset({9}), (X,), (ExprRef("call", 9),))], "no call 9"),
        ([RegionSpec("none", frozenset({0}), (ExprRef("var", "y"),), (H,))], "no var y"),
        ([RegionSpec("same", frozenset({0}), (H,), (H,))], "both an input and an output"),
        ([RegionSpec("empty", frozenset({0}), (X,), ())], "no output"),
        (
            [RegionSpec("a", frozenset({0}), (X,), (H,)), RegionSpec("b", frozenset({0, 1}), (X,), (R,))],
            "in the regions 'a' and 'b'",
        ),
        ([RegionSpec("a", frozenset({0}), (X,), (H,)), RegionSpec("a", frozenset({1}), (H,), (R,))], "same name"),
    ],
)
def test_regions_that_do_not_fit_are_refused(specs: list[RegionSpec], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        carve(_chain(), specs)


def test_two_regions_that_wait_for_each_other_are_refused() -> None:
    x = relay.var("x", shape=(4, 4))
    a = relay.exp(x)  # 0
    b = relay.sqrt(a)  # 1
    c = relay.tanh(x)  # 2
    d = relay.sigmoid(c)  # 3
    mod = _module([x], relay.Tuple([relay.add(b, d), b, d]))
    first = RegionSpec("first", frozenset({0, 3}), (X, ExprRef("call", 2)), (ExprRef("call", 0), ExprRef("call", 3)))
    second = RegionSpec("second", frozenset({1, 2}), (X, ExprRef("call", 0)), (ExprRef("call", 1), ExprRef("call", 2)))
    with pytest.raises(ProgramError, match="not convex"):
        carve(mod, [first, second])


def test_a_region_is_checked_against_its_program(built: BuiltModel, model: Any) -> None:
    mod = model[0]
    carved = carve(mod, regions(mod))
    compiled = _compiled.cache_info().misses

    def attention(scale: float) -> Any:
        b = Builder("attention")
        q, k, v = b.input("Q", (2, 32, 16), "float32"), b.input("K", (2, 16, 32), "float32"), b.input("V", (2, 32, 16), "float32")
        return b.build(O=b.softmax((q @ k) * scale) @ v)

    assert check_region(carved, "mufuser_attention0", attention(16**-0.5), np.random.default_rng(0)) < 1e-5
    with pytest.raises(NoValidKernelError, match="differs from its Relay body"):
        check_region(carved, "mufuser_attention0", attention(0.5), np.random.default_rng(0))
    assert _compiled.cache_info().misses == compiled, f"{built.module} has the same bodies"


def test_clear_errors(built: BuiltModel, model: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no input 'y'"):
        built.run({**model[2], "y": model[2]["x"]})
    with pytest.raises(UsageError, match="the input 'x' of the model is missing"):
        built.run({})
    with pytest.raises(UsageError, match="the model wants float32"):
        built.run({"x": model[2]["x"].astype(np.int32)})  # of as many bytes
    with pytest.raises(UsageError, match="no compiled model"):
        load(tmp_path / "nothing.so")
    with pytest.raises(UsageError, match=r"ends in \.so"):
        built.export(tmp_path / "model.bin")
    with pytest.raises(UsageError, match="no TVM target"):
        build(model[0], target="abacus")
    with pytest.raises(ProgramError, match="no region 'x'"):
        build(built.module, kernels={"x": None})


def test_positions_count_not_names(model: Any) -> None:
    """A region's name is free: characters that no symbol may have are replaced, equal results are told apart."""
    mod = model[0]
    first, second, *_ = regions(mod)
    carved = carve(mod, [replace(first, name="layer.0/attn"), replace(second, name="layer_0_attn")], share=False)
    assert region_symbols(carved) == {"layer.0/attn": "mufuser_layer_0_attn", "layer_0_attn": "mufuser_layer_0_attn_1"}
