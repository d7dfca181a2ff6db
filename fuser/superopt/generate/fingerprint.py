"""Fingerprints: what a value is as a function of the inputs, from one evaluation over a prime field at tiny sizes.

Two values of equal axes and equal fingerprint are the same function up to a chance of about 2⁻⁶⁰. The generator uses that to
merge derivations and to recognise the outputs; every finished graph is verified by itself
(:mod:`fuser.superopt.verify.verifier`).

Every axis has two elements, each with a random multiplicity, so that its extent is a random residue N: what holds only at one
size (1/3 + 1/(3N) = 1/N at N = 2) does not pass for an identity. Arithmetic is exact modulo 2³¹ − 1, in two independent
instances; a function that is no field operation (exp, sqrt, relu, …) is a random function of the residue.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable
from collections.abc import Mapping
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from fuser.interpret.modular import mix
from fuser.ir.opdef import OpDef
from fuser.ir.opdef import Step
from fuser.ir.opdef import evaluate
from fuser.ir.opdef import own_attributes
from fuser.ir.ops import op as op_def
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar

P = 2**31 - 1
INSTANCES = 2
SIZE = 2
Residues = np.ndarray[Any, np.dtype[np.int64]]

_ROOT = 12
"""Fractional powers of an extent have denominators that divide this."""


class Instance:
    """A random instance: inputs by their position, constants and functions by their meaning. The same for the same generator."""

    def __init__(self, axes: Sequence[str], rng: np.random.Generator) -> None:
        self.axes = tuple(axes)
        self.rng = rng
        self._roots: dict[Hashable, int] = {}
        self._salts: dict[Hashable, int] = {}
        self._weights: dict[str, Residues] = {}
        for a in self.axes:
            extent = pow(self._root(a), _ROOT, P)
            first = rng.integers(1, P, (INSTANCES, 1), dtype=np.int64)
            shape = (INSTANCES, *(SIZE if x == a else 1 for x in self.axes))
            self._weights[a] = np.concatenate([first, (extent - first) % P], axis=1).reshape(shape)

    @cached_property
    def rank(self) -> int:
        return len(self.axes)

    def draw(self, axes: Sequence[str]) -> Residues:
        """A random input; the result has one dimension for each instance and for each axis of the program (extent 1 where
        absent)."""
        shape = (INSTANCES, *(SIZE if a in axes else 1 for a in self.axes))
        return self.rng.integers(1, P, shape, dtype=np.int64)

    def apply(
        self, op: str, args: Sequence[Residues], reduce: Sequence[str] = (), attrs: Mapping[str, Any] | None = None
    ) -> Residues | None:
        """The result of an operator, or None where a denominator is zero."""
        attrs = attrs or {}
        entry = op_def(op)
        if entry.kind == "contract":
            return self.fold(args[0] * args[1] % P, reduce)
        if entry.kind == "reduce":
            return self.fold(args[0], reduce) if entry.adds else self._combined(entry.combine, args[0], reduce)
        if entry.exact or entry.typed == "named" or entry.picks:
            return entry.numpy(*args) % P
        if entry.fraction in ("quotient", "inverse"):
            inverse = _inverse(args[-1])
            return None if inverse is None else math.prod(args[:-1], start=inverse) % P
        if "scalar" in entry.attrs and entry.fraction:
            constant = self.constant(attrs["scalar"])
            return (args[0] + constant if entry.fraction == "shift" else args[0] * constant) % P
        if entry.formula is not None:
            return self._formula(entry.steps(attrs), args)
        if entry.typed == "choices":
            mask = self.function("mask", args[:1])
            return (mask * args[1] + (1 - mask) * args[2]) % P
        if entry.indexed:
            index = [self._index(attrs[k]) for k in ("rows", "cols") if attrs.get(k)]
            return self.function((op, str(attrs.get("offset"))), [*args, *index])
        own = own_attributes(entry, attrs)
        return self.function((op, own) if own else op, args)

    def _formula(self, steps: Sequence[Step], args: Sequence[Residues]) -> Residues | None:
        def apply(op: str, xs: list[Residues | None], attrs: Mapping[str, Any]) -> Residues | None:
            known = [x for x in xs if x is not None]
            return self.apply(op, known, (), attrs) if len(known) == len(xs) else None

        return evaluate(steps, list[Residues | None](args), apply)

    def fold(self, x: Residues, axes: Sequence[str]) -> Residues:
        for a in axes:
            x = np.sum(x * self._weights[a] % P, axis=1 + self.axes.index(a), keepdims=True) % P
        return x

    def _combined(self, combine: str, x: Residues, axes: Sequence[str]) -> Residues | None:
        found: Residues | None = x
        for at in (1 + self.axes.index(a) for a in axes):
            parts = [] if found is None else np.split(found, found.shape[at], at)
            found = functools.reduce(lambda a, b: None if a is None else self.apply(combine, [a, b]), parts)  # type: ignore[arg-type]
        return found

    def function(self, name: Hashable, args: Sequence[Residues]) -> Residues:
        """A random function of residues."""
        h = np.full((1,) * (self.rank + 1), self._salt(name), dtype=np.uint64)
        for a in args:
            h = mix((h + a.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15))
        return (h % np.uint64(P - 1) + np.uint64(1)).astype(np.int64)

    def constant(self, value: Any) -> int:
        value = Scalar.of(value)
        found = value.coeff.numerator * pow(value.coeff.denominator, -1, P) % P
        for base, exponent in value.powers:
            scaled = exponent * _ROOT
            if scaled.denominator == 1:
                found = found * pow(self._root(base.tensor if isinstance(base, Extent) else base), int(scaled), P) % P
            else:
                found = found * self._root((base, exponent)) % P
        return found

    def _root(self, key: Hashable) -> int:
        if key not in self._roots:
            seed = self._salt(("root", key))
            self._roots[key] = seed % (P - 2) + 2
        return self._roots[key]

    def _salt(self, key: Hashable) -> int:
        if key not in self._salts:
            self._salts[key] = int.from_bytes(str(key).encode()[:64].ljust(8, b"_"), "little") * 0x9E3779B97F4A7C15 % 2**63
            for i, c in enumerate(str(key).encode()):
                self._salts[key] = (self._salts[key] ^ (c + i)) * 0x100000001B3 % 2**63
        return self._salts[key]

    def _index(self, axis: str) -> Residues:
        shape = [1] * (self.rank + 1)
        shape[1 + self.axes.index(axis)] = SIZE
        return np.arange(SIZE, dtype=np.int64).reshape(shape)


def interpreted(entry: OpDef) -> bool:
    """An element-wise operator that is one of fields: its operands need not be ones that the program has."""
    return entry.kind == "map" and not entry.indexed and entry.fraction not in ("", "chosen")


def _inverse(x: Residues) -> Residues | None:
    flat = [int(v) for v in x.ravel()]
    if not all(flat):
        return None
    return np.array([pow(v, -1, P) for v in flat], dtype=np.int64).reshape(x.shape)
