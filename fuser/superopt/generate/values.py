"""Values: every function of the inputs that can be part of the outputs, each once, with all the ways to compute it.

This is the generator's search space in compressed form: where Mirage extends one prefix at a time, all prefixes that share a
value share it here. A value is identified by its fingerprint (:mod:`fuser.superopt.generate.fingerprint`), kept if abstract
expressions and axes allow it (:mod:`fuser.superopt.generate.pruning`), and reached in order of the number of operators that it
takes, so that each pair of operands is combined once, commuted operands included.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import Any

import numpy as np

from fuser.files import counted
from fuser.ir.applied import Applied
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.mugraph import ordered
from fuser.ir.ops import op as op_def
from fuser.superopt.expressions.abstraction import abstract
from fuser.superopt.expressions.normal_form import NF
from fuser.superopt.expressions.normal_form import TOP
from fuser.superopt.expressions.normal_form import var
from fuser.superopt.generate.fingerprint import Instance
from fuser.superopt.generate.fingerprint import Residues
from fuser.superopt.generate.fingerprint import interpreted
from fuser.superopt.generate.pruning import AxisTarget

Attrs = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Derivation(Applied):
    """One way to compute a value: an operator of the op table on other values."""

    op: str
    args: tuple[int, ...]
    reduce: tuple[str, ...] = ()
    attrs: Attrs = ()


@dataclass(eq=False)
class Value:
    """``weight`` is 0 for a load and inside of a composite, else 1; ``ops`` the operators of the cheapest derivation known, as
    a bit set."""

    number: int
    name: str
    axes: tuple[str, ...]
    form: NF
    residues: Residues
    weight: int = 1
    load: Stmt | None = None
    dtype: str = ""
    ops: int = 0
    derivations: list[Derivation] = field(default_factory=list)


@dataclass
class Counts:
    """What the enumeration did: operator applications tried, those that abstract expressions pruned, distinct values kept."""

    tried: int = 0
    pruned: int = 0
    evaluated: int = 0
    values: int = 0

    def text(self) -> str:
        return f"{self.tried} tried, {self.pruned} pruned, {self.evaluated} evaluated, {counted(self.values, 'value')}"


class ValueSpace:
    """All useful values of at most ``max_ops`` operators. ``complete`` says whether the enumeration ended by itself.

    ``block`` is the program as one block (:func:`fuser.ir.fuse.fuse`): its loads are the leaves, its operators and constants
    the alphabet, together with sum, product, quotient, contraction and square. ``internal`` names what composites compute on
    the way.
    """

    def __init__(
        self,
        block: BlockGraph,
        internal: frozenset[str],
        max_ops: int,
        *,
        expressions: bool = True,
        canonical: bool = True,
        most: int = 40_000,
        seed: int = 0,
    ) -> None:
        self.block, self.max_ops, self.expressions, self.canonical = block, max_ops, expressions, canonical
        self.order = {a.name: i for i, a in enumerate(block.axes)}
        self.instance = Instance(tuple(self.order), np.random.default_rng(seed))
        self.counts = Counts()
        self.most = most
        self.complete = False
        self.values: list[Value] = []
        self.by_key: dict[tuple[tuple[str, ...], bytes], Value] = {}
        self._queue: list[tuple[int, int]] = []
        self._done: list[Value] = []
        self._forms: dict[tuple[Any, ...], NF] = {}
        self._weightless = 0
        self.program: dict[str, int] = {}
        self._seed(internal)

    # -- the program itself -------------------------------------------------------------------------------------------------

    def _seed(self, internal: frozenset[str]) -> None:
        forms: dict[str, NF] = {}
        axes: dict[str, frozenset[str]] = {}
        evaluated: list[tuple[Stmt, Residues]] = []
        at: dict[str, Residues] = {}
        for s in self.block.stmts:
            if s.kind == "load" and s.access:
                # two reads of one tensor along different axes are one input, seen twice
                forms[s.value], at[s.value] = var(s.access), self.instance.draw(s.axes)
            elif s.kind == "compute":
                forms[s.value] = abstract(s.op, [forms[a] for a in s.args], s.reduce, s.attr)
                at[s.value] = _valid(self.instance.apply(s.op, [at[a] for a in s.args], s.reduce, s.attr))
                evaluated.append((s, at[s.value]))
            axes[s.value] = frozenset(s.axes)
        self.reducible = frozenset(a for s in self.block.computes for a in s.reduce)
        shapes = {frozenset(s.axes) for s in self.block.stmts if s.kind != "store"}
        self.shapes = frozenset(shapes)
        outputs = {forms[s.value]: frozenset(s.axes) for s in self.block.stores}
        divisors = frozenset(a for s in self.block.computes if _divides(s.op) for a in axes[s.args[-1]])
        known: dict[NF, frozenset[str]] = {}
        for name, e in forms.items():
            known[e] = known.get(e, frozenset()) | axes[name]
        self.target = AxisTarget(outputs, known, divisors)
        self._alphabet(at)
        for s in self.block.stmts:
            if s.kind == "load":
                v = self._new(s.value, s.axes, forms[s.value], at[s.value], 0, s, s.dtype)
                self.program[s.value] = v.number
            elif s.kind == "compute":
                args = tuple(self.program[a] for a in s.args)
                v = self._add(
                    Derivation(s.op, args, s.reduce, s.attrs),
                    s.axes,
                    forms[s.value],
                    at[s.value],
                    s.value,
                    s.value not in internal,
                )
                v.dtype = s.dtype
                self.program[s.value] = v.number
        self.outputs = {s.access.tensor: self.program[s.value] for s in self.block.stores if s.access}

    def _alphabet(self, at: dict[str, Residues]) -> None:
        """Element-wise operators of the program, and where it evaluates those that are not field operations."""
        self.unary: list[tuple[str, Attrs]] = []
        self.places: dict[tuple[str, Attrs], tuple[frozenset[int], ...]] = {}
        binary = {"add", "mul", "div"}
        self.folds = tuple(dict.fromkeys(s.op for s in self.block.computes if s.entry.kind == "reduce" and not s.adds))
        for s in self.block.computes:
            kind = s.entry.kind
            if s.op in ("sub", "neg"):
                binary.add("sub")
            if s.op == "maximum":
                binary.add("maximum")
            if kind == "map" and len(s.args) == 1 and s.op != "square":
                key = (s.op, s.attrs)
                if key not in self.unary:
                    self.unary.append(key)
                if not interpreted(s.entry):
                    old = self.places.get(key, (frozenset(),) * len(at[s.args[0]]))
                    self.places[key] = tuple(p | frozenset(map(int, x.ravel())) for p, x in zip(old, at[s.args[0]], strict=True))
        strict = next((s.attrs for s in self.block.computes if s.divides and s.attrs), ())
        self.binary: tuple[tuple[str, Attrs], ...] = tuple((op, strict if op == "div" else ()) for op in sorted(binary))

    # -- adding -------------------------------------------------------------------------------------------------------------

    def _new(
        self, name: str, axes: tuple[str, ...], form: NF, residues: Residues, weight: int, load: Stmt | None, dtype: str
    ) -> Value:
        v = Value(len(self.values), name, axes, form, residues, weight, load, dtype)
        self.values.append(v)
        self.by_key[axes, residues.tobytes()] = v
        self.counts.values += 1
        if load:
            heapq.heappush(self._queue, (0, v.number))
        return v

    def _add(
        self, d: Derivation, axes: tuple[str, ...], form: NF, residues: Residues, name: str = "", counts: bool = True
    ) -> Value:
        v = self.by_key.get((axes, residues.tobytes())) if self.canonical else None
        if v is not None and v.load and name:
            v = None  # a program may compute an input again: its result is still a value to be stored
        if v is None:
            v = self._new(name, axes, form, residues, 1 if counts else 0, None, "")
            if not counts:
                self._weightless |= 1 << v.number
        if d in v.derivations or v.load:
            return v
        v.derivations.append(d)
        ops = 1 << v.number
        for a in d.args:
            ops |= self.values[a].ops
        if not v.ops or self.size(ops) < self.size(v.ops):
            v.ops = ops
            heapq.heappush(self._queue, (self.size(ops), v.number))
        return v

    def alike(self, number: int) -> list[int]:
        """Values that are the same function: one, unless values are not merged."""
        v = self.values[number]
        if self.canonical:
            return [number]
        return [u.number for u in self.values if u.axes == v.axes and not u.load and np.array_equal(u.residues, v.residues)]

    def size(self, ops: int) -> int:
        """Operators in a bit set that count."""
        return (ops & ~self._weightless).bit_count()

    # -- enumeration --------------------------------------------------------------------------------------------------------

    def grow(self, deadline: float | None = None) -> Iterator[Value]:
        """Enumerate, cheapest values first; yields each value when it is taken up. Stops at the deadline (``time.monotonic``)
        and, to bound memory, at ``most`` values."""
        taken: set[int] = set()
        while self._queue:
            if deadline is not None and time.monotonic() > deadline:
                return
            size, number = heapq.heappop(self._queue)
            v = self.values[number]
            if number in taken or size > self.max_ops:
                continue
            taken.add(number)
            self._done.append(v)
            yield v
            self._unary(v)
            for u in self._done:
                self._pair(u, v)
                if len(self.values) > self.most:
                    return
                if deadline is not None and time.monotonic() > deadline:
                    return
        self.complete = True

    def _unary(self, v: Value) -> None:
        for op, attrs in self.unary:
            self._try(op, (v,), (), attrs, v.axes)
        self._try("square", (v,), (), (), v.axes)
        free = [a for a in v.axes if a in self.reducible]
        for over in _subsets(free):
            kept = tuple(a for a in v.axes if a not in over)
            self._try("sum", (v,), over, (), kept)
            for op in self.folds:
                self._try(op, (v,), over, (), kept)

    def _pair(self, u: Value, v: Value) -> None:
        if self.size(u.ops | v.ops) + 1 > self.max_ops:
            return
        if u is not v:
            union = ordered({*u.axes, *v.axes}, self.block.axes)
            if union in (u.axes, v.axes) or any(set(union) <= s for s in self.shapes):
                for op, attrs in self.binary:
                    self._try(op, (u, v), (), attrs, union)
                    if not op_def(op).commutative or not self.canonical:
                        self._try(op, (v, u), (), attrs, union)
            shared = [a for a in u.axes if a in v.axes and a in self.reducible]
            for over in _subsets(shared):
                self._try("matmul", (u, v), over, (), tuple(a for a in union if a not in over))

    def _try(self, op: str, args: tuple[Value, ...], reduce: tuple[str, ...], attrs: Attrs, axes: tuple[str, ...]) -> None:
        self.counts.tried += 1
        if self.expressions:
            key = (op, attrs, reduce, *(a.form.number for a in args))
            form = self._forms.get(key)
            if form is None:
                form = self._forms[key] = self._form(op, [a.form for a in args], reduce, attrs)
            if not self.target.useful(form, frozenset(axes)):
                self.counts.pruned += 1
                return
        else:
            form = TOP
        places = self.places.get((op, attrs))
        if places is not None and not all(
            p.issuperset(map(int, x.ravel())) for p, x in zip(places, args[0].residues, strict=True)
        ):
            # a function that the verifier knows nothing of is of use only where the program has it
            self.counts.pruned += 1
            return
        if not self._indexable(attrs, axes):
            return
        self.counts.evaluated += 1
        residues = self.instance.apply(op, [a.residues for a in args], reduce, dict(attrs))
        if residues is not None:
            self._add(Derivation(op, tuple(a.number for a in args), reduce, attrs), axes, form, residues)

    def _form(self, op: str, args: list[NF], reduce: tuple[str, ...], attrs: Attrs) -> NF:
        if op_def(op).subtracts:  # the negative of a form is wanted again and again
            key = ("neg", args[1].number)
            if key not in self._forms:
                self._forms[key] = abstract("neg", args[1:])
            return abstract("add", [args[0], self._forms[key]])
        return abstract(op, args, reduce, dict(attrs))

    @staticmethod
    def _indexable(attrs: Attrs, axes: tuple[str, ...]) -> bool:
        return all(v in axes or not v for k, v in attrs if k in ("rows", "cols"))


def _divides(op: str) -> bool:
    """The last operand is, or is in, a denominator."""
    entry = op_def(op)
    if entry.formula is None or entry.fraction:
        return entry.fraction in ("quotient", "inverse")
    return any(_divides(name) for name, _, _ in entry.steps(dict.fromkeys(entry.attrs, 1)))


def _valid(residues: Residues | None) -> Residues:
    if residues is None:
        raise ZeroDivisionError("a denominator of the program is zero at random inputs")
    return residues


def _subsets(axes: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for count in range(1, len(axes) + 1):
        yield from itertools.combinations(axes, count)
