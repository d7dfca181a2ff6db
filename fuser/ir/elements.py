"""The elements of a result, each computed from the places that it comes from: what element-wise operators, views, borders,
windows and indices have in common.

An operator of which one element follows from a few of its operands has a rule (``element`` in the op table). A program of such
operators becomes a *tape* for one element at symbolic coordinates: loads, arithmetic and choices in order, each once.
Numbers (:func:`computed`), source code (:mod:`fuser.lower.element_code`) and costs follow from the tape.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from functools import cached_property
from typing import Any
from typing import Literal

import numpy as np

from fuser.errors import UnsupportedError
from fuser.ir.element_loads import loaded_once
from fuser.ir.opdef import OPS
from fuser.ir.opdef import Array
from fuser.ir.opdef import OpDef
from fuser.ir.places import Atom
from fuser.ir.places import Place
from fuser.ir.places import Truth
from fuser.ir.places import atoms_of
from fuser.ir.places import both
from fuser.ir.places import coordinate
from fuser.ir.places import evaluated
from fuser.ir.places import fixed
from fuser.ir.places import flat
from fuser.ir.places import holds
from fuser.ir.places import value

LONGEST, LOADS = 800, 96
"""Steps, and loads, of a tape beyond which a kernel would be absurd."""
MOST = 64
"""Elements of a window, or of a fold, that are written out."""

WHOLE = frozenset({"add", "sub", "mul", "neg", "abs", "maximum", "minimum", "where", "scale", "shift", "cast", "square",
                   "clamp_min", "clamp_max", "clamp", "relu", "trunc_div"})  # fmt: skip
"""Operators that are exact on whole numbers, where their constants are (:func:`whole_constants`)."""
EXACT = 1 << 53
"""Whole numbers that constants hold."""


def whole_constants(values: Iterable[float]) -> bool:
    """Whether constants are whole numbers as exact as they are written."""
    return all(v.is_integer() and abs(v) < EXACT for v in values)


@dataclass(frozen=True)
class Step:
    """``op`` is an operator, or the tensor of a load; ``at`` the element that is loaded, or the place that becomes a number;
    nothing is loaded, and the choice is the second operand, where ``under`` does not hold."""

    kind: Literal["load", "number", "place", "apply", "choose"]
    dtype: str
    op: str = ""
    args: tuple[int, ...] = ()
    at: Place = Place()
    under: Truth = True
    attrs: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Tape:
    """What one element of a result takes, in order; the last step is its value."""

    steps: tuple[Step, ...]
    shape: tuple[int, ...]
    dtype: str

    @property
    def loads(self) -> list[Step]:
        return [s for s in self.steps if s.kind == "load"]


@dataclass(frozen=True)
class Operand:
    """What a rule reads from: ``x(at)`` is the element at these coordinates, where a condition holds."""

    made: Elements
    name: str
    shape: tuple[int, ...]
    dtype: str

    def __call__(self, at: Sequence[Place], under: Truth = True) -> int:
        return self.made.element(self.name, tuple(at), under)


@dataclass
class Elements:
    """A tape while it is made. ``nodes`` are operators with inputs, attributes and dtype by their result."""

    nodes: Mapping[str, tuple[OpDef, tuple[str, ...], Mapping[str, Any]]]
    tensors: Mapping[str, tuple[tuple[int, ...], str]]
    steps: dict[Step, int] = field(default_factory=dict)
    under: Truth = True
    known: dict[Any, int] = field(default_factory=dict)
    loads: int = 0

    def element(self, name: str, at: tuple[Place, ...], under: Truth) -> int:
        outside, self.under = self.under, both(self.under, under)
        try:
            if self.under is False:
                return self.number(0.0, self.tensors[name][1])
            key = (name, at, self.under)
            if key not in self.known:
                self.known[key] = self._element(name, at)
            return self.known[key]
        finally:
            self.under = outside

    def _element(self, name: str, at: tuple[Place, ...]) -> int:
        shape, dtype = self.tensors[name]
        if name not in self.nodes:
            return self.step(Step("load", dtype, name, at=flat(at, shape), under=self.under))
        entry, inputs, attrs = self.nodes[name]
        xs = [Operand(self, n, *self.tensors[n]) for n in inputs]
        if entry.element is not None:
            return entry.element(self, xs, attrs, at)
        if entry.kind == "map":
            return self.apply(entry.name, *(x(spread(at, x.shape)) for x in xs), dtype=dtype, **_others(attrs))
        if entry.kind == "reduce":
            return self._folded(entry, xs[0], attrs, at)
        raise UnsupportedError(f"operator {entry.name!r} has no rule for one element")

    def _folded(self, entry: OpDef, x: Operand, attrs: Mapping[str, Any], at: tuple[Place, ...]) -> int:
        over = sorted(i % len(x.shape) for i in attrs["axis"])
        if math.prod(x.shape[i] for i in over) > MOST:
            raise UnsupportedError(f"a fold of more than {MOST} elements")
        rest = iter(at)
        kept = [next(rest) if i not in over or attrs.get("keepdims") else fixed(0) for i in range(len(x.shape))]
        found = None
        for places in itertools.product(*(range(x.shape[i]) for i in over)):
            here = list(kept)
            for i, p in zip(over, places, strict=True):
                here[i] = fixed(p)
            one = x(here)
            found = one if found is None else self.apply(entry.combine, found, one, dtype=x.dtype)
        assert found is not None
        return found

    def step(self, step: Step) -> int:
        if step not in self.steps:
            if len(self.steps) >= LONGEST:
                raise UnsupportedError(f"more than {LONGEST} steps for one element")
            self.loads += step.kind == "load"
            if self.loads > LOADS:
                raise UnsupportedError(f"more than {LOADS} loads for one element")
            self.steps[step] = len(self.steps)
        return self.steps[step]

    def at(self, i: int) -> Step:
        return next(itertools.islice(self.steps, i, None))

    # -- what rules are made of ---------------------------------------------------------------------------------------------

    def number(self, x: float, dtype: str) -> int:
        return self.step(Step("number", dtype, attrs=(("value", x),)))

    def place(self, p: Place, dtype: str = "float32") -> int:
        """A place as a number."""
        return self.step(Step("place", dtype, at=p))

    def apply(self, op: str, *args: int, dtype: str, **attrs: Any) -> int:
        return self.step(Step("apply", dtype, op, args, attrs=tuple(sorted(attrs.items()))))

    def choose(self, under: Truth, a: int, b: int, dtype: str) -> int:
        if isinstance(under, bool) or a == b:
            return a if under else b
        return self.step(Step("choose", dtype, args=(a, b), under=under))

    def read(self, i: int, extent: int) -> Place:
        """What a step reads as a place along an axis of ``extent``: the nearest where it is none."""
        return value(i, 0, extent - 1)


def _others(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Without the dtype, which a step says."""
    return {k: v for k, v in attrs.items() if k != "dtype"}


def spread(at: Sequence[Place], shape: Sequence[int]) -> list[Place]:
    """The coordinates in an operand that is spread over a result."""
    mine = at[len(at) - len(shape) :]
    return [fixed(0) if n == 1 else p for p, n in zip(mine, shape, strict=True)]


def tape_of(made: Elements, name: str, coordinates: Sequence[Place] | None = None) -> Tape:
    """The tape of a result. Raises :class:`UnsupportedError` where an operator has no rule, or needs too many steps."""
    shape, dtype = made.tensors[name]
    at = tuple(coordinate(i, n) for i, n in enumerate(shape)) if coordinates is None else tuple(coordinates)
    last = made.element(name, at, True)
    steps, last = loaded_once(list(made.steps), last)
    if last != len(steps) - 1:  # it was made on the way
        steps.append(Step("choose", dtype, args=(last, last)))
    return Tape(tuple(steps), shape, dtype)


def computed(tape: Tape, tensors: Mapping[str, Array]) -> Array:
    """The result with numpy."""
    at = np.indices(tape.shape, sparse=True)
    known: dict[Atom, Any] = {a: at[i] for i, p in enumerate(map(coordinate, range(len(at)), tape.shape)) for a, _ in p.terms}
    values: list[Any] = []
    dtype = next((x.dtype for x in tensors.values() if x.dtype.kind == "f"), np.dtype(np.float64))
    for i, s in enumerate(tape.steps):
        values.append(_computed(s, values, tensors, known, dtype))
        for atom in _read_as_places(tape, i):
            known[atom] = np.clip(np.asarray(values[i]).astype(np.int64), atom.low, atom.high)
    return np.broadcast_to(values[-1], tape.shape)


def _computed(s: Step, values: list[Any], tensors: Mapping[str, Array], known: Mapping[Atom, Any], dtype: Any) -> Any:
    if s.kind == "load":
        x = np.ravel(tensors[s.op])
        return x[np.clip(np.where(holds(s.under, known, np), evaluated(s.at, known, np), 0), 0, x.size - 1)]
    if s.kind == "number":
        number = dict(s.attrs)["value"]
        return np.asarray(number, s.dtype if "int" in s.dtype else dtype)
    if s.kind == "place":
        return np.asarray(evaluated(s.at, known, np)).astype(dtype)
    xs = [values[i] for i in s.args]
    if s.kind == "choose":
        return np.where(holds(s.under, known, np), *xs)
    return OPS[s.op].numpy(*xs, **dict(s.attrs), **({"dtype": s.dtype} if OPS[s.op].typed == "named" else {}))


def _read_as_places(tape: Tape, i: int) -> set[Atom]:
    """The atoms that stand for what step ``i`` has read."""
    later = tape.steps[i + 1 :]
    return {a for s in later for p in (s.at, s.under) for a in atoms_of(p) if a.kind == "value" and a.number == i}


@dataclass(frozen=True)
class Recipe:
    """Operators with rules that make one result: of each its name, operands and attributes, by its result. As the attribute
    ``program`` of the operator ``elements``, a text."""

    inputs: tuple[str, ...]
    nodes: Mapping[str, tuple[str, tuple[str, ...], Mapping[str, Any]]]
    tensors: Mapping[str, tuple[tuple[int, ...], str]]

    @property
    def result(self) -> str:
        return list(self.nodes)[-1]

    @property
    def without_last(self) -> Recipe:
        """What its last operator reads."""
        nodes = {n: node for n, node in self.nodes.items() if n != self.result}
        return Recipe(self.inputs, nodes, self.tensors)

    @property
    def elements(self) -> Elements:
        return Elements({n: (OPS[op], inputs, attrs) for n, (op, inputs, attrs) in self.nodes.items()}, self.tensors)

    @cached_property
    def text(self) -> str:
        nodes = [[n, op, xs, attrs, *self.tensors[n]] for n, (op, xs, attrs) in self.nodes.items()]
        return json.dumps([[[n, *self.tensors[n]] for n in self.inputs], nodes], separators=(",", ":"))

    @staticmethod
    def read(text: str) -> Recipe:
        given, made = json.loads(text)
        nodes = {n: (op, tuple(xs), {k: _listed(v) for k, v in attrs.items()}) for n, op, xs, attrs, _, _ in made}
        tensors = {n: (tuple(shape), dtype) for n, *_, shape, dtype in (*given, *made)}
        return Recipe(tuple(n for n, *_ in given), nodes, tensors)


def _listed(value: Any) -> Any:
    return tuple(map(_listed, value)) if isinstance(value, list) else value


def by_recipe(*xs: Array, program: str, **_: Any) -> Array:
    """The result of the operator ``elements``."""
    recipe = Recipe.read(program)
    return computed(tape_of(recipe.elements, recipe.result), dict(zip(recipe.inputs, xs, strict=True)))


def by_rule(name: str) -> Callable[..., Array]:
    """What an operator of the table computes, by its rule."""
    return lambda *xs, **attrs: by_element(OPS[name], xs, attrs)


def by_element(entry: OpDef, xs: Sequence[Array], attrs: Mapping[str, Any]) -> Array:
    """An operator by its rule."""
    names = tuple(f"x{i}" for i in range(len(xs)))
    tensors = {n: (x.shape, "float32" if x.dtype.kind == "f" else "int64") for n, x in zip(names, xs, strict=True)}
    tensors["y"] = (entry.shape([x.shape for x in xs], attrs) if entry.shape else xs[0].shape, "float32")
    tape = tape_of(Elements({"y": (entry, names, attrs)}, tensors), "y")
    return computed(tape, dict(zip(names, xs, strict=True)))
