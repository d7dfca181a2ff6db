"""Inputs are drawn where the program is defined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fuser.drawing import Draw
from fuser.drawing import drawn
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.domain import input_domains
from fuser.ir.interval import CHOICE
from fuser.ir.interval import NONZERO
from fuser.ir.interval import NOT_NEGATIVE
from fuser.ir.interval import POSITIVE
from fuser.ir.interval import Domain
from fuser.ir.interval import place
from fuser.ir.ops import OPS
from fuser.ir.program import TensorProgram
from tests.operators import NUMBERS

Body = Callable[[Builder, Ref, Ref], Ref]


def program(body: Body, dtype: str = "float16") -> TensorProgram:
    b = Builder("domain", dtype)
    return b.build(Z=body(b, b.input("x", (16, 24)), b.input("y", (16, 24))))


def shift(b: Builder, x: Ref, c: float) -> Ref:
    return b.op("shift", x, scalar=c)


KNOWN: dict[str, tuple[Body, dict[str, Domain]]] = {
    "sqrt(x)": (lambda b, x, y: b.op("sqrt", x) + y, {"x": NOT_NEGATIVE}),
    "sqrt(x²+1)": (lambda b, x, y: b.op("sqrt", shift(b, x * x, 1)) + y, {}),
    "rsqrt(x)·y": (lambda b, x, y: b.op("rsqrt", x) * y, {"x": POSITIVE}),
    "x/y": (lambda b, x, y: x / y, {"y": NONZERO}),
    "x/exp(y)": (lambda b, x, y: x / b.exp(y), {}),
    "sqrt(x-y)": (lambda b, x, y: b.op("sqrt", x - y), {"x": NOT_NEGATIVE, "y": Domain(hi=0.0)}),
    "sqrt(1-x²)": (lambda b, x, y: b.op("sqrt", shift(b, b.op("neg", x * x), 1)) + y, {"x": Domain(-1.0, 1.0)}),
    "sqrt(x-3)": (lambda b, x, y: b.op("sqrt", shift(b, x, -3)) + y, {"x": Domain(lo=3.0)}),
    "sqrt of a view": (lambda b, x, y: b.op("sqrt", x.T) @ y, {"x": NOT_NEGATIVE}),
    "sqrt of a sum": (lambda b, x, y: y / b.op("sqrt", b.sum(x, 1, keepdims=True)), {"x": POSITIVE}),
    "where": (lambda b, x, y: b.op("where", x, y, y), {"x": CHOICE}),
    "a condition with other uses": (lambda b, x, y: b.op("where", x, x, y), {}),
    "softmax": (lambda b, x, y: b.softmax(x) + y, {}),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_inputs_have_to_be(name: str) -> None:
    body, wanted = KNOWN[name]
    assert input_domains(program(body)) == wanted


OPEN: dict[str, Body] = {
    "sqrt(xy)": lambda b, x, y: b.op("sqrt", x * y),
    "sqrt(xy-3)": lambda b, x, y: b.op("sqrt", shift(b, x * y, -3)),
    "rsqrt(relu(x))": lambda b, x, y: b.op("rsqrt", b.relu(x)) * y,
    "y/sqrt(x)": lambda b, x, y: y / b.op("sqrt", x),
    "y/tanh(x)": lambda b, x, y: y / b.op("tanh", x),
    "y/(x-y)": lambda b, x, y: y / (x - y),
    "y/(exp(x)-2)": lambda b, x, y: y / shift(b, b.exp(x), -2),
    "sqrt(max)": lambda b, x, y: b.op("sqrt", b.op("maximum", x, y)),
    "rsqrt(xᵀy)": lambda b, x, y: b.op("rsqrt", x.T @ y),
    "sqrt(mean(-x))": lambda b, x, y: y * b.op("sqrt", b.op("mean", b.op("neg", x), axis=(1,), keepdims=True)),
    "exp(100x)": lambda b, x, y: b.exp(b.op("scale", x, scalar=100)) + y,
    "1e6·x": lambda b, x, y: b.op("scale", x, scalar=10**6) + y,
    "exp(exp(exp(x)))": lambda b, x, y: b.exp(b.exp(b.exp(x))) * y,
    "sqrt(sqrt(x)-1)/y": lambda b, x, y: b.op("sqrt", shift(b, b.op("sqrt", x), -1)) / y,
    "where(x, y/x, y)": lambda b, x, y: b.op("where", x, y / x, y),
}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", OPEN)
def test_what_is_drawn_gives_numbers(name: str, dtype: str) -> None:
    p = program(OPEN[name], dtype)
    rng = np.random.default_rng(0)

    def attempt(draw: Any) -> tuple[Any, Any]:
        inputs = {n: draw.place(n, rng.standard_normal(p[n].shape)).astype(dtype) for n in p.inputs}
        with np.errstate(all="ignore"):
            return inputs, p.evaluate(inputs)

    _, _, reference = drawn(p, attempt)
    z = reference["Z"]
    assert np.isfinite(z).mean() >= 0.9
    assert (np.abs(z[np.isfinite(z)]) < np.finfo(dtype).max).mean() >= 0.9
    assert np.std(z[np.isfinite(z)]) > 0


@pytest.mark.parametrize("domain", [NOT_NEGATIVE, POSITIVE, NONZERO, CHOICE, Domain(-2.0, 3.0), Domain(hi=0.0, nonzero=True)])
def test_numbers_are_brought_into_their_domain(domain: Domain) -> None:
    import torch

    x = np.random.default_rng(0).standard_normal(1000)
    for factor in (1.0, 2.0**-10):
        found = place(domain, x, factor)
        assert found.min() >= domain.lo
        assert found.max() <= domain.hi
        assert not domain.nonzero or (found != 0).all()
        assert not domain.choice or set(found) == {0.0, 1.0}
        np.testing.assert_allclose(place(domain, torch.tensor(x), factor).numpy(), found)


@pytest.mark.parametrize("name", sorted(n for n, e in OPS.items() if e.kind == "map" and e.arity == 1))
def test_the_table_says_where_results_lie(name: str) -> None:
    entry = OPS[name]
    (domain,) = entry.domain or (Domain(),)
    x = np.sort(np.concatenate([np.linspace(-30, 30, 2001), [1e-3, -1e-3]]))
    x = x[(x >= domain.lo) & (x <= domain.hi) & ((x != 0) | (not domain.nonzero))]
    attrs: dict[str, dict[str, Any]] = NUMBERS | {
        "cast": {"dtype": "float64"},
        "pow": {"exponent": 2},
        **{key: {"offset": len(x)} for key in ("causal_mask", "tril", "triu")},
    }
    y = entry.numpy(x.reshape(1, -1), **attrs.get(name, {})).reshape(-1)
    assert np.isfinite(y).all()
    assert (y >= entry.image.lo).all()
    assert (y <= entry.image.hi).all()
    assert not entry.image.nonzero or (y != 0).all()
    assert not entry.increasing or (np.diff(y) >= 0).all()


def test_conditions_are_drawn_both_ways() -> None:
    p = program(lambda b, x, y: b.op("where", x, y, b.op("neg", y)))
    assert set(np.unique(place(input_domains(p)["x"], np.array([-0.3, 2.0])))) == {0.0, 1.0}


def test_quotients_become_smaller_beside_their_divisors() -> None:
    """Scaled with its divisor a quotient stays as large: the exponentials of large ones overflowed in every draw."""
    b = Builder("quotients", "float32")
    x = b.input("x", (16, 24))
    p = b.build(Z=b.op("scale", x / b.input("y", (16, 1)), scalar=400.0))

    def attempt(draw: Draw) -> tuple[Any, dict[str, Any]]:
        rng = np.random.default_rng(0)
        inputs = {n: draw.place(n, rng.standard_normal(p[n].shape)) for n in p.inputs}
        with np.errstate(all="ignore"):
            return inputs, {"Z": np.exp(p.evaluate(inputs)["Z"])}

    draw, _, reference = drawn(p, attempt)
    assert np.isfinite(reference["Z"]).mean() >= 0.9
    assert draw.factors["x"] < draw.factors["y"] == 1.0
