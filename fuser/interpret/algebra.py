"""What the interpreter of :mod:`fuser.interpret.reference` computes with: numbers, or elements of finite fields.

The interpreter knows where and when; an :class:`Algebra` knows what. A value is one array or several of the same shape (residues,
flags): the interpreter only moves and slices values, through :meth:`Algebra.lift`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from typing import NamedTuple
from typing import Protocol
from typing import TypeVar

import numpy as np

from fuser.ir.flow import through
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.ops import Array
from fuser.ir.ops import op as op_def

V = TypeVar("V")


@dataclass(frozen=True)
class Tile:
    """Where the result of an element-wise operator lies: its axes, for each of them the element indices, and whether the operator
    is guarded (see :func:`guarded`)."""

    axes: tuple[str, ...]
    index: Mapping[str, Array]
    guarded: bool = False

    def shape(self) -> tuple[int, ...]:
        return tuple(len(self.index[a]) for a in self.axes)

    def along(self, axis: str) -> Array:
        """Element indices of an axis, shaped to broadcast against the result; 0 where the axis has extent 1 and no name."""
        if axis not in self.axes:
            return np.zeros((1,) * len(self.axes), dtype=np.int64)
        at = self.axes.index(axis)
        return self.index[axis].reshape([-1 if i == at else 1 for i in range(len(self.axes))])

    def indexed(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """Attributes of an operator that knows where its elements are, with their indices in place of the names of axes."""
        return {k: self.along(v) if k in ("rows", "cols") else v for k, v in attrs.items()}


class Algebra(Protocol[V]):
    """Arithmetic of the interpreter. Operands of :meth:`map` have the axes of the result, with extent 1 where they lack one."""

    def lift(self, f: Callable[..., Array], *xs: V) -> V:
        """Apply a function that only moves elements (slice, transpose, write in place) to each array that makes up the values."""
        ...

    def empty(self, shape: tuple[int, ...]) -> V:
        """A device tensor that nothing has been written to; poisoned where the algebra can."""
        ...

    def shape(self, x: V) -> tuple[int, ...]: ...

    def same(self, x: V, y: V) -> bool:
        """The two values agree in every element (an element that is written twice must not change)."""
        ...

    def map(self, op: str, args: Sequence[V], attrs: Mapping[str, Any], tile: Tile) -> V:
        """An element-wise operator; constants in ``attrs`` have no free extents left."""
        ...

    def contract(self, op: str, spec: str, args: Sequence[V]) -> V:
        """A product summed over axes, as an einsum such as ``ab,bc->ac``. A summed axis may be empty."""
        ...

    def fold(self, op: str, x: V, axes: tuple[int, ...]) -> V:
        """Fold away the dimensions ``axes``; the identity where one of them is empty."""
        ...

    def combine(self, op: str, acc: V, x: V) -> V:
        """One step of an accumulator; ``op`` is ``sum`` for contractions."""
        ...

    def identity(self, op: str, shape: tuple[int, ...]) -> V: ...

    def rescale(self, acc: V, degree: int, old: V, new: V) -> V:
        """acc · exp(degree · (old − new)); ``old`` and ``new`` broadcast against ``acc``."""
        ...

    def library(self, op: str, args: Sequence[V], attrs: Mapping[str, Any]) -> V:
        """An operator on whole tensors."""
        ...


@dataclass(frozen=True)
class FloatAlgebra:
    """Numpy arithmetic in one dtype, with the table's semantics of every operator."""

    dtype: Any = np.float64

    def lift(self, f: Callable[..., Array], *xs: Array) -> Array:
        return f(*xs)

    def empty(self, shape: tuple[int, ...]) -> Array:
        return np.full(shape, np.nan, self.dtype)

    def shape(self, x: Array) -> tuple[int, ...]:
        return x.shape

    def same(self, x: Array, y: Array) -> bool:
        return bool(np.array_equal(x, y, equal_nan=True))

    def map(self, op: str, args: Sequence[Array], attrs: Mapping[str, Any], tile: Tile) -> Array:
        entry = op_def(op)
        if entry.indexed:
            return entry.numpy(*args, **tile.indexed(attrs))
        with np.errstate(all="ignore"):
            out = entry.numpy(*args, **attrs)
        if tile.guarded and entry.subtracts:
            return np.where(np.isneginf(args[0]), -np.inf, out)
        if tile.guarded and entry.divides:
            return np.where((args[0] == 0) & (args[1] == 0), 0, out)
        return out

    def contract(self, op: str, spec: str, args: Sequence[Array]) -> Array:
        with np.errstate(all="ignore"):
            return _product(spec, *args) if len(args) == 2 else np.einsum(spec, *args, optimize=True)

    def fold(self, op: str, x: Array, axes: tuple[int, ...]) -> Array:
        if any(x.shape[i] == 0 for i in axes):
            return self.identity(op, tuple(n for i, n in enumerate(x.shape) if i not in axes))
        return op_def(op).numpy(x, axis=axes)

    def combine(self, op: str, acc: Array, x: Array) -> Array:
        return op_def(op_def(op).combine).numpy(acc, x)

    def identity(self, op: str, shape: tuple[int, ...]) -> Array:
        value = op_def(op).identity
        assert value is not None
        return np.full(shape, value, self.dtype)

    def rescale(self, acc: Array, degree: int, old: Array, new: Array) -> Array:
        # nothing was seen before where old is -inf: the accumulator is zero there and stays so
        with np.errstate(all="ignore"):
            factor = np.where(np.isneginf(old), 1, np.exp(degree * (old - new)))
        return acc * factor

    def library(self, op: str, args: Sequence[Array], attrs: Mapping[str, Any]) -> Array:
        return np.asarray(op_def(op).numpy(*args, **attrs))


def guarded(graph: KernelGraph) -> frozenset[tuple[str, str]]:
    """The (kernel, value) pairs of differences and quotients that have a defined result where everything is masked:

    * x − max, for a folded maximum or the larger of several, is −inf where x is −inf, even if the maximum is −inf too: what is
      absent stays absent, if the difference is not ``strict`` (one that others define, and of which more is made than a softmax);
    * a / b, where both are computed from exponentials and b sums them, is 0 where both are 0: a fully masked row gives 0, if the
      quotient is not ``strict`` (a softmax that others define: NaN). What is computed from such quotients is no exponential any
      more: to divide probabilities by their sum is the program's own quotient, which has its 0 / 0.

    * a / n, for a number n of elements that is summed up from ones, is 0 where there are none: a part of a split may be empty.

    Everything else follows IEEE arithmetic. Both rules hold across kernels, for the partial results of a split reduction.
    """
    found: set[tuple[str, str]] = set()

    def compute(block: BlockGraph, s: Stmt, xs: list[_Origin]) -> _Origin:
        strict = s.attr.get("strict")
        shift = s.subtracts and not strict and (block.by_value[s.args[1]].maximizes or shared_top(block, *s.args))
        empty = s.divides and ((xs[0].made and xs[1].summed and not strict) or xs[1].counted == "count")
        if shift or empty:
            found.add((block.name, s.value))
        origin = _Origin.of(s.op, xs)
        if s.divides and xs[0].made and xs[1].summed:
            origin = _Origin()
        return origin._replace(counted="zero") if s.subtracts and s.args[0] == s.args[1] else origin

    through(graph, dict.fromkeys(graph.inputs, _Origin()), compute, lambda k, xs: _Origin.of(k.op, xs))
    return frozenset(found)


def shared_top(block: BlockGraph, value: str, top: str) -> bool:
    """``top`` is the larger of several maxima, one of them that of ``value``: several exponentials are shifted by it."""
    s = block.by_value[top]
    if s.op != "maximum":
        return False
    made = [block.by_value[a] for a in s.args]
    return any(m.value == value or (m.maximizes and m.args == (value,)) or shared_top(block, value, m.value) for m in made)


class _Origin(NamedTuple):
    """Whether a value is computed from exponentials, and from sums of them; ``counted``: whether it is x − x (``zero``), that
    and one, or a sum of such ones (``count``)."""

    made: bool = False
    summed: bool = False
    counted: str = ""

    @staticmethod
    def of(op: str, xs: Sequence[_Origin]) -> _Origin:
        made = any(x.made for x in xs)
        folds = op_def(op).kind in ("contract", "reduce")
        last = xs[0].counted if xs else ""
        counted = {("shift", "zero"): "one", ("sum", "one"): "count", ("sum", "count"): "count"}.get((op, last), "")
        return _Origin(made or op == "exp", any(x.summed for x in xs) or (folds and made), counted)


def _product(spec: str, a: Array, b: Array) -> Array:
    """``einsum`` of two operands as a product of matrices, which BLAS has."""
    operands, out = spec.split("->")
    left, right = operands.split(",")
    both = [x for x in out if x in left and x in right]
    rows, columns = [x for x in out if x not in right], [x for x in out if x not in left]
    summed = [x for x in left if x in right and x not in out]
    if len(both) + len(rows) + len(summed) < len(left) or len(both) + len(columns) + len(summed) < len(right):
        return np.einsum(spec, a, b)  # something is summed in one operand alone
    size = dict(zip(left + right, a.shape + b.shape, strict=True))

    def matrices(x: Array, own: str, first: list[str], second: list[str]) -> Array:
        sizes = (math.prod(size[i] for i in axes) for axes in (first, second))
        return x.transpose([own.index(i) for i in (*both, *first, *second)]).reshape(*(size[i] for i in both), *sizes)

    y = matrices(a, left, rows, summed) @ matrices(b, right, summed, columns)
    made = [*both, *rows, *columns]
    return y.reshape([size[i] for i in made]).transpose([made.index(i) for i in out])
