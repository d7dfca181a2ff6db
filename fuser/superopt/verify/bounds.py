"""What one round of a random test proves: degrees of the tested fractions, and the number of their random function values.

Every value of a program is a fraction of polynomials in the inputs and in the values of the random functions. Two programs that
differ agree at a random point with probability at most degree/p (Schwartz and Zippel), where the values of a function at
different arguments are independent; arguments that differ as fractions coincide with probability at most degree/p for each pair,
by the same lemma. What an operator does to fractions stands in the op table (:attr:`fuser.ir.ops.OpDef.fraction`): nothing is
assumed of one without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field as field_of
from typing import Any

from fuser.errors import UnsupportedError
from fuser.interpret.fields import Field
from fuser.interpret.fields import error_bound
from fuser.interpret.modular import prime_factors
from fuser.ir.composites import expand
from fuser.ir.dtypes import ROUNDS
from fuser.ir.flow import through
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.mugraph import Stmt
from fuser.ir.opdef import OpDef
from fuser.ir.opdef import evaluate
from fuser.ir.ops import op as op_def
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Scalar
from fuser.ir.scalar import bound
from fuser.superopt.verify.reduced import as_program

Degree = tuple[int, int]  # numerator, denominator
Attrs = Mapping[str, Any]


def _sum(a: Degree, b: Degree) -> Degree:
    return max(a[0] + b[1], b[0] + a[1]), a[1] + b[1]


def _product(a: Degree, b: Degree) -> Degree:
    return a[0] + b[0], a[1] + b[1]


def _part(*xs: Degree) -> Degree:
    return max(n for n, _ in xs), max(d for _, d in xs)


_RULES: dict[str, Callable[..., Degree]] = {
    "same": lambda x: x,
    "sum": _sum,
    "product": _product,
    "square": lambda x: _product(x, x),
    "quotient": lambda a, b: _product(a, (b[1], b[0])),
    "shift": lambda x: _sum(x, (0, 0)),
    "part": _part,
    "chosen": _part,
    "function": lambda *_xs: (1, 0),
    "inverse": lambda x: (x[1], x[0]),
}
"""Degrees of the result from those of the operands, by :attr:`fuser.ir.ops.OpDef.fraction`."""


@dataclass
class _Count:
    """Arguments of random functions: how many of each, and their largest degree; ``chance``: something is chosen by chance."""

    elements: dict[str, int] = field_of(default_factory=dict)
    degree: int = 0
    chance: bool = False

    def apply(self, op: str, xs: Sequence[Degree], attrs: Attrs, elements: int, folded: int) -> Degree:
        """Degree of the result of an operator; ``folded`` counts the elements that one of a fold sums over."""
        entry = op_def(op)
        if entry.formula is not None and not entry.fraction:
            return evaluate(entry.steps(attrs), xs, lambda name, x, at: self.apply(name, x, at, elements, 1))
        fraction = entry.fraction or _default(entry)
        if fraction not in _RULES:
            raise UnsupportedError(
                f"nothing is known of {op!r} over finite fields, so that a test proves nothing",
                "give its entry in the op table the field 'fraction'",
            )
        n, d = _RULES[fraction](*xs)
        self.chance |= fraction == "chosen"
        if fraction == "function":
            self.function(op, elements, max(xs, key=sum))
        if attrs.get(ROUNDS):
            n, d = self.rounded(str(attrs.get("dtype")), xs[0], elements)
        n += _unknowns(attrs)
        if entry.kind in ("contract", "reduce") and folded > 1:
            n, d = n + (folded - 1) * d, folded * d
        return n, d

    def function(self, name: str, elements: int, argument: Degree) -> None:
        self.elements[name] = self.elements.get(name, 0) + elements
        self.degree = max(self.degree, sum(argument))

    def rounded(self, dtype: str, x: Degree, elements: int) -> Degree:
        """A cast that may change values: a random predicate, a random function or a random factor."""
        if dtype == "bool":
            self.chance = True
            return 1, 0
        if "int" in dtype:
            self.function(f"cast to {dtype}", elements, x)
            return 1, 0
        return x[0] + 1, x[1]


def _default(entry: OpDef) -> str:
    """An element-wise operator of which the table says no more is a random function, or a random predicate."""
    if entry.kind != "map" or entry.indexed:
        return ""
    return "chosen" if entry.typed == "truth" else "function"


def _unknowns(attrs: Attrs) -> int:
    """Degree of the constants of an operator in the roots that are unknowns."""
    powers = [p for v in attrs.values() if isinstance(v, Scalar) for p in v.powers]
    return sum(e.numerator % e.denominator * len(prime_factors(b)) for b, e in powers if isinstance(b, int) and b > 1)


def round_bound(program: TensorProgram, graph: KernelGraph, field: Field) -> tuple[float, tuple[str, ...]]:
    """Proven probability that a round accepts a µGraph that differs, and what the proof leaves out."""
    count = _Count()
    wanted = _program(program, count)
    got = _graph(graph, count)
    degree = max((sum(got[n]) + sum(wanted[n]) for n in program.outputs), default=0)
    notes = []
    bits = [n for n in program.inputs if program[n].dtype == "bool" and program.consumers[n]]
    if count.chance or bits:
        notes.append("maxima are tested by a random order of the elements, conditions by random predicates and bits: heuristic")
        return 1.0, tuple(notes)
    if field.law:
        terms = 2 * count.elements.get("exp", 1)
        if set(count.elements) - {"exp"}:
            notes.append("theorem 2 does not cover further functions: heuristic")
        return error_bound(field.p, field.q, max(degree, 1), max(terms, 1), 1, law=True), tuple(notes)
    pairs = sum(e * (e - 1) // 2 for e in count.elements.values())
    if count.elements:
        notes.append("functions are taken as truly random; a keyed 64-bit mixing function stands in for them")
    return min(1.0, (degree + 2 * count.degree * pairs) / field.p), tuple(notes)


def _program(program: TensorProgram, count: _Count, inputs: Mapping[str, Degree] | None = None) -> dict[str, Degree]:
    program = expand(program)

    def apply(node: Node, xs: list[Degree]) -> Degree:
        source = program[node.inputs[0]].shape
        folded = 1
        if node.contracts:
            folded = source[-1]
        elif node.entry.kind == "reduce":
            folded = math.prod(source[i] for i in node.attr["axis"])
        return count.apply(node.op, xs, program.bound(node), math.prod(program[node.output].shape), folded)

    return program.run(inputs or dict.fromkeys(program.inputs, (1, 0)), apply)


def _graph(graph: KernelGraph, count: _Count) -> dict[str, Degree]:
    shapes = {n: t.shape for n, t in graph.device_tensors.items()}

    def compute(block: BlockGraph, s: Stmt, xs: list[Degree]) -> Degree:
        extents = block.extents
        elements, folded = (math.prod(extents[a] for a in axes) for axes in (s.axes, s.reduce))
        return count.apply(s.op, xs, bound(s.attrs, lambda e: extents[e.tensor]), elements, folded)

    def library(k: LibraryKernel, xs: list[Degree]) -> Degree:
        return _program(as_program(k, shapes), count, dict(zip(k.args, xs, strict=True)))[k.output]

    return through(graph, dict.fromkeys(graph.inputs, (1, 0)), compute, library)
