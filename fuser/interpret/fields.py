"""Tensor programs over Z_p × Z_q, for random tests of equivalence (Mirage section 5, table 3).

A value is a pair of residues, modulo p outside and modulo q inside an exponential. Two readings of ``exp``:

- ``law=True``: exp(x) is ω^{x_q} mod p for a random q-th root of unity ω, so exp(a + b) = exp(a)·exp(b); the result has no
  residue mod q, so one exponential on a path (Mirage's LAX programs), else :class:`UnsupportedError`.
- ``law=False``: exp is a random function, any number of times on a path; values are residues mod p alone.

Other element-wise functions are random functions keyed on the residues that exist, equal for both graphs of a round; what the
op table gives a formula (silu, gelu, rsqrt) is made of them. ``max`` and ``maximum`` fold by a random total order, so that
they commute, associate and split over loops. A condition is a random predicate (:meth:`Field.truth`), a cast to integers a
random function, one that rounds a random factor. Two programs that differ by another true law of such a function are told
apart: refused, never wrongly accepted. Roots of 2, 3, 5, 7, 11, 13 and their products are true roots in both fields (but for a
few of odd order); any other irrational constant is one unknown for each prime in it, so only what holds for all its values is
accepted.

What is proven and what is not: :func:`error_bound` bounds one round by the paper's theorem 2, or by degree/p where exp and all
else is a random function. Both take the functions as truly random; a keyed 64-bit mixing function stands in for them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser.errors import UnsupportedError
from fuser.interpret.field_rules import RULES
from fuser.interpret.field_rules import by_default
from fuser.interpret.field_values import Value
from fuser.interpret.field_values import ZeroDenominatorError
from fuser.interpret.field_values import hidden
from fuser.interpret.modular import PRIMES
from fuser.interpret.modular import mix
from fuser.interpret.modular import modular_inverse
from fuser.interpret.modular import modular_root
from fuser.interpret.modular import plus
from fuser.interpret.modular import power_tables
from fuser.interpret.modular import prime_factors
from fuser.ir.composites import expand
from fuser.ir.mugraph import KernelGraph
from fuser.ir.ops import Array
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar


def error_bound(p: int, q: int, degree: int, terms: int, rounds: int, law: bool = True) -> float:
    """Probability that ``rounds`` independent rounds all accept two programs that differ.

    ``law=True``: theorem 2, 8·d·k⁴/q + q^(−1/k²) a round, for outputs Σ fᵢ exp(gᵢ/hᵢ) / Σ f′ᵢ exp(g′ᵢ/h′ᵢ) with k terms of degree
    at most d; for primes of 31 bits it says little beyond k = 2. ``law=False``: d/p a round (Schwartz and Zippel), d the degree
    of the difference as a fraction of polynomials in the inputs and the values of the random functions. Never more than 1.

    Theorem 2 holds for LAX programs; where ``law=True`` meets further functions, the figure is heuristic.
    """
    one = 8 * degree * terms**4 / q + q ** (-1 / terms**2) if law else degree / p
    return min(1.0, one) ** rounds


class Field:
    """One round of a test: primes, ω, and the keys of the random functions, all drawn from ``rng``.

    Evaluate both graphs with the same instance. ``law`` chooses the reading of ``exp`` (above); ``exact`` reads a condition as
    what is not zero, where else it is a random predicate (:mod:`fuser.superopt.verify.conditions`).
    """

    def __init__(
        self, rng: np.random.Generator, law: bool = False, primes: tuple[int, int] = PRIMES[0], exact: bool = False
    ) -> None:
        self.p, self.q = primes
        if (self.p - 1) % self.q or max(primes) >= 1 << 31:
            raise ValueError(f"the primes {primes} need q | p - 1 and p < 2^31")
        self.law, self.exact = law, exact
        self.masked = False
        self._key = rng.bytes(16)
        self._keys: dict[str, Array] = {}
        self._scalars: dict[Scalar, tuple[int, int]] = {}
        root = 1
        while root == 1:
            root = pow(int(rng.integers(2, self.p)), (self.p - 1) // self.q, self.p)
        self.omega = root
        self._tables: tuple[Array, Array] | None = None

    # values

    def random(self, shape: Sequence[int], rng: np.random.Generator) -> Value:
        """Independent uniform residues."""
        p = rng.integers(0, self.p, tuple(shape), np.int64)
        return Value(p, rng.integers(0, self.q, tuple(shape), np.int64) if self.law else None)

    def integers(self, x: Array) -> Value:
        """Integers, or booleans, as residues."""
        x = np.asarray(x).astype(np.int64)
        return Value(x % self.p, x % self.q if self.law else None)

    def scalar(self, value: Scalar) -> tuple[int, int]:
        """Residues of an exact constant mod p and q; its extents must be bound."""
        value = value.normal()
        if value not in self._scalars:
            self._scalars[value] = self._residue(value, self.p), self._residue(value, self.q)
        return self._scalars[value]

    def _residue(self, value: Scalar, m: int) -> int:
        if value.coeff.denominator % m == 0:
            raise ZeroDenominatorError(f"the constant {value} has no residue modulo {m}")
        result = value.coeff.numerator * pow(value.coeff.denominator, -1, m) % m
        for base, exponent in value.powers:
            if isinstance(base, Extent):
                raise UnsupportedError(f"the constant {value} depends on the unbound extent of {base.tensor}[{base.dim}]")
            if base < 1:
                raise UnsupportedError(f"the constant {value} is not a real number")
            whole, part = divmod(exponent.numerator, exponent.denominator)
            result = result * pow(base, whole, m) % m
            for prime in prime_factors(base) if part else ():
                result = result * pow(self._root(prime, exponent.denominator, m), part, m) % m
        return result

    def _root(self, prime: int, n: int, m: int) -> int:
        """A number that stands for prime^(1/n): a true root where there is one, else that of an unknown square, so that roots of
        roots are roots."""
        root = modular_root(prime, m, n)
        if root is None:
            square = self._unknown(f"square {prime}", m) ** 2 % m
            root = modular_root(square, m, n) or self._unknown(f"root {prime} {n}", m)
        return root

    def _unknown(self, name: str, m: int) -> int:
        digest = hashlib.sha256(self._key + f"{name} {m}".encode()).digest()
        return 1 + int.from_bytes(digest[:8], "little") % (m - 1)

    # operators

    def apply(self, op: str, operands: Sequence[Value], attrs: Mapping[str, Any] | None = None) -> Value:
        """One operator of the op table (no composite) on whole arrays, as its numpy semantics has them.

        Raises :class:`ZeroDenominatorError`, or :class:`UnsupportedError` where the operator has no meaning here.
        """
        attrs = attrs or {}
        if op in RULES:
            return RULES[op](self, operands, attrs)
        found = by_default(self, op, operands, attrs)
        if found is not None:
            return found
        raise UnsupportedError(f"operator {op!r} has no meaning over finite fields", "expand composites first")

    def function(self, name: str, *xs: Value) -> Value:
        """The random function of this name: uniform residues, equal for equal arguments."""
        h = self._hashed(name, xs)
        p = (h % np.uint64(self.p)).astype(np.int64)
        return Value(p, (mix(plus(h, np.uint64(1))) % np.uint64(self.q)).astype(np.int64) if self.law else None)

    def predicate(self, name: str, *xs: Value) -> Value:
        """The random predicate of this name: 0 or 1."""
        return self.integers(self._hashed(name, xs) >> np.uint64(7) & np.uint64(1))

    def _hashed(self, name: str, xs: Sequence[Value]) -> Array:
        if any(x.minus_inf is not None for x in xs):
            raise UnsupportedError(f"{name} of a masked value", "apply exp or max to it first")
        h = self._hash(name, xs[0])
        for i, x in enumerate(xs[1:]):
            h = mix(h ^ self._hash(f"{name} {i}", x))
        return h

    def _hash(self, name: str, x: Value) -> Array:
        if name not in self._keys:
            digest = hashlib.sha256(self._key + name.encode()).digest()
            self._keys[name] = np.frombuffer(digest, np.uint64).copy()
        k = self._keys[name]
        h = plus(mix(x.p.astype(np.uint64) ^ k[0]), k[1])
        return h if x.q is None else mix(h ^ (x.q.astype(np.uint64) << np.uint64(20)) ^ k[2])

    def truth(self, x: Value) -> Array:
        """Where a condition holds: not at zero, at one, and elsewhere by chance (``exact``: everywhere but at zero)."""
        if self.exact:
            return x.p != 0
        return (x.p != 0) & ((x.p == 1) | (self._hash("truth", Value(x.p)) % np.uint64(2) == 1))

    def unit(self, name: str) -> tuple[int, int]:
        """A random number of this name, not zero, in both fields."""
        digest = hashlib.sha256(self._key + f"unit {name}".encode()).digest()
        p, q = (1 + int.from_bytes(digest[i : i + 8], "little") % (m - 1) for i, m in ((0, self.p), (8, self.q)))
        return p, q

    def exp(self, x: Value) -> Value:
        hidden = x.minus_inf
        x = Value(x.p, x.q)
        if not self.law:
            result = self.function("exp", x).p
        elif x.q is None:
            raise UnsupportedError(
                "an exponential of an exponential has no value over Z_p × Z_q",
                "split the program, or take exp as a random function",
            )
        else:
            if self._tables is None:
                self._tables = power_tables(self.omega, self.p)
            result = self._tables[1][x.q >> 15] * self._tables[0][x.q & 0x7FFF] % self.p
        return Value(result if hidden is None else np.where(hidden, 0, result))

    def ring(self, f: Callable[..., Array], *xs: Value) -> Value:
        """Apply f(residues…, modulus) in each field where all operands have residues."""
        qs = [x.q for x in xs if x.q is not None]
        return Value(f(*(x.p for x in xs), self.p), f(*qs, self.q) if len(qs) == len(xs) else None)

    def quotient(self, a: Value, b: Value, empty: bool = False) -> Value:
        """a/b; 0/0 is 0 where a mask may have removed a whole row (the one defined output of such a row), or where both are sums
        that may be ``empty``."""

        def divide(x: Array, y: Array, m: int) -> Array:
            zero = y == 0
            if zero.any():
                if not (self.masked or empty) or np.any(np.where(zero, x, 0)):
                    raise ZeroDenominatorError("a denominator is zero")
                y = np.where(zero, 1, y)
            return x * modular_inverse(y, m) % m

        return self.ring(divide, a, b)

    def larger(self, a: Value, b: Value) -> Value:
        """Maximum by a random total order, with the masked elements below all."""
        if a.q is None or b.q is None:
            a, b = Value(a.p, None, a.minus_inf), Value(b.p, None, b.minus_inf)
        hidden_a, hidden_b = hidden(a), hidden(b)
        order = self._hash("order", a) >= self._hash("order", b)
        first = ~hidden_a & (hidden_b | order)
        both = np.broadcast_to(hidden_a & hidden_b, first.shape)
        q = None if a.q is None or b.q is None else np.where(first, a.q, b.q)
        return Value(np.where(first, a.p, b.p), q, both if both.any() else None)

    def equal(self, a: Value, b: Value) -> bool:
        """Whether two values agree: in what is masked, and elsewhere mod p, and mod q where both have it."""
        if a.shape != b.shape or not np.array_equal(hidden(a), hidden(b)):
            return False
        seen = ~hidden(a)
        if a.q is not None and b.q is not None and not np.array_equal(a.q[seen], b.q[seen]):
            return False
        return np.array_equal(a.p[seen], b.p[seen])


def random_inputs(
    program: TensorProgram | KernelGraph, rng: np.random.Generator, field: Field, zeros: Collection[str] = ()
) -> dict[str, Value]:
    """Uniform residues for every input; random bits for boolean ones (masks); those of ``zeros`` are zero in half of their
    elements."""
    found: dict[str, Value] = {}
    for name in program.inputs:
        t = program.table[name]
        bits = field.integers(rng.integers(0, 2, t.shape)) if t.dtype == "bool" or name in zeros else None
        found[name] = bits if bits is not None and t.dtype == "bool" else field.random(t.shape, rng)
        if bits is not None and t.dtype != "bool":
            found[name] = field.ring(lambda x, y, m: x * y % m, found[name], bits)
    return found


def evaluate_program(
    program: TensorProgram, inputs: Mapping[str, Value], field: Field, keep: Iterable[str] = ()
) -> dict[str, Value]:
    """The outputs over Z_p × Z_q (and the tensors named in ``keep``, if the expansion of composites leaves them).

    Raises :class:`ZeroDenominatorError`: draw new inputs; :class:`UnsupportedError`: an operator without a meaning here.
    """
    program = expand(program)
    return program.run(inputs, lambda node, xs: field.apply(node.op, xs, program.bound(node)), keep)
