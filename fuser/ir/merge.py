"""Axes that always go together as one: a sum over a tensor of any rank is a sum over a row.

Two axes are merged where every value has both or neither, every fold sums over both or neither, and every access has the one
right behind the other. What is left are the axes that a kernel can tell apart: longer runs of memory, fewer loops, and tiles of
shapes whose dimensions are odd or short. The kernel then sees a tensor under another shape, row-major as it lies in memory.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise
from math import prod

from fuser.ir.mugraph import AXIS
from fuser.ir.mugraph import Access
from fuser.ir.mugraph import Axis
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.mugraph import ordered
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar


def merged(block: BlockGraph, fixed: Collection[str] = ()) -> BlockGraph:
    """The block with as few axes as can be. Tensors ``fixed`` keep their dimensions (what reads windows of them names these)."""
    while pair := next(_pairs(block, fixed), None):
        block = _joined(block, *pair)
    return block


def _pairs(block: BlockGraph, fixed: Collection[str]):
    seen: dict[tuple[str, str], None] = {}
    for s in block.stmts:
        if s.access:
            seen |= dict.fromkeys(pairwise(s.access.axes))
    return (pair for pair in seen if _together(block, fixed, *pair))


def _together(block: BlockGraph, fixed: Collection[str], outer: str, inner: str) -> bool:
    pair = {outer, inner}
    if any(pair & {*s} for s in block.splits):
        return False
    for s in block.stmts:
        if any(len(pair & set(names)) == 1 for names in (s.axes, s.reduce)):
            return False
        if s.kind == "compute" and s.indexed and pair & set(s.axes):
            return False
        if any(_power(v, outer) != _power(v, inner) for _, v in s.attrs if isinstance(v, Scalar)):
            return False
        if s.access and pair & set(s.access.axes):
            held = s.access.window or s.access.tensor in fixed
            apart = held or (outer, inner) not in pairwise(s.access.axes)
            if apart:
                return False
    return True


def _power(scalar: Scalar, axis: str) -> object:
    return dict(scalar.powers).get(Extent(axis, AXIS))


def _joined(block: BlockGraph, outer: str, inner: str) -> BlockGraph:
    """The block with ``outer`` standing for both."""
    axes = tuple(
        Axis(a.name, prod(block.extents[x] for x in (outer, inner))) if a.name == outer else a
        for a in block.axes
        if a.name != inner
    )

    def of(s: Stmt) -> Stmt:
        attrs = tuple((k, _without(v, inner) if isinstance(v, Scalar) else v) for k, v in s.attrs)
        own, reduce = (ordered(set(names) - {inner}, axes) for names in (s.axes, s.reduce))
        return replace(s, axes=own, reduce=reduce, attrs=attrs, access=_seen(s.access, inner) if s.access else None)

    return replace(block, axes=axes, stmts=tuple(of(s) for s in block.stmts)).validate()


def _without(scalar: Scalar, axis: str) -> Scalar:
    return Scalar(scalar.coeff, tuple((b, e) for b, e in scalar.powers if b != Extent(axis, AXIS)))


def _seen(access: Access, inner: str) -> Access:
    """The access without the axis, its dimension and the one in front joined if the axis began it."""
    dims: list[tuple[str, ...]] = []
    for dim in access.dims:
        if dim and dim[0] == inner:
            rest: list[tuple[str, ...]] = []
            while dims and not dims[-1]:  # dimensions of extent 1 in between
                rest.append(dims.pop())
            dims[-1] = (*dims[-1], *dim[1:])
            continue
        dims.append(tuple(a for a in dim if a != inner))
    return replace(access, dims=tuple(dims))
