"""Small Relay files that ask for any amount of time or memory end in a clear error, or are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from fuser.cli import main
from fuser.errors import FuserError
from tests.damage import ODD
from tests.damage import damaged_value
from tests.damage import json_text
from tests.tvm_bridge.relay_writer import RelayWriter
from tests.work import at_most
from tvm_bridge.to_program.relay_import import from_json_text
from tvm_bridge.to_program.relay_import import to_program

CALLS = 4_000_000
"""Of Python functions, at most, to read one of :data:`FILES`; twice what the longest takes."""


def shared_tuples(leaf: Callable[[RelayWriter], int], use: str) -> str:
    """Forty tuples, each twice in the next."""
    w = RelayWriter()
    value = leaf(w)
    for _ in range(40):
        value = w.tuple(value, value)
    if use == "operand":
        value = w.call("concatenate", value, axis=0)
    return w.module(value)


def doubling_functions(depth: int = 40, operator: bool = True) -> str:
    w = RelayWriter()
    x = w.input("x", (4,))
    v = w.var("v", (4,))
    callee = w.global_function("f0", [v], w.call("tanh", v) if operator else v)
    for i in range(1, depth):
        v = w.var("v", (4,))
        callee = w.global_function(f"f{i}", [v], w.call(callee, w.call(callee, v)))
    return w.module(w.call(callee, x))


def doubling_closures() -> str:
    """let f1 = fn(v) {f0(f0(v))}; …"""
    w = RelayWriter()
    x, v = w.input("x", (4,)), w.var("v")
    names, bodies = [w.var("f")], [w.function([v], w.call("tanh", v))]
    for _ in range(40):
        v, name = w.var("v"), w.var("f")
        bodies.append(w.function([v], w.call(names[-1], w.call(names[-1], v))))
        names.append(name)
    body = w.call(names[-1], x)
    for name, function in reversed(list(zip(names, bodies, strict=True))):
        body = w.let(name, function, body)
    return w.module(body)


def typed(kind: Callable[[RelayWriter], int]) -> str:
    w = RelayWriter()
    x = w.input("x", (4,))
    return w.module(w.call("tanh", x, type_=kind(w)))


def shared_type(w: RelayWriter) -> int:
    t = w.tensor_type((4,))
    for _ in range(4):
        t = w.node("TupleType", fields=w.array([t] * 300))
    return t


def attribute(op: str, value: Callable[[RelayWriter], object], key: str, shape: tuple[int, ...] = (4, 4), **more: Any) -> str:
    w = RelayWriter()
    x = w.input("x", shape)
    return w.module(w.call(op, x, **{key: value(w)}, **more))


def nested_array(w: RelayWriter) -> int:
    a = w.ints(*range(500))
    for _ in range(2):
        a = w.array([a] * 500)
    return a


def recursive() -> str:
    w = RelayWriter()
    x, v = w.input("x", (4,)), w.var("v", (4,))
    name = w.node("GlobalVar", name_hint=w.string("f"))
    w.functions += [name, w.function([v], w.call("tanh", w.call(name, v)))]
    return w.module(w.call(name, x))


def own_operand() -> str:
    w = RelayWriter()
    x = w.input("x", (4,))
    call = w.call("tanh", x)
    w.nodes[int(w.nodes[call]["attrs"]["args"])]["data"] = [call]
    return w.module(call)


def same_names(count: int = 1500) -> str:
    w = RelayWriter()
    inputs = [w.input("x", (2,)) for _ in range(count)]
    return w.module(w.tuple(*inputs))


def folded(op: str, value: list[int], shape: tuple[int, ...], **attrs: object) -> str:
    """A small constant, of which an operator would make a large one whatever type the file says."""
    w = RelayWriter()
    w.input("x", (4,))
    made = {k: v(w) if callable(v) else v for k, v in attrs.items()}
    return w.module(w.call(op, w.const(value, "int32"), type_=w.tensor_type(shape, "int32"), **made))


def blobs() -> str:
    """One constant of a mebibyte in a function that is called 1,500 times."""
    w = RelayWriter()
    x, v = w.input("x", (1,)), w.var("v", (1,))
    f = w.global_function("f", [v], w.call("sum", w.call("add", v, w.const(np.zeros(1 << 18))), axis=w.ints(0), keepdims=1))
    for _ in range(1500):
        x = w.call(f, x)
    return w.module(x)


FILES: dict[str, str] = {
    "tuples_of_an_input": shared_tuples(lambda w: w.input("x", (4,)), "result"),
    "tuples_as_operand": shared_tuples(lambda w: w.input("x", (4,)), "operand"),
    "tuples_of_nothing": shared_tuples(lambda w: w.tuple(), "operand"),
    "functions": doubling_functions(),
    "functions_without_operators": doubling_functions(operator=False),
    "closures": doubling_closures(),
    "types": typed(shared_type),
    "rank_60": typed(lambda w: w.tensor_type((1,) * 60)),
    "overflow": typed(lambda w: w.tensor_type((2**40, 2**40))),
    "negative": typed(lambda w: w.tensor_type((-4,))),
    "attribute_of_attributes": attribute("transpose", nested_array, "axes"),
    "newshape_overflow": attribute("reshape", lambda w: w.ints(2**62, 2**62, -1), "newshape"),
    "num_newaxis": attribute("expand_dims", lambda w: 10**9, "num_newaxis", axis=0),
    "sections": attribute("split", lambda w: w.node("IntImm", value=2**40), "indices_or_sections", (2**40,), axis=0),
    "superscript": attribute("expand_dims", lambda w: "²", "axis", num_newaxis=1),
    "digits": attribute("expand_dims", lambda w: "9" * 5000, "axis", num_newaxis=1),
    "infinity": attribute("nn.leaky_relu", lambda w: "inf", "alpha"),
    "repeats": folded("repeat", [1], (1,), repeats=2**36, axis=0),
    "tile": folded("tile", [1], (1,), reps=lambda w: w.ints(2**36)),
    "one_hot_depth": folded("one_hot", [1], (1,), depth=2**40, axis=-1, dtype="int32"),
    "pad": folded("nn.pad", [1], (1,), pad_width=lambda w: w.array([w.ints(2**36, 0)])),
    "recursive": recursive(),
    "own_operand": own_operand(),
    "same_names": same_names(),
    "blobs": blobs(),
}


@pytest.mark.parametrize("name", FILES)
def test_the_reader_ends_soon(name: str) -> None:
    try:
        with at_most(CALLS):
            to_program(from_json_text(FILES[name]))
    except FuserError as error:
        assert error.exit_code in (3, 4)
        assert len(error.message) < 2000


@pytest.mark.parametrize(
    "name", ["tuples_as_operand", "functions", "rank_60", "overflow", "superscript", "digits", "own_operand"]
)
def test_the_command_says_why(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.json"
    path.write_text(FILES[name])
    assert main(["optimize", str(path), "--no-library", "-o", str(tmp_path / "out")]) in (3, 4)
    error = capsys.readouterr().err
    assert "error: " in error
    assert max(map(len, error.splitlines())) < 1200


def test_a_scalar_input_is_read() -> None:
    w = RelayWriter()
    program = to_program(from_json_text(w.module(w.call("add", w.input("x", ()), w.input("y", (3,)))))).program
    assert program["x"].shape == ()


@pytest.mark.parametrize("depth", [500, 100_000])
def test_a_deep_document_is_refused(depth: int) -> None:
    with pytest.raises(FuserError, match=r"nested too deeply|not a model"):
        from_json_text("[" * depth + "]" * depth)
    with pytest.raises(FuserError):
        from_json_text('{"root": 1, "nodes": ' + "[" * depth + "]" * depth + "}")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(FILES)), st.integers(0, 2**32))
def test_damaged_small_models_end_in_a_program_or_an_error(name: str, seed: int) -> None:
    if len(FILES[name]) > 100_000:
        return
    text = json_text(damaged_value(np.random.default_rng(seed), json.loads(FILES[name])))
    try:
        to_program(from_json_text(text))
    except FuserError as error:
        assert error.exit_code in (3, 4)


_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(ODD))
_ANY = st.recursive(
    _SCALARS, lambda x: st.lists(x, max_size=4) | st.dictionaries(st.text(max_size=8), x, max_size=4), max_leaves=20
)
_KINDS = st.sampled_from([
    "relay.Call", "relay.Function", "relay.Tuple", "relay.Let", "IRModule", "Map", "Array", "Op", "relay.Var", "relay.Constant",
    "relay.TensorType", "TupleType", "IntImm", "relay.TupleGetItem", "GlobalVar", "", "x",
])  # fmt: skip
_NAMES = st.sampled_from([
    "body", "params", "op", "args", "attrs", "fields", "index", "tuple_value", "functions", "value", "vid", "name_hint", "data",
    "shape", "dtype", "_checked_type_", "type_annotation", "span", "var",
])  # fmt: skip
_FIELDS = st.dictionaries(_NAMES, st.one_of(st.integers(-1, 12).map(str), st.integers(-1, 12), _SCALARS), max_size=6)
_NODE = st.fixed_dictionaries(
    {"type_key": _KINDS},
    optional={"attrs": st.one_of(_FIELDS, _ANY), "data": st.one_of(st.lists(st.integers(-1, 12), max_size=5), _ANY),
              "repr_str": st.one_of(st.sampled_from(["tanh", "add", "main", "reshape"]), _ANY), "keys": _ANY},
)  # fmt: skip


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(_NODE, min_size=1, max_size=12), st.one_of(st.integers(0, 12), _ANY), _ANY)
def test_any_nodes_end_in_a_graph_or_an_error(nodes: list[dict[str, object]], root: object, blobs: object) -> None:
    text = json_text({"root": root, "nodes": [{"type_key": ""}, *nodes], "b64ndarrays": blobs})
    try:
        to_program(from_json_text(text))
    except FuserError as error:
        assert error.exit_code in (3, 4)
