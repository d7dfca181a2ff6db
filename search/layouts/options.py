"""The problem of one kernel in one mode: nodes for its tiles, buffers, loads and stores, with what each way costs.

Clocks of units are those of an SM for all of its blocks, clocks of waits those of its blocks in turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass

from fuser.ir.layout.accesses import SECTOR
from fuser.ir.layout.named import DotOperand
from fuser.ir.layout.named import Mma
from fuser.ir.layout.named import Registers
from fuser.ir.layout.plan import OUT
from fuser.ir.layout.plan import Buffer
from fuser.ir.mugraph import Stmt
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.specs import L2_PORT
from fuser.ir.specs import rate
from search.layouts import layouts as lay
from search.layouts.facts import Dims
from search.layouts.facts import Facts
from search.layouts.kernel import Kernel
from search.layouts.modes import Mode
from search.layouts.problem import LATE
from search.layouts.problem import Clocks
from search.layouts.problem import Edge
from search.layouts.problem import Node
from search.layouts.problem import Option
from search.layouts.problem import Problem
from search.layouts.problem import added
from search.layouts.registers import held_registers

STAGES = (1, 2, 3, 4, 5, 6)
LINE, PER_LINE = 128, 2.0
"""Bytes of the widest line of the copy engine, and its clocks for each."""
MOVED = 128.0
"""Bytes that shared memory moves in a clock."""
LEAST_BOX = 1024
"""Bytes from which on a tile that no product reads is worth a copy of its own."""


@dataclass(frozen=True, eq=False)
class Maker(Kernel):
    """Options of nodes, and what pairs of them cost."""

    def tile_options(self, dims: Dims, candidates: Sequence[Registers]) -> Iterator[Option]:
        f = self.f
        for layout in candidates:
            found: list[Clocks] = []
            again = 1 if f.dots else lay.repeated(layout, self.shape(dims))
            for s in self.elementwise:
                args = [f.dims(f.block.by_value[a]) for a in s.args]
                if s.folds and dims in args:
                    shape = self.shape(dims)
                    for d in (i for i, a in enumerate(dims) if a not in f.dims(s)):
                        cost = dict(lay.folded(layout, shape, d))
                        busy = cost.pop("shuffle", 0.0) / rate("shuffle", f.device) * 32 * self.m.groups
                        found.append(self.busy("shuffle", f.times[s] * busy))
                        found += [self.chain(t, f.times[s] * x) for t, x in cost.items()]
                if again > 1 and (f.dims(s) == dims or dims in args):
                    lanes, special = (x * f.times[s] * (again - 1) for x in self.arithmetic(s))
                    found += [self.busy("fp32", lanes), self.busy("special", special), self.chain("arithmetic", lanes + special)]
            yield Option(f"{layout}", layout, added(*found))

    def buffer_options(self, load: Stmt) -> Iterator[Option]:
        """Of an operand of products: layout, stages, and for a left one whether it is read from shared memory or registers."""
        f, element = self.f, DTYPE_BYTES[load.dtype]
        dims = f.in_memory(load)
        shape, size, times = self.shape(dims), f.bytes(load), f.times[load]
        shared = f.rows in dims and f.rows
        users = [u for u in f.dots if load.value in u.args]
        left = all(f.sides[u][0] == load.value for u in users)
        engine = f.device.arch >= 90
        for layout in lay.buffers_for(shape, element, engine):
            conflicts = lay.matrix_conflicts(layout, shape, element) if len(shape) > 1 and shape[-2] >= 8 else 0
            for stages in self._stages(load):
                ring = Buffer(
                    load.value,
                    load.dtype,
                    shape,
                    self.m.groups if shared else 1,
                    stages,
                    layout,
                    "tma" if engine else "cp.async" if f.device.arch >= 80 else "threads",
                    size * stages,
                )
                moved = [self.copied(ring, times, size)]
                if f.inside(load) and stages:
                    late = max(0.0, self.fetch - (stages - 1) * self.trip) - (self.fetch if stages == 1 and f.trips == 1 else 0)
                    moved.append(self.chain(f"{LATE}{load.value}", f.trips * max(late, 0.0)))
                for place in ("shared", "registers") if left else ("shared",):
                    read = self._read(load, users, place) * (1 + conflicts)
                    wait = (
                        f.times[load] * (lay.ROUND_TRIP + read / max(f.turns, 1)) if place == "registers" and f.grouped else 0.0
                    )
                    held = self._held(load, users[0]) if place == "registers" and f.grouped else 0
                    clocks = added(*moved, (("shared", read),), self.chain("operands", wait))
                    yield Option(f"{place}, {stages} × {layout}", (ring, place), clocks, ring.bytes, held)
                    if not f.grouped:
                        break

    def copied(self, ring: Buffer, times: int, size: int) -> Clocks:
        """Between device memory and a buffer: through the port of the SM, and in lines as wide as the copy engine's boxes."""
        row = ring.box[-1] * DTYPE_BYTES[ring.dtype]
        line = min(getattr(ring.layout, "swizzle", 0) or LINE, row, LINE)
        found = [self.busy("shared", times * size / MOVED), self.busy("device", times * size / L2_PORT)]
        return added(*found, self.busy("copy", times * size / line * PER_LINE) if ring.by == "tma" else ())

    def _stages(self, load: Stmt) -> tuple[int, ...]:
        if self.f.inside(load):
            return tuple(s for s in STAGES if s <= max(self.f.trips, 2))
        if self.f.persistent:  # the next tile's can come while this one is computed
            return (1, 2)
        return (1,)

    def _read(self, load: Stmt, users: Sequence[Stmt], place: str) -> float:
        """Clocks of shared memory in which products read an operand, all blocks of an SM."""
        f, size = self.f, self.f.bytes(load)
        if place == "registers":
            return f.turns * f.times[load] * size / MOVED
        found = 0.0
        for u in users:
            rows, columns = (f.size(a) for a in f.dims(u))
            left = f.sides[u][0] == load.value
            again = -(-columns // lay.COLUMNS) if left else max(rows // 64, 1)
            if not f.grouped:
                again = 1  # an edge counts how many warps read the same
            found += f.times[u] * size * again / MOVED
        return f.turns * found

    def _held(self, load: Stmt, user: Stmt) -> int:
        columns = self.f.size(self.f.dims(user)[1])
        layout = next(lay.of_products(columns, self.m.warps, True))
        assert isinstance(layout, Mma)
        return lay.registers_of(DotOperand(0, layout, 2), self.shape(self.f.dims(load)), DTYPE_BYTES[load.dtype])

    def load_options(self, load: Stmt) -> Iterator[Option]:
        """Of a tile that no product reads as it is: straight into registers in some layout, or through a buffer."""
        f, element = self.f, DTYPE_BYTES[load.dtype]
        dims = f.dims(load)
        order = f.in_memory(load)
        shape, warps = self.shape(dims), self.m.warps
        own = dict.fromkeys((*self.classes.get(dims, ()), *(() if f.grouped else lay.of_tiles(shape, warps, element))))
        for layout in own:
            vector, count, sectors = lay.direct(layout, shape, f.strides(load), element)
            yield Option(f"direct, {vector} B, {layout}", layout, self._by_threads(load, count, sectors))
        if f.grouped and f.bytes(load) >= LEAST_BOX:
            box = self.shape(order)
            pieces = self.m.groups if f.rows in dims else 1
            size = f.bytes(load)
            for shared in lay.buffers_for(box, element, True):
                ring = Buffer(load.value, load.dtype, box, pieces, 1, shared, "tma", size)
                yield Option(f"buffer, {shared}", ring, self.copied(ring, f.times[load], size), size)

    def _by_threads(self, s: Stmt, count: int, sectors: int) -> Clocks:
        """Clocks of accesses of a group by pointers: the way from L2, and instructions with addresses and masks."""
        f = self.f
        moved = f.times[s] * self.m.groups * count
        issued = moved * 32 * f.constants.issue_cost / rate("fp32", f.device)
        waited = f.times[s] * count * 4.0
        return added(
            self.busy("device", moved * sectors * SECTOR / L2_PORT), self.busy("fp32", issued), self.chain("issue", waited)
        )

    def store_options(self, store: Stmt) -> Iterator[Option]:
        f, element = self.f, DTYPE_BYTES[store.dtype]
        yield Option("direct", None)
        order = f.in_memory(store)
        if f.device.arch >= 90 and len(order) == 2 and f.grouped:
            box = self.shape(order)
            size = f.bytes(store)
            for shared in lay.buffers_for(box, element, True):
                out = Buffer(f"{store.at.source}{OUT}", store.dtype, box, self.m.groups, 1, shared, "tma", size)
                wait = self.chain("staging", f.times[store] * lay.HANDSHAKE)
                yield Option(f"buffer, {shared}", out, added(self.copied(out, f.times[store], size), wait), size)

    # -- edges ---------------------------------------------------------------------------------------------------------------

    def moved(self, s: Stmt, layout: Registers, option: Option) -> Clocks:
        """Between a tile's layout and what a load or a store has chosen."""
        f, element = self.f, DTYPE_BYTES[s.dtype]
        dims = f.dims(s)
        order = f.in_memory(s)
        shape = self.shape(dims)
        if option.value is None:
            _, count, sectors = lay.direct(layout, shape, f.strides(s), element)
            return self._by_threads(s, count, sectors)
        if isinstance(option.value, Buffer):
            # a tile that lies in memory the other way round is read so
            turned = lay.bases(layout, shape)
            if order != dims:
                turned = turned.through(lambda v: v[::-1], shape[::-1])
            count, each = lay.staged(turned, option.value.layout, turned.shape, element)
            return added(
                self.busy("shared", f.times[s] * self.m.groups * count * each), self.chain("staging", f.times[s] * count * each)
            )
        return self._scaled(lay.converted(option.value, layout, shape, element), f.times[s])

    def exchanged(self, s: Stmt, have: Registers, want: Registers) -> Clocks:
        """A computed left operand on its way into a product whose rows are shared out otherwise."""
        shape = self.shape(self.f.dims(self.f.block.by_value[s.value]))
        if not (isinstance(have, Mma) and isinstance(want, Mma)):
            return ()
        return self._scaled(lay.converted(have, DotOperand(0, want, 2), shape, 2), self.f.times[s])

    def _scaled(self, clocks: Clocks, times: int) -> Clocks:
        return added(*(self.busy(t, times * x * self.m.groups) if t == "shared" else self.chain(t, times * x) for t, x in clocks))


def problem(f: Facts, m: Mode) -> Problem | None:
    """All choices of a kernel in a mode; None where there are too few registers for any."""
    k = Maker(f, m)
    held = held_registers(k, {dims: candidates[0] for dims, candidates in k.classes.items()})
    if max(held) > m.registers:
        return None
    nodes: list[Node] = []
    edges: list[Edge] = []
    tile: dict[Dims, int] = {}
    for dims, candidates in k.classes.items():
        tile[dims] = len(nodes)
        nodes.append(Node(f"tile {'·'.join(dims)}", tuple(k.tile_options(dims, candidates))))
    loop = [i for i, s in enumerate(f.order) if f.inside(s)] or list(range(len(f.order)))
    for s in f.order:
        dims = f.dims(s)
        if f.feeds(s):
            nodes.append(Node(f"buffer {s.value}", tuple(k.buffer_options(s)), frozenset(range(min(loop), max(loop) + 1))))
            edges += _fragments(k, s, len(nodes) - 1, nodes, tile)
        elif s.kind == "load" and dims in tile:
            nodes.append(Node(f"load {s.value}", tuple(k.load_options(s))))
            edges.append(_pairs(k, s, tile[dims], len(nodes) - 1, nodes))
        elif s.kind == "store" and dims in tile:
            nodes.append(Node(f"store {s.at.source}", tuple(k.store_options(s))))
            edges.append(_pairs(k, s, tile[dims], len(nodes) - 1, nodes))
    for u in f.dots:
        own, made = f.dims(u), f.dims(f.block.by_value[f.sides[u][0]])
        if own in tile and made in tile and not f.feeds(f.block.by_value[f.sides[u][0]]):
            a, b = tile[made], tile[own]
            s = f.block.by_value[f.sides[u][0]]
            table = {
                (i, j): k.exchanged(s, x.value, y.value)
                for i, x in enumerate(nodes[a].options)
                for j, y in enumerate(nodes[b].options)
                if a != b or i == j
            }
            edges.append(Edge(a, b, {p: c for p, c in table.items() if c}))
    customers = m.groups * m.blocks
    return Problem(tuple(nodes), tuple(edges), k.fixed(), m.shared, m.registers, held, 1.0 - 1.0 / customers, (f, m))


def _pairs(k: Maker, s: Stmt, tile: int, own: int, nodes: Sequence[Node]) -> Edge:
    table = {(i, j): k.moved(s, x.value, y) for i, x in enumerate(nodes[tile].options) for j, y in enumerate(nodes[own].options)}
    return Edge(tile, own, {p: c for p, c in table.items() if c})


def _fragments(k: Maker, load: Stmt, own: int, nodes: Sequence[Node], tile: dict[Dims, int]) -> Iterator[Edge]:
    """Without warp groups each warp reads its own fragments: more of the same where warps stand side by side."""
    if k.f.grouped:
        return
    for u in (u for u in k.f.dots if load.value in u.args and k.f.dims(u) in tile):
        node = tile[k.f.dims(u)]
        left = k.f.sides[u][0] == load.value
        table: dict[tuple[int, int], Clocks] = {}
        for i, x in enumerate(nodes[node].options):
            again = x.value.warps[1 if left else 0] - 1
            for j, y in enumerate(nodes[own].options):
                conflicts = lay.matrix_conflicts(y.value[0].layout, y.value[0].box, DTYPE_BYTES[load.dtype])
                more = again * k.f.turns * k.f.times[u] * k.f.bytes(load) * (1 + conflicts) / MOVED
                table[i, j] = (("shared", more),) if more else ()
        yield Edge(node, own, {p: c for p, c in table.items() if c})
