"""What no kernel was generated for, as TVM computes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fuser.errors import UnsupportedError
from fuser.ir.ops import Array
from fuser.ir.program import Tensor
from tvm_bridge.back.recipe import Call
from tvm_bridge.flavour import import_tvm

pytestmark = pytest.mark.relax


def computed(op: str, args: list[Array], attrs: dict[str, Any], result: Array) -> Array:
    """One operator, compiled for the CPU."""
    tvm = import_tvm()
    from tvm_bridge.back.relax_library import function

    table = {f"a{i}": Tensor(f"a{i}", a.shape, str(a.dtype)) for i, a in enumerate(args)}
    table["y"] = Tensor("y", result.shape, str(result.dtype))
    made = function(Call(op, tuple(f"a{i}" for i in range(len(args))), "y", attrs), table)
    module = tvm.IRModule({"main": made.with_attr("global_symbol", "main")})
    machine = tvm.relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, args)).numpy()


def cases() -> list[Any]:
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    i = np.array([3, 0, 2])
    aten = {"callee": "aten.roll.default", "detail": '[[{"tensor": 0}, [1], [0]], {}]', "field": -1}
    return [
        pytest.param("embedding", [x, i], {}, x[i], id="embedding"),
        pytest.param("cumsum", [x], {"dim": 1}, np.cumsum(x, 1), id="cumsum"),
        pytest.param("reshape", [x], {"shape": (2, 12)}, x.reshape(2, 12), id="view"),
        pytest.param("softmax", [x], {"axis": -1}, np.exp(x) / np.exp(x).sum(-1, keepdims=True), id="composite"),
        pytest.param("opaque", [x], aten, np.roll(x, 1, 0), id="opaque"),
    ]


@pytest.mark.parametrize(("op", "args", "attrs", "result"), cases())
def test_an_operator_is_what_torch_says(op: str, args: list[Array], attrs: dict[str, Any], result: Array) -> None:
    np.testing.assert_allclose(computed(op, args, attrs, result), result, rtol=1e-5, atol=1e-6)


def test_what_torch_does_not_know_is_named() -> None:
    x = np.zeros((2, 2), np.float32)
    attrs = {"callee": "relay.vision.nms", "detail": "[[], {}]", "field": -1}
    with pytest.raises(UnsupportedError, match=r"relay\.vision\.nms") as found:
        computed("opaque", [x], attrs, x)
    assert "torch" in (found.value.hint or "")
