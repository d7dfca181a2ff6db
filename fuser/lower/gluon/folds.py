"""Sums that a loop accumulates of what a product led to: each thread adds up the columns that it holds, into a tile of eight
columns for each row, and lanes meet once, behind the loop."""

from __future__ import annotations

from collections.abc import Collection

from fuser.ir.layout.named import LANE_COLUMNS
from fuser.ir.layout.named import Mma
from fuser.ir.layout.named import Slice
from fuser.ir.mugraph import Stmt
from fuser.lower.dependent_launch import statements
from fuser.lower.fold_code import fill_zero
from fuser.lower.fold_code import rescale
from fuser.lower.gluon.writer import GroupWriter


def by_lanes(w: GroupWriter) -> dict[str, Mma]:
    """The sums that threads keep apart in their loop, with the layout of what is kept."""
    found: dict[str, Mma] = {}
    for node in dict.fromkeys(x for _, around in w.tiles.tree.walk() for x in around):
        if not node.unrolled:
            stmts = [s for s in statements(node) if isinstance(s, Stmt)]
            read = {a for s in stmts for a in (*s.args, *s.running)}
            own = w.tiles.accumulated(node) - read
            found |= {
                s.value: Mma(p.version, p.warps, (16, LANE_COLUMNS, 16)[: len(p.instruction)])
                for s in stmts
                if s.value in own and (p := _summed(w, s))
            }
    return found


def _summed(w: GroupWriter, stmt: Stmt) -> Mma | None:
    """The layout of the tile whose columns a statement sums, where a product led to it."""
    tiles = w.tiles
    if stmt.kind != "compute" or not stmt.adds or tiles.is_dot(stmt) or tiles.kept(stmt) or len(stmt.args) != 1:
        return None
    layout, dims = w.layout(stmt.args[0]), tiles.natural(tiles.block.by_value[stmt.args[0]])
    wide = len(dims) == 2 and tiles.dims(stmt.reduce) == dims[1:] and w.split.size(dims[1]) > LANE_COLUMNS
    return layout if isinstance(layout, Mma) and wide else None


def start(w: GroupWriter, stmt: Stmt) -> str:
    """Nothing summed yet."""
    return f"gl.full([{_rows(w, stmt)}, {LANE_COLUMNS}], 0.0, gl.float32, {w.named(w.lanes_of[stmt.value])})"


def add(w: GroupWriter, stmt: Stmt) -> None:
    """The statement within its loop."""
    (arg,) = stmt.args
    fill_zero(w, arg, stmt.reduce)
    rescale(w, stmt)
    layout = w.tiles.natural(stmt)
    value = w.begin(stmt.value, layout)
    axes = (*stmt.axes, *stmt.reduce)
    (combo,) = w.combos(axes)
    dims = (*layout, *w.tiles.dims(stmt.reduce))
    part = w.read(arg, axes, combo, dims)
    key = w.key(axes, combo, layout)
    name = w.var(stmt.value, layout, key)
    text = f"gl.sum(gl.reshape({part}, [{_rows(w, stmt)}, {w.split.size(dims[-1]) // LANE_COLUMNS}, {LANE_COLUMNS}]), 1)"
    w.emit(f"{name} = {name} + gl.convert_layout({text}, {w.named(w.lanes_of[stmt.value])})")
    w.define(value, key, name)


def meet(w: GroupWriter, values: Collection[str]) -> None:
    """Behind the loop: one number a row."""
    for v in sorted(set(values) & set(w.lanes_of)):
        for name in w.values[v].names.values():
            w.emit(f"{name} = {met(w, v, name)}")


def met(w: GroupWriter, value: str, name: str) -> str:
    layout = w.layout(value)
    assert isinstance(layout, Slice)
    return f"gl.convert_layout(gl.sum({name}, 1), {w.named(layout)})"


def _rows(w: GroupWriter, stmt: Stmt) -> int:
    return w.split.size(w.tiles.natural(stmt)[0])
