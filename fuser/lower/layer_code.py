"""A loop over the equal layers of a deep chain, in generated source.

Statements in a row, of which equal layers become a loop; what goes from one layer to the next has the dtype of the contraction
that reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Sequence

from fuser.ir.mugraph import Stmt
from fuser.ir.tiling import Node
from fuser.lower.layers import LEAST
from fuser.lower.layers import Layers
from fuser.lower.layers import find_layers
from fuser.lower.options import UNROLL
from fuser.lower.tiles import Tiles
from fuser.lower.writer import TRITON_DTYPE
from fuser.lower.writer import Value
from fuser.lower.writer import Writer


def layers_of(w: Writer, nodes: Sequence[Node]) -> Layers | None:
    """The layers that a loop can do; none with the option ``unroll``."""
    stmts = [n for n in nodes if isinstance(n, Stmt)]
    if len(stmts) < len(nodes) or UNROLL.of(w.tiles.schedule):
        return None
    found = find_layers(w.tiles.block, stmts, {a: p.tile for a, p in w.tiles.plans.items()})
    if found is None or not _simple(w, found):
        return None
    if any(_dtype(w.tiles, u) != _carried(w.tiles, found) for u in _after(w.tiles, found)):
        found = found.without_last()
    return found if found.count >= LEAST else None


def _simple(w: Writer, layers: Layers) -> bool:
    """Every value is one register block, each layer has tiles of its own axes, and what it hands on lies as what it got."""
    group = layers.group(0)
    axes = {a for s in group for a in s.related}
    whole = all(len(w.active[a]) == 1 and w.tiles.plans[a].trips == 1 for a in axes)
    moved = {a for pairs in layers.axes for a, b in pairs if a != b}
    tensors = {s.access.source for s in group if s.access}
    if not whole or any(w.tiles.plans[a].grid > 1 for a in moved) or tensors & set(w.described):
        return False
    makers = w.tiles.block.by_value
    users = [s for s in group if layers.initial in s.args]
    if not all(w.tiles.is_dot(u) for u in users) or len({w.tiles.dot_dtype(u) for u in users}) > 1:
        return False
    return layers.renamed(1, w.tiles.natural(makers[layers.initial])) == w.tiles.natural(makers[layers.made])


def _carried(t: Tiles, layers: Layers) -> str:
    return next(t.dot_dtype(s) for s in layers.group(0) if layers.initial in s.args)


def _after(t: Tiles, layers: Layers) -> list[Stmt]:
    return [u for u in t.block.users(layers.last) if u not in layers.group(layers.count - 1)]


def _dtype(t: Tiles, user: Stmt) -> str:
    """The dtype in which a statement reads what the layers leave."""
    return user.dtype if user.kind == "store" else t.dot_dtype(user) if t.is_dot(user) else "float32"


def rolled(w: Writer, layers: Layers, plain: Callable[[Sequence[Node]], None]) -> None:
    """What stands in front of the layers, the loop over them, and what follows; ``plain`` writes statements in a row."""
    plain(layers.stmts[: layers.first])
    dtype = _carried(w.tiles, layers)
    start = w.tiles.block.by_value[layers.initial]
    (combo,) = w.combos(start.axes)
    layout = w.tiles.natural(start)
    carried, counter = w.out.name("x layer"), w.out.name(" layer")
    w.emit(f"{carried} = {_as(w, dtype, layers.initial, start, layout)}")
    made = w.tiles.block.by_value[layers.made]
    saved = dict(w.values)
    with w.out.indented(f"for {counter} in range({layers.count}):"):
        w.values[layers.initial] = Value(layout, {w.key(start.axes, combo, layout): carried}, dtype)
        w.moving = {value: (counter, step) for value, step in layers.steps if step}
        w.forget()
        # loads first: none of them has to wait for the contraction
        group = layers.group(0)
        plain([*(s for s in group if s.kind == "load"), *(s for s in group if s.kind != "load")])
        w.emit(f"{carried} = {_as(w, dtype, layers.made, made, w.tiles.natural(made))}")
    w.moving = {}
    w.forget()
    w.values = saved
    last = w.tiles.block.by_value[layers.last]
    (combo,) = w.combos(last.axes)
    layout = layers.renamed(layers.count - 1, w.tiles.natural(made))
    w.values[layers.last] = Value(layout, {w.key(last.axes, combo, layout): carried}, dtype)
    w.idle |= {b for pairs in layers.axes[1:] for _, b in pairs}
    plain(layers.stmts[layers.end :])


def without_idle(w: Writer) -> list[str]:
    """The lines without indices and masks that none of them uses."""
    lines = w.out.lines
    for axis in w.idle:
        for name in (w.out.name(f"ok {axis}"), w.offsets(axis, w.tiles.pieces[axis][0])):
            word = re.compile(rf"\b{name}\b")
            uses = [line for line in lines if word.search(line)]
            if len(uses) == 1 and uses[0].lstrip().startswith(f"{name} = "):
                lines = [line for line in lines if line is not uses[0]]
    return lines


def _as(w: Writer, dtype: str, value: str, stmt: Stmt, layout: Sequence[str]) -> str:
    (combo,) = w.combos(stmt.axes)
    text = w.read(value, stmt.axes, combo, layout, fp32=False)
    return text if w.values[value].dtype == dtype else f"{text}.to({TRITON_DTYPE[dtype]})"
