"""The body of a kernel: the loop tree as control flow, and for each statement the function that writes its kind."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence

from fuser.errors import UnsupportedError
from fuser.ir.mugraph import Stmt
from fuser.ir.tiling import Init
from fuser.ir.tiling import Loop
from fuser.ir.tiling import Node
from fuser.lower.causal_code import trips_needed
from fuser.lower.dependent_launch import statements
from fuser.lower.fold_code import contract
from fuser.lower.fold_code import init
from fuser.lower.fold_code import reduce
from fuser.lower.fold_code import settle
from fuser.lower.frame_code import used
from fuser.lower.layer_code import layers_of
from fuser.lower.layer_code import rolled
from fuser.lower.map_code import map_elements
from fuser.lower.memory_code import load
from fuser.lower.memory_code import store
from fuser.lower.options import FLATTEN
from fuser.lower.options import PERSISTENT
from fuser.lower.options import SPECIALIZE
from fuser.lower.writer import Writer

COMPUTE: dict[str, Callable[[Writer, Stmt], None]] = {"map": map_elements, "contract": contract, "reduce": reduce}
"""What writes a computing statement, by the kind of its operator."""


def body(w: Writer, nodes: Sequence[Node]) -> None:
    """Nodes of the loop tree; equal layers in a row become a loop."""
    if layers := layers_of(w, nodes):
        rolled(w, layers, lambda stmts: plain(w, stmts))
    else:
        plain(w, nodes)


def plain(w: Writer, nodes: Sequence[Node]) -> None:
    """Nodes as they stand."""
    for node in nodes:
        if isinstance(node, Init):
            init(w, w.tiles.block.by_value[node.value])
        elif isinstance(node, Loop):
            write = _unrolled if node.unrolled else _loop
            write(w, node)
        elif node.kind == "load":
            load(w, node)
        elif node.kind == "store":
            store(w, node)
        else:
            _compute(w, node)


def _compute(w: Writer, stmt: Stmt) -> None:
    kind = stmt.entry.kind
    if kind not in COMPUTE:
        raise UnsupportedError(f"operator {stmt.op!r} ({stmt.value}) has no Triton form")
    COMPUTE[kind](w, stmt)


def _unrolled(w: Writer, node: Loop) -> None:
    outer = w.active[node.axis]
    w.around.append(w.tiles.accumulated(node))
    for trip in range(node.trips):
        w.active[node.axis] = tuple(p for p in w.tiles.pieces[node.axis] if p.trip == trip)
        body(w, node.body)
    w.around.pop()
    w.active[node.axis] = outer


def _loop(w: Writer, node: Loop) -> None:
    saved, owner, schedule = dict(w.values), w.tiles.owner, w.tiles.schedule
    special = SPECIALIZE.of(schedule) and not PERSISTENT.of(schedule) and w.tiles.multiplies(node)
    fewer = "" if special or FLATTEN.of(schedule) else trips_needed(w, node)
    trips = f"tl.range(0, {node.trips}, warp_specialize=True)" if special else f"range({fewer or node.trips})"
    with w.out.indented(f"for {w.trip(node.axis)} in {trips}:"):
        w.loops.append(node.axis)
        w.around.append(w.tiles.accumulated(node))
        if used(w, node.axis):
            w.emit_indices(node.axis)
        body(w, node.body)
        w.loops.pop()
        w.around.pop()
    # what was loaded or computed inside ends with the loop; accumulators live on
    w.values = {k: v for k, v in w.values.items() if k in saved or owner.get(k) == node.axis}
    w.forget()
    settle(w, {s.value for s in statements(node) if isinstance(s, Stmt) and owner.get(s.value) == node.axis})
