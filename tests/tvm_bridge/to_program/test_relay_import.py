"""From Relay models to programs: parameters, opaque operators, origins."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuser.errors import ModelFileError
from fuser.errors import UnsupportedError
from fuser.errors import UsageError
from fuser.ir.program import TensorProgram
from tests.operators import NUMBERS
from tests.paths import RELAY
from tests.tvm_bridge.relay_writer import RelayWriter
from tests.tvm_bridge.relay_writer import write_params
from tvm_bridge.read.relay_graph import TensorType
from tvm_bridge.read.relay_ops import evaluate
from tvm_bridge.read.relay_ops import table_entries
from tvm_bridge.read.relay_params import read_params
from tvm_bridge.to_program.relay_eval import graph_values
from tvm_bridge.to_program.relay_import import ImportedModel
from tvm_bridge.to_program.relay_import import from_json_text
from tvm_bridge.to_program.relay_import import read_model
from tvm_bridge.to_program.relay_import import to_program

MODELS = ["encoder_torch", "encoder_onnx"]


def _imported(name: str, clean: bool = True) -> ImportedModel:
    return to_program(read_model(RELAY / f"{name}.json", RELAY / f"{name}.params"), clean)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("clean", [True, False])
def test_the_program_computes_what_tvm_does(name: str, clean: bool) -> None:
    imported, known = _imported(name, clean), np.load(RELAY / f"{name}.npz")
    assert imported.inputs == ("x",)
    (y,) = imported.evaluate({"x": known["x"]}).values()
    np.testing.assert_allclose(y, known["y"], rtol=0, atol=2e-6)
    assert TensorProgram.from_json(imported.program.to_json()) == imported.program


def test_both_importers_give_the_same_program() -> None:
    """88 and 77 Relay calls of two importers become the same 29 operators of an encoder layer."""
    shapes = []
    for name in MODELS:
        program = _imported(name).program
        shapes.append(Counter((n.op, program[n.output].shape) for n in program.nodes))
        assert len(program.nodes) == 29
        scale = next(n for n in program.nodes if n.op == "scale")
        assert str(scale.attr["scalar"]).endswith(".3|^(-1/2)")
        assert program.bound(scale)["scalar"].value() == pytest.approx(8**-0.5)
    assert shapes[0] == shapes[1]
    assert shapes[0]["gelu", (1, 8, 32)] == 1
    assert sum(count for (op, _), count in shapes[0].items() if op == "layer_norm") == 2


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("clean", [True, False])
def test_an_origin_has_the_value_of_its_tensor(name: str, clean: bool) -> None:
    imported, x = _imported(name, clean), np.load(RELAY / f"{name}.npz")["x"]
    model = imported.model
    relay = graph_values(model.graph, {**model.params, "x": x}, np.float64)
    program = imported.evaluate({"x": x}, np.float64, keep=[t.name for t in imported.program.tensors])
    assert len(imported.origin) > len(imported.program.nodes)
    for tensor, ref in imported.origin.items():
        assert model.graph.type_of(ref).dims == imported.program[tensor].shape
        np.testing.assert_allclose(program[tensor], relay[ref], rtol=1e-5, atol=1e-6)


def test_a_region_of_the_program_is_found_in_the_relay_graph() -> None:
    imported = _imported("encoder_torch")
    program = imported.program
    softmax = next(n for n in program.nodes if n.op == "softmax")
    scores = program.producers[program.producers[softmax.inputs[0]].inputs[0]]
    context = program.consumers[softmax.output][0]
    inputs = (*scores.inputs, context.inputs[1])
    found = imported.between(inputs, [context.output])
    ops = Counter(imported.model.graph.nodes[i].op for i in found)
    assert ops["nn.batch_matmul"] == 2
    assert ops["nn.softmax"] == ops["divide"] == 1
    assert not {"nn.bias_add", "nn.layer_norm"} & set(ops)
    assert imported.model.graph.nodes[imported.origin[softmax.output].index].op == "nn.softmax"
    assert imported.between(inputs[1:], [context.output]) <= found
    with pytest.raises(UsageError, match="no counterpart"):
        imported.between(["nowhere"], [context.output])


# Parameters of another model


def _rejects(tmp_path: Path, params: dict[str, np.ndarray]) -> str:
    write_params(tmp_path / "p", params)
    with pytest.raises(ModelFileError) as caught:
        read_model(RELAY / "encoder_torch.json", tmp_path / "p")
    assert str(tmp_path / "p") in caught.value.message
    assert "belong to this model" in caught.value.hint
    return caught.value.message


def test_parameters_of_another_model_are_refused(tmp_path: Path) -> None:
    params = read_params(RELAY / "encoder_torch.params")
    message = _rejects(tmp_path, read_params(RELAY / "encoder_onnx.params"))
    assert "not in the model" in message
    name = "aten::linear_0.weight"
    assert f"{name!r} is float32[16, 15]" in _rejects(tmp_path, {**params, name: params[name][:, 1:].copy()})
    assert f"{name!r} is float16" in _rejects(tmp_path, {**params, name: params[name].astype(np.float16)})
    bias = {k: v for k, v in params.items() if k != "aten::linear_3.bias"}
    assert "'aten::linear_3.bias' is missing" in _rejects(tmp_path, bias)
    assert "'extra' is not in the model" in _rejects(tmp_path, {**params, "extra": params[name]})


def test_inputs_can_be_stated(tmp_path: Path) -> None:
    params = {k: v for k, v in read_params(RELAY / "encoder_torch.params").items() if k != "aten::linear_3.bias"}
    write_params(tmp_path / "p", params)
    model = read_model(RELAY / "encoder_torch.json", tmp_path / "p", inputs=["x", "aten::linear_3.bias"])
    assert [v.name for v in model.inputs] == ["x", "aten::linear_3.bias"]
    with pytest.raises(ModelFileError, match="'x' is missing"):
        read_model(RELAY / "encoder_torch.json", RELAY / "encoder_torch.params", inputs=[])


def test_a_model_without_parameters_is_still_a_program() -> None:
    imported = to_program(read_model(RELAY / "encoder_torch.json"))
    assert len(imported.inputs) == 17
    assert Counter(n.op for n in imported.program.nodes)["softmax"] == 1


# Operators one by one


def test_an_embedding_is_a_lookup() -> None:
    w = RelayWriter()
    ids = w.input("ids", (2, 3), "int64")
    table = w.const(np.arange(20).reshape(5, 4))
    rows = w.call("take", table, w.call("cast", ids, dtype="int32"), axis=w.node("IntImm", value=0), mode=w.string("clip"))
    hidden = w.call("greater", rows, w.const(9.0))
    body = w.call("where", hidden, w.const(0.0), rows)
    imported = to_program(from_json_text(w.module(body)))
    assert [n.attr.get("callee", n.op) for n in imported.program.nodes] == ["cast", "embedding", "gt", "where"]
    given = np.array([[0, 1, 2], [4, 3, 1]])
    (y,) = imported.evaluate({"ids": given}).values()
    want = np.arange(20).reshape(5, 4)[given]
    np.testing.assert_array_equal(y, np.where(want > 9, 0, want))


def _take(w: RelayWriter, x: int, index: int, axis: int | None, mode: str) -> int:
    return w.call("take", x, index, axis=0 if axis is None else w.node("IntImm", value=axis), mode=w.string(mode))


def _image(w: RelayWriter, op: str, *more: int, padding: tuple[int, ...] = (1, 1), **attrs: Any) -> int:
    """Of an image of the input x [2, 3, 4], in two channels."""
    image = w.call("expand_dims", w.call("exp", w.inputs[0]), axis=0, num_newaxis=1)
    return w.call(op, image, *more, padding=w.ints(*padding), strides=w.ints(1, 2), **attrs)


WINDOW: dict[str, Any] = {"layout": "NCHW"}
CALLS = {
    "rows": lambda w, x, i: _take(w, x, i, 1, "clip"),
    "flat": lambda w, x, i: _take(w, x, i, None, "fast"),
    "constants, clipped": lambda w, x, i: _take(w, x, w.const([5, -3, 1], "int32"), 2, "clip"),
    "constants, wrapped": lambda w, x, i: _take(w, x, w.const([[5, -3]], "int64"), 1, "wrap"),
    "the last": lambda w, x, i: _take(w, x, w.const(-1, "int32"), 2, "wrap"),
    "gather": lambda w, x, i: w.call("gather", x, w.const(-np.ones((2, 3, 2)), "int32"), axis=w.node("IntImm", value=-1)),
    "elements": lambda w, x, i: w.call("adv_index", w.tuple(x, i, i)),
    "whole numbers": lambda w, x, i: w.call(
        "where", w.call("less", w.call("multiply", i, i), w.const([1, 0], "int64")), w.call("add", i, i), i
    ),
    "casts": lambda w, x, i: w.call("cast", w.call("cast", i, dtype="int32"), dtype="float32"),
    "convolution": lambda w, x, i: _image(w, "nn.conv2d", w.const(np.ones((4, 1, 3, 3))), groups=2, kernel_size=w.ints(3, 3)),
    "maximum": lambda w, x, i: _image(w, "nn.max_pool2d", pool_size=w.ints(3, 2), **WINDOW),
    "average": lambda w, x, i: _image(w, "nn.avg_pool2d", pool_size=w.ints(3, 2), count_include_pad=1, **WINDOW),
}
OPAQUE = {
    "wrapped": lambda w, x, i: _take(w, x, i, 1, "wrap"),
    "another border": lambda w, x, i: _image(w, "nn.conv2d", w.const(np.ones((2, 2, 3, 3))), padding=(0, 1, 2, 1)),
    "an average of what is inside": lambda w, x, i: _image(w, "nn.avg_pool2d", pool_size=w.ints(3, 2), **WINDOW),
}


@pytest.mark.parametrize("name", [*CALLS, *OPAQUE])
def test_what_a_library_computes(name: str, rng: np.random.Generator) -> None:
    w = RelayWriter()
    x, index = w.input("x", (2, 3, 4)), w.input("i", (2,), "int64")
    text = w.module((CALLS | OPAQUE)[name](w, x, index))
    imported = to_program(from_json_text(text))
    assert ("opaque" in {n.op for n in imported.program.nodes}) == (name in OPAQUE)
    inputs = {"x": rng.standard_normal((2, 3, 4)).astype(np.float32), "i": np.array([1, 0])}
    (got,) = imported.evaluate(inputs).values()
    (wanted,) = imported.original_outputs(inputs)
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
    assert got.dtype == wanted.dtype
    places = [imported.params[n.inputs[1]] for n in imported.program.nodes if n.op == "gather"]
    assert all((p >= 0).all() for p in places)  # torch knows no other


def test_split_stack_slices_and_minimum() -> None:
    w = RelayWriter()
    x = w.input("x", (2, 6))
    parts = w.call("split", x, indices_or_sections=w.node("runtime.BoxInt", text="3"), axis=1)
    low = w.call("minimum", w.item(parts, 0), w.item(parts, 2))
    both = w.call("stack", w.tuple(low, w.item(parts, 1)), axis=w.node("IntImm", value=0))
    cut = w.call(
        "strided_slice", both, begin=w.ints(0, 1), end=w.ints(2, 2), strides=w.ints(1, 1), axes=0, slice_mode=w.string("end")
    )
    least = w.call("min", cut, axis=w.ints(-1), keepdims=0, exclude=0)
    imported = to_program(from_json_text(w.module(least)))
    assert "opaque" not in {n.op for n in imported.program.nodes}
    given = np.random.default_rng(0).standard_normal((2, 6)).astype(np.float32)
    (y,) = imported.evaluate({"x": given}).values()
    a, b, c = np.split(given, 3, 1)
    np.testing.assert_array_equal(y, np.stack([np.minimum(a, c), b])[:, 1:2].min(-1))


def test_division_of_integers_stays_opaque_and_sums_are_exact() -> None:
    w = RelayWriter()
    n = w.input("n", (3,), "int64")
    body = w.call("add", w.call("divide", n, w.const(2, "int64")), w.const(2**53 + 1, "int64"))
    imported = to_program(from_json_text(w.module(body)))
    assert [node.op for node in imported.program.nodes] == ["opaque", "add"]
    (y,) = imported.evaluate({"n": np.array([7, -7, 0])}).values()
    np.testing.assert_array_equal(y, np.array([3, -3, 0]) + 2**53 + 1)


@pytest.mark.parametrize("op", ["subtract", "negative"])
def test_differences_of_truths_stay_opaque(op: str) -> None:
    """torch has none."""
    w = RelayWriter()
    x = w.input("x", (3,), "bool")
    imported = to_program(from_json_text(w.module(w.call(op, *[x] * (2 if op == "subtract" else 1)))))
    assert [node.op for node in imported.program.nodes] == ["opaque"]


@pytest.mark.parametrize("bound", [-np.inf, 0.0])
@pytest.mark.parametrize("form", ["any", "all", "isnan"])
def test_guards_of_fully_masked_rows_go_and_other_selections_stay(form: str, bound: float) -> None:
    w = RelayWriter()
    x = w.input("x", (2, 3, 3))
    scores = w.call("add", x, w.const(np.triu(np.full((3, 3), -np.inf), 1)))
    soft = w.call("nn.softmax", scores, axis=-1)
    masked = w.call("equal", scores, w.const(bound))
    fold = {"axis": w.ints(-1), "keepdims": 1, "exclude": 0}
    if form == "any":
        cond = w.call("logical_not", w.call("any", w.call("logical_not", masked), **fold))
    else:
        cond = w.call("all", masked, **fold) if form == "all" else w.call("isnan", soft)
    body = w.call("where", cond, w.call("zeros_like", soft), soft)
    imported = to_program(from_json_text(w.module(body)))
    guarded = form != "isnan" and bound == 0.0
    assert ("where" in {n.op for n in imported.program.nodes}) == guarded
    given = np.random.default_rng(0).standard_normal((2, 3, 3)).astype(np.float32)
    given[0, 1] = 0.0 if guarded else -np.inf
    (y,) = imported.evaluate({"x": given}).values()
    (want,) = imported.model.evaluate({"x": given})
    np.testing.assert_allclose(y, want, rtol=1e-6)
    if not guarded:
        np.testing.assert_array_equal(y[0, 1], 0)


@pytest.mark.parametrize("name", sorted(table_entries()))
def test_the_op_table_means_what_relay_does(name: str) -> None:
    """What the reader evaluates, and what the program's operator of this name in Relay does."""
    entry, theirs = table_entries()[name]
    numbers = {"axis": (1,), "keepdims": True} if entry.over_axes else NUMBERS.get(entry.name, {})
    attrs = {theirs.get(k, k): v for k, v in numbers.items()}
    xs = [np.random.default_rng(i).uniform(0.1, 2, (3, 4)).astype(np.float32) for i in range(entry.arity)]
    if name in ("power", "nn.bias_add", "cast", "round", "logical_xor"):
        return  # their operands are others, or what they do with halves and whole numbers
    (found,) = evaluate(name, xs, attrs, (TensorType((3, 1 if entry.over_axes else 4), "float32"),))
    np.testing.assert_allclose(found, entry.numpy(*xs, **numbers), rtol=1e-5)


def test_halves_round_away_from_zero() -> None:
    """As TVM does; numpy and torch go to the even one."""
    w = RelayWriter()
    x = np.array([0.5, 1.5, 2.5, -0.5, -2.5, 0.49999997, 2**23 + 1, 2**22 + 0.5, -1e20, np.inf, 3.2], np.float32)
    imported = to_program(from_json_text(w.module(w.call("round", w.input("x", x.shape)))))
    want = [1, 2, 3, -1, -3, 0, 2**23 + 1, 2**22 + 1, -1e20, np.inf, 3]
    for found in (*imported.evaluate({"x": x}).values(), *imported.model.evaluate({"x": x})):
        np.testing.assert_array_equal(found, np.array(want, np.float32))


def test_what_has_no_semantics_in_its_form_is_refused() -> None:
    """A layout with split channels, of a constant too: it stays a call for TVM."""
    w = RelayWriter()
    shape = (1, 4, 2, 2)
    of = {"src_layout": w.string("NCHW"), "dst_layout": w.string("NCHW2c")}
    into = w.call("layout_transform", w.const(np.ones(shape)), type_=w.tensor_type((1, 2, 2, 2, 2)), **of)
    imported = to_program(from_json_text(w.module(w.call("add", into, w.input("x", (1, 2, 2, 2, 2))))))
    assert [n.op for n in imported.program.nodes] == ["opaque", "add"]
    with pytest.raises(UnsupportedError, match="splits dimensions"):
        imported.original_outputs({"x": np.ones((1, 2, 2, 2, 2))})
