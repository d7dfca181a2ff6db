"""Errors where tests at small sizes over finite fields are blind: offsets of masks, windows, ranges, counts of parts, conditions,
types, stores, and constants that are right at another size only. Each is well formed; some are right by chance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np

from experiments.mirage.edit import NotApplicable
from experiments.mirage.edit import fresh
from experiments.mirage.edit import pick
from experiments.mirage.edit import rename_uses
from experiments.mirage.edit import some_compute
from experiments.mirage.edit import swap
from experiments.mirage.edit import without
from fuser.ir.access import Access
from fuser.ir.access import Window
from fuser.ir.mugraph import AXIS
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.scalar import Base
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar

Mutation = Callable[[BlockGraph, np.random.Generator], BlockGraph]
_WHOLE = ("int8", "bool", "int32", "uint8", "int64")


def behind(block: BlockGraph, s: Stmt, *new: Stmt) -> BlockGraph:
    """``new`` statements behind ``s``; what reads it reads the last of them."""
    last = new[-1]
    block = swap(block, s, s, *new)
    return rename_uses(block, s.value, last.value, last)


def made(block: BlockGraph, s: Stmt, op: str, *args: str, **attrs: object) -> Stmt:
    """An element-wise statement with the axes and the type of ``s``."""
    return Stmt("compute", fresh(block, op), s.axes, s.dtype, op, args, (), tuple(sorted(attrs.items())))


def wrong_offset(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """A causal mask with another offset, with its axes exchanged, or where there is none."""
    masks = [s for s in block.computes if s.masks]
    if masks and rng.integers(4):
        s = pick(rng, masks)
        rows, cols = s.attr["rows"], s.attr["cols"]
        if not rng.integers(4):
            return swap(block, s, replace(s, attrs=tuple(sorted({**s.attr, "rows": cols, "cols": rows}.items()))))
        offset = int(rng.integers(1 - block.extents.get(rows, 1), block.extents.get(cols, 1)))
        return swap(block, s, replace(s, attrs=tuple(sorted({**s.attr, "offset": offset}.items()))))
    into = [block.by_value[s.args[0]] for s in block.computes if s.exponential]
    s = pick(rng, [s for s in into if len(s.axes) > 1 and s.kind == "compute" and not s.folds and not s.running] or masks)
    rows, cols = (str(a) for a in rng.permutation(list(s.axes))[:2])
    offset = int(rng.integers(1 - block.extents[rows], block.extents[cols]))
    return behind(block, s, made(block, s, "causal_mask", s.value, rows=rows, cols=cols, offset=offset))


def wrong_window(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """A window that starts elsewhere, or two windows of one tensor exchanged."""
    windows = [s for s in block.loads if s.access and s.access.window]
    s = pick(rng, windows)
    window, shape = s.at.window, s.at.shape(block.extents)
    assert window is not None
    others = [t for t in windows if t is not s and t.at.source == window.tensor and t.at.dims == s.at.dims]
    if others and rng.integers(2):
        t = pick(rng, others)
        return swap(swap(block, s, replace(s, access=t.at)), t, replace(t, access=s.at))
    starts = list(window.starts)
    at = pick(rng, [i for i, n in enumerate(window.seen) if n > shape[i]])
    starts[at] = int(rng.integers(0, window.seen[at] - shape[at] + 1))
    return swap(block, s, replace(s, access=_placed(s.at, replace(window, starts=tuple(starts)))))


def _placed(access: Access, window: Window) -> Access:
    return replace(access, tensor=f"{window.tensor}{list(window.starts)}{list(window.view) or ''}", window=window)


def short_range(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """A sum over a part of its range: all but one, the first half, all but the first."""
    stored = {a for s in block.stores for a in s.axes}
    alone = [
        a
        for a in block.reduced
        if a not in stored
        and a not in {x for pair in block.splits for x in pair}
        and block.extents[a] > 2
        and all(s.access is None or (s.access.window is None and ((a,) in s.access.dims or a not in s.axes)) for s in block.loads)
    ]
    axis = pick(rng, alone)
    extent = block.extents[axis]
    size = pick(rng, (extent - 1, extent // 2, int(rng.integers(1, extent))))
    first = int(rng.integers(0, extent - size + 1))
    stmts = []
    for s in block.stmts:
        if s.kind == "load" and s.access and axis in s.axes:
            starts = tuple(first if d == (axis,) else 0 for d in s.access.dims)
            window = Window(s.access.tensor, s.access.shape(block.extents), starts)
            s = replace(s, access=_placed(s.access, window))
        stmts.append(s)
    return replace(block, stmts=tuple(stmts)).with_extents({axis: size})


def wrong_count(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """A factor or an addend that depends on the number of parts of a split, and is neutral for some number."""
    part = pick(rng, [a.name for a in block.axes if a.extent == FREE])
    folds = [s for s in block.computes if part in s.reduce and s.sums and not s.rescale]
    if folds and not rng.integers(4):
        s = pick(rng, folds)
        return swap(block, s, replace(s, op="max"))
    s = some_compute(rng, block)
    if s.running or s.maximizes:
        raise NotApplicable("a shift by a maximum is arbitrary")
    count, power = int(rng.integers(1, 7)), pick(rng, (-2, -1, 1, 2))
    if rng.integers(4):
        neutral = Scalar(Fraction(1, count) ** power) * Scalar.power(Extent(part, AXIS), power)
        return behind(block, s, made(block, s, "scale", s.value, scalar=neutral))
    more = made(block, s, "shift", s.value, scalar=Scalar.power(Extent(part, AXIS), 1))
    return behind(block, s, more, replace(made(block, s, "shift", more.value, scalar=Scalar.of(-count)), value=f"{more.value}_"))


def wrong_condition(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """A choice that is always the same, or the other one; or one that is always the same in a field, where nothing is zero."""
    choices = [s for s in block.computes if s.chooses]
    if choices and rng.integers(2):
        s = pick(rng, choices)
        c, x, y = s.args
        how = int(rng.integers(4))
        if how < 2:
            return without(block, s, (x, y)[how])
        return swap(block, s, replace(s, args=((c, y, x), (x, x, y))[how - 2]))
    s = some_compute(rng, block)
    before = block.stmts[: block.stmts.index(s) + 1]
    u = pick(rng, [t for t in before if t.kind != "store" and set(t.axes) <= set(s.axes)])
    if s.running or s.maximizes or u.running:
        raise NotApplicable("a shift by a maximum is arbitrary")
    condition = made(block, replace(s, axes=u.axes), pick(rng, ("relu", "relu", "maximum")), u.value)
    if condition.op == "maximum":  # of the value and what is not positive
        low = replace(made(block, u, "sub", u.value, u.value), value=fresh(block, "none"))
        condition = replace(condition, args=(u.value, low.value))
        new = [low, condition]
    else:
        new = [condition]
    other = made(block, s, "scale", s.value, scalar=Scalar.of(2))
    args = (condition.value, s.value, other.value) if rng.integers(2) else (condition.value, other.value, s.value)
    return behind(block, s, *new, other, made(block, s, "where", *args))


def wrong_type(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """A value, a load or a store of a type that cuts it, a cast to one, a cast to one left out, an output of another type."""
    casts = [s for s in block.computes if s.casts and s.dtype in _WHOLE]
    how = int(rng.integers(5))
    if casts and how < 2:
        s = pick(rng, casts)
        return without(block, s, s.args[0])
    kind = pick(rng, _WHOLE)
    if how == 2:
        s = pick(rng, [s for s in block.stmts if s.kind == "store"])
        return swap(block, s, replace(s, dtype=pick(rng, [d for d in (*_WHOLE, "float32", "float16") if d != s.dtype])))
    if how == 3:
        s = pick(rng, [s for s in block.loads if s.dtype != kind])
        return swap(block, s, replace(s, dtype=kind))
    s = some_compute(rng, block)
    if s.dtype == kind or s.maximizes:
        raise NotApplicable("a maximum may be any shift")
    if how == 4:
        return behind(block, s, replace(made(block, s, "cast", s.value, dtype=kind), dtype=kind))
    return swap(block, s, replace(s, dtype=kind))


def wrong_store(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """A tensor that the kernel reads is overwritten, an output written twice with other values, or not at all."""
    how = int(rng.integers(4))
    if how == 0 and len(block.stores) > 1:
        gone = pick(rng, list(block.stores))
        return replace(block, stmts=tuple(s for s in block.stmts if s is not gone))
    s = pick(rng, [s for s in (block.stores if how == 1 else block.loads) if not s.at.window])
    values = [t for t in block.computes if set(t.axes) <= set(s.at.axes) and t.value != s.value]
    value = pick(rng, values)
    extra = Stmt("store", value.value, s.at.axes, s.dtype, access=s.at)
    if how == 3 and len(block.stores) == 1:  # the only result goes into an operand
        return replace(block, stmts=(*(t for t in block.stmts if t.kind != "store"), extra))
    return replace(block, stmts=(*block.stmts, extra))


def wrong_size(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """A constant that is right at another size: a number for an extent, a quotient of an extent and another number, another
    axis."""
    tied = [s for s in block.computes if s.constant_axes]
    axes = [a.name for a in block.axes if a.extent > 1]
    if tied and rng.integers(2):
        s = pick(rng, tied)
        value = Scalar.of(s.attr["scalar"])
        off = pick(rng, (-1, 1, 2, 3))

        def other(e: Extent) -> int:
            size = block.extents[e.tensor]
            return pick(rng, (size + off, size * 2, int(rng.integers(3, 40))))

        wrong = value.bind(other)
        return swap(block, s, replace(s, attrs=(("scalar", wrong),)))
    s = some_compute(rng, block)
    if s.running or s.maximizes:
        raise NotApplicable("a shift by a maximum is arbitrary")
    axis = pick(rng, axes)
    power = Fraction(pick(rng, (-2, -1, 1, 2)), 2)
    if rng.integers(2):
        base: Base = Extent(pick(rng, [a for a in axes if a != axis]), AXIS)
    else:
        base = pick(rng, (block.extents[axis] + 1, block.extents[axis] // 2, int(rng.integers(3, 40))))
    factor = Scalar(Fraction(1), ((Extent(axis, AXIS), power), (base, -power))).normal()
    return behind(block, s, made(block, s, "scale", s.value, scalar=factor))


BOUNDARIES: dict[str, Mutation] = {
    f.__name__: f
    for f in (
        wrong_offset, wrong_window, short_range, wrong_count, wrong_condition, wrong_type, wrong_store, wrong_size,
    )
}  # fmt: skip
