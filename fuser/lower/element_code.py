"""Triton source of a tape: every thread computes elements of a result from the places that they come from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser.errors import UnsupportedError
from fuser.ir.element_loads import for_all
from fuser.ir.elements import WHOLE
from fuser.ir.elements import Step
from fuser.ir.elements import Tape
from fuser.ir.elements import whole_constants
from fuser.ir.opdef import evaluate
from fuser.ir.ops import op as op_def
from fuser.ir.places import Atom
from fuser.ir.places import Condition
from fuser.ir.places import Place
from fuser.ir.places import Truth
from fuser.ir.places import atoms_of
from fuser.ir.places import coordinate
from fuser.ir.program import FLOAT_DTYPES
from fuser.ir.program import NARROW
from fuser.lower.element_tiles import Tiling
from fuser.lower.emitter import number_text

TYPES = {"float16": "float16", "bfloat16": "bfloat16", "float32": "float32", "bool": "int1", "int32": "int32", "int64": "int64",
         "int8": "int8", "uint8": "uint8", "int16": "int16", "float64": "float64"}  # fmt: skip
"""Dtypes that are loaded and stored, as Triton calls them."""
BETWEEN = frozenset({"maximum", "minimum", "where", "clamp_min", "clamp_max", "clamp", "relu"})
"""Those of them whose results lie among their operands and bounds."""
FORMS = {"minimum": "tl.minimum({0}, {1})", "trunc_div": "{0} // {1}"}
"""What has another form on whole numbers: the least one has no opposite, and Triton rounds quotients towards zero."""
EXACT = frozenset({"add", "sub", "mul", "div", "neg", "abs", "square", "scale", "shift", "reciprocal", "where", "sin", "cos",
                   "eq", "ne", "lt", "le", "gt", "ge"})  # fmt: skip
"""Those whose form is as good in float64 (angles of positions, say) as Triton has it."""
LIMIT = 1 << 31


def body(tiling: Tiling, arguments: Mapping[str, str], sizes: Sequence[int], out: str) -> list[str]:
    """The lines of a function that writes a result to ``out``; ``arguments`` are the pointers to what is loaded, ``sizes`` the
    elements of these tensors. Raises :class:`UnsupportedError` for what has no Triton form."""
    wide = max((math.prod(tiling.tape.shape), *sizes)) >= LIMIT
    lines, coordinates, ragged = _frame(tiling, ".to(tl.int64)" if wide else "")
    block = (tiling.columns,) if tiling.across < 0 else (tiling.rows, tiling.columns)
    w = Writer(tiling.tape, arguments, wide, coordinates, block, ragged)
    return [*lines, *w.write(out)]


def _frame(t: Tiling, long: str) -> tuple[list[str], dict[int, tuple[str, frozenset[str]]], dict[str, bool]]:
    """The place of a block: lines, the name of each coordinate with the dimensions of a block along which it changes (none where
    neighbours are numbered), and in which dimensions a block hangs over."""
    shape = t.tape.shape
    if t.across < 0:
        count = math.prod(shape)
        lines = [f"i = tl.program_id(0){long} * {t.size} + tl.arange(0, {t.size})"]
        over = count % t.size > 0
        return [*lines, f"ok_x = i < {count}"] if over else lines, {}, {"x": over, "y": False}
    last = len(shape) - 1
    columns, rows = -(-shape[-1] // t.columns), -(-shape[t.across] // t.rows)
    lines = [
        "pid = tl.program_id(0)",
        f"x = (pid % {columns} * {t.columns} + tl.arange(0, {t.columns}){long})[None, :]",
        f"y = (pid // {columns} % {rows} * {t.rows} + tl.arange(0, {t.rows}){long})[:, None]",
    ]
    ragged = {"x": shape[-1] % t.columns > 0, "y": shape[t.across] % t.rows > 0}
    lines += [f"ok_{d} = {d} < {shape[i]}" for d, i in (("x", last), ("y", t.across)) if ragged[d]]
    others = [i for i in range(last) if i != t.across]
    lines += [f"rest = (pid // {columns * rows}){long}"] if others else []
    for i in reversed(others[1:]):
        lines += [f"c{i} = rest % {shape[i]}", f"rest = rest // {shape[i]}"]
    names = {i: (f"c{i}" if i != others[0] else "rest", frozenset[str]()) for i in others}
    return lines, {**names, last: ("x", frozenset("x")), t.across: ("y", frozenset("y"))}, ragged


class Writer:
    """Writes the steps of a tape. ``coordinates`` are their names, with the dimensions of a block along which they change;
    without them elements are numbered ``i``. ``block`` is the shape of a block, which hangs over where it is ``ragged``."""

    def __init__(
        self,
        tape: Tape,
        arguments: Mapping[str, str],
        wide: bool,
        coordinates: Mapping[int, tuple[str, frozenset[str]]],
        block: Sequence[int],
        ragged: Mapping[str, bool],
    ) -> None:
        self.tape, self.arguments, self.wide = tape, arguments, wide
        self.coordinates, self.block, self.ragged = coordinates, block, ragged
        self.lines: list[str] = []
        self.names: dict[Any, str] = {}
        self.values: list[str] = []
        self.lanes: list[frozenset[str]] = []
        self.flat = not coordinates
        self.one = "[1]" if self.flat else "[1, 1]"

    def steps(self) -> str:
        """Writes all; the name of the value."""
        for s in self.tape.steps:
            text = self.step(s)
            name = f"v{len(self.values)}"
            self.lines.append(f"{name} = {text}")
            self.values.append(name)
        return self.values[-1]

    def write(self, out: str) -> list[str]:
        value, dtype = self.steps(), self.tape.dtype
        if dtype not in TYPES:
            raise UnsupportedError(f"a tensor of {dtype} has no Triton form")
        if dtype == "bool":
            value = f"{value} != 0"
        elif dtype not in FLOAT_DTYPES:
            value = f"{value}.to(tl.{TYPES[dtype]})"
        place = "i" if self.flat else self.grouped(Place(tuple(self.whole())))
        mask = self.mask(True, frozenset("xy"))
        self.lines.append(f"tl.store({out} + {place}, {value}{', ' + mask if mask else ''})")
        return self.lines

    def whole(self) -> list[tuple[Atom, int]]:
        """The number of an element: coordinates times what lies behind."""
        found, step = [], math.prod(self.tape.shape)
        for i, n in enumerate(self.tape.shape):
            step //= n
            found += [(a, step) for a, _ in coordinate(i, n).terms]
        return found

    def of(self, p: Place | Truth) -> frozenset[str]:
        """The dimensions of a block along which it changes."""
        found = frozenset[str]()
        for a in atoms_of(p) if not isinstance(p, bool) else ():
            if a.kind == "coordinate":
                found |= frozenset("x") if self.flat else self.coordinates[a.number][1]
            elif a.kind == "value":
                found |= self.lanes[a.number]
        return found

    # -- places as text -----------------------------------------------------------------------------------------------------

    def text(self, p: Place) -> str:
        terms = self.runs(p) if self.flat else [(self.atom(a), c) for a, c in p.terms]
        parts = [name if c == 1 else f"{name} * {c}" for name, c in terms if c > 0]
        negative = [name if c == -1 else f"{name} * {-c}" for name, c in terms if c < 0]
        if p.constant > 0 or not (parts or negative):
            parts.append(str(p.constant))
        text = " + ".join(parts) or "0"
        return " - ".join([text, *negative, *([str(-p.constant)] if p.constant < 0 and (parts or negative) and terms else [])])

    def runs(self, p: Place) -> list[tuple[str, int]]:
        """Coordinates that stand together as the number of an element do so at once."""
        shape = self.tape.shape
        mine = {a.number: c for a, c in p.terms if a.kind == "coordinate"}
        found, i = [], 0
        while i < len(shape):
            if i not in mine:
                i += 1
                continue
            end = i
            while end + 1 in mine and mine[end] == mine[end + 1] * shape[end + 1]:
                end += 1
            found.append((self.run(i, end), mine[end]))
            i = end + 1
        return found + [(self.atom(a), c) for a, c in p.terms if a.kind != "coordinate"]

    def run(self, first: int, last: int) -> str:
        shape = self.tape.shape
        inner, extent = math.prod(shape[last + 1 :]), math.prod(shape[first : last + 1])
        if first == 0 and inner == 1:
            return "i"
        text = f"i // {inner}" if inner > 1 else "i"
        return self.named((first, last), f"{text} % {extent}" if first else text)

    def named(self, key: Any, text: str) -> str:
        if key not in self.names:
            self.names[key] = f"p{len(self.names)}"
            self.lines.append(f"{self.names[key]} = {text}")
        return self.names[key]

    def atom(self, a: Atom) -> str:
        if a.kind == "coordinate":
            return self.run(a.number, a.number) if self.flat else self.coordinates[a.number][0]
        if a in self.names:
            return self.names[a]
        if a.kind == "value":
            read = self.values[a.number]
            if a.low < 0:  # whatever it is
                return self.named(a, read)
            return self.named(a, f"tl.minimum(tl.maximum({read}, 0), {a.high}){'' if self.wide else '.to(tl.int32)'}")
        xs = [self.text(x) for x in a.args]
        if a.kind == "quotient":
            return self.named(a, f"{_inside(xs[0])} // {a.number}")
        if a.kind == "remainder":
            return self.named(a, f"{_inside(xs[0])} % {a.number}")
        return self.named(a, f"tl.{'minimum' if a.kind == 'least' else 'maximum'}({xs[0]}, {xs[1]})")

    def grouped(self, p: Place) -> str:
        return _inside(self.text(p))

    def truth(self, t: Condition) -> str:
        if t.kind in "&|":
            a, b = (self.truth(x) for x in t.sides)
            return f"{a} {t.kind} {b}" if t.kind == "&" else f"({a} | {b})"
        (p,) = t.sides
        left = Place(tuple((a, c) for a, c in p.terms if c > 0), max(p.constant, 0))
        right = Place(tuple((a, -c) for a, c in p.terms if c < 0), max(-p.constant, 0))
        return f"({self.text(left)} {t.kind} {self.text(right)})"

    def mask(self, under: Truth, lanes: frozenset[str]) -> str:
        parts = [f"ok_{d}" for d in ("y", "x") if d in lanes and self.ragged[d]]
        if isinstance(under, Condition):
            parts.append(self.named(("truth", under), self.truth(under)))
        return " & ".join(parts)

    # -- steps --------------------------------------------------------------------------------------------------------------

    def step(self, s: Step) -> str:
        under = self.under(s)
        self.lanes.append(self.of(s.at) | self.of(under) | frozenset().union(*(self.lanes[i] for i in s.args)))
        if s.kind == "load":
            return self.load(s, under)
        if s.kind == "number":
            return self.constant(dict(s.attrs)["value"], s.dtype)
        if s.kind == "place":
            kind = _float(s.dtype) if s.dtype in (*FLOAT_DTYPES, "bool") else TYPES[s.dtype]
            return f"{self.grouped(s.at)}.to(tl.{kind})" if s.at.terms else self.constant(s.at.constant, s.dtype)
        if s.kind == "choose":
            if not isinstance(s.under, Condition):
                return self.values[s.args[0]]
            return f"tl.where({self.mask(s.under, frozenset())}, {self.values[s.args[0]]}, {self.values[s.args[1]]})"
        return self.applied(s)

    def constant(self, x: float, dtype: str) -> str:
        if dtype in FLOAT_DTYPES or dtype == "bool":
            text = number_text(x) if math.isfinite(x) else f'float("{x}")'
            return f"tl.full({self.one}, {text}, tl.{_float(dtype)})"
        limits = np.iinfo(dtype)
        whole = int(x) if math.isfinite(x) else limits.min if x < 0 else limits.max
        return f"tl.full({self.one}, {whole}, tl.{_held(dtype)})"

    def under(self, s: Step) -> Truth:
        """The condition of a step: a mask has no more dimensions than the pointers of a load."""
        return for_all(s) if s.kind == "load" and not self.of(s.under) <= self.of(s.at) else s.under

    def load(self, s: Step, under: Truth) -> str:
        if s.dtype not in TYPES:
            raise UnsupportedError(f"a tensor of {s.dtype} has no Triton form")
        mine = self.of(s.at)
        place, mask = self.grouped(s.at), self.mask(under, mine)
        if not self.of(under) <= mine:
            zero = self.named("zero", f"tl.zeros([{', '.join(map(str, self.block))}], tl.int32)")
            place, mask = f"({place} + {zero})", self.mask(under, frozenset("xy"))
        elif mask and not mine:  # what a condition compares may be a block of one
            place = f"({place} + tl.zeros({self.one}, tl.int32))"
        text = f"tl.load({self.arguments[s.op]} + {place}{f', {mask}, 0' if mask else ''})"
        if s.dtype in FLOAT_DTYPES or s.dtype == "bool":
            return f"{text}.to(tl.{_float(s.dtype)})"
        return text if s.dtype in ("int32", "int64") else f"{text}.to(tl.int32)"

    def applied(self, s: Step) -> str:
        xs, numbers = [self.values[i] for i in s.args], {k: float(v) for k, v in s.attrs if isinstance(v, (int, float))}
        given = {self.tape.steps[i].dtype for i in s.args}
        if s.op == "cast":
            return self.cast(xs[0], next(iter(given)), s.dtype)
        entry = op_def(s.op)
        whole = s.dtype not in FLOAT_DTYPES and s.dtype != "bool"
        exact = s.op in WHOLE and whole_constants(numbers.values())
        double = "float64" in {s.dtype, *given}
        if (whole and not exact) or (double and s.op not in EXACT) or not (entry.triton or entry.formula):
            raise UnsupportedError(f"operator {s.op!r} on {s.dtype} has no Triton form")
        if double and numbers:
            return entry.triton.format(*xs, **{k: self.constant(v, "float64") for k, v in numbers.items()})
        if entry.narrow and s.dtype in NARROW:
            return entry.narrow.format(*xs)
        text = self.expression(s.op, xs, numbers, whole)
        return text if not whole or s.op in BETWEEN else _wrapped(text, s.dtype, numbers)

    def expression(self, op: str, xs: Sequence[str], numbers: Mapping[str, float], whole: bool) -> str:
        entry = op_def(op)
        if whole and op in FORMS:
            return FORMS[op].format(*xs)
        if entry.triton:
            text = {k: str(int(v)) if whole else number_text(v) for k, v in numbers.items()}
            return (entry.triton.replace("0.0", "0") if whole else entry.triton).format(*xs, **text)

        def apply(inner: str, args: list[str], attrs: Mapping[str, Any]) -> str:
            step = {k: float(v.value()) for k, v in attrs.items() if hasattr(v, "value")}
            text = self.expression(inner, args, step, whole)  # names steps of its own, where it is a formula
            return self.named(("step", len(self.names)), text)

        return evaluate(entry.steps(numbers), xs, apply)

    def cast(self, x: str, given: str, dtype: str) -> str:
        floats = (*FLOAT_DTYPES, "bool")
        if dtype == "bool":
            return f"({x} != 0).to(tl.float32)"
        if dtype in NARROW:  # a whole number by way of float32: Triton's interpreter has no other way to bfloat16
            single = "" if given in floats and given != "float64" else ".to(tl.float32)"
            return f"{x}{single}.to(tl.{dtype}).to(tl.float32)" if dtype != given else x
        if dtype in floats:
            return x if given in floats and _float(given) == _float(dtype) else f"{x}.to(tl.{_float(dtype)})"
        if dtype not in TYPES:
            raise UnsupportedError(f"a cast to {dtype} has no Triton form")
        text = f"{x}.to(tl.{TYPES[dtype]})"
        return text if dtype in ("int32", "int64") else f"{text}.to(tl.int32)"


def _wrapped(text: str, dtype: str, numbers: Mapping[str, float]) -> str:
    """A whole number modulo the numbers of its dtype, in the type in which it is computed."""
    if dtype == "int64" or (dtype == "int32" and all(abs(v) < LIMIT for v in numbers.values())):
        return text
    narrow = "" if dtype == "int32" else f".to(tl.{TYPES[dtype]})"
    return f"({text}){narrow}.to(tl.int32)"


def _float(dtype: str) -> str:
    """The type in which numbers of a dtype are computed, and what is true or not."""
    return "float64" if dtype == "float64" else "float32"


def _held(dtype: str) -> str:
    """The type in which whole numbers are computed."""
    return "int64" if dtype == "int64" else "int32"


def _inside(text: str) -> str:
    return text if text.isidentifier() or text.isdigit() else f"({text})"
