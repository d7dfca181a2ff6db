"""Rewriting for the CPU and folding of weights: the same values, in the form that TVM is fast in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.relay
relay = pytest.importorskip("tvm.relay")
tvm = pytest.importorskip("tvm")

from fuser.ir.builder import Builder  # noqa: E402
from tvm_bridge.back.carve import ExprRef  # noqa: E402
from tvm_bridge.back.carve import RegionSpec  # noqa: E402
from tvm_bridge.back.carve import carve  # noqa: E402
from tvm_bridge.back.carve import number  # noqa: E402
from tvm_bridge.back.carve import op_name  # noqa: E402
from tvm_bridge.back.cpu_form import cpu_form  # noqa: E402
from tvm_bridge.back.relay import check_region  # noqa: E402
from tvm_bridge.to_program.fold import fold_weights  # noqa: E402


def typed(function: Any) -> Any:
    return relay.transform.InferType()(tvm.IRModule.from_expr(function))["main"]


def run(function: Any, **inputs: Any) -> Any:
    mod = tvm.IRModule.from_expr(function)
    result = relay.create_executor("graph", mod=mod, target="llvm").evaluate()(*(inputs[p.name_hint] for p in function.params))
    return result.numpy()


def ops(function: Any) -> list[str]:
    return [op_name(c) for c in number({"main": function}).calls]


@pytest.mark.parametrize(
    ("left", "right", "transpose_b", "expected"),
    [
        ((1, 5, 6), (1, 6, 7), False, "nn.dense"),
        ((3, 5, 6), (1, 7, 6), True, "nn.dense"),
        ((3, 5, 6), (3, 6, 7), False, "nn.batch_matmul"),
        ((1, 5, 6), (3, 7, 6), True, "nn.batch_matmul"),
    ],
)
def test_products_keep_their_values(
    left: tuple[int, ...], right: tuple[int, ...], transpose_b: bool, expected: str, rng: np.random.Generator
) -> None:
    a, b = relay.var("a", shape=left), relay.var("b", shape=right)
    function = typed(relay.Function([a, b], relay.nn.batch_matmul(a, b, transpose_a=False, transpose_b=transpose_b)))
    changed = typed(cpu_form(function))
    found = [c for c in number({"main": changed}).calls if "mul" in op_name(c) or "dense" in op_name(c)]
    assert [op_name(c) for c in found] == [expected]
    assert expected == "nn.dense" or found[0].attrs.transpose_b
    values = {"a": rng.standard_normal(left).astype("float32"), "b": rng.standard_normal(right).astype("float32")}
    product = values["a"] @ (values["b"].transpose(0, 2, 1) if transpose_b else values["b"])
    assert np.allclose(run(changed, **values), product, atol=1e-5)
    assert tvm.ir.structural_equal(changed.ret_type, function.ret_type)


def test_integer_products_and_transposed_left_operands_stay() -> None:
    a, b = relay.var("a", shape=(1, 4, 8), dtype="int32"), relay.var("b", shape=(1, 8, 4), dtype="int32")
    whole = typed(relay.Function([a, b], relay.nn.batch_matmul(a, b, transpose_a=False, transpose_b=False)))
    assert ops(cpu_form(whole)) == ["nn.batch_matmul"]
    c = relay.var("c", shape=(1, 6, 4))
    flipped = typed(relay.Function([c], relay.nn.batch_matmul(c, c, transpose_a=True, transpose_b=False)))
    assert ops(cpu_form(flipped)) == ["nn.batch_matmul"]


def test_moves_of_weights_are_done_once(rng: np.random.Generator) -> None:
    x, w = relay.var("x", shape=(2, 3, 4)), relay.var("w", shape=(5, 4))
    moved = relay.broadcast_to(relay.expand_dims(relay.transpose(w), 0), (2, 4, 5))
    product = relay.nn.batch_matmul(relay.transpose(x, (0, 1, 2)), moved, transpose_a=False, transpose_b=False)
    function = typed(relay.Function([x, w], relay.squeeze(relay.reshape(product, (1, 6, 5)), [0])))
    values = {"x": rng.standard_normal((2, 3, 4)).astype("float32"), "w": rng.standard_normal((5, 4)).astype("float32")}
    folded = fold_weights(function, {"w": tvm.nd.array(values["w"])})
    assert [p.name_hint for p in folded.params] == ["x"]
    assert ops(folded) == ["transpose", "nn.batch_matmul", "reshape", "squeeze"], "only what x needs is left"
    assert np.allclose(run(folded, x=values["x"]), (values["x"] @ values["w"].T).reshape(6, 5), atol=1e-5)


def test_a_model_that_is_all_weights_folds_to_a_constant() -> None:
    w = relay.var("w", shape=(2, 3))
    function = typed(relay.Function([w], relay.transpose(w)))
    folded = fold_weights(function, {"w": tvm.nd.array(np.arange(6, dtype="float32").reshape(2, 3))})
    assert isinstance(folded.body, relay.Constant)
    assert folded.body.data.numpy().tolist() == [[0, 3], [1, 4], [2, 5]]


def test_inputs_that_only_the_relay_body_has_are_found(rng: np.random.Generator) -> None:
    """A program may have lost a mask of zeros and a bias of zeros; the carved function gets them as trailing inputs."""
    a, b, bias = relay.var("a", shape=(4, 8)), relay.var("b", shape=(6, 8)), relay.var("bias", shape=(6,))
    body = relay.add(relay.nn.bias_add(relay.nn.dense(a, b), bias), relay.const(np.zeros((4, 6), "float32")))
    mod = tvm.IRModule.from_expr(relay.Function([a, b, bias], body))
    refs = (ExprRef("var", "a"), ExprRef("var", "b"))
    carved = carve(mod, [RegionSpec("r", frozenset({0, 1, 2}), refs, (ExprRef("call", 2),))])
    assert len(carved["mufuser_r"].params) == 4
    builder = Builder("r", "float32")
    left, right = builder.input("A", (4, 8)), builder.input("B", (6, 8))
    program = builder.build(O=left @ right.transpose(1, 0))
    assert check_region(carved, "mufuser_r", program, rng, {"bias": np.zeros(6, "float32")}) < 1e-5
    with pytest.raises(Exception, match="differs from its Relay body"):
        check_region(carved, "mufuser_r", program, rng, {"bias": np.ones(6, "float32")})
    with pytest.raises(Exception, match="differs from its Relay body"):
        check_region(carved, "mufuser_r", program, rng)  # without a value the bias may be anything
