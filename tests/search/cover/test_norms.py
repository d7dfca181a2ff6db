"""Normalizations without kernels of their own, and selections as products."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.ir.builder import Builder
from fuser.ir.ops import op as op_def
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Scalar
from search.cover.fold import folded
from search.cover.norms import norms
from search.cover.norms import proved
from search.cover.norms import without
from search.cover.parts import parts
from search.cover.select import selected

WIDTH = 128


def weights(program: TensorProgram, seed: int = 0) -> dict[str, np.ndarray]:
    """Random values of every input but x."""
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal(program[n].shape).astype(np.float32) for n in program.inputs if n != "x"}


def layer(norm: str, gain: int, again: bool) -> TensorProgram:
    """Rows behind a product and a residual, normalized, multiplied, and (``again``) added to what comes out."""
    b = Builder("layer")
    x = b.input("x", (24, WIDTH))
    rows = x + x @ b.input("first", (WIDTH, WIDTH)) + b.input("bias", (WIDTH,))
    y = b.op(norm, rows, *(b.input(f"affine_{i}", (WIDTH,)) for i in range(gain)), eps=Scalar.of(1e-5))
    z = b.op("gelu", y @ b.input("second", (64, WIDTH)).T) @ b.input("third", (64, WIDTH))
    return b.build(out=y + z if again else z)


@pytest.mark.parametrize(
    ("norm", "gain"), [("layer_norm", 0), ("layer_norm", 1), ("layer_norm", 2), ("rms_norm", 0), ("rms_norm", 1)]
)
@pytest.mark.parametrize("again", [False, True])
def test_the_form_without_a_normalization_computes_the_same(norm: str, gain: int, again: bool) -> None:
    program = layer(norm, gain, again)
    params = weights(program)
    (found,) = norms(program, params)
    less, tails = without(program, {found: 64})
    assert norm not in {n.op for n in less.nodes}
    assert tails.keys() == {found.rows}
    x = np.random.default_rng(1).standard_normal((24, WIDTH)) * 3 + 20  # a mean much larger than the spread
    wide = {n: v.astype(np.float64) for n, v in params.items()} | {"x": x}
    (want,) = program.evaluate(wide).values()
    (got,) = less.evaluate({n: wide[n] for n in less.inputs}).values()
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9 * np.abs(want).max())


def test_weights_are_scaled_when_a_model_is_compiled() -> None:
    program = layer("layer_norm", 2, again=True)
    params = weights(program)
    less, _ = without(program, dict.fromkeys(norms(program, params), 64))
    small, held = folded(less, params)
    assert all(any(i not in held for i in n.inputs) or op_def(n.op).kind == "view" for n in small.nodes)
    assert sum(n.op == "matmul" for n in small.nodes) == sum(n.op == "matmul" for n in program.nodes)


def test_one_kernel_may_leave_the_sums_and_one_read_them() -> None:
    program = layer("layer_norm", 2, again=False)
    params = weights(program)
    (found,) = norms(program, params)
    less, tails = without(program, {found: 64})
    small, _ = folded(less, params)
    steps = {n.output for n in small.nodes} - set(program.table) - tails[found.rows]
    offered = parts(small, (), tails, steps)
    assert any(
        {found.rows, *tails[found.rows]} <= set(p.nodes) and any(n.op == "matmul" for n in p.program.nodes) for p in offered
    )
    corrected = found.products[0].output
    whole = [p for p in offered if corrected in p.nodes and any(n.op == "matmul" for n in p.program.nodes)]
    assert any(set(p.reads) & set(small.producers) == {found.rows, *(set(tails[found.rows]) & set(p.reads))} for p in whole)


def test_rows_that_no_product_makes_are_summed_where_they_are_made() -> None:
    program = layer("rms_norm", 1, again=False)
    params = weights(program)
    (found,) = norms(program, params)
    less, tails = without(program, {found: 64})
    steps = {n.output for n in less.nodes} - set(program.table) - tails[found.rows]
    together = {found.rows, *tails[found.rows]}
    assert any(set(p.nodes) == together for p in parts(folded(less, params)[0], (), tails, steps))


def test_what_others_read_keeps_its_normalization() -> None:
    b = Builder("shared")
    x = b.input("x", (16, WIDTH))
    rows = b.op("relu", x)
    y = b.op("layer_norm", rows, eps=Scalar.of(1e-5))
    w = b.input("w", (WIDTH, 32))
    program = b.build(out=y @ w, seen=y)
    assert not norms(program, {"w": np.zeros((WIDTH, 32), np.float32)})  # its rows are a result themselves
    direct = Builder("direct")
    x = direct.input("x", (16, WIDTH))
    y = direct.op("layer_norm", x, eps=Scalar.of(1e-5)) @ direct.input("w", (WIDTH, 32))
    assert not norms(direct.build(out=y), {"w": np.zeros((WIDTH, 32), np.float32)})  # nobody here makes its rows


def test_a_wrong_epsilon_or_group_is_not_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    eps = (("eps", Scalar.of(1e-5)),)
    assert proved("layer_norm", 96, 32, 2, eps)
    monkeypatch.setattr("search.cover.norms._again", lambda b, refs, node, rows, affine, group: rows)
    assert not proved("layer_norm", 64, 32, 2, eps)


def rotary(width: int, sign: int = -1) -> TensorProgram:
    b = Builder("rotary")
    x, cos, sin = b.input("x", (2, 8, 16)) @ b.input("w", (16, width)), b.input("cos", (8, width)), b.input("sin", (8, width))
    half = width // 2
    low, high = (b.op("slice", x, axis=2, start=i * half, stop=(i + 1) * half) for i in range(2))
    turned = b.op("concat", -high if sign < 0 else high, low, axis=2)
    return b.build(out=x * cos + turned * sin)


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_rotary_embedding_is_a_product(sign: int) -> None:
    program = rotary(64, sign)
    made, params = selected(program, {})
    assert [n.op for n in made.nodes].count("matmul") == 2
    assert not {"concat", "slice", "neg"} & {n.op for n in made.nodes}
    rng = np.random.default_rng(0)
    values = {n: rng.standard_normal(program[n].shape) for n in program.inputs}
    (want,) = program.evaluate(values).values()
    (got,) = made.evaluate(values | {n: v.astype(np.float64) for n, v in params.items()}).values()
    np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.parametrize(
    ("op", "turned"),
    [("clamp", False), ("tanh", False), ("rms_norm", False), ("softmax", False), ("max", False), ("shift", True)],
)
def test_what_a_turn_moves_alone_is_no_product_where_an_infinity_is_made_finite(op: str, turned: bool) -> None:
    """Zero times infinity would spoil its row, of which torch has numbers then."""
    b = Builder("made finite")
    x = b.input("x", (16, 32)) @ b.input("w", (32, 32))
    y = b.op("concat", *(b.op("slice", x, axis=1, start=s, stop=s + 16) for s in (16, 0)), axis=1) * 0.5
    attrs = {
        "clamp": {"min": -1.0, "max": 1.0},
        "rms_norm": {"axis": 1},
        "softmax": {"axis": 1},
        "shift": {"scalar": 1.0},
        "max": {"axis": (0,), "keepdims": True},
    }
    made, _ = selected(b.build(z=b.op(op, y, **attrs.get(op, {})) @ b.input("v", (32, 8))), {})
    assert ("concat" not in {n.op for n in made.nodes}) is turned


def test_a_turn_in_front_of_scores_is_a_product() -> None:
    """There an infinity has spread over its row by the time that the softmax reads it."""
    b = Builder("scores")
    x, k = b.input("x", (16, 32)) @ b.input("w", (32, 32)), b.input("k", (32, 8))
    y = b.op("concat", *(b.op("slice", x, axis=1, start=s, stop=s + 16) for s in (16, 0)), axis=1)
    made, _ = selected(b.build(z=b.softmax(y @ k)), {})
    assert "concat" not in {n.op for n in made.nodes}


def test_layers_share_one_selection_and_others_stay() -> None:
    b = Builder("two")
    x = b.input("x", (4, 16)) @ b.input("w", (16, 64))
    for _ in range(2):
        low, high = b.op("slice", x, axis=1, start=0, stop=32), b.op("slice", x, axis=1, start=32, stop=64)
        x = b.op("concat", high, low, axis=1) @ b.input(f"w{len(b.names)}", (64, 64))
    wide = b.op("concat", x, x, axis=0)
    made, params = selected(b.build(out=wide), {})
    assert len(params) == 1
    assert [n.op for n in made.nodes] == ["matmul"] * 5 + ["concat"]
    assert selected(rotary(1024), {})[0] == rotary(1024)  # a product so wide costs more than the copies
