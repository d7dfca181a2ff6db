"""Writes into parts of a tensor, one after the other, as one concatenation.

``out[:, t] = y`` in a loop makes a new tensor of the old one's slices and ``y`` at each step, each of which copies all: a slice
of what was put together is put together of slices of its pieces. Numbers are moved and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from search.cover.rebuild import rebuild

Pieces = dict[str, tuple[int, tuple[Ref, ...]]]
"""What was put together, by its name: the axis, and what lies along it."""


def gathered(program: TensorProgram) -> TensorProgram:
    """The program with chains of concatenations and slices of each other as concatenations of what they are of."""
    if not any(_again(program, n) for n in program.nodes):
        return program
    known: Pieces = {}
    rules = {n.output: partial(_RULES[n.op], program, n, known) for n in program.nodes if n.op in _RULES}
    return rebuild(program, rules)


def _again(program: TensorProgram, node: Node) -> bool:
    """Whether a concatenation takes a slice of another one."""
    cut = (program.producers.get(i) for i in node.inputs if node.op == "concat")
    whole = (program.producers.get(c.inputs[0]) for c in cut if c is not None and c.op == "slice")
    return any(w is not None and w.op == "concat" for w in whole)


def _concat(program: TensorProgram, node: Node, known: Pieces, b: Builder, refs: dict[str, Ref]) -> Ref:
    axis = node.attr["axis"] % len(program[node.output].shape)
    pieces: list[Ref] = []
    for name in node.inputs:
        x = refs[name]
        inner = known.get(x.tensor.name) if _passing(program, name) else None
        pieces += inner[1] if inner is not None and inner[0] == axis else (x,)
    return _joined(b, known, axis, pieces, node.output, program[node.output].dtype)


def _passing(program: TensorProgram, name: str) -> bool:
    """Whether a tensor is read by concatenations and slices alone, so that nobody needs all of it."""
    return name not in program.outputs and all(n.op in _RULES for n in program.consumers[name])


def _slice(program: TensorProgram, node: Node, known: Pieces, b: Builder, refs: dict[str, Ref]) -> Ref:
    x, dtype = refs[node.inputs[0]], program[node.output].dtype
    axis, start, stop = node.attr["axis"] % len(x.shape), node.attr["start"], node.attr["stop"]
    whole = known.get(x.tensor.name)
    if node.output in program.outputs or whole is None or whole[0] != axis or not _passing(program, node.inputs[0]):
        return b.op("slice", x, name=node.output, dtype=dtype, axis=node.attr["axis"], start=start, stop=stop)
    pieces, at = list[Ref](), 0
    for piece in whole[1]:
        low, high = max(start - at, 0), min(stop - at, piece.shape[axis])
        at += piece.shape[axis]
        if low < high:
            all_of_it = (low, high) == (0, piece.shape[axis])
            pieces.append(piece if all_of_it else b.op("slice", piece, axis=axis, start=low, stop=high))
    return pieces[0] if len(pieces) == 1 else _joined(b, known, axis, pieces, node.output, dtype)


def _joined(b: Builder, known: Pieces, axis: int, pieces: Sequence[Ref], name: str, dtype: str) -> Ref:
    found = b.op("concat", *pieces, name=name, dtype=dtype, axis=axis)
    if all(p.tensor.dtype == dtype for p in pieces):
        known[found.tensor.name] = axis, tuple(pieces)
    return found


_RULES = {"concat": _concat, "slice": _slice}
