"""The reader of Relay files: structure, types, older spellings, and files that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from fuser.errors import FuserError
from fuser.errors import ModelFileError
from fuser.errors import UnsupportedError
from tests.paths import RELAY
from tests.tvm_bridge.relay_writer import RelayWriter
from tvm_bridge.read.relay_graph import TensorType
from tvm_bridge.to_program.relay_import import from_json_text
from tvm_bridge.to_program.relay_import import read_model
from tvm_bridge.to_program.relay_import import to_program


@pytest.mark.parametrize("name", ["encoder_torch", "encoder_onnx"])
def test_a_real_model_evaluates_as_in_tvm(name: str) -> None:
    model = read_model(RELAY / f"{name}.json", RELAY / f"{name}.params")
    known = np.load(RELAY / f"{name}.npz")
    assert [v.name for v in model.inputs] == ["x"]
    assert model.graph.version == "0.19.0"
    (y,) = model.evaluate({"x": known["x"]})
    np.testing.assert_allclose(y, known["y"], rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", ["encoder_torch", "encoder_onnx"])
def test_missing_types_are_inferred(name: str) -> None:
    data = json.loads((RELAY / f"{name}.json").read_text())
    typed = from_json_text(json.dumps(data)).graph
    for node in data["nodes"]:
        if node["type_key"] == "relay.Call":
            node["attrs"]["_checked_type_"] = "0"
    bare = from_json_text(json.dumps(data)).graph
    assert [n.types for n in bare.nodes] == [n.types for n in typed.nodes]


def test_let_tuples_closures_and_global_functions_are_resolved() -> None:
    w = RelayWriter()
    q = w.var("q", (2, 3))
    helper = w.global_function("helper", [q], w.tuple(w.call("exp", q), w.call("tanh", q)))
    x, p, v = w.input("x", (2, 3)), w.var("p"), w.var("v")
    composite = w.function([p], w.call("nn.relu", p))
    value = w.call(composite, w.item(w.call(helper, x), 1))
    body = w.let(v, value, w.tuple(w.call("add", v, w.const([1, 2, 3])), w.tuple(v)))
    model = from_json_text(w.module(body))
    assert model.graph.tuple_output
    assert [n.op for n in model.graph.nodes] == ["exp", "tanh", "nn.relu", "add"]
    assert {n.op: n.call for n in model.graph.nodes} == {"exp": -1, "tanh": 0, "nn.relu": 1, "add": 2}
    given = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
    total, plain = model.evaluate({"x": given})
    np.testing.assert_allclose(plain, np.maximum(np.tanh(given), 0))
    np.testing.assert_allclose(total, plain + np.array([1, 2, 3]))


def test_calls_are_numbered_in_post_order() -> None:
    w = RelayWriter()
    x = w.input("x", (2, 2))
    shared = w.call("exp", x)
    body = w.call("add", w.call("tanh", shared), w.call("sqrt", shared))
    nodes = from_json_text(w.module(body)).graph.nodes
    assert [(n.op, n.call) for n in nodes] == [("exp", 0), ("tanh", 1), ("sqrt", 2), ("add", 3)]


def test_a_chain_of_8000_calls_needs_no_recursion() -> None:
    w = RelayWriter()
    x = y = w.input("x", (2,))
    for _ in range(4000):
        y = w.call("tanh", y)
    for _ in range(4000):
        v = w.var("v")
        y = w.let(v, w.call("tanh", x), y)
    model = from_json_text(w.module(y))
    assert len(model.graph.nodes) == 8000
    assert len(to_program(model).program.nodes) == 4000


def test_shapes_that_depend_on_constants_are_found() -> None:
    w = RelayWriter()
    x = w.input("x", (4, 6))
    rows = w.call("arange", w.const(0, "int32"), w.const(4, "int32"), w.const(2, "int32"), dtype="int32")
    taken = w.call("take", x, rows, axis=w.node("IntImm", value=0), mode=w.string("clip"))
    shape = w.call("shape_of", taken, dtype="int64")
    body = w.call("dyn.reshape", w.call("reshape", taken, newshape=w.ints(-1)), shape)
    graph = from_json_text(w.module(body)).graph
    assert graph.type_of(graph.outputs[0]) == TensorType((2, 6), "float32")


@pytest.mark.parametrize("name", ["old_0_6", "old_0_8"])
def test_older_spellings(name: str) -> None:
    model = read_model(RELAY / f"{name}.json")
    assert [(v.name, v.type.dims) for v in model.graph.inputs] == [("1", (2, 4)), ("w", (3, 4))]
    assert [n.op for n in model.graph.nodes] == ["nn.dense", "nn.softmax"]
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((2, 4)), rng.standard_normal((3, 4))
    (y,) = model.evaluate({"1": x, "w": weight}, np.float64)
    e = np.exp(x @ weight.T)
    np.testing.assert_allclose(y, e / e.sum(-1, keepdims=True))


# Files that cannot be read


def _error(text: str) -> FuserError:
    with pytest.raises(FuserError) as caught:
        to_program(from_json_text(text, source="m.json"))
    assert caught.value.message.startswith("m.json")
    assert caught.value.hint
    return caught.value


def test_dynamic_input_names_it() -> None:
    w = RelayWriter()
    x = w.input("tokens", (None, 4))
    error = _error(w.module(w.call("exp", x)))
    assert isinstance(error, ModelFileError)
    assert "'tokens' has the dynamic shape float32[?, 4]" in error.message


def test_dynamic_operator_names_it() -> None:
    w = RelayWriter()
    x, n = w.input("x", (4, 4)), w.input("n", (), "int32")
    rows = w.call("arange", w.const(0, "int32"), n, w.const(1, "int32"), dtype="int32")
    assert "arange (node" in _error(w.module(w.call("take", x, rows, axis=0))).message


def test_unknown_operators_need_a_type_and_then_stay() -> None:
    w = RelayWriter()
    x = w.input("x", (2, 3))
    assert "my.operator" in _error(w.module(w.call("my.operator", x))).message
    w = RelayWriter()
    x = w.input("x", (2, 3))
    odd = w.call("my.operator", x, type_=w.tensor_type((5,)), mode=w.string("fast"), size="7")
    imported = to_program(from_json_text(w.module(w.call("exp", odd))))
    first = imported.program.nodes[0]
    assert first.op == "opaque"
    assert first.attr["callee"] == "my.operator"
    assert json.loads(first.attr["detail"]) == {"mode": "fast", "size": "7"}
    assert imported.program[first.output].shape == (5,)
    with pytest.raises(UnsupportedError, match=r"my\.operator"):
        imported.evaluate({"x": np.zeros((2, 3))})


def test_control_flow_and_ill_typed_calls() -> None:
    w = RelayWriter()
    x = w.input("x", (2, 3))
    branch = w.node("relay.If", cond=x, true_branch=x, false_branch=x)
    assert isinstance(_error(w.module(branch)), UnsupportedError)
    w = RelayWriter()
    x, y = w.input("x", (2, 3)), w.input("y", (4, 5))
    assert "add (node" in _error(w.module(w.call("add", x, y))).message
    w = RelayWriter()
    assert "transpose (node" in _error(w.module(w.call("transpose", w.input("x", (2, 3)), axes=w.ints(0, 7)))).message
    w = RelayWriter()
    wrong = w.call("reshape", w.input("x", (2, 3)), type_=w.tensor_type((3, 2)), newshape=w.ints(6, 2))
    assert "reshape (call 1" in _error(w.module(w.call("reshape", wrong, type_=w.tensor_type((7,)), newshape=w.ints(6)))).message


def test_recursion_is_refused() -> None:
    w = RelayWriter()
    q = w.var("q", (2,))
    var = w.node("GlobalVar", name_hint=w.string("again"))
    w.functions += [var, w.function([q], w.call(var, q))]
    assert "functions" in _error(w.module(w.call(var, w.input("x", (2,))))).message


def test_cycles_are_refused() -> None:
    w = RelayWriter()
    x = w.input("x", (2,))
    loop = w.call("add", x, len(w.nodes) + 2)
    assert "operand of itself" in _error(w.module(loop)).message
    w = RelayWriter()
    x = w.input("x", (2,))
    let = w.let(w.var("v"), x, 0)
    w.nodes[let]["attrs"]["body"] = str(let)
    assert "Let within itself" in _error(w.module(let)).message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "offset 0"),
        ("{}", "not a model of TVM"),
        ("[1, 2]", "not a model of TVM"),
        ('{"root_index": 1, "nodes": []}', "of a TVM without Relay"),
        ('#[version = "0.0.5"]\ndef @main() {}', "text format"),
        ('{"root": 1, "nodes": [{"type_key": ""}, {"type_key": "tir.PrimFunc"}]}', "not a Relay module"),
        ('{"root": 7, "nodes": [{"type_key": ""}]}', "node 7 does not exist"),
        ("[" * 100000, "nested too deeply"),
    ],
)
def test_other_texts(text: str, says: str) -> None:
    assert says in _error(text).message


def test_a_binary_or_missing_file(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x08\x07\xff\xfe")
    with pytest.raises(ModelFileError, match="is not text"):
        read_model(tmp_path / "m.onnx")
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_model(tmp_path / "none.json")


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_says_where(part: float) -> None:
    whole = (RELAY / "encoder_torch.json").read_text()
    assert "offset" in _error(whole[: int(len(whole) * part)]).message


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_nodes_never_give_a_traceback(data: st.DataObject) -> None:
    """Any change of a field, a list or a type key gives a model or one of our errors."""
    file = json.loads((RELAY / data.draw(st.sampled_from(["old_0_8.json", "encoder_onnx.json"]))).read_text())
    node = file["nodes"][data.draw(st.integers(0, len(file["nodes"]) - 1))]
    change = data.draw(st.sampled_from(["kind", "field", "list", "drop"]))
    if change == "kind":
        node["type_key"] = data.draw(
            st.sampled_from(["", "relay.Call", "relay.Tuple", "Array", "IntImm", "Op", "relay.Var", "relay.Let", "Map"])
        )
    elif change == "field" and node.get("attrs"):
        key = data.draw(st.sampled_from(sorted(node["attrs"])))
        node["attrs"][key] = data.draw(st.sampled_from(["0", "-1", "1", "7", "12", "99999", "x", "", "1.5", "float99"]))
    elif change == "list" and node.get("data"):
        node["data"] = data.draw(st.lists(st.integers(-2, len(file["nodes"]) + 2), max_size=4))
    elif change == "drop":
        node.pop(data.draw(st.sampled_from(["attrs", "data", "repr_str", "type_key"])), None)
    try:
        to_program(from_json_text(json.dumps(file)))
    except FuserError as error:
        assert error.message
