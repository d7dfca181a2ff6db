"""One operator of a program that is padded, beside its counterpart at other sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from fuser.errors import UnsupportedError
from fuser.ir.builder import Ref
from fuser.ir.composites import alone
from fuser.ir.ops import OPS
from fuser.ir.ops import Array
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar
from search.buckets import places
from search.buckets.places import Dims


@dataclass(frozen=True)
class Value:
    """A tensor; ``tame``: what is padded of it is finite if what is real is."""

    ref: Ref
    dims: Dims
    tame: bool = True


@dataclass(frozen=True)
class Site:
    """A node and its counterpart ``its`` in the program at other sizes; ``theirs`` has the names of both."""

    node: Node
    its: Node
    program: TensorProgram
    other: TensorProgram
    theirs: Mapping[str, str]
    args: tuple[Value, ...]

    def attributes(self, env: Mapping[str, Value], sizes: tuple[str, ...] = ()) -> tuple[dict[str, Any], dict[str, Fraction]]:
        """Attributes for the padded program; and where the number of a ``scale`` is one, the powers of sizes that it must be
        multiplied by. ``sizes`` names attributes that shapes say already."""
        node, found, power = self.node, {}, dict[str, Fraction]()
        for key, value in node.attrs:
            other = self.its.attr.get(key)
            if isinstance(value, Scalar) and isinstance(other, Scalar):
                found[key], powers = self._number(node.op, value, other, env)
                power |= powers
                continue
            if value != other and key not in ("shape", "stop", "start", "times", *sizes):
                raise UnsupportedError(f"has {key}={value}, and {other} at other sizes")
            found[key] = value
        return found, power

    def _number(self, op: str, value: Scalar, other: Scalar, env: Mapping[str, Value]) -> tuple[Scalar, Mapping[str, Fraction]]:
        mine, its = value.value(self.program.extent), other.value(self.other.extent)
        changing = [e for e in value.extents if places.symbols(env[e.tensor].dims[e.dim])]
        if math.isclose(mine, its, rel_tol=1e-12):
            return value.bind(self.program.extent) if changing else _moved(value, env), {}
        there = value.value(lambda e: self.other[self.theirs[e.tensor]].shape[e.dim]) if changing else mine
        if op != "scale" or not math.isclose(there, its, rel_tol=1e-12):
            raise UnsupportedError(f"has a number that a size decides ({mine:g}, and {its:g} at other sizes)")
        power: dict[str, Fraction] = {}
        coeff = Scalar(value.coeff)
        for base, exponent in value.powers:
            dim = env[base.tensor].dims[base.dim] if isinstance(base, Extent) else ()
            for f in dim:
                if f.symbol:
                    power[f.symbol] = power.get(f.symbol, Fraction(0)) + exponent
                else:
                    coeff = coeff * Scalar.power(f.extent, exponent)
            if not isinstance(base, Extent):
                coeff = coeff * Scalar.power(base, exponent)
        return coeff, power

    def inside(self) -> tuple[TensorProgram, TensorProgram]:
        """What a composite is made of, at both sizes."""
        found = []
        for node, program in ((self.node, self.program), (self.its, self.other)):
            attrs = {k: v for k, v in program.bound(node).items() if k != "dtype"}
            found.append(alone(node.op, [(program[n].shape, program[n].dtype) for n in node.inputs], attrs))
        return found[0], found[1]

    def functions(self) -> tuple[Callable[[Sequence[Array]], Array], ...]:
        """The operator at both sizes, as functions of arrays."""

        def of(node: Node, program: TensorProgram) -> Callable[[Sequence[Array]], Array]:
            attrs = program.bound(node)
            return lambda xs: np.asarray(node.entry.numpy(*xs, **attrs))

        return of(self.node, self.program), of(self.its, self.other)


def _moved(value: Scalar, env: Mapping[str, Value]) -> Scalar:
    """A constant tied to tensors of the padded program."""
    return value.bind(lambda e: Extent(env[e.tensor].ref.name, e.dim))


def value_of(node: Node, xs: list[Array], attrs: Mapping[str, Any]) -> Any:
    with np.errstate(all="ignore"):
        return node.entry.numpy(*xs, **attrs)


def fold_of(node: Node) -> float | None:
    """The identity of a fold that is a library's, or torch's as it stands: a trial does not tell where products are near 0."""
    named = str(node.attr.get("callee", node.op)).split(".")
    name = named[1] if len(named) > 1 else named[0]  # torch's have a namespace, and most of Relay's none
    identity = 0.0 if name == "count_nonzero" else OPS[name].identity if name in OPS else None
    return None if identity is None or math.isinf(identity) else identity


_PROBES = np.array([-100.0, -1.0, 0.0, 1.0, 100.0])


def tame(node: Node, args: list[Value], attrs: Mapping[str, Any]) -> bool:
    """Whether finite operands give a finite result: element-wise operators are tried at a few numbers."""
    if not all(a.tame for a in args) or node.masks:
        return False
    if node.entry.kind != "map" or node.indexed:
        return True
    found = value_of(node, [x.ravel() for x in np.meshgrid(*[_PROBES] * len(args))], attrs)
    return bool(np.all(np.isfinite(found)) and np.max(np.abs(found)) < 1e9)


def alike(mine: Array, its: Array) -> bool:
    """Whether arrays of two sizes agree as far as both reach."""
    if mine is its or (mine.shape == its.shape and mine.__array_interface__["data"] == its.__array_interface__["data"]):
        return True
    if mine.ndim != its.ndim:
        return False
    both = tuple(slice(min(a, b)) for a, b in zip(mine.shape, its.shape, strict=True))
    return np.array_equal(mine[both], its[both], equal_nan=mine.dtype.kind == "f")
