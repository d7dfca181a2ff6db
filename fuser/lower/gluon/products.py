"""Products of a warp group, which run on while it goes on: what is under way, when it is waited for, and what is released then.

Products end in the order in which they were issued. A slot of a ring is released when the last product that reads it has ended,
never before; what a product leaves in registers is read behind a wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass

from fuser.ir.mugraph import Stmt
from fuser.ir.program import DTYPE_BYTES
from fuser.lower.gluon.choices import as_operand
from fuser.lower.gluon.rings import Ring
from fuser.lower.gluon.rings import refill
from fuser.lower.gluon.rings import view
from fuser.lower.gluon.writer import GroupWriter
from fuser.lower.pieces import next_power
from fuser.lower.writer import TRITON_DTYPE
from fuser.lower.writer import Value

ATOM = 128
"""Bytes of a row in shared memory that are swizzled together: a tile is cut between them."""
LEAST = 16
"""Elements of a sum of one ``wgmma``."""


@dataclass(frozen=True)
class Flying:
    """A product under way: the value that it adds to, and the rings that it reads."""

    value: str
    rings: frozenset[str]


class Products:
    """``fence``: rings that threads have read by themselves; the copy engine must see that before it writes again."""

    def __init__(self, w: GroupWriter) -> None:
        self.w = w
        self.flying: list[Flying] = []
        self.tokens: set[str] = set()
        self.ready: set[str] = set()
        self.leaving: list[Ring] = []
        self.fence: set[str] = set()
        self.rings: dict[str, Ring] = {}
        """By loaded value, those around the current line."""
        self.last = False
        """What is released now is not filled again."""

    # -- rings --------------------------------------------------------------------------------------------------------------

    def wait_for(self, ring: Ring) -> None:
        """The slot is full."""
        if ring.name not in self.ready:
            self.ready.add(ring.name)
            self.w.emit(f"mbarrier.wait({ring.full()}, {ring.phase()})")

    def leave(self, rings: Iterable[Ring]) -> None:
        """Nothing more is to be issued that reads these slots."""
        self.leaving += rings
        self.release()

    def release(self) -> None:
        """Slots that nothing reads any more are the producer's."""
        for ring in [r for r in self.leaving if not any(r.name in f.rings for f in self.flying)]:
            self.leaving.remove(ring)
            self.ready.discard(ring.name)
            self.arrive(ring)
            self.count(ring)

    def go_on(self, ring: Ring) -> None:
        """To the next slot; this one is released later."""
        self.ready.discard(ring.name)
        self.count(ring)

    def count(self, ring: Ring) -> None:
        if ring.counted and (ring.shared or not self.last):
            self.w.emit(f"{ring.count} += {ring.steps}")

    def arrive(self, ring: Ring, behind: int = 0, pred: str = "") -> None:
        if ring.refilled and (ring.shared or not self.last):
            if ring.name in self.fence:
                self.w.emit("fence_async_shared()")
                self.fence.discard(ring.name)
            if ring.loop:
                for line in refill(self.w, ring, behind * ring.steps, pred):
                    self.w.emit(line)
                return
            slot = ring.empty(ring.stages - behind * ring.steps) if behind else ring.empty()
            self.w.emit(f"mbarrier.arrive({slot}, count=1{f', pred={pred}' if pred else ''})")

    def tile(self, value: str, dims: Sequence[str]) -> str:
        """A loaded tile in shared memory, with its dimensions in this order."""
        w, load = self.w, self.w.tiles.block.by_value[value]
        buffer, d = w.plan.buffer[value], w.descriptor(load)
        assert d is not None
        have = [a for a in d.axes if w.tiles.plans[a].tile > 1]
        text = view(w, buffer, self.rings[value].slot(), w.group, [w.split.size(a) for a in have])
        return text if have == list(dims) else f"{text}.permute(({', '.join(str(have.index(a)) for a in dims)}))"

    # -- products -----------------------------------------------------------------------------------------------------------

    def issue(self, stmt: Stmt, use: str = "", first: str = "") -> None:
        """Start a product; ``use``: when it adds to what is there, where that is not always; ``first``: its left operand, where
        that has a name already."""
        w = self.w
        left, right = w.tiles.sides(stmt)
        a, b = first or self.left(stmt), self._shared(right, stmt, 1)
        pieces = self.pieces(stmt)
        layout = w.tiles.natural(stmt)
        value = w.values.get(stmt.value) if w.inside(stmt.value) else None
        (combo,) = w.combos(layout)
        name = w.var(stmt.value, layout, combo)
        add = name if value else self._zero(stmt)
        used = "" if value and not use else f", use_acc={use or False}"
        if not value:
            value = w.begin(stmt.value, layout)
        for at, size in pieces or [(0, 0)]:
            part = [f"{x}.slice({at}, {size}, {dim})" if size else x for x, dim in ((a, 1), (b, 0))]
            w.emit(f"{name} = warpgroup_mma({part[0]}, {part[1]}, {add}{used}, is_async=True)")
            add, used = name, ""
        w.define(value, combo, name)
        read = frozenset(self.rings[x].name for x in (left, right) if x in self.rings)
        self.flying += [Flying(stmt.value, read)] * max(len(pieces), 1)
        self.tokens.add(stmt.value)

    def pieces(self, stmt: Stmt) -> list[tuple[int, int]]:
        """Starts and sizes in which a product goes over a sum whose tile is padded, without the most of what is zero (80 of 128:
        64 and 16); none where that is the whole tile, or an operand is in registers. Each is a product of its own to wait for."""
        (inner,) = self.w.tiles.dims(stmt.reduce)
        plan, size, atom = self.w.tiles.plans[inner], self.w.split.size(inner), ATOM // DTYPE_BYTES[self.w.tiles.dot_dtype(stmt)]
        whole = plan.extent // atom * atom
        if any(o.place != "shared" for o in self.w.plan.operands if o.product == stmt.value) or plan.tile < plan.extent:
            return []
        found = [(0, whole)] if whole & (whole - 1) == 0 else []
        if rest := plan.extent - whole:
            found.append((whole, max(next_power(rest), LEAST)))
        return found if whole and len(found) > (rest > 0) and sum(n for _, n in found) < size else []

    def left(self, stmt: Stmt) -> str:
        """The left operand, from shared memory or from registers as the product wants it."""
        w = self.w
        left, _ = w.tiles.sides(stmt)
        if any(o.product == stmt.value and o.value == left and o.place == "shared" for o in w.plan.operands):
            return self._shared(left, stmt, 0)
        self.need(left)
        (inner,) = w.tiles.dims(stmt.reduce)
        rows = w.tiles.natural(stmt)[0]
        (combo,) = w.combos((rows, inner))
        made, dtype, layout = w.values[left], w.tiles.dot_dtype(stmt), w.layout(stmt.value)
        with w.giving(left):
            text = w.read(left, (rows, inner), combo, (rows, inner), fp32=False)
        if made.dtype != dtype:
            text = f"{text}.to({TRITON_DTYPE[dtype]})"
        assert layout is not None
        name = self.left_name(stmt)
        w.emit(f"{name} = gl.convert_layout({text}, {w.named(as_operand(layout))})")
        return name

    def left_name(self, stmt: Stmt) -> str:
        """The name of a left operand in registers."""
        return self.w.out.beside(self.w.tiles.sides(stmt)[0], f"for {stmt.value}")

    def _shared(self, value: str, stmt: Stmt, side: int) -> str:
        self.wait_for(self.rings[value])
        (inner,) = self.w.tiles.dims(stmt.reduce)
        outer = self.w.tiles.natural(stmt)[side]
        return self.tile(value, (inner, outer) if side else (outer, inner))

    def _zero(self, stmt: Stmt) -> str:
        """Zeros for a product that adds to nothing: what it is given is not read."""
        w = self.w
        shape = tuple(w.split.size(a) for a in w.tiles.natural(stmt))
        layout = w.layout(stmt.value)
        assert layout is not None
        return f"gl.zeros([{', '.join(map(str, shape))}], gl.float32, {w.named(layout)})"

    # -- waiting ------------------------------------------------------------------------------------------------------------

    def need(self, *values: str) -> None:
        """These values are in registers from here on."""
        wanted = [v for v in values if v in self.tokens]
        if not wanted:
            return
        last = max((i for i, f in enumerate(self.flying) if f.value in wanted), default=-1)
        self.flying = self.flying[last + 1 :]
        self._settled(wanted)
        self.release()

    def drain(self) -> None:
        """Nothing is under way."""
        self.flying = []
        if self.tokens:
            self._settled(sorted(self.tokens))
        self.release()

    def _settled(self, values: Sequence[str]) -> None:
        names = [n for v in values for n in self.w.values[v].names.values()]
        deps = ", ".join(names) + ("," if len(names) == 1 else "")
        self.w.emit(f"{', '.join(names)} = warpgroup_mma_wait({len(self.flying)}, deps=({deps}))")
        self.tokens -= set(values)

    def lagged(self, stmts: Sequence[Stmt]) -> None:
        """All but the last product of each statement have ended; their values stay under way."""
        values = [s.value for s in stmts]
        left = sum(max(len(self.pieces(s)), 1) for s in stmts)
        names = [n for v in values for n in self.w.values[v].names.values()]
        deps = ", ".join(names) + ("," if len(names) == 1 else "")
        self.w.emit(f"{', '.join(names)} = warpgroup_mma_wait({left}, deps=({deps}))")


def loaded(w: GroupWriter, products: Products, stmt: Stmt) -> None:
    """A load in a consumer: from a slot of its ring where registers are to have it, or by pointers."""
    if stmt.value not in products.rings:
        into_registers(w, stmt)
    elif w.layout(stmt.value) is not None:
        ring = products.rings[stmt.value]
        products.wait_for(ring)
        into_registers(w, stmt, lambda dims: products.tile(stmt.value, dims))
        products.fence.add(ring.name)


def into_registers(w: GroupWriter, stmt: Stmt, tile: Callable[[Sequence[str]], str] | None = None) -> None:
    """A load: of a ``tile`` of shared memory, given its dimensions, or by pointers."""
    value = Value(w.tiles.natural(stmt), dtype=stmt.dtype, fill=dict.fromkeys(stmt.axes, "zero"))
    (combo,) = w.combos(value.layout)
    name = w.var(stmt.value, value.layout, combo)
    if tile is not None:
        layout = w.layout(stmt.value)
        assert layout is not None
        w.emit(f"{name} = {tile(value.layout)}.load({w.named(layout)})")
    else:
        (places,) = w.combos(stmt.axes)
        mask = w.masks(stmt.axes, places, value.layout, stmt.at)
        extra = f", mask={mask}, other=0.0" if mask else ""
        w.emit(f"{name} = gl.load({w.pointer(stmt, places, value.layout)}{extra})")
    w.values[stmt.value] = value
    w.define(value, combo, name)
