"""Loops over columns of which a causal mask leaves nothing: they end behind the diagonal."""

from __future__ import annotations

from collections.abc import Mapping

from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.tiling import Loop
from fuser.lower.dependent_launch import statements
from fuser.lower.writer import Writer


def trips_needed(w: Writer, node: Loop) -> str:
    """How often a loop over the columns of a causal mask has to run; empty where that is not known."""
    mask = ends_early(w.tiles.block, w.tiles.owner, node)
    if mask is None or not ((rows := mask.attr["rows"]) in w.loops or w.tiles.plans[rows].trips == 1):
        return ""
    return _behind_diagonal(w, node, mask)


def ends_early(block: BlockGraph, owner: Mapping[str, str], node: Loop) -> Stmt | None:
    """The mask of a loop over its columns of which later trips add nothing, if it is so: what the loop sums is all made of
    exponentials of what is masked. ``owner``: the loop that accumulates each value."""
    stmts = [s for s in statements(node) if isinstance(s, Stmt)]
    masks = [s for s in stmts if s.masks and s.attr["cols"] == node.axis]
    if len(masks) != 1 or not masks[0].attr["rows"] or any(s.kind == "store" for s in stmts):
        return None
    gone, zero = {masks[0].value}, set[str]()
    sums = {s.value for s in stmts if owner.get(s.value) == node.axis}
    for s in stmts:
        first = s.args[0] if s.args else ""
        if s.value in sums:
            if not (s.maximizes and first in gone) and not (s.adds and zero.intersection(s.args)):
                return None
        elif first in gone and (_grows(block, s) or (s.subtracts and s.args[1] not in gone)):
            gone.add(s.value)
        elif (s.exponential and first in gone) or ((s.casts or s.multiplies or s.op == "scale") and zero.intersection(s.args)):
            zero.add(s.value)
    return masks[0] if sums else None


def open_trips(w: Writer, node: Loop) -> tuple[str, frozenset[str]]:
    """How many trips of a loop over the columns of a causal mask lie below its diagonal, where the mask hides nothing, and the
    mask; an empty text where there is none."""
    masks = [s for s in statements(node) if isinstance(s, Stmt) and s.masks and s.attr["cols"] == node.axis]
    cols = w.tiles.plans[node.axis]
    if len(masks) != 1 or cols.grid > 1 or not (rows := masks[0].attr["rows"]) or rows in w.loops:
        return "", frozenset()
    first = w.start(rows, w.active[rows][0])
    row = " + ".join(x for x in (first, str(1 + int(masks[0].attr["offset"] or 0))) if x)
    return f"({row}) // {cols.tile}", frozenset({masks[0].value})


def _grows(block: BlockGraph, stmt: Stmt) -> bool:
    """Of -inf it is -inf."""
    return stmt.casts or (stmt.op == "scale" and float(block.scalar(stmt.attr["scalar"])) > 0)


def _behind_diagonal(w: Writer, node: Loop, mask: Stmt) -> str:
    rows, cols = mask.attr["rows"], w.tiles.plans[node.axis]
    last = max(w.active[rows], key=lambda p: p.offset + p.limit)
    row = " + ".join(x for x in (w.start(rows, last), str(last.limit - 1 + int(mask.attr["offset"] or 0))) if x)
    first = f" - {w.split_counter(node.axis)} * {cols.chunk}" if cols.grid > 1 else ""
    return f"tl.minimum({node.trips}, ({row}{first}) // {cols.tile} + 1)"
