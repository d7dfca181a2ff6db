"""A module in one ``main`` computes what it did with functions and lets, and shares what it shared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tvm_bridge.to_program.relay_import import RelayModel
from tvm_bridge.to_program.relay_import import from_json_text

pytestmark = pytest.mark.relay

SIZES = (4, 8)


def _layers() -> tuple[Any, Any, Any]:
    """A function that calls another twice and returns a tuple, a closure over a let, called twice, and twins among the inputs."""
    import tvm
    from tvm import relay

    def var(name: str, *shape: int) -> Any:
        return relay.var(name, shape=shape or SIZES)

    of = relay.TensorType(SIZES)
    one, two = relay.GlobalVar("one"), relay.GlobalVar("two")
    q, v, r, u = var("q"), var("v", 8, 8), var("r"), var("u", 8, 8)
    x, w, other, p, h = var("x"), var("w", 8, 8), var("x"), var("p"), var("h")
    f = relay.Var("f", relay.FuncType([of], of))
    called = relay.Call(two, [relay.Call(f, [relay.Call(f, [other])]), w])
    body = relay.Let(
        h, relay.nn.dense(x, w), relay.Let(f, relay.Function([p], p + h), relay.add(relay.TupleGetItem(called, 0), h))
    )
    functions = {
        one: relay.Function([q, v], relay.tanh(relay.nn.dense(q, v)), of),
        two: relay.Function([r, u], relay.Tuple([relay.Call(one, [relay.Call(one, [r, u]), u]), r]), relay.TupleType([of, of])),
        relay.GlobalVar("main"): relay.Function([x, w, other], body, of),
    }
    return tvm, relay, tvm.IRModule(functions)


def test_functions_lets_and_twins() -> None:
    from tvm_bridge.to_program.one_main import is_one_main
    from tvm_bridge.to_program.one_main import one_main

    tvm, relay, mod = _layers()
    mod = relay.transform.InferType()(mod)
    before = mod.astext()
    made = one_main(mod)
    assert not is_one_main(mod) and is_one_main(made) and one_main(made) is made
    assert mod.astext() == before

    def model(m: Any) -> RelayModel:
        return from_json_text(tvm.ir.save_json(m))

    rng = np.random.default_rng(0)
    old, new = model(mod), model(made)
    assert [v.name for v in new.inputs] == [v.name for v in old.inputs] == ["x", "w", "x_"]
    values = {v.name: rng.standard_normal(v.type.dims).astype("float32") for v in old.inputs}
    np.testing.assert_allclose(new.evaluate(values)[0], old.evaluate(values)[0], rtol=1e-6)
    assert sorted(n.op for n in new.graph.nodes) == ["add"] * 3 + ["nn.dense"] * 3 + ["tanh"] * 2


@pytest.mark.parametrize("kind", ["If", "recursion", "Compiler"])
def test_what_cannot_be_in_one_main_stays(kind: str) -> None:
    import tvm
    from tvm import relay

    from tvm_bridge.to_program.one_main import one_main

    x, y = relay.var("x", shape=SIZES), relay.var("y", shape=SIZES)
    again = relay.GlobalVar("again")
    inner = relay.If(relay.const(True), relay.exp(y), y) if kind == "If" else relay.exp(y)
    function = relay.Function([y], relay.Call(again, [y]) if kind == "recursion" else inner, relay.TensorType(SIZES))
    if kind == "Compiler":
        function = function.with_attr("Compiler", "theirs").with_attr("global_symbol", "again")
    main = relay.Function([x], relay.Call(again, [x]))
    mod = tvm.IRModule({again: function, relay.GlobalVar("main"): main})
    assert one_main(mod) is mod
