"""A file with everything in ``main`` computes what it did with functions and lets, and shares what it shared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.tvm_bridge.relay_writer import RelayWriter
from tvm_bridge.to_program.relay_import import from_json_text
from tvm_bridge.to_program.relay_import import module_text

SIZES = (4, 8)


def _layers() -> tuple[Any, Any, Any]:
    """A function that calls another twice and returns a tuple, a closure over a let, called twice, twins among the inputs,
    and a field of a split in a tuple."""
    import tvm
    from tvm import relay

    def var(name: str, *shape: int) -> Any:
        return relay.var(name, shape=shape or SIZES)

    of = relay.TensorType(SIZES)
    one, two = relay.GlobalVar("one"), relay.GlobalVar("two")
    q, v, r, u = var("q"), var("v", 8, 8), var("r"), var("u", 8, 8)
    x, w, other, p, h = var("é/x:0"), var("w", 8, 8), var("é/x:0"), var("p"), var("h")
    f = relay.Var("f", relay.FuncType([of], of))
    called = relay.Call(two, [relay.Call(f, [relay.Call(f, [other])]), w])
    ends = relay.Tuple([relay.add(relay.TupleGetItem(called, 0), h), relay.split(h, 2, axis=1)[1]])
    body = relay.Let(h, relay.nn.dense(x, w), relay.Let(f, relay.Function([p], p + h), ends))
    half = relay.TensorType((SIZES[0], SIZES[1] // 2))
    functions = {
        one: relay.Function([q, v], relay.tanh(relay.nn.dense(q, v)), of),
        two: relay.Function([r, u], relay.Tuple([relay.Call(one, [relay.Call(one, [r, u]), u]), r]), relay.TupleType([of, of])),
        relay.GlobalVar("main"): relay.Function([x, w, other], body, relay.TupleType([of, half])),
    }
    return tvm, relay, tvm.IRModule(functions)


@pytest.mark.relay
def test_functions_lets_and_twins(rng: np.random.Generator) -> None:
    """TVM has the calls of the inlined module where our graph says that they are."""
    from tvm_bridge.to_program.numbering import number

    tvm, relay, mod = _layers()
    old = from_json_text(module_text(relay.transform.InferType()(mod)))
    made = relay.transform.InferType()(tvm.ir.load_json(old.inlined))
    assert len(made.functions) == 1
    calls = number(made).calls
    assert {n.call: n.op for n in old.graph.nodes} == {i: c.op.name for i, c in enumerate(calls)}
    new = from_json_text(tvm.ir.save_json(made))
    assert not new.inlined
    assert [v.name for v in new.inputs] == [v.name for v in old.inputs] == ["é/x:0", "w", "é/x:0_"]
    values = {v.name: rng.standard_normal(v.type.dims).astype("float32") for v in old.inputs}
    for mine, theirs in zip(new.evaluate(values), old.evaluate(values), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    assert sorted(n.op for n in new.graph.nodes) == ["add"] * 3 + ["nn.dense"] * 3 + ["split"] + ["tanh"] * 2


def _twice(w: RelayWriter) -> int:
    """A function of two results that is called twice, the second time of a twin; one of its constants is shared."""
    q = w.var("q", (2, 3))
    helper = w.global_function("helper", [q], w.tuple(w.call("add", q, w.const([1, 2, 3])), w.call("tanh", q)))
    x, twin = w.input("né/x:0", (2, 3)), w.input("né/x:0", (2, 3))
    first = w.call(helper, x)
    second = w.call(helper, w.call("multiply", w.item(first, 0), twin))
    return w.tuple(w.item(second, 1), w.call("concatenate", w.tuple(w.item(second, 0), w.item(first, 0)), axis=0))


def _closures(w: RelayWriter) -> int:
    """A closure over a let, and a split, of which fields are taken."""
    x, h, p, f = w.input("x", (4, 6)), w.var("h"), w.var("p"), w.var("f")
    halves = w.call("split", x, indices_or_sections=w.node("runtime.BoxInt", text="2"), axis=1)
    body = w.call("add", w.call(f, w.item(halves, 1)), w.call(f, h))
    return w.let(h, w.item(halves, 0), w.let(f, w.function([p], w.call("subtract", w.call("exp", p), h)), body))


def _decided(w: RelayWriter) -> int:
    """A branch that a shape decides."""
    x = w.input("x", (4, 6))
    rows = w.call("take", w.call("shape_of", x, dtype="int64"), w.const(0, "int64"), axis=w.node("IntImm", value=0))
    few = w.call("less", rows, w.const(5, "int64"))
    return w.node("relay.If", cond=few, true_branch=w.call("exp", x), false_branch=w.call("tanh", x))


@pytest.mark.parametrize("body", [_twice, _closures, _decided])
@pytest.mark.parametrize("version", ["0.19.0", "0.8.0"])
def test_the_inlined_file_computes_the_same(body: Any, version: str, rng: np.random.Generator) -> None:
    w = RelayWriter(version)
    old = from_json_text(w.module(body(w)))
    new = from_json_text(old.inlined)
    assert not new.inlined and new.graph.version == version
    assert [v.name for v in new.inputs] == [v.name for v in old.inputs]
    assert [n.op for n in new.graph.nodes] == [n.op for n in sorted(old.graph.nodes, key=lambda n: n.call) if n.call >= 0]
    values = {v.name: rng.standard_normal(v.type.dims) for v in old.inputs}
    for mine, theirs in zip(new.evaluate(values), old.evaluate(values), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert len(new.graph.constants) <= 1


def test_what_is_plain_stays() -> None:
    w = RelayWriter()
    assert not from_json_text(w.module(w.call("exp", w.input("x", (2,))))).inlined
