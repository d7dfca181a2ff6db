"""Rings of buffers in shared memory, with their barriers.

What is loaded for the same statement is one ring: the producer waits until a slot is empty, says how many bytes will come, and
starts the copies; a consumer waits until the slot is full, reads it, and says so when its products have read it too. Both count
the slots that they have gone through, so that the slot and the phase of its barriers follow from the count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass

from fuser.ir.layout.plan import Buffer
from fuser.ir.layout.plan import LayoutPlan
from fuser.ir.mugraph import Stmt
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.tiling import Loop
from fuser.ir.tiling import Node
from fuser.lower.dependent_launch import statements
from fuser.lower.gluon.choices import filled_again
from fuser.lower.gluon.choices import fills
from fuser.lower.gluon.split import Split
from fuser.lower.gluon.writer import GroupWriter

ORDER = "order"
"""Barriers of groups that take places in turn: whose turn it is to multiply. Without them one could take the last filling of a
slot for the next: a barrier tells only every other one apart."""
TURNS = "n_turns"


@dataclass(frozen=True)
class Ring:
    """``loads`` that come together into ``stages`` slots, used up to node ``last`` of the nodes among which they stand, filled
    so often in the life of a block (0: nobody knows). What several loops load is one ``shared`` ring of its own.
    ``arrivals`` groups say that they have read a slot; of ``steps`` slots a group reads one, where trips of a loop are shared
    out."""

    name: str
    loads: tuple[Stmt, ...]
    stages: int
    last: int
    fills: int
    shared: bool
    arrivals: int = 1
    steps: int = 1
    each: int = 0
    """Slots of a place of the grid; 0 where several loops fill them."""
    behind: tuple[Stmt, ...] = ()
    """Loads that come a group's trip late: with what the next trip reads first."""
    loop: tuple[str, str] | None = None
    """The loop, and how often it runs, whose group fills the slots again that it has read; none where a warp of its own does."""

    @property
    def refilled(self) -> bool:
        """Slots are filled again when they have been read."""
        return self.shared or filled_again(self.fills, self.stages)

    @property
    def counted(self) -> bool:
        return self.shared or self.fills != 1

    @property
    def count(self) -> str:
        """The variable that counts its slots."""
        return f"n_{self.name}"

    def slot(self, ahead: int = 0) -> str:
        if not self.counted or self.stages == 1:
            return "0"
        return f"{self._at(ahead)} % {self.stages}"

    def phase(self, ahead: int = 0) -> str:
        if not self.refilled:
            return "0"
        return f"{self._at(ahead)} // {self.stages} % 2" if self.stages > 1 else f"{self._at(ahead)} % 2"

    def _at(self, ahead: int) -> str:
        return self.count if not ahead else f"({self.count} + {ahead})"

    def full(self, ahead: int = 0) -> str:
        return f"{self.name}_full.index({self.slot(ahead)})"

    def empty(self, ahead: int = 0) -> str:
        return f"{self.name}_empty.index({self.slot(ahead)})"

    @property
    def barriers(self) -> tuple[str, ...]:
        return (f"{self.name}_full", *((f"{self.name}_empty",) if self.refilled and not self.loop else ()))


def rings_among(w: GroupWriter, nodes: Sequence[Node], times: int) -> list[Ring]:
    """The rings whose loads stand among nodes, which are gone through so many ``times`` (0: nobody knows)."""
    found: list[list[Stmt]] = []
    users: dict[str, int] = {}
    often = fills(w.tiles)
    split = w.split
    shared = split.loop is not None and all(n in split.loop.body for n in nodes)
    for i, node in enumerate(nodes):
        if isinstance(node, Stmt) and node.kind == "load" and node.value in w.plan.buffer:
            first, users[node.value] = _uses(w.split, nodes, node)
            same = found and isinstance(nodes[i - 1], Stmt) and nodes[i - 1] is found[-1][-1]
            same = same and not {node, found[-1][0]} & w.several
            if same and _uses(w.split, nodes, found[-1][0])[0] == first and _stages(w.plan, found[-1]) == _stages(w.plan, [node]):
                found[-1].append(node)
            else:
                found.append([node])
    return [
        Ring(
            w.out.name(f"{g[0].value} ring"),
            tuple(g),
            _stages(w.plan, g),
            max(users[s.value] for s in g),
            times,
            g[0] in w.several,
            split.groups if shared or not _before(split, nodes, max(users[s.value] for s in g)) else split.groups * split.parts,
            split.parts if shared else 1,
            often[g[0]],
        )
        for g in found
    ]


def _before(split: Split, nodes: Sequence[Node], last: int) -> bool:
    """All groups read what stands in front of the loop that they share out, one of those with the same rows what is behind."""
    return split.loop is not None and last <= next(i for i, n in enumerate(nodes) if isinstance(n, Loop))


def _stages(plan: LayoutPlan, loads: Sequence[Stmt]) -> int:
    return plan.buffer[loads[0].value].stages


def _uses(split: Split, nodes: Sequence[Node], load: Stmt) -> tuple[int, int]:
    """The first and the last node that read a load."""
    using = split.tiles.block.users(load.value)
    found = [i for i, n in enumerate(nodes) if any(s in using for s in (statements(n) if isinstance(n, Loop) else (n,)))]
    return (found[0], found[-1]) if found else (len(nodes), len(nodes))


def buffer_name(w: GroupWriter, value: str) -> str:
    return w.out.name(f"{value} bufs")


def view(w: GroupWriter, buffer: Buffer, slot: str, group: str, dims: Sequence[int]) -> str:
    """One tile of a ring, with the dimensions of its registers: those of one element are dropped."""
    place = slot
    if buffer.pieces > 1:
        place = group if slot == "0" else f"{slot} * {buffer.pieces} + {group}"
    text = f"{buffer_name(w, buffer.value)}.index({place})"
    return text if tuple(dims) == buffer.box else f"{text}.reshape([{', '.join(map(str, dims))}])"


def fill(w: GroupWriter, ring: Ring, loads: Sequence[Stmt] = (), ahead: int = 0) -> Iterator[str]:
    """Lines that fill a slot, with all that the ring brings or with some ``loads``: the producer's next one, or the one so many
    ``ahead``."""
    loads = loads or ring.loads
    if ring.refilled and not ring.loop:
        yield f"mbarrier.wait({ring.empty()}, {ring.phase()} ^ 1)"
    yield expected(w, ring, loads, ahead)
    yield from copies(w, ring, loads, ahead)
    if ring.counted and not ahead:
        yield f"{ring.count} += 1"


def expected(w: GroupWriter, ring: Ring, loads: Sequence[Stmt], ahead: int = 0) -> str:
    """The line that says how many bytes will come into a slot."""
    size = sum(math.prod(b.box) * b.pieces * DTYPE_BYTES[b.dtype] for b in (w.plan.buffer[s.value] for s in loads))
    return f"mbarrier.expect({ring.full(ahead)}, {size})"


def copies(w: GroupWriter, ring: Ring, loads: Sequence[Stmt], ahead: int = 0) -> Iterator[str]:
    """Lines that start the copies of some loads into a slot."""
    for s in loads:
        buffer, d = w.plan.buffer[s.value], w.descriptor(s)
        assert d is not None
        for group in range(buffer.pieces):
            with w.as_group(str(group), ring.steps if s in ring.behind else 0):
                at = box_start(w, s.axes, d.axes)
            to = view(w, buffer, ring.slot(ahead), str(group), buffer.box)
            yield f"tma.async_copy_global_to_shared({w.box_argument(d)}, [{at}], {ring.full(ahead)}, {to})"


def refill(w: GroupWriter, ring: Ring, behind: int, pred: str = "") -> Iterator[str]:
    """Lines of a group that has read a slot, ``behind`` by so many, and fills it for a later trip."""
    assert ring.loop
    (axis, trips), ahead = ring.loop, ring.stages - behind
    later = f"{ring.count} + {ahead}"
    yield f"if {f'({pred}) & ({later} < {trips})' if pred else f'{later} < {trips}'}:"
    with w.at_trip(axis, f"({later})"):
        yield from (f"    {line}" for line in fill(w, ring, ahead=ahead))


def box_start(w: GroupWriter, axes: Sequence[str], wanted: Sequence[str]) -> str:
    """Where the box of the current place begins, an index for each axis of a descriptor."""
    (combo,) = w.combos(axes)
    pieces = dict(zip(axes, combo, strict=True))
    return ", ".join(w.start(a, pieces[a]) or "0" for a in wanted)


def allocated(w: GroupWriter, ring: Ring) -> Iterator[str]:
    """Lines that allocate the buffers and barriers of a ring, and set the barriers up."""
    for s in ring.loads:
        yield from room(w, w.plan.buffer[s.value])
    for name, arrivals in zip(ring.barriers, (1, ring.arrivals), strict=False):
        yield from set_up(name, ring.stages, arrivals)


def set_up(name: str, barriers: int, arrivals: int) -> Iterator[str]:
    """Lines that make barriers of so many arrivals."""
    yield f"{name} = gl.allocate_shared_memory(gl.int64, [{barriers}, 1], mbarrier.MBarrierLayout())"
    yield f"for i in gl.static_range({barriers}):"
    yield f"    mbarrier.init({name}.index(i), count={arrivals})"


def room(w: GroupWriter, buffer: Buffer) -> Iterator[str]:
    shape = ", ".join(map(str, (buffer.stages * buffer.pieces, *buffer.box)))
    yield f"{buffer_name(w, buffer.value)} = gl.allocate_shared_memory(gl.{buffer.dtype}, [{shape}], {buffer.layout.gluon})"
