"""Folds in generated source: contractions on tensor cores or as multiply and sum, row folds, accumulators and their rescaling."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection
from collections.abc import Sequence
from functools import partial

from fuser.ir.mugraph import Stmt
from fuser.ir.opdef import OpDef
from fuser.ir.ops import op as op_def
from fuser.lower.cluster_code import exchanged
from fuser.lower.emitter import expression
from fuser.lower.options import PRECISION
from fuser.lower.writer import TRITON_DTYPE
from fuser.lower.writer import Combo
from fuser.lower.writer import Value
from fuser.lower.writer import Writer

LOG2E = math.log2(math.e)
WIDE = 4
"""Numbers of float32 that a thread loads at once, where they lie so."""
HELPER = """@triton.jit
def {name}(a, b):
    return {text}
"""


def init(w: Writer, stmt: Stmt, start: str = "") -> None:
    """Set an accumulator to the identity of its fold, or to ``start``."""
    layout = w.tiles.natural(stmt)
    value = Value(layout)
    text = _identity(stmt) if stmt.entry.kind == "reduce" else "0.0"
    kept = w.tiles.kept(stmt)
    for combo in w.combos(layout):
        name = w.var(stmt.value, layout, combo)
        w.emit(f"{name} = {start or w.full(stmt, combo + kept, text)}")
        w.define(value, combo, name)
    w.values[stmt.value] = value


def settle(w: Writer, values: Collection[str]) -> None:
    """The sums that kept dimensions while their loop ran lose them."""
    for stmt in w.tiles.block.computes:
        if stmt.value in values and (kept := w.tiles.kept(stmt)):
            v = w.values[stmt.value]
            for key, name in v.names.items():
                w.emit(f"{name} = {_folded(w, stmt, name, [p.size for p in (*key, *kept)], len(kept))}")


def contract(w: Writer, stmt: Stmt) -> None:
    left, right = w.tiles.sides(stmt) if w.tiles.is_dot(stmt) else stmt.args
    for a in stmt.args:
        fill_zero(w, a, stmt.reduce)
    layout = w.tiles.natural(stmt)
    rescale(w, stmt)
    value = w.begin(stmt.value, layout)
    for combo in w.combos(stmt.axes):
        key = w.key(stmt.axes, combo, layout)
        name = w.var(stmt.value, layout, key)
        first = not w.inside(stmt.value)
        for inner in w.combos(stmt.reduce):
            axes, pieces = (*stmt.axes, *stmt.reduce), combo + inner
            if w.tiles.is_dot(stmt):
                text = _dot(w, stmt, left, right, axes, pieces, None if first else name, layout)
            else:
                product = _product(w, stmt, axes, pieces, layout)
                text = product if first else f"{name} + {product}"
            w.emit(f"{name} = {text}")
            first = False
        parts = exchanged(w, stmt, name)
        if len(parts) > 1:
            w.emit(f"{name} = {' + '.join(parts)}")
        w.define(value, key, name)


def _dot(
    w: Writer, stmt: Stmt, left: str, right: str, axes: Sequence[str], combo: Combo, acc: str | None, layout: Sequence[str]
) -> str:
    dtype = w.tiles.dot_dtype(stmt)
    by_axis = dict(zip(axes, combo, strict=True))
    inner = [a for a in w.tiles.dims(w.tiles.block.by_value[left].axes) if a in stmt.reduce]
    rows = [a for a in layout if a in w.tiles.block.by_value[left].axes]
    cols = [a for a in layout if a in w.tiles.block.by_value[right].axes]

    def operand(value: str, want: list[str], split: int) -> str:
        v = w.values[value]
        text = w.read(value, axes, combo, want, fp32=False)
        if v.dtype != dtype:
            text = f"{text}.to({TRITON_DTYPE[dtype]})"
        if len(want) > 2:
            sizes = [by_axis[a].size for a in want]
            text = f"tl.reshape({text}, ({math.prod(sizes[:split])}, {math.prod(sizes[split:])}))"
        return text

    a, b = operand(left, rows + inner, len(rows)), operand(right, inner + cols, len(inner))
    precision = f', input_precision="{PRECISION.of(w.tiles.schedule)}"' if dtype == "float32" else ""
    if len(layout) == 2:
        return f"tl.dot({a}, {b}, {acc}{precision})" if acc else f"tl.dot({a}, {b}{precision})"
    shape = ", ".join(str(by_axis[x].size) for x in layout)
    flat = (
        f", tl.reshape({acc}, ({math.prod(by_axis[x].size for x in rows)}, {math.prod(by_axis[x].size for x in cols)}))"
        if acc
        else ""
    )
    return f"tl.reshape(tl.dot({a}, {b}{flat}{precision}), ({shape}))"


def _product(w: Writer, stmt: Stmt, axes: Sequence[str], combo: Combo, layout: Sequence[str]) -> str:
    """Multiply and sum, for what has no rows or no columns (matrix times vector)."""
    inner = w.tiles.dims(stmt.reduce)
    want = (*layout, *inner)
    text = " * ".join(w.read(a, axes, combo, want) for a in stmt.args)
    by_axis = dict(zip(axes, combo, strict=True))
    return text if w.tiles.kept(stmt) else _folded(w, stmt, text, [by_axis[a].size for a in want], len(inner))


def fill_zero(w: Writer, value: str, over: Sequence[str]) -> None:
    mask_with(w, value, over, "zero", "0.0")


def mask_with(w: Writer, value: str, over: Sequence[str], state: str, text: str) -> None:
    """Set lanes outside of the tensor along the axes ``over``, unless they are known to hold that already."""
    v = w.values[value]
    axes = [a for a in over if a in v.layout and v.fill.get(a) != state and any(w.mask(a, p) for p in w.active[a])]
    if not axes:
        return
    full = w.tiles.block.by_value[value].axes
    done: set[Combo] = set()
    for combo in w.combos(full):
        key = w.key(full, combo, v.layout)
        if key in done:
            continue
        done.add(key)
        if mask := w.masks(axes, w.key(full, combo, axes), v.layout):
            name = v.names[key]
            w.emit(f"{name} = tl.where({mask}, {name}, {text})")
            w.forget(name)
    for a in axes:
        if done == v.made:
            v.fill[a] = state
        else:  # blocks of other trips have what they had
            v.fill.pop(a, None)


def rescale(w: Writer, stmt: Stmt) -> None:
    """Bring an accumulator to the new running maximum before it is added to."""
    if not w.inside(stmt.value):
        return
    v = w.values[stmt.value]
    for r in stmt.rescale:
        if not w.inside(r.maximum) or w.tiles.owner[r.maximum] != w.tiles.owner[stmt.value]:
            continue  # the maximum is known before the accumulation begins
        top = w.values[r.maximum]
        for combo in w.combos(v.layout):
            name = v.names[combo]
            scale = w.out.beside(top.names[w.key(v.layout, combo, top.layout)], "scale")
            if r.degree != 1:
                scale = f"tl.exp2({r.degree} * tl.log2({scale}))"
            spread = w.spread(scale, [a for a in v.layout if a in top.layout], v.layout, r.maximum, stmt.value)
            w.emit(f"{name} = {name} * {spread}")


def _mixed_up(w: Writer, stmt: Stmt, sizes: Sequence[int]) -> bool:
    """Whether Triton, up to 3.9 at least, would mix up what it keeps of a fold (``sizes`` of its dimensions): sums of columns
    were 4 to 6 % wrong. Where a loop accumulates folds of the last dimension of what was just loaded, it lets threads accumulate
    by themselves; a thread with several runs of columns then adds terms of one to another."""
    load = w.tiles.block.by_value[stmt.args[0]]
    inner = w.tiles.dims(stmt.reduce)
    if load.kind != "load" or load.dtype != "float32" or len(inner) != 1 or not w.inside(stmt.value):
        return False
    assert load.access is not None
    fastest = w.tiles.dims(load.access.axes)[-1]
    others = [n for a, n in load.access.strides(w.tiles.block.extents).items() if a != fastest]
    aligned = not any(n % WIDE for n in others) and not (load.access.window and load.access.window.offset % WIDE)
    at_once = WIDE if aligned and not any(w.mask(fastest, p) for p in w.active[fastest]) else 1
    return fastest not in inner and math.prod(sizes) > 32 * w.tiles.schedule.num_warps * at_once


def _folded(w: Writer, stmt: Stmt, text: str, sizes: Sequence[int], count: int) -> str:
    """A value of these ``sizes`` with its last ``count`` dimensions folded away, the longest of them first: what lies across
    warps then leaves few numbers for the next fold, in shared memory whose banks conflict. All that there are (None) are folded
    at once, where each thread begins with what it has: a GroupNorm took 27 µs with one fold behind the other, 13 so. (Folds of
    what ``tl.reshape`` makes of some of them are wrong in Triton 3.6.)"""
    left = len(sizes) - count
    if not left and count > 1:
        return _fold(w, stmt, text, None)
    if count == 1 and not stmt.contracts and _mixed_up(w, stmt, sizes[:left]):
        return _fold(w, stmt, f"tl.permute({text}, {(left, *range(left))})", 0)
    folded = list[int]()
    for dim in sorted(range(left, len(sizes)), key=lambda i: (-sizes[i], -i)):
        text = _fold(w, stmt, text, dim - sum(i < dim for i in folded))
        folded.append(dim)
    return text


def _fold(w: Writer, stmt: Stmt, text: str, dim: int | None) -> str:
    if stmt.adds or stmt.contracts:
        return f"tl.sum({text}, {dim})"
    if stmt.maximizes and _only_shifts(w, stmt):
        return f"tl.max({text}, {dim})"
    return f"tl.reduce({text}, {dim}, {_helper(w, stmt.entry)})"


def _helper(w: Writer, entry: OpDef) -> str:
    """The name of a function that combines two elements of a fold."""
    name = entry.triton or f"fold_{entry.name}"
    w.helpers.add(HELPER.format(name=name, text=expression(entry.combine, ("a", "b"))))
    return name


def _identity(stmt: Stmt) -> str:
    """What a fold of nothing is."""
    text = str(stmt.entry.identity)
    return f'float("{text}")' if "inf" in text else text


def _joined(w: Writer, stmt: Stmt, a: str, b: str) -> str:
    """Two parts of a fold."""
    if stmt.maximizes and _only_shifts(w, stmt):
        return f"tl.maximum({a}, {b})"
    text = op_def(stmt.entry.combine).triton
    return text.format(a, b) if text else f"{_helper(w, stmt.entry)}({a}, {b})"


def _only_shifts(w: Writer, stmt: Stmt) -> bool:
    """A running maximum, by which exponents are shifted and which cancels: it may pass over NaN, as the exponential of a NaN
    is one whatever it is shifted by."""
    users = w.tiles.block.users(stmt.value)
    return any(stmt.value in u.running for u in users) and all(stmt.value in u.running or u.kind == "store" for u in users)


def reduce(w: Writer, stmt: Stmt) -> None:
    (arg,) = stmt.args
    later = stmt.maximizes  # a positive factor of the maximum
    text = _identity(stmt)
    mask_with(w, arg, stmt.reduce, {"0.0": "zero", 'float("-inf")': "neginf"}.get(text, text), text)
    rescale(w, stmt)
    layout = w.tiles.natural(stmt)
    value = w.begin(stmt.value, layout)
    for combo in w.combos(stmt.axes):
        key = w.key(stmt.axes, combo, layout)
        name = w.var(stmt.value, layout, key)
        inner = w.tiles.dims(stmt.reduce)
        parts = []
        for over in w.combos(stmt.reduce):
            axes, pieces = (*stmt.axes, *stmt.reduce), combo + over
            part = w.read(arg, axes, pieces, (*layout, *inner), factor=not later)
            if not w.tiles.kept(stmt):
                by_axis = dict(zip(axes, pieces, strict=True))
                part = _folded(w, stmt, part, [by_axis[a].size for a in (*layout, *inner)], len(inner))
            if later and w.values[arg].factor != 1.0:
                part = f"{part} * {w.values[arg].factor!r}"
            parts.append(part)
        if w.inside(stmt.value):
            parts.insert(0, name)
        parts = exchanged(w, stmt, functools.reduce(partial(_joined, w, stmt), parts))
        total = functools.reduce(partial(_joined, w, stmt), parts)
        if later and w.inside(stmt.value):
            new, shift, scale = (w.out.beside(name, what) for what in ("new", "shift", "scale"))
            w.emit(f"{new} = {total}")
            w.emit(f'{shift} = tl.where({new} == float("-inf"), 0.0, {new})')
            w.emit(f"{scale} = tl.exp2(({name} - {shift}) * {LOG2E})")
            w.emit(f"{name} = {new}")
        else:
            w.emit(f"{name} = {total}")
        w.define(value, key, name)
