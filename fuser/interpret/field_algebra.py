"""The interpreter's arithmetic over finite fields: scheduled µGraphs on elements of Z_p × Z_q (:mod:`fuser.interpret.fields`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuser.errors import UnsupportedError
from fuser.interpret.algebra import Tile
from fuser.interpret.field_values import lift
from fuser.interpret.fields import Field
from fuser.interpret.fields import Value
from fuser.interpret.fields import evaluate_program
from fuser.interpret.modular import modular_matmul
from fuser.ir.composites import alone
from fuser.ir.ops import Array
from fuser.ir.ops import op as op_def

_DIRECT = 1 << 14
"""Products up to which a contraction is cheaper as one broadcast product than as matrix products of limbs."""


@dataclass(frozen=True)
class FieldAlgebra:
    """An :class:`fuser.interpret.algebra.Algebra` of field values, for one round of a test.

    A running maximum is some element by a random total order, and rescaling by it needs ``exp(a + b) = exp(a)·exp(b)``: with a
    field that reads ``exp`` as a random function, it raises :class:`UnsupportedError`.
    """

    field: Field
    strict: bool = True
    """Refuse x − max of nothing for an element x that is there. Off where whole arrays hold elements of other parts, which
    nobody reads.
    """

    def lift(self, f: Callable[..., Array], *xs: Value) -> Value:
        return lift(f, *xs)

    def empty(self, shape: tuple[int, ...]) -> Value:
        return self._constant(0, shape)

    def _constant(self, value: int, shape: tuple[int, ...]) -> Value:
        return Value(np.full(shape, value, np.int64), np.full(shape, value, np.int64) if self.field.law else None)

    def shape(self, x: Value) -> tuple[int, ...]:
        return x.shape

    def same(self, x: Value, y: Value) -> bool:
        return self.field.equal(x, y)

    def map(self, op: str, args: Sequence[Value], attrs: Mapping[str, Any], tile: Tile) -> Value:
        entry = op_def(op)
        if entry.indexed:
            (x,) = args
            return self.field.apply(op, [x.map(lambda y: np.broadcast_to(y, tile.shape()))], tile.indexed(attrs))
        if entry.subtracts and (tile.guarded or attrs.get("strict")):  # fields have no NaN
            return self._difference(*args)
        if entry.divides and tile.guarded and all(x.minus_inf is None for x in args):
            return self.field.quotient(*args, empty=True)
        return self.field.apply(op, args, attrs)

    def _difference(self, x: Value, top: Value) -> Value:
        """x − max, where what is absent stays absent."""
        if self.strict and top.minus_inf is not None and np.any(top.minus_inf & ~(False if x.minus_inf is None else x.minus_inf)):
            raise UnsupportedError("a difference to a maximum of nothing", "take the maximum over what is shifted")
        bare = self.field.apply("sub", [Value(x.p, x.q), Value(top.p, top.q)])
        if x.minus_inf is None:
            return bare
        return Value(bare.p, bare.q, np.broadcast_to(x.minus_inf, bare.shape))

    def contract(self, op: str, spec: str, args: Sequence[Value]) -> Value:
        if any(x.minus_inf is not None for x in args):
            raise UnsupportedError(f"{op} of a masked value", "apply exp or max to it first")
        return self.field.ring(lambda *xs: modular_einsum(spec, xs[:-1], xs[-1]), *args)

    def fold(self, op: str, x: Value, axes: tuple[int, ...]) -> Value:
        if not axes:
            return x
        if not op_def(op).adds and any(x.shape[i] == 0 for i in axes):
            return self.identity(op, tuple(n for i, n in enumerate(x.shape) if i not in axes))
        return self.field.apply(op, [x], {"axis": axes})

    def combine(self, op: str, acc: Value, x: Value) -> Value:
        entry = op_def(op)
        if acc.minus_inf is None or entry.maximizes:
            return self.field.apply(entry.combine, [acc, x])
        both = self.field.apply(entry.combine, [Value(acc.p, acc.q), x])
        absent = acc.minus_inf
        return lift(lambda first, rest: np.where(absent, first, rest), x, both)

    def identity(self, op: str, shape: tuple[int, ...]) -> Value:
        """A fold of nothing: a number, or what is absent."""
        identity = op_def(op).identity
        assert identity is not None
        if math.isfinite(identity):
            return self._constant(int(identity), shape)
        zero = self._constant(0, shape)
        return Value(zero.p, zero.q, np.ones(shape, bool))

    def rescale(self, acc: Value, degree: int, old: Value, new: Value) -> Value:
        if not self.field.law:
            raise UnsupportedError(
                "rescaling by a running maximum needs the law of exp", "test with law=True, or without the maximum"
            )
        step = self.field.apply("sub", [Value(old.p, old.q), Value(new.p, new.q)])
        factor = self.field.exp(self.field.apply("scale", [step], {"scalar": degree}))
        if old.minus_inf is not None:
            # nothing was seen before: the accumulator is zero there and stays so
            factor = Value(np.where(old.minus_inf, 1, factor.p))
        return self.field.apply("mul", [acc, factor])

    def library(self, op: str, args: Sequence[Value], attrs: Mapping[str, Any]) -> Value:
        if op_def(op).kind != "composite":
            return self.field.apply(op, args, attrs)
        program = alone(op, [(x.shape, None) for x in args], attrs)
        return evaluate_program(program, dict(zip(program.inputs, args, strict=True)), self.field)["y"]


def modular_einsum(spec: str, xs: Sequence[Array], m: int) -> Array:
    """Exact einsum of two arrays of residues, such as ``abk,bkc->abc``; each letter of the output is in an operand."""
    left, out = spec.split("->")
    names = left.split(",")
    if len(names) != 2:
        raise UnsupportedError(f"a contraction of {len(names)} operands", "contract them pair by pair")
    operands: list[tuple[str, Array]] = []
    for own, other, x in zip(names, reversed(names), xs, strict=True):
        alone = tuple(i for i, a in enumerate(own) if a not in other and a not in out)
        operands.append(("".join(a for i, a in enumerate(own) if i not in alone), np.sum(x, axis=alone) % m if alone else x))
    (na, a), (nb, b) = operands
    batch = [c for c in out if c in na and c in nb]
    rows, columns = [c for c in na if c not in nb], [c for c in nb if c not in na]
    inner = [c for c in na if c in nb and c not in out]
    size = {c: n for own, x in operands for c, n in zip(own, x.shape, strict=True)}

    def grouped(own: str, x: Array, *groups: list[str]) -> Array:
        order = [own.index(c) for g in groups for c in g]
        return x.transpose(order).reshape([math.prod(size[c] for c in g) for g in groups])

    left_matrix, right_matrix = grouped(na, a, batch, rows, inner), grouped(nb, b, batch, inner, columns)
    if left_matrix.size * right_matrix.shape[-1] <= _DIRECT:
        result = np.sum(left_matrix[:, :, :, None] * right_matrix[:, None] % m, axis=2) % m
    else:
        result = modular_matmul(left_matrix, right_matrix, m)
    have = batch + rows + columns
    return result.reshape([size[c] for c in have]).transpose([have.index(c) for c in out])
