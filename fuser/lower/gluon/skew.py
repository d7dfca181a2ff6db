"""Loops whose last products can be a trip late, and the rings that bring what each trip reads.

What the front of a trip reads and what its late products read is needed at one time. So one ring brings both, the latter's loads
a trip late: a group waits once a trip, and releases once. It has one filling more than there are trips: the first brings the
front's alone, the last that of the late products.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace

from fuser.ir.mugraph import Stmt
from fuser.ir.tiling import Loop
from fuser.lower.causal_code import trips_needed
from fuser.lower.gluon.rings import Ring
from fuser.lower.gluon.rings import rings_among
from fuser.lower.gluon.writer import GroupWriter
from fuser.lower.options import FLATTEN


@dataclass(frozen=True)
class Skewed:
    """A loop whose ``back`` products are one trip late, with the rings of both halves; ``leaves`` are those of the front by the
    statement that is the last to read them, ``held`` those of the front that are released with the late ones."""

    front: tuple[Stmt, ...]
    back: tuple[Stmt, ...]
    rings: tuple[Ring, ...]
    late: tuple[Ring, ...]
    leaves: Mapping[Stmt, tuple[Ring, ...]]
    held: tuple[Ring, ...]
    pair: Ring | None = None
    """The ring that brings what the front of a trip reads with what its late products do."""


def skewed(w: GroupWriter, node: Loop, rings: Sequence[Ring]) -> Skewed | None:
    """The halves of a loop whose last products can be late: nothing in the loop reads them, and no slot is read by both."""
    tiles, own = w.tiles, w.tiles.accumulated(node)
    stmts = tuple(s for s in node.body if isinstance(s, Stmt))
    if (
        len(stmts) < len(node.body)
        or node.trips < 2 * w.split.parts
        or not _runs(w, stmts)
        or any(s.kind == "store" for s in stmts)
    ):
        return None
    made = {s.value for s in stmts if s.kind == "compute"}
    back = tuple(s for s in stmts if s.value in own and s.kind == "compute" and tiles.is_dot(s) and tiles.sides(s)[0] in made)
    front = tuple(s for s in stmts if s not in back)
    if not back or {s.value for s in back} & {a for s in stmts for a in s.args}:
        return None
    first, late, leaves = [], [], dict[Stmt, tuple[Ring, ...]]()
    pair = next((r for r in rings if r.behind), None)
    for ring in rings:
        if ring.behind:
            continue
        using = {u for s in ring.loads for u in tiles.block.users(s.value)}
        if using & set(back):
            late.append(ring)
        if using & set(front):
            first.append(ring)
            last = max((s for s in front if s in using), key=front.index)
            leaves[last] = (*leaves.get(last, ()), ring)
    held = tuple(r for r in first if r.refilled and r.stages >= roomy(r))
    if set(first) & set(late) or any(r.stages < 2 * r.steps and r.refilled for r in late):
        return None
    return Skewed(front, back, (pair, *first) if pair else tuple(first), tuple(late), leaves, held, pair)


def _runs(w: GroupWriter, stmts: Sequence[Stmt]) -> bool:
    """The loop runs at least once for every block."""
    masks = [s for s in stmts if s.masks]
    rows = w.tiles.plans[w.split.axis].tile * w.split.groups if w.split.axis else 1
    return all(rows - 1 + int(s.attr["offset"] or 0) >= 0 and w.tiles.plans[s.attr["cols"]].grid == 1 for s in masks)


def roomy(ring: Ring) -> int:
    """Slots from which on one of the front may be held until the trip ends. Two are too few: an H200 took 3 % longer."""
    return max(3, 2 * ring.steps)


def trips_of(w: GroupWriter, node: Loop) -> str:
    """How often a loop runs: as often as the block's last rows need it, in every group and in the producer."""
    with w.as_group(str(w.split.groups - 1)):
        return trips_needed(w, node) or str(node.trips)


def loop_rings(w: GroupWriter, node: Loop, times: int) -> list[Ring]:
    """The rings whose loads stand in a loop, which is run into so many ``times`` (0: nobody knows)."""
    rings = rings_among(w, node.body, times * node.trips)
    if not w.plan.producer:  # the group that reads fills again
        return [replace(r, loop=(node.axis, trips_of(w, node))) if r.refilled else r for r in rings]
    w.around.append(w.tiles.accumulated(node))
    form = skewed(w, node, rings)
    w.around.pop()
    if form is None or FLATTEN.of(w.tiles.schedule) or len(form.rings) != 1 or len(form.late) != 1:
        return rings
    (first,), (late,) = form.rings, form.late
    alike = first.stages == late.stages >= roomy(first) and not (first.shared or late.shared)
    if not alike or not first.refilled or not late.refilled:
        return rings
    pair = replace(first, loads=(*first.loads, *late.loads), behind=late.loads, fills=times * (node.trips + first.steps))
    return [*(r for r in rings if r not in (first, late)), pair]
