"""Parts of a tensor put together in another order, as a product with a matrix of zeros and ones.

The half turn of a rotary embedding, ``concat(-x[..., d/2:], x[..., :d/2])``, is ``x @ R`` with one 1 or -1 in each column of R:
exact in any dtype, and a contraction like any other, to which a kernel adds what stands behind it. Copies of the parts and their
concatenation would each be a kernel. Zero times infinity is no number, though: only what comes of a product is multiplied, not
what the caller gives or what a mask fills, and only where nothing makes a finite number of an infinity behind it (a clamp, a
tanh, a norm). What overflows in float16 there spoils its row, where the turn alone would have moved it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.ops import Array
from fuser.ir.program import NARROW
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Scalar
from fuser.ir.subprogram import subprogram
from search.cover.rebuild import Rule
from search.cover.rebuild import equal
from search.cover.rebuild import rebuild

WIDEST = 256
"""Extents up to which a selection is worth a product."""
NARROWEST = 16
"""The least extent that tensor cores sum over."""
MASKS = ("causal_mask", "where")
"""Operators that put infinities among numbers, whatever these are."""

LINEAR = frozenset({"add", "sub", "mul", "scale", "shift", "neg", "cast", "where", "causal_mask"})
"""Operators element by element of which the result is infinite, or no number, where an operand is and nothing masks it."""


def selected(program: TensorProgram, params: Mapping[str, Array]) -> tuple[TensorProgram, dict[str, Array]]:
    """The program with selections along the last axis as products, and its parameters with their matrices."""
    found = dict(params)
    rules: dict[str, Rule] = {}
    for node in program.nodes:
        selection = _selection(program, node, params)
        if selection is not None:
            source, matrix = selection
            name = _named(matrix, program, found)
            found[name] = matrix
            rules[node.output] = _product(node.output, source, name, matrix, program[source].dtype)
    return (rebuild(program, rules), found) if rules else (program, found)


def _named(matrix: Array, program: TensorProgram, params: Mapping[str, Array]) -> str:
    """One name for equal matrices."""
    i = 0
    while (name := f"selection_{i}") in program.table or (name in params and not np.array_equal(params[name], matrix)):
        i += 1
    return name


def _product(output: str, source: str, name: str, matrix: Array, dtype: str) -> Rule:
    def rule(b: Builder, refs: dict[str, Ref]) -> Ref:
        if name not in refs:
            refs[name] = b.input(name, matrix.shape, dtype)
        return b.op("matmul", refs[source], refs[name], name=output, dtype=dtype)

    return rule


def _selection(program: TensorProgram, node: Node, params: Mapping[str, Array]) -> tuple[str, Array] | None:
    """The tensor whose parts a concatenation along the last axis puts together, and the matrix that does the same."""
    result = program[node.output]
    last = len(result.shape) - 1
    if node.op != "concat" or node.attr["axis"] % (last + 1) != last or result.dtype not in NARROW or last < 1:
        return None
    pieces = [_piece(program, name, last) for name in node.inputs]
    if any(p is None for p in pieces):
        return None
    (source, *others) = {p[0] for p in pieces if p}
    width = program[source].shape[-1]
    if others or program[source].dtype != result.dtype or min(width, result.shape[-1]) < NARROWEST:
        return None
    if max(width, result.shape[-1]) > WIDEST or not (_of_products(program, source, params) and _stays(program, node.output)):
        return None
    columns = [(start + i, sign) for _, start, stop, sign in (p for p in pieces if p) for i in range(stop - start)]
    matrix = np.zeros((width, len(columns)), np.float16 if result.dtype == "float16" else np.float32)
    for column, (row, sign) in enumerate(columns):
        matrix[row, column] = sign
    return (source, matrix) if _proved(program, node, source, matrix) else None


def _of_products(program: TensorProgram, name: str, params: Mapping[str, Array]) -> bool:
    """Whether a tensor is made of results of products and finite parameters: an infinity in it spoiled its row before."""
    todo, seen = [name], set[str]()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        node = program.producers.get(name)
        if node is None and (name not in params or not np.isfinite(params[name]).all()):
            return False
        if node is not None and not node.contracts:
            if node.op in MASKS or node.entry.kind in ("opaque", "library") or _overflows(program, node):
                return False
            todo += node.inputs
    return True


def _stays(program: TensorProgram, name: str) -> bool:
    """Whether an infinity in a tensor is one wherever it is read, as far as to the folds that it spoils: softmaxes, norms and
    sums of rows that a product has spread it over. Of a row that none has, a softmax leaves out what is minus infinity."""
    todo, seen = [(name, False)], set[str]()
    while todo:
        name, spread = todo.pop()
        for node in program.consumers.get(name, ()):
            folds = node.entry.kind in ("reduce", "composite") or node.exponential
            if (folds and (spread or node.products)) or node.output in seen:
                continue
            if not (node.op in LINEAR or node.contracts or node.entry.kind in ("view", "data")):
                return False
            seen.add(node.output)
            todo.append((node.output, spread or node.contracts))
    return True


def _overflows(program: TensorProgram, node: Node) -> bool:
    """Whether an operator makes infinities of finite numbers: of a zero, or of a large one."""
    divisors = [name for name, domain in zip(node.inputs, node.entry.domain, strict=False) if domain.nonzero]
    return node.exponential or not all(_away_from_zero(program, name) for name in divisors)


def _away_from_zero(program: TensorProgram, name: str) -> bool:
    """Something positive is added, or it is the least, as the epsilon of a norm."""
    while (node := program.producers.get(name)) is not None and len(node.inputs) == 1:
        least = node.attr.get("scalar" if node.op == "shift" else "min")
        if least is not None and Scalar.of(least).coeff > 0:
            return True
        (name,) = node.inputs
    return False


def _proved(program: TensorProgram, node: Node, source: str, matrix: Array) -> bool:
    """Whether the product is the concatenation, by a random test."""
    inside = {node.output} | {n for name in node.inputs for n in _front(program, name, source)}
    before = subprogram(program, inside, "selection")
    b = Builder("selection")
    x = b.input(source, program[source].shape, program[source].dtype)
    right = b.input("selection", matrix.shape, program[source].dtype)
    after = b.build(b.op("matmul", x, right, name=node.output, dtype=program[node.output].dtype))
    return equal(before, after, {"selection": matrix})


def _front(program: TensorProgram, name: str, source: str) -> set[str]:
    """The operators between ``source`` and a part of it."""
    found = set[str]()
    while name != source:
        found.add(name)
        (name,) = program.producers[name].inputs
    return found


def _piece(program: TensorProgram, name: str, last: int) -> tuple[str, int, int, int] | None:
    """A slice along the last axis, or its negative: of which tensor, from, to, and the sign."""
    sign = 1
    node = program.producers.get(name)
    while node is not None and node.op == "neg":
        sign, node = -sign, program.producers.get(node.inputs[0])
    if node is None or node.op != "slice" or node.attr["axis"] % (last + 1) != last:
        return None
    return node.inputs[0], int(node.attr["start"]), int(node.attr["stop"]), sign
