"""Poolings along lines of windows that stand side by side, as reductions over an axis of their own.

``max_pool1d(linear(x), 2).sum(1)``, as heads of features have it: a pooling is a kernel of its own, or one that goes element by
element; a reduction belongs to the epilogue of the product in front of it, or to the reduction behind it.
"""

from __future__ import annotations

from functools import partial

from fuser.frontends.composed import cut
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.library_ops import moves
from fuser.ir.program import FLOATS
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from search.cover.rebuild import Rule
from search.cover.rebuild import rebuild

REDUCTIONS = {"max_pool1d": "max", "avg_pool1d": "mean"}


def reduced(program: TensorProgram) -> TensorProgram:
    """The program with such poolings as reductions; itself where it has none."""
    rules: dict[str, Rule] = {n.output: partial(_reduced, program, n) for n in program.nodes if _side_by_side(program, n)}
    return rebuild(program, rules) if rules else program


def _side_by_side(program: TensorProgram, node: Node) -> bool:
    if node.op not in REDUCTIONS or program[node.output].dtype not in FLOATS or node.attr.get("ceil_mode"):
        return False
    window, (strides, padding, dilation) = moves(program.bound(node), 1)
    return strides == window and not any(padding) and set(dilation) == {1}


def _reduced(program: TensorProgram, node: Node, b: Builder, refs: dict[str, Ref]) -> Ref:
    x, to = refs[node.inputs[0]], program[node.output]
    (size,), count = moves(program.bound(node), 1)[0], to.shape[-1]
    apart = b.op("reshape", cut(b, x, len(x.shape) - 1, 0, count * size), shape=(*to.shape, size))
    return b.op(REDUCTIONS[node.op], apart, axis=(len(to.shape),), keepdims=False, name=node.output, dtype=to.dtype)
