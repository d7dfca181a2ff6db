"""Relay models whose sizes are ``Any``: which are one size, and that buckets compute what the model does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fuser
from fuser.cli import main
from fuser.errors import FuserError
from fuser.errors import ModelFileError
from fuser.errors import UnsupportedError
from fuser.errors import UsageError
from search.buckets.sizes import all_padded
from search.buckets.sizes import resolved
from tests.tvm_bridge.relay_writer import RelayWriter
from tests.tvm_bridge.relay_writer import write_params
from tvm_bridge.to_program.relay_sized import sized_live

Shape = tuple[int | None, ...]


def added(w: RelayWriter, *shapes: Shape) -> int:
    first, *others = (w.input(n, s) for n, s in zip("xyz", shapes, strict=False))
    for other in others:
        first = w.call("add", first, other)
    return first


def table(w: RelayWriter) -> int:
    """A dimension that only fits as a number."""
    return w.call("nn.dense", w.input("x", (None, None)), w.const(np.ones((4, 32))), units=0)


def typed(w: RelayWriter) -> int:
    """Relay takes an extent that it does not know for 8 beside 8, and says so."""
    x, y = w.input("x", (None, 4)), w.input("y", (8, 4))
    return w.call("add", x, y, type_=w.tensor_type((8, 4)))


def joined(w: RelayWriter) -> int:
    """The rows of x are as many as both of y's dimensions have elements, and z's."""
    x, y, z = w.input("x", (None, 4)), w.input("y", (None, None, 4)), w.input("z", (None, None, 4))
    rows = w.call("reshape", w.call("add", y, z), newshape=w.ints(-1, 4))
    return w.tuple(w.call("exp", x), rows)


def either(w: RelayWriter) -> int:
    x, y, z = w.input("x", (None, 4)), w.input("y", (None, 4)), w.input("z", (None, 4))
    both = w.call("add", w.call("concatenate", w.tuple(x, y), axis=0), w.call("concatenate", w.tuple(x, z), axis=0))
    return w.call("add", both, w.call("concatenate", w.tuple(y, x), axis=0))


TIES = [
    (lambda w: added(w, (None, 4), (None, 4)), "x:0 (x:0, y:0)"),
    (lambda w: added(w, (None, None), (None, None)), "x:0 (x:0, y:0), x:1 (x:1, y:1)"),
    (lambda w: added(w, (None, 4), (1, 4)), "x:0"),
    (table, "x:0"),
    (typed, "no dimension"),
    (joined, "x:0, y:0 (y:0, z:0), y:1 (y:1, z:1)"),
]


@pytest.mark.parametrize(("body", "says"), TIES)
def test_what_operators_force_is_one_size(body: Any, says: str) -> None:
    w = RelayWriter()
    assert str(sized_live(w.module(body(w)), {}, "m")) == says


def test_what_the_user_says_is_one_size() -> None:
    w = RelayWriter()
    x, y = w.input("x", (None, 4)), w.input("y", (None, 4))
    text = w.module(w.tuple(w.call("exp", x), w.call("exp", y)))
    assert str(sized_live(text, {}, "m")) == "x:0, y:0"
    assert str(sized_live(text, {}, "m", [[("x", 0), ("y", 0)], []])) == "x:0 (x:0, y:0)"


def test_what_is_not_said_is_asked_for() -> None:
    w = RelayWriter()
    x, y = w.input("x", (None, None)), w.input("y", (None, None))
    flat = [w.call("reshape", v, newshape=w.ints(-1)) for v in (x, y)]
    text = w.module(w.call("add", *flat))
    with pytest.raises(UsageError, match="do not say which") as found:
        sized_live(text, {}, "m")
    assert "x:0,y:0" in (found.value.hint or "") + found.value.message
    assert str(sized_live(text, {}, "m", [[("x", 0), ("y", 0)]])) == "x:0 (x:0, y:0), x:1 (x:1, y:1)"


def test_what_does_not_fit_is_the_models_fault() -> None:
    w = RelayWriter()
    with pytest.raises(ModelFileError, match=r"add .*do not broadcast"):
        sized_live(w.module(added(w, (None, 4), (None, 5))), {}, "m")


def test_sizes_that_the_model_does_not_take_are_named() -> None:
    w = RelayWriter()
    x = w.input("x", (None, 4))
    few = w.call("strided_slice", w.const(np.ones((8, 4))), begin=w.ints(0, 0), end=w.ints(8, 4), slice_mode=w.string("end"))
    like = w.call("slice_like", few, x, axes=w.ints(0))
    sized = sized_live(w.module(w.call("add", x, like)), {}, "m")
    assert sized.at({"x:0": 8}).program.outputs
    with pytest.raises(UsageError, match=r"cannot be at x:0=9: .*slice_like"):
        sized.at({"x:0": 9})


@pytest.mark.parametrize("op", ["sort", "reverse", "argmax"])
def test_what_padding_would_change_is_refused_by_name(op: str) -> None:
    """Operators that the op table lacks, whose names in Relay have no namespace."""
    w = RelayWriter()
    attrs = {"axis": 0, "is_ascend": 1} if op == "sort" else {"axis": w.ints(0) if op == "argmax" else 0}
    kind = w.tensor_type((4,), "int32") if op == "argmax" else w.tensor_type((None, 4))
    sized = sized_live(w.module(w.call(op, w.input("x", (None, 4)), type_=kind, **attrs)), {}, "m")
    with pytest.raises(UnsupportedError, match=f"cannot be padded along x:0: .*{op}"):
        all_padded(sized, resolved({"x:0": (6,)}, sized))


def attention(w: RelayWriter, rng: np.random.Generator) -> tuple[int, dict[str, np.ndarray]]:
    """One head, whose shapes are computed as importers of dynamic models do it, with a mask over keys."""
    x, mask = w.input("x", (None, None, 8)), w.input("mask", (None, None))
    params = {n: rng.standard_normal((8, 8)).astype(np.float32) for n in ("q", "k")}
    weights = {n: w.input(n, v.shape) for n, v in params.items()}
    axis0 = w.node("IntImm", dtype="int32", value=0)

    def size(i: int) -> int:
        whole = w.call("shape_of", x, dtype="int64")
        one = w.call("take", whole, w.const(i, "int64"), axis=axis0, mode=w.string("fast"))
        return w.call("expand_dims", one, axis=0, num_newaxis=1)

    def seen(v: int, *parts: int) -> int:
        return w.call("dyn.reshape", v, w.call("concatenate", w.tuple(*parts), axis=0))

    def rows(name: str) -> int:
        flat = w.call("reshape", x, newshape=w.ints(-1, 8))
        return seen(w.call("nn.dense", flat, weights[name], units=0), size(0), size(1), w.const([8], "int64"))

    scores = w.call("nn.batch_matmul", rows("q"), rows("k"), transpose_a=0, transpose_b=1)
    wide = w.call("dyn.broadcast_to", w.call("expand_dims", mask, axis=1, num_newaxis=1),
                  w.call("concatenate", w.tuple(size(0), size(1), size(1)), axis=0))  # fmt: skip
    chances = w.call("nn.softmax", w.call("add", scores, wide), axis=-1)
    y = w.call("nn.batch_matmul", chances, x, transpose_a=0, transpose_b=0)
    return w.tuple(y, w.call("mean", y, axis=w.ints(1), keepdims=0, exclude=0)), params


def wanted(x: np.ndarray, mask: np.ndarray, params: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    s = (x @ params["q"].T) @ (x @ params["k"].T).swapaxes(1, 2) + mask[:, None]
    p = np.exp(s - s.max(-1, keepdims=True))
    y = p / p.sum(-1, keepdims=True) @ x
    return y, y.mean(1)


def test_shapes_that_are_computed_are_padded(rng: np.random.Generator) -> None:
    w = RelayWriter()
    body, params = attention(w, rng)
    sized = sized_live(w.module(body), params, "m")
    assert str(sized) == "x:0 (x:0, mask:0), x:1 (x:1, mask:1)"
    (padded,) = all_padded(sized, resolved({"mask:0": (2,), "x:1": (6,)}, sized))
    for b, n in ((1, 1), (2, 5), (2, 6)):
        x, mask = rng.standard_normal((b, n, 8)), rng.standard_normal((b, n))
        given = {"x": np.pad(x, ((0, 2 - b), (0, 6 - n), (0, 0)), "edge"), "mask": np.pad(mask, ((0, 2 - b), (0, 6 - n)), "edge")}
        for e in padded.extras:
            given[e.name] = e.value(padded.sizes[e.symbol], {"x:0": b, "x:1": n}[e.symbol]).reshape(
                padded.known.program[e.name].shape
            )
        y, m = padded.known.program.evaluate({**padded.known.params, **given}).values()
        for found, like in zip((y[:b, :n], m[:b]), wanted(x, mask, params), strict=True):
            np.testing.assert_allclose(found, like, rtol=1e-5, atol=1e-6)


def test_a_file_is_optimized_by_buckets(tmp_path: Path, rng: np.random.Generator, capsys: pytest.CaptureFixture[str]) -> None:
    w = RelayWriter()
    x, weight = w.input("x", (None, 16)), w.input("w", (16, 16))
    (tmp_path / "m.json").write_text(w.module(w.call("nn.relu", w.call("nn.dense", x, weight, units=0))))
    write_params(tmp_path / "m.params", {"w": rng.standard_normal((16, 16)).astype(np.float32)})
    args = ["optimize", str(tmp_path / "m.json"), "--params", str(tmp_path / "m.params"), "-o", str(tmp_path / "out"), "--json"]
    assert main(args) == 3
    assert "--buckets 'x:0=" in json.loads(capsys.readouterr().out)["error"]["hint"]
    assert not (tmp_path / "out").exists()
    found = fuser.optimize(args[1], args[3], buckets={"x:0": (16,)}, on="cpu", check=False, jobs=1)
    assert [b.sizes for b in found.buckets] == [{"x:0": 16}]
    assert found.trial is not None and found.trial.ok


def _live() -> Any:
    from tvm import IRModule
    from tvm import relay

    x, v = relay.var("x", shape=(relay.Any(), 32)), relay.var("w", shape=(16, 32))
    q, other = relay.var("q", shape=(relay.Any(), 32)), relay.GlobalVar("f")
    f = relay.Function([q], relay.nn.relu(q), relay.TensorType((relay.Any(), 32)))
    main = relay.Function([x, v], relay.nn.dense(relay.Call(other, [x]), v))
    return relay.transform.InferType()(IRModule({other: f, relay.GlobalVar("main"): main}))


@pytest.mark.relay
def test_a_live_module_has_buckets_too(rng: np.random.Generator) -> None:
    params = {"w": rng.standard_normal((16, 32)).astype(np.float32)}
    with pytest.raises(FuserError, match="dynamic shape"):
        fuser.optimize(_live(), params)
    found = fuser.optimize(_live(), params, buckets={"x:0": (4, 8)}, on="none", check=False, jobs=1)
    assert [b.sizes for b in found.buckets] == [{"x:0": 4}, {"x:0": 8}]
    assert found.built is None
