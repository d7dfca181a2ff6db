"""Against TVM itself: every operator of the table, and whole models of its importers."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tvm_bridge.read.relay_ops import relay_op
from tvm_bridge.to_program.relay_import import ImportedModel
from tvm_bridge.to_program.relay_import import RelayModel
from tvm_bridge.to_program.relay_import import arrays_of
from tvm_bridge.to_program.relay_import import from_json_text
from tvm_bridge.to_program.relay_import import to_program

pytestmark = pytest.mark.relay
Inputs = dict[str, np.ndarray]


def _run(mod: Any, params: Any, inputs: Inputs) -> list[np.ndarray]:
    import tvm
    from tvm import relay
    from tvm.contrib import graph_executor

    with tvm.transform.PassContext(opt_level=0):
        lib = relay.build(mod, "llvm -opt-level=0", params=params)
    run = graph_executor.GraphModule(lib["default"](tvm.cpu()))
    for name, value in inputs.items():
        run.set_input(name, value)
    run.run()
    return [run.get_output(i).numpy() for i in range(run.get_num_outputs())]


def from_module(mod: Any, params: Any = None) -> RelayModel:
    import tvm
    from tvm import relay

    return from_json_text(tvm.ir.save_json(relay.transform.InferType()(mod)), arrays_of(params))


def _error(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).max() / max(np.abs(wanted).max(), 1e-30))


def _operators(relay: Any) -> tuple[list[Any], list[Any], Inputs]:
    """One call of nearly every operator, their variables and values for them."""
    rng = np.random.default_rng(0)
    variables: dict[str, Any] = {}
    values: Inputs = {}

    def var(*shape: int, dtype: str = "float32", high: int = 3) -> Any:
        name = f"{dtype}_{'x'.join(map(str, shape))}"
        if name not in variables:
            variables[name] = relay.var(name, shape=shape, dtype=dtype)
            floats = rng.standard_normal(shape).astype(np.float32)
            values[name] = floats if dtype == "float32" else rng.integers(0, 2 if dtype == "bool" else high, shape).astype(dtype)
        return variables[name]

    r, nn = relay, relay.nn
    x, m, n, v = var(1, 8, 12, 12), var(4, 6), var(2, 4, 6), var(6)
    positive, cond, index = r.abs(m) + r.const(0.5), var(4, 6, dtype="bool"), var(3, dtype="int32")
    whole, wide = var(4, 6, dtype="int32", high=50), var(4, 6, dtype="int64")
    one = var(1, dtype="int32", high=50)  # TVM's LLVM refuses vectors of integer remainders
    calls = [f(m, v) for f in (r.add, r.subtract, r.multiply, r.divide, r.maximum, r.minimum)]
    calls += [f(m, v) for f in (r.equal, r.not_equal, r.less, r.less_equal, r.greater, r.greater_equal)]
    calls += [r.power(positive, v), r.mod(one, r.const(7)), r.floor_mod(one, r.const(7)), r.floor_divide(one, r.const(7))]
    calls += [r.logical_and(cond, cond), r.logical_or(cond, cond), r.logical_xor(cond, cond), r.logical_not(cond)]
    calls += [r.bitwise_and(whole, whole), r.bitwise_or(whole, whole), r.divide(one, r.const(7))]
    calls += [f(m) for f in (r.negative, r.exp, r.erf, r.tanh, r.sigmoid, r.abs, r.ceil, r.floor, r.sign, r.cos, r.sin, r.round)]
    calls += [f(m) for f in (r.trunc, r.copy, r.zeros_like, r.ones_like, r.isnan, r.isinf, r.isfinite, nn.relu)] + [
        r.reverse(m, 1)
    ]
    calls += [f(positive) for f in (r.sqrt, r.rsqrt, r.log, r.log2)]
    calls += [r.clip(m, -0.5, 0.5), nn.leaky_relu(m, 0.1), r.cast(m, "int32"), r.cast(cond, "float32"), r.cast_like(whole, m)]
    calls += [
        r.where(cond, m, v),
        r.full_like(m, r.const(2.0)),
        r.full(r.const(1.5), (2, 3)),
        r.zeros((2, 3), "int32"),
        r.ones((2,), "float32"),
    ]
    calls += [
        nn.dense(m, var(5, 6)),
        nn.matmul(m, var(6, 5)),
        nn.matmul(var(6, 4), var(5, 6), transpose_a=True, transpose_b=True),
    ]
    calls += [
        nn.batch_matmul(n, var(2, 5, 6)),
        nn.batch_matmul(n, var(1, 6, 5), transpose_b=False),
        nn.bias_add(m, var(4), axis=0),
    ]
    calls += [nn.softmax(n, axis=1), nn.log_softmax(m, axis=1), nn.dropout(m), nn.prelu(x, var(8)), nn.l2_normalize(m, 1e-5, [1])]
    calls += [
        nn.layer_norm(n, v, v),
        nn.layer_norm(n, v, v, scale=False),
        nn.layer_norm(n, v, v, center=False),
        nn.layer_norm(n, var(4), var(4), axis=1),
    ]
    calls += [nn.instance_norm(x, var(8), var(8)), nn.group_norm(x, var(8), var(8), 2)]
    calls += [nn.batch_norm(x, var(8), var(8), var(8), r.abs(var(8)) + r.const(1.0))[0]]
    for fold in (r.sum, r.mean, r.max, r.min, r.prod):
        calls += [fold(n), fold(n, axis=[0, -1]), fold(n, axis=1, keepdims=True), fold(n, axis=1, exclude=True)]
    calls += [
        r.variance(n, axis=-1, keepdims=True),
        r.variance(n, axis=[0], unbiased=True),
        r.argmax(n, axis=1),
        r.argmin(n, axis=-1, keepdims=True),
    ]
    calls += [r.all(cond, axis=1), r.any(cond, axis=0, keepdims=True)]
    shapes = [(-1,), (0, -1), (-2,), (-3, -2), (0, -4, 2, -1, -2), (2, 0, -1, 1)]
    calls += [r.reshape(n, s) for s in shapes] + [r.reshape(n, r.const(np.array([8, 6], "int64"))), r.reshape_like(n, var(8, 6))]
    calls += [
        r.squeeze(x),
        r.squeeze(x, axis=[0]),
        r.squeeze(x, axis=[]),
        r.expand_dims(m, 1, 2),
        r.expand_dims(m, -1),
        nn.batch_flatten(x),
    ]
    calls += [
        r.transpose(n),
        r.transpose(n, (0, -1, 1)),
        r.layout_transform(x, "NCHW", "NHWC"),
        r.broadcast_to(v, (3, 4, 6)),
        r.broadcast_to_like(v, m),
    ]
    calls += [
        r.concatenate([m, m, positive], axis=-1),
        r.stack([m, positive], axis=1),
        r.split(m, 3, axis=1)[1],
        r.split(m, (1, 4), axis=1)[1],
    ]
    calls += [
        r.strided_slice(m, [0, 1], [4, 5], [1, 2]),
        r.strided_slice(m, [1], [5], axes=[1]),
        r.strided_slice(m, [-3, 0], [-1, 100]),
    ]
    calls += [r.strided_slice(m, [1, 2], [2, -1], slice_mode="size"), r.strided_slice(m, [3], [0], [-1])]
    calls += [
        r.take(m, index, axis=0),
        r.take(m, index),
        r.take(m, r.const(2), axis=1),
        r.gather(m, 1, wide),
        r.gather_nd(m, var(2, 3, dtype="int64")),
    ]
    calls += [
        r.adv_index([m, index]),
        r.arange(r.const(1), r.const(9), r.const(3), "int32"),
        r.repeat(m, 2, 1),
        r.tile(m, (2, 1, 3)),
    ]
    calls += [
        r.cumsum(m, axis=1),
        r.shape_of(n),
        r.one_hot(index, r.const(1.0), r.const(0.0), 5, -1, "float32"),
        r.trilu(m, r.const(0), upper=True),
    ]
    calls += [nn.pad(m, ((1, 0), (0, 2)), 1.0), r.meshgrid([index, var(4, dtype="int32")])[1]]
    calls += [
        nn.conv2d(x, var(4, 8, 3, 3), padding=(1, 1), strides=(2, 2)),
        nn.conv2d(x, var(8, 1, 3, 3), groups=8, dilation=(2, 1)),
    ]
    calls += [
        nn.conv2d(var(1, 6, 6, 8), var(3, 3, 8, 4), data_layout="NHWC", kernel_layout="HWIO", channels=4, kernel_size=(3, 3))
    ]
    calls += [nn.max_pool2d(x, (3, 3), (2, 2), padding=(1, 1)), nn.max_pool2d(x, (3, 3), (2, 2), ceil_mode=True)]
    calls += [
        nn.avg_pool2d(x, (3, 3), (2, 2), padding=(1, 1)),
        nn.avg_pool2d(x, (2, 2), (1, 1), padding=(1, 1), count_include_pad=True),
    ]
    calls += [
        nn.global_avg_pool2d(x),
        nn.global_max_pool2d(x),
        nn.adaptive_avg_pool2d(x, (5, 3)),
        nn.adaptive_max_pool2d(x, (4, 4)),
    ]
    return calls, list(variables.values()), values


def test_operators_agree_with_tvm() -> None:
    import tvm
    from tvm import relay

    calls, variables, values = _operators(relay)
    mod = tvm.IRModule.from_expr(relay.Function(variables, relay.Tuple(calls)))
    wanted = _run(mod, None, values)
    model = from_module(mod)
    used = {n.op for n in model.graph.nodes}
    assert sum(relay_op(n) is not None for n in used) >= 100
    for op, want, found in zip(calls, wanted, model.evaluate(values), strict=True):
        assert found.shape == want.shape, op
        np.testing.assert_allclose(found, want, rtol=2e-5, atol=2e-5, err_msg=str(op))
    data = json.loads(tvm.ir.save_json(relay.transform.InferType()(mod)))
    for node in data["nodes"]:
        if node["type_key"] == "relay.Call":
            node["attrs"]["_checked_type_"] = "0"
    assert [n.types for n in from_json_text(json.dumps(data)).graph.nodes] == [n.types for n in model.graph.nodes]
    # the clean-up folds what is constant and keeps the rest
    program = to_program(model)
    results = program.evaluate(values)
    for op, want, name in zip(calls, wanted, program.program.outputs, strict=True):
        np.testing.assert_allclose(results[name], want, rtol=2e-5, atol=2e-5, err_msg=str(op))


def _torch_module(net: Any, x: Any, name: str) -> tuple[Any, Any, Inputs]:
    import torch
    from tvm import relay

    traced = torch.jit.trace(net.eval(), x, strict=False)
    mod, params = relay.frontend.from_pytorch(traced, [(name, (tuple(x.shape), str(x.dtype).removeprefix("torch.")))])
    return mod, params, {name: x.numpy()}


def _onnx_module(net: Any, x: Any, name: str, opset: int) -> tuple[Any, Any, Inputs]:
    import onnx
    import torch
    from tvm import relay

    file: Any = io.BytesIO()
    torch.onnx.export(net.eval(), (x,), file, input_names=[name], opset_version=opset, dynamo=False)
    mod, params = relay.frontend.from_onnx(onnx.load_from_string(file.getvalue()), {name: tuple(x.shape)})
    return mod, params, {name: x.numpy()}


def _check(mod: Any, params: Any, inputs: Inputs) -> ImportedModel:
    """Import a live module, compare graph and program with TVM, and find every call again in the module."""
    from tvm import relay

    wanted = _run(mod, params, inputs)[0]
    model = from_module(mod, params)
    imported = to_program(model)
    assert _error(model.evaluate(inputs)[0], wanted) < 1e-5
    assert _error(imported.evaluate(inputs)[imported.program.outputs[0]], wanted) < 1e-5
    calls: list[Any] = []
    typed = relay.transform.InferType()(mod)
    relay.analysis.post_order_visit(typed["main"], lambda e: calls.append(e) if isinstance(e, relay.Call) else None)
    assert [calls[n.call].op.name for n in model.graph.nodes] == [n.op for n in model.graph.nodes]
    return imported


def _encoder(sdpa: bool) -> Any:
    import math

    import torch
    from torch import nn

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(32, 32) for _ in range(4))
            self.up, self.down, self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 32), nn.LayerNorm(32), nn.LayerNorm(32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (f(x).view(2, 12, 4, 8).transpose(1, 2) for f in (self.q, self.k, self.v))
            if sdpa:
                o = nn.functional.scaled_dot_product_attention(q, k, v)
            else:
                o = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(8), -1) @ v
            y = self.first(x + self.o(o.transpose(1, 2).reshape(x.shape)))
            return self.second(y + self.down(nn.functional.gelu(self.up(y))))

    torch.manual_seed(0)
    return Encoder()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("sdpa", [False, True], ids=["matmul", "sdpa"])
@pytest.mark.parametrize(
    "importer", ["torch", pytest.param("onnx14", marks=pytest.mark.slow), pytest.param("onnx17", marks=pytest.mark.slow)]
)
def test_encoders_of_every_importer_become_the_same_operators(importer: str, sdpa: bool) -> None:
    import torch

    x = torch.randn(2, 12, 32)
    net = _encoder(sdpa)
    made = _torch_module(net, x, "x") if importer == "torch" else _onnx_module(net, x, "x", int(importer[4:]))
    ops = Counter(n.op for n in _check(*made).program.nodes)
    # batch 2: the PyTorch importer repeats each weight for the batch, which the clean-up undoes
    assert ops == {"matmul": 8, "add": 8, "reshape": 4, "transpose": 4, "scale": 1, "softmax": 1, "layer_norm": 2, "gelu": 1}


def _transformers(name: str) -> Any:
    import torch
    import transformers as tf

    small: dict[str, Any] = {"vocab_size": 100, "bos_token_id": 0, "eos_token_id": 0, "attn_implementation": "eager"}
    bert: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    makers: dict[str, Callable[[], Any]] = {
        "bert": lambda: tf.BertModel(tf.BertConfig(**small, **bert)),
        "gpt2": lambda: tf.GPT2Model(tf.GPT2Config(**small, n_embd=32, n_layer=2, n_head=2, n_positions=32)),
        "llama": lambda: tf.LlamaModel(tf.LlamaConfig(**small, **bert, num_key_value_heads=1)),
    }
    torch.manual_seed(0)
    net = makers[name]()

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.net(ids, attention_mask=torch.ones_like(ids), use_cache=False, return_dict=False)[0]

    return First()


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("bert", {"softmax": 2, "layer_norm": 5, "gelu": 2, "scale": 2}),
        ("gpt2", {"softmax": 2, "layer_norm": 5, "gelu_tanh": 2}),
        ("llama", {"softmax": 2, "rms_norm": 5, "silu": 2, "scale": 2}),
    ],
)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_models_of_the_transformers_package(name: str, wanted: dict[str, int]) -> None:
    import torch

    ids = torch.arange(24).reshape(2, 12) % 7
    imported = _check(*_torch_module(_transformers(name), ids, "ids"))
    ops = Counter(n.op for n in imported.program.nodes)
    assert {op: ops[op] for op in wanted} | {"scale": ops["scale"]} == {"scale": ops["scale"]} | wanted
    callees = {n.attr["callee"] for n in imported.program.nodes if n.op == "opaque"}
    assert callees <= {"cast", "take", "gather", "sin", "cos", "arange", "logical_and", "less_equal", "adv_index"}


def test_parameters_of_bfloat16_are_their_values() -> None:
    import tvm

    bits = np.array([0x3F80, 0xC000], np.uint16)
    array = tvm.nd.empty((2,), "bfloat16").copyfrom(bits)
    found = arrays_of({"w": array})
    assert found is not None and found["w"].tolist() == [1.0, -2.0]
