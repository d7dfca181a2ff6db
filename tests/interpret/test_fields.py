from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from fuser.errors import UnsupportedError
from fuser.interpret import fields
from fuser.interpret import modular
from fuser.interpret.fields import Field
from fuser.interpret.fields import Value
from fuser.interpret.fields import ZeroDenominatorError
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.ops import OPS
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Scalar
from tests.operators import NUMBERS

P, Q = modular.PRIMES[0]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def agree(one: TensorProgram, other: TensorProgram, law: bool = False, rounds: int = 2) -> bool:
    r = rng(1)
    for _ in range(rounds):
        field = Field(r, law)
        inputs = fields.random_inputs(one, r, field)
        a, b = (fields.evaluate_program(x, inputs, field)["O"] for x in (one, other))
        if not field.equal(a, b):
            return False
    return True


def program(body: Callable[..., Ref], *shapes: tuple[int, ...]) -> TensorProgram:
    b = Builder("test")
    return b.build(O=body(b, *(b.input(f"X{i}", s) for i, s in enumerate(shapes))))


@pytest.mark.parametrize("primes", modular.PRIMES)
def test_primes(primes: tuple[int, int]) -> None:
    p, q = primes
    for n in primes:
        assert n < 2**31
        assert all(n % d for d in range(2, int(n**0.5) + 1))
        for small in (2, 3, 5, 7, 11, 13):
            root = modular.modular_root(small, n)
            assert root is not None
            assert root * root % n == small
    assert (p - 1) % q == 0


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 9), st.booleans())
def test_matmul_is_exact(m: int, k: int, n: int, extreme: bool) -> None:
    r = rng(m * k * n)
    a, b = (np.full(s, P - 1) if extreme else r.integers(0, P, s) for s in ((2, m, k), (k, n)))
    want = (a.astype(object) @ b.astype(object)) % P
    assert np.array_equal(modular.modular_matmul(a, b, P), want.astype(np.int64))


def test_matmul_is_exact_beyond_one_chunk() -> None:
    k = (1 << 18) + 5
    a, b = np.full((1, k), P - 1), np.full((k, 1), P - 1)
    assert modular.modular_matmul(a, b, P)[0, 0] == k % P  # (−1)² k times


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 127, 129, 1000, 4097])
def test_inverse(size: int) -> None:
    x = rng(size).integers(1, P, size)
    assert np.all(x * modular.modular_inverse(x, P) % P == 1)


def test_exp_law() -> None:
    field = Field(rng(), law=True)
    a, b = (field.random((50,), rng(i)) for i in (1, 2))
    together = field.apply("exp", [field.apply("add", [a, b])])
    assert np.array_equal(together.p, field.apply("mul", [field.apply("exp", [a]), field.apply("exp", [b])]).p)
    assert a.q is not None
    assert [int(x) for x in field.apply("exp", [a]).p] == [pow(field.omega, int(x), P) for x in a.q]
    assert pow(field.omega, Q, P) == 1 != field.omega
    with pytest.raises(UnsupportedError, match="exponential of an exponential"):
        field.apply("exp", [together])
    free = Field(rng())
    x = free.random((50,), rng())
    once = free.apply("exp", [x])
    assert np.array_equal(once.p, free.apply("exp", [x]).p)
    assert len(np.unique(free.apply("exp", [once]).p)) == 50


def test_functions_differ_by_name_and_by_round() -> None:
    r = rng()
    one, two = Field(r), Field(r)
    x = one.random((20,), r)
    assert not np.array_equal(one.apply("sqrt", [x]).p, one.apply("relu", [x]).p)
    assert not np.array_equal(one.apply("sqrt", [x]).p, two.apply("sqrt", [x]).p)


def test_constants_keep_their_laws() -> None:
    field = Field(rng(), law=True)
    half = Fraction(1, 2)
    root80, root5, root2 = (field.scalar(Scalar.power(n, half)) for n in (80, 5, 2))
    assert root80[0] == 4 * root5[0] % P
    assert root80[1] ** 2 % Q == 80
    assert field.scalar(Scalar.power(10, half))[1] == root5[1] * root2[1] % Q
    assert field.scalar(Scalar.of(0.375)) == (3 * pow(8, -1, P) % P, 3 * pow(8, -1, Q) % Q)
    third = field.scalar(Scalar.power(3, Fraction(1, 3)))
    assert third[0] ** 2 % P == field.scalar(Scalar.power(3, Fraction(2, 3)))[0]
    with pytest.raises(UnsupportedError, match="unbound extent"):
        from fuser.ir.scalar import Extent

        field.scalar(Scalar.power(Extent("X", 0), half))


def test_zero_denominators_are_reported() -> None:
    with pytest.raises(ZeroDenominatorError):
        field = Field(rng())
        field.apply("div", [field.integers(np.array([1, 2])), field.integers(np.array([3, 0]))])


def test_arithmetic_agrees_with_fractions() -> None:
    """Every exact operator on small integers: the residue is that of the rational result."""
    field = Field(rng(), law=True)
    x, y = np.array([[3, 5], [7, 2]]), np.array([[2, 9], [4, 11]])
    attrs = {"scale": {"scalar": Scalar.of(3)}, "shift": {"scalar": Scalar.of(3)}, "sum": {"axis": (1,), "keepdims": True}}
    for name in ("add", "sub", "mul", "neg", "square", "matmul", "scale", "shift", "sum"):
        operands = [x, y][: OPS[name].arity]
        got = field.apply(name, [field.integers(v) for v in operands], attrs.get(name))
        want = OPS[name].numpy(*operands, **attrs.get(name, {}))
        assert field.equal(got, field.integers(want)), name
    ratio = field.apply("div", [field.integers(x), field.integers(y)])
    assert np.array_equal(ratio.p * y % P, x)
    assert ratio.q is not None
    assert np.array_equal(ratio.q * y % Q, x)


@pytest.mark.parametrize("name", [n for n, o in OPS.items() if o.kind not in ("composite", "library", "opaque")])
def test_every_operator_of_the_table_has_an_evaluation(name: str) -> None:
    attrs = {
        "axis": 0 if OPS[name].kind in ("data", "view") else (0,),
        "scalar": Scalar.of(2),
        "shape": (1, 3, 3),
        "perm": (1, 0),
        "times": 2,
        "start": 0,
        "stop": 2,
        "dtype": "float32",
        "keepdims": False,
        "offset": 0,
    }
    attrs = {
        k: Scalar.of(v) if k not in attrs else attrs[k]
        for k, v in (attrs | NUMBERS.get(name, {})).items()
        if k in OPS[name].attrs
    }
    field = Field(rng(), law=True)
    xs = [field.random((3, 3), rng(i)) for i in range(2 if OPS[name].arity < 0 else OPS[name].arity)]
    got = field.apply(name, xs, attrs)
    plain = [np.ones((3, 3)) for _ in xs]
    as_number = {k: v.value() if isinstance(v, Scalar) else v for k, v in attrs.items()}
    assert got.shape == np.asarray(OPS[name].numpy(*plain, **as_number)).shape
    assert field.equal(got, field.apply(name, xs, attrs))


def test_max_is_a_fold() -> None:
    field = Field(rng(), law=True)
    x = field.random((7, 5), rng())
    whole = field.apply("max", [x], {"axis": (0, 1)})
    by_rows = field.apply("max", [field.apply("max", [x], {"axis": (1,)})], {"axis": (0,)})
    assert field.equal(whole, by_rows)
    assert int(whole.p) in x.p
    pair = field.apply("maximum", [x[:3], x[3:6]])
    assert field.equal(pair, field.apply("maximum", [x[3:6], x[:3]]))


@pytest.mark.parametrize("law", [False, True])
def test_moved_division_is_accepted_and_wrong_forms_are_not(law: bool) -> None:
    shapes = (5, 6), (7, 6), (7, 3)

    def attention(b: Builder, q: Ref, k: Ref, v: Ref) -> Ref:
        return b.attention(q, k, v)

    def behind(b: Builder, q: Ref, k: Ref, v: Ref) -> Ref:
        p = b.exp((q @ k.T) * Scalar.power(6, Fraction(-1, 2)))
        return (p @ v) / b.sum(p, 1, keepdims=True)

    def split(b: Builder, q: Ref, k: Ref, v: Ref) -> Ref:
        p = b.exp((q @ k.T) * Scalar.power(6, Fraction(-1, 2)))
        parts = [b.op("slice", p, axis=1, start=i, stop=j) for i, j in ((0, 4), (4, 7))]
        values = [b.op("slice", v, axis=0, start=i, stop=j) for i, j in ((0, 4), (4, 7))]
        total = b.sum(parts[0], 1, keepdims=True) + b.sum(parts[1], 1, keepdims=True)
        return (parts[0] @ values[0] + parts[1] @ values[1]) / total

    def unscaled(b: Builder, q: Ref, k: Ref, v: Ref) -> Ref:
        p = b.exp(q @ k.T)
        return (p @ v) / b.sum(p, 1, keepdims=True)

    def whole_sum(b: Builder, q: Ref, k: Ref, v: Ref) -> Ref:
        p = b.exp((q @ k.T) * Scalar.power(6, Fraction(-1, 2)))
        return (p @ v) / b.sum(p, 0, 1, keepdims=True)

    reference = program(attention, *shapes)
    assert agree(reference, program(behind, *shapes), law)
    assert agree(reference, program(split, *shapes), law)
    assert not agree(reference, program(unscaled, *shapes), law)
    assert not agree(reference, program(whole_sum, *shapes), law)


def test_only_the_law_accepts_a_split_exponent() -> None:
    shapes = (3, 4), (3, 4)
    one = program(lambda b, x, y: b.exp(x + y), *shapes)
    two = program(lambda b, x, y: b.exp(x) * b.exp(y), *shapes)
    assert agree(one, two, law=True)
    assert not agree(one, two)


def test_norms_and_activations() -> None:
    shapes = (4, 6), (6, 5)
    norm = program(lambda b, x, w: b.rms_norm(x) @ w, *shapes)

    def behind(b: Builder, x: Ref, w: Ref) -> Ref:
        mean = b.sum(x * x, 1, keepdims=True) * Scalar.of(Fraction(1, 6))
        return (x @ w) * b.op("rsqrt", b.op("shift", mean, scalar=1e-5))

    assert agree(norm, program(behind, *shapes))
    silu = program(lambda b, x, w: b.silu(x) @ w, *shapes)
    assert agree(silu, program(lambda b, x, w: (x * b.op("sigmoid", x)) @ w, *shapes))
    assert not agree(silu, program(lambda b, x, w: b.silu(x @ w), *shapes))


def test_causal_mask_with_empty_rows() -> None:
    b = Builder("causal")
    q, k, v = b.input("X0", (6, 4)), b.input("X1", (3, 4)), b.input("X2", (3, 5))
    one = b.build(O=b.attention(q, k, v, causal=True, scale=1))
    r = rng()
    field = Field(r)
    out = fields.evaluate_program(one, fields.random_inputs(one, r, field), field)["O"]
    assert np.array_equal(np.flatnonzero(~out.p.any(axis=1)), [0, 1, 2])  # three more queries than keys
    with pytest.raises(UnsupportedError, match="masked"):
        field.apply("sum", [Value(out.p, None, np.ones(out.shape, bool))], {"axis": (1,)})


def test_boolean_inputs_are_bits() -> None:
    b = Builder("where")
    c, x, y = b.input("C", (4, 4), "bool"), b.input("X", (4, 4)), b.input("Y", (4, 4))
    one = b.build(O=b.op("where", c, x, y))
    r = rng()
    field = Field(r)
    inputs = fields.random_inputs(one, r, field)
    assert set(np.unique(inputs["C"].p)) == {0, 1}
    out = fields.evaluate_program(one, inputs, field)["O"]
    assert np.array_equal(out.p, np.where(inputs["C"].p != 0, inputs["X"].p, inputs["Y"].p))


def test_stated_bounds() -> None:
    assert fields.error_bound(P, Q, 10, 1, 3, law=False) == pytest.approx((10 / P) ** 3)
    assert fields.error_bound(P, Q, 4, 1, 1) == pytest.approx(33 / Q)
    assert fields.error_bound(227, 113, 4, 3, 100) == 1  # small primes: the theorem says nothing
    assert 1e-3 < fields.error_bound(P, Q, 4, 2, 1) < 1e-2
