"""What a consumer does: the loop tree of one group's rows, with products that run on while it computes.

Three forms of a loop. One that only multiplies what is loaded keeps the products of one trip under way while it starts those of
the next. One whose last products read what earlier ones led to (attention: softmax between two products) starts them one trip
late, beside the first products of the next trip, so that element-wise work runs beside them. Any other waits for a product where
its result is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextlib import ExitStack
from contextlib import contextmanager
from contextlib import nullcontext

from fuser.errors import UnsupportedError
from fuser.ir.layout.plan import OUT
from fuser.ir.mugraph import Stmt
from fuser.ir.tiling import Init
from fuser.ir.tiling import Loop
from fuser.ir.tiling import Node
from fuser.lower.causal_code import open_trips
from fuser.lower.fold_code import init
from fuser.lower.fold_code import reduce
from fuser.lower.fold_code import rescale
from fuser.lower.fold_code import settle
from fuser.lower.frame_code import used
from fuser.lower.gluon import folds
from fuser.lower.gluon.merging import merge
from fuser.lower.gluon.products import Products
from fuser.lower.gluon.products import loaded
from fuser.lower.gluon.rings import ORDER
from fuser.lower.gluon.rings import Ring
from fuser.lower.gluon.rings import box_start
from fuser.lower.gluon.rings import rings_among
from fuser.lower.gluon.rings import view
from fuser.lower.gluon.skew import Skewed
from fuser.lower.gluon.skew import loop_rings
from fuser.lower.gluon.skew import skewed
from fuser.lower.gluon.skew import trips_of
from fuser.lower.gluon.split import refuse
from fuser.lower.gluon.writer import GroupWriter
from fuser.lower.map_code import map_elements
from fuser.lower.options import SPECIALIZE
from fuser.lower.writer import TRITON_DTYPE
from fuser.lower.writer import Value

COMPUTE = {"map": map_elements, "reduce": reduce}


class Consumer:
    def __init__(self, w: GroupWriter, again: bool) -> None:
        """``again``: it computes one place of the grid after another."""
        self.w, self.again = w, again
        self.times = 0 if again else 1
        """How often the current nodes are gone through; 0: nobody knows."""
        w.lanes_of = folds.by_lanes(w)
        self.products = Products(w)

    def nodes(self, nodes: Sequence[Node], before: Mapping[int, Sequence[str]] | None = None) -> None:
        """Nodes of the loop tree, and the rings whose loads stand among them; ``before`` are lines in front of some."""
        rings = rings_among(self.w, nodes, self.times)
        if not self.w.plan.producer and (again := [r.loads[0].value for r in rings if r.refilled]):
            why = f"{again[0]!r} is loaded in a loop whose group cannot fill its slots again in time"
            raise refuse(self.w.tiles, why, f"leave out {SPECIALIZE.key()}")
        outer = dict(self.products.rings)
        self.products.rings |= {s.value: r for r in rings for s in r.loads}
        with ExitStack() as rest:
            for i, node in enumerate(nodes):
                for line in (before or {}).get(i, ()):
                    self.w.emit(line)
                self.node(node)
                self.products.leave(r for r in rings if r.last == i)
                if self.w.split.loop and isinstance(node, Loop):
                    self.products.drain()
                    merge(self.w, self.again)
                    rest.enter_context(self.w.out.indented(f"if {self.w.part} == 0:"))
            self.products.drain()
        self.products.rings = outer

    def node(self, node: Node) -> None:
        if isinstance(node, Init):
            begun(self.w, node)
        elif isinstance(node, Loop):
            self.loop(node)
        else:
            self.statement(node)

    def statement(self, stmt: Stmt) -> None:
        w = self.w
        with w.giving(stmt.value):
            if stmt.kind == "load":
                loaded(w, self.products, stmt)
            elif stmt.kind == "store":
                self.products.need(stmt.value)
                stored(w, stmt, self.again or bool(w.loops))
            elif w.tiles.is_dot(stmt):
                if w.inside(stmt.value):
                    self.products.need(stmt.value)
                    rescale(w, stmt)
                self.products.issue(stmt)
            else:
                self.elementwise(stmt)

    def elementwise(self, stmt: Stmt) -> None:
        self.products.need(*stmt.args)
        computed(self.w, stmt, "by warp groups")

    # -- loops --------------------------------------------------------------------------------------------------------------

    def loop(self, node: Loop) -> None:
        if node.unrolled:
            raise refuse(self.w.tiles, f"an accumulator keeps a tile for each trip of {node.axis!r}", "choose another loop order")
        self.products.drain()
        saved = dict(self.w.values)
        trips = trips_of(self.w, node) if not self.w.split.loop else self._share(node)
        self.w.around.append(self.w.tiles.accumulated(node))
        rings = loop_rings(self.w, node, self.times)
        outside, self.times = self.times, self.times * node.trips
        outer = dict(self.products.rings)
        with self._some(node):
            self._trips(node, trips, rings)
        self.times = outside
        self.products.rings = outer
        ended(self.w, node, saved)

    def _share(self, node: Loop) -> str:
        """The trips of a group that shares them out."""
        parts = self.w.split.parts
        even = node.trips % parts == 0
        return (
            str(node.trips // parts) if even else self.named_trips(node, f"({node.trips + parts - 1} - {self.w.part}) // {parts}")
        )

    def _some(self, node: Loop) -> AbstractContextManager[None]:
        """Groups that there are no trips for go past the loop."""
        few = bool(self.w.split.loop) and node.trips < self.w.split.parts
        return self.w.out.indented(f"if {self.w.part} < {node.trips}:") if few else nullcontext()

    def _trips(self, node: Loop, trips: str, rings: Sequence[Ring]) -> None:
        if self._only_multiplies(node) and all(r.stages > r.steps or not r.refilled for r in rings):
            self.products.rings |= {s.value: r for r in rings for s in r.loads}
            self._lagged(node, trips, rings)
        elif halves := skewed(self.w, node, rings):
            self.products.rings |= {s.value: r for r in rings for s in r.loads}
            self._late(node, trips, halves)
        else:
            with self._trip(node, trips):
                self.nodes(node.body)
            self._hand_over()

    @contextmanager
    def _trip(self, node: Loop, trips: str) -> Iterator[None]:
        with self.w.out.indented(f"for {self.w.trip(node.axis)} in range({trips}):"):
            self.w.loops.append(node.axis)
            self._indices(node)
            yield
            self.w.loops.pop()

    def _indices(self, node: Loop) -> None:
        if used(self.w, node.axis):
            self.w.emit_indices(node.axis)

    def _only_multiplies(self, node: Loop) -> bool:
        """Products of what is loaded, that nothing in the loop reads."""
        tiles = self.w.tiles
        own = tiles.accumulated(node)
        return all(
            isinstance(s, Stmt)
            and (
                (s.kind == "load" and s.value in self.w.plan.buffer and self.w.layout(s.value) is None)
                or (s.kind == "compute" and tiles.is_dot(s) and s.value in own and not s.rescale and self._all_shared(s))
            )
            for s in node.body
        )

    def _all_shared(self, stmt: Stmt) -> bool:
        return all(o.place == "shared" for o in self.w.plan.operands if o.product == stmt.value)

    def _lagged(self, node: Loop, trips: str, rings: Sequence[Ring]) -> None:
        """The products of a trip end when those of the next are under way; then their slots are released."""
        dots = [s for s in node.body if isinstance(s, Stmt) and s.kind == "compute"]
        later = f"{self.w.trip(node.axis)} > 0"
        with self._trip(node, trips):
            for s in dots:
                self.products.issue(s, use=later)
            self.products.lagged(dots)
            for ring in rings:
                self.products.arrive(ring, behind=1, pred=later)
                self.products.count(ring)
                self.products.ready.discard(ring.name)
        self._hand_over()
        self.products.drain()
        with self._ending():
            for ring in rings:
                self.products.arrive(ring, behind=1)

    def _hand_over(self) -> None:
        """Behind the loop of a place: it is the next group's turn to multiply."""
        if self.w.turn and not self.w.loops:
            self.w.emit(f"mbarrier.arrive({ORDER}.index(({self.w.turn} + 1) % {self.w.split.turns}), count=1)")

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Behind a loop: where nothing comes again, its slots are not filled again."""
        self.products.last = not (self.again or self.w.loops)
        yield
        self.products.last = False

    def _late(self, node: Loop, trips: str, halves: Skewed) -> None:
        trips = self.named_trips(node, trips)
        self.first(node, halves, trips, {})
        self.others(node, halves, trips)
        self.end(halves)

    def named_trips(self, node: Loop, trips: str) -> str:
        """A number of trips that depends on the place gets a name."""
        if trips.isdecimal():
            return trips
        name = self.w.out.name(f"trips of {node.axis}")
        self.w.emit(f"{name} = {trips}")
        return name

    def first(self, node: Loop, halves: Skewed, trips: str, late: Mapping[Stmt, str]) -> None:
        """The front of the first trip, beside the ``late`` products of whatever was before."""
        self._indices(node)
        self._front(halves, late)
        if late:
            self._ended(halves, f"1 < {trips}")
        else:
            self.operands(halves)
            self._next(halves, f"1 < {trips}")
            self._release(halves)

    def operands(self, halves: Skewed) -> dict[Stmt, str]:
        """The left operands of the products that will be late."""
        return {s: self.products.left(s) for s in halves.back}

    def named_operands(self, halves: Skewed) -> dict[Stmt, str]:
        """Their names, where they are there already."""
        return {s: self.products.left_name(s) for s in halves.back}

    def _ended(self, halves: Skewed, pred: str) -> None:
        """Late products end beside element-wise work."""
        self.products.need(*(self.w.tiles.sides(s)[0] for s in halves.back))
        # behind a branch: else the assembler waits for the late products before the element-wise work, not after it
        self._next(halves, pred)
        self.products.need(*(s.value for s in halves.back))
        self._release(halves)

    def _release(self, halves: Skewed) -> None:
        """Slots of the front that are held until late ones are released: warps of a group meet in front of every release, and
        once less where releases stand together."""
        if any(r.name in f.rings for r in (*halves.held, *halves.rings) for f in self.products.flying):
            self.products.drain()
        for ring in halves.held:
            self.products.arrive(ring, behind=1)
        if halves.pair:
            self.products.arrive(halves.pair)
            self.products.go_on(halves.pair)
            self.products.ready.add(halves.pair.name)

    def others(self, node: Loop, halves: Skewed, trips: str) -> None:
        """All trips but the first: those below the diagonal of a causal mask without it, if there is one."""
        below, masks = open_trips(self.w, node)
        first = "1"
        if below:
            first = self.w.out.name(f"open {node.axis}")
            self.w.emit(f"{first} = min(max(1, {below}), {trips})")
            self.w.open |= masks
            self._others(node, halves, f"1, {first}", trips)
            self.w.open -= masks
        self._others(node, halves, f"{first}, {trips}", trips)

    def _others(self, node: Loop, halves: Skewed, some: str, trips: str) -> None:
        with self._trip(node, some):
            self._front(halves, self.named_operands(halves))
            self._ended(halves, f"{self.w.trip(node.axis)} + 1 < {trips}")
            for s in halves.back:
                rescale(self.w, s)
            self.operands(halves)

    def end(self, halves: Skewed) -> None:
        """The late products of the last trip."""
        with self._ending():
            self._back(halves, self.named_operands(halves))
            self.products.drain()
            if halves.pair:
                self.products.arrive(halves.pair)
                self.products.go_on(halves.pair)

    def _front(self, halves: Skewed, late: Mapping[Stmt, str]) -> None:
        """The first half of a trip; the ``late`` products of the trip before it start behind its first products."""
        for s in halves.front:
            if late and not (s.kind == "load" or self.w.tiles.is_dot(s)):
                self._back(halves, late)
                late = {}
            self.statement(s)
            for ring in halves.leaves.get(s, ()):
                if ring in halves.held:
                    self.products.go_on(ring)
                else:
                    self.products.leave([ring])
        self._back(halves, late)

    def _back(self, halves: Skewed, operands: Mapping[Stmt, str]) -> None:
        for s, left in operands.items():
            self.products.issue(s, first=left)
        self.products.leave(halves.late if operands else ())

    def _next(self, halves: Skewed, pred: str) -> None:
        """Wait for what the next trip reads first."""
        if pair := halves.pair:  # there is always another filling
            self.w.emit(f"mbarrier.wait({pair.full(pair.steps)}, {pair.phase(pair.steps)})")
            return
        for ring in halves.rings[:1]:
            self.w.emit(f"mbarrier.wait({ring.full()}, {ring.phase()}, pred={pred})")
            self.products.ready.add(ring.name)


# -- what every form in Gluon writes


def begun(w: GroupWriter, node: Init) -> None:
    """The start of an accumulator."""
    stmt = w.tiles.block.by_value[node.value]
    init(w, stmt, folds.start(w, stmt) if node.value in w.lanes_of else "")


def computed(w: GroupWriter, stmt: Stmt, form: str) -> None:
    """An operator element by element, or a fold."""
    kind = stmt.entry.kind
    if kind not in COMPUTE:
        raise UnsupportedError(f"operator {stmt.op!r} ({stmt.value}) has no form {form}")
    with w.giving(stmt.args[0] if kind == "reduce" else stmt.value):
        (folds.add if stmt.value in w.lanes_of else COMPUTE[kind])(w, stmt)


def ended(w: GroupWriter, node: Loop, saved: Mapping[str, Value]) -> None:
    """Behind a loop: what it made is gone but for what belongs to it, and its accumulators are settled."""
    w.around.pop()
    w.values = {k: v for k, v in w.values.items() if k in saved or w.tiles.owner.get(k) == node.axis}
    w.forget()
    own = w.tiles.accumulated(node)
    settle(w, own)
    folds.meet(w, own)


def stored(w: GroupWriter, stmt: Stmt, again: bool) -> None:
    """A store of the group's rows: through shared memory and by the copy engine, or by pointers. ``again``: what was stored
    before may still be on its way."""
    value = w.values[stmt.value]
    (combo,) = w.combos(stmt.axes)
    if set(value.layout) != set(w.tiles.dims(stmt.axes)):
        raise refuse(w.tiles, f"{stmt.value!r} is repeated where it is stored")
    text = w.read(stmt.value, stmt.axes, combo, value.layout, fp32=False)
    if stmt.dtype != value.dtype:
        text = f"{text}.to({TRITON_DTYPE[stmt.dtype]})" if value.layout else f"gl.cast({text}, {TRITON_DTYPE[stmt.dtype]})"
    source = stmt.at.source
    if (buffer := w.plan.buffer.get(f"{source}{OUT}")) is None:
        mask = w.masks(stmt.axes, combo, value.layout, stmt.at)
        w.emit(f"gl.store({w.pointer(stmt, combo, value.layout)}, {text}{f', mask={mask}' if mask else ''})")
        return
    d = w.descriptor(stmt)
    assert d is not None
    have = [a for a in d.axes if w.tiles.plans[a].tile > 1]
    tile = view(w, buffer, w.turn or "0", w.group, [w.split.size(a) for a in have])
    if have != list(value.layout):
        tile += f".permute(({', '.join(str(have.index(a)) for a in value.layout)}))"
    if again:
        w.emit("tma.store_wait(0)")
    w.emit(f"{tile}.store({text})")
    w.emit("fence_async_shared()")
    whole = view(w, buffer, w.turn or "0", w.group, buffer.box)
    w.emit(f"tma.async_copy_shared_to_global({w.box_argument(d)}, [{box_start(w, stmt.axes, d.axes)}], {whole})")
