"""What one round of a random test proves: degrees of the tested fractions, and the number of their random function values.

Every value of a program is a fraction of polynomials in the inputs and in the values of the random functions. Two programs that
differ agree at a random point with probability at most degree/p (Schwartz and Zippel), where the values of a function at
different arguments are independent; arguments that differ as fractions coincide with probability at most degree/p for each pair,
by the same lemma.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as field_of

from fuser.ir.composites import expand
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.ops import op as op_def
from fuser.ir.program import TensorProgram
from fuser.superopt.fields import Field
from fuser.superopt.fields import error_bound

Degree = tuple[int, int]  # numerator, denominator
_FUNCTIONS = ("exp", "sqrt", "relu", "sigmoid", "tanh", "erf")
_HIDDEN = {"rsqrt": "sqrt", "silu": "sigmoid", "gelu": "erf"}
"""Functions inside of operators that the field makes of others."""


@dataclass
class _Count:
    """Arguments of random functions: how many of each, and their largest degree."""

    elements: dict[str, int] = field_of(default_factory=dict)
    degree: int = 0
    ordered: bool = False

    def apply(self, op: str, xs: list[Degree], elements: int, folded: int) -> Degree:
        """Degree of the result of an operator; ``folded`` counts the elements that one of a fold sums over."""
        function = op if op in _FUNCTIONS else _HIDDEN.get(op, "")
        if function:
            self.elements[function] = self.elements.get(function, 0) + elements
            self.degree = max(self.degree, sum(xs[0]))
        if op in ("max", "maximum", "where"):
            self.ordered = True
        kind = op_def(op).kind
        if op in ("mul", "matmul"):
            n, d = xs[0][0] + xs[1][0], xs[0][1] + xs[1][1]
        elif op == "div":
            n, d = xs[0][0] + xs[1][1], xs[0][1] + xs[1][0]
        elif op == "square":
            n, d = 2 * xs[0][0], 2 * xs[0][1]
        elif op in ("add", "sub", "where", "maximum", "concat"):
            (n1, d1), (n2, d2) = xs[-2:]
            n, d = max(n1 + d2, n2 + d1), d1 + d2
        elif op in _FUNCTIONS:
            n, d = 1, 0
        elif op == "rsqrt":
            n, d = 0, 1
        elif op in ("silu", "gelu"):
            n, d = xs[0][0] + 1, xs[0][1]
        elif op == "shift":
            n, d = max(xs[0]), xs[0][1]
        else:
            n, d = xs[0]
        if kind in ("contract", "reduce") and folded > 1:
            n, d = n + (folded - 1) * d, folded * d
        return n, d


def round_bound(program: TensorProgram, graph: KernelGraph, field: Field) -> tuple[float, tuple[str, ...]]:
    """Proven probability that a round accepts a µGraph that differs, and what the proof leaves out."""
    count = _Count()
    wanted = _program(program, count)
    got = _graph(graph, count)
    degree = max((sum(got[n]) + sum(wanted[n]) for n in program.outputs), default=0)
    notes = []
    if count.ordered:
        notes.append("maxima are tested by a random order of the elements, masks by random bits: heuristic")
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


def _program(program: TensorProgram, count: _Count) -> dict[str, Degree]:
    program = expand(program)
    found: dict[str, Degree] = dict.fromkeys(program.inputs, (1, 0))
    for node in program.nodes:
        shape = program[node.output].shape
        source = program[node.inputs[0]].shape
        folded = 1
        if node.op == "matmul":
            folded = source[-1]
        elif op_def(node.op).kind == "reduce":
            folded = math.prod(source[i] for i in node.attr["axis"])
        found[node.output] = count.apply(node.op, [found[n] for n in node.inputs], math.prod(shape), folded)
    return found


def _graph(graph: KernelGraph, count: _Count) -> dict[str, Degree]:
    found: dict[str, Degree] = dict.fromkeys(graph.inputs, (1, 0))
    for k in graph.kernels:
        if isinstance(k, LibraryKernel):
            # whole-tensor operators: the fold is bounded by the number of elements read
            found[k.output] = (
                count.apply(k.op, [found[n] for n in k.args], 0, 1) if op_def(k.op).kind == "map" else (1 << 16, 1 << 16)
            )
        else:
            found |= _block(k, found, count)
    return found


def _block(block: BlockGraph, tensors: Mapping[str, Degree], count: _Count) -> dict[str, Degree]:
    values: dict[str, Degree] = {}
    out: dict[str, Degree] = {}
    extents = block.extents
    for s in block.stmts:
        if s.kind == "load" and s.access:
            values[s.value] = tensors[s.access.tensor]
        elif s.kind == "store" and s.access:
            out[s.access.tensor] = values[s.value]
        else:
            elements = math.prod(extents[a] for a in s.axes)
            folded = math.prod(extents[a] for a in s.reduce)
            values[s.value] = count.apply(s.op, [values[a] for a in s.args], elements, folded)
    return out
