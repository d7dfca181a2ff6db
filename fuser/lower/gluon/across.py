"""One place of the grid after the other, without a gap: the last late products of a place run beside the first products and the
element-wise work of the next one, as they do from trip to trip.

What a loop accumulates in its front is the next place's when the present one's results are written, so that what these need is
set aside first; where the block is, is found again.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace

from fuser.errors import NoValidKernelError
from fuser.ir.mugraph import Stmt
from fuser.ir.tiling import Init
from fuser.ir.tiling import Loop
from fuser.ir.tiling import Node
from fuser.lower.fold_code import settle
from fuser.lower.gluon import folds
from fuser.lower.gluon.consumer import Consumer
from fuser.lower.gluon.places import Places
from fuser.lower.gluon.rings import Ring
from fuser.lower.gluon.rings import rings_among
from fuser.lower.gluon.skew import Skewed
from fuser.lower.gluon.skew import skewed
from fuser.lower.gluon.skew import trips_of
from fuser.lower.gluon.split import refuse
from fuser.lower.options import FLATTEN
from fuser.lower.writer import Value


@dataclass(frozen=True)
class Across:
    """The nodes of a place: accumulators, the loop in two halves, and what is behind it, with the rings of all."""

    inits: tuple[Init, ...]
    loop: Loop
    halves: Skewed
    after: tuple[Node, ...]
    outer: tuple[Ring, ...]
    inner: tuple[Ring, ...]
    first: int
    """The number of the first node behind the loop."""

    @property
    def back(self) -> frozenset[str]:
        return frozenset(s.value for s in self.halves.back)


def across(c: Consumer, nodes: Sequence[Node]) -> Across:
    """The form of a place whose end can run beside the next one's start: one loop with late products, and in front of it nothing
    but what the copy engine brings for products. Raises :class:`NoValidKernelError` where it is another."""
    w, loops = c.w, [n for n in nodes if isinstance(n, Loop)]
    if w.split.loop or len(loops) != 1 or any(isinstance(n, Loop) for n in loops[0].body) or loops[0].unrolled:
        raise _refused(c)
    (loop,), at = loops, nodes.index(loops[0])
    before, after = nodes[:at], tuple(nodes[at + 1 :])
    inner = tuple(rings_among(w, loop.body, 0))
    w.around.append(w.tiles.accumulated(loop))
    halves = skewed(c.w, loop, inner)
    w.around.pop()
    outer = tuple(rings_among(w, nodes, 0))
    brought = {s for r in outer for s in r.loads if w.layout(s.value) is None and r.last == at}
    plain = all(isinstance(n, Init) or n in brought for n in before)
    apart = any(w.tiles.kept(s) for s in loop.body if isinstance(s, Stmt) and s.kind == "compute")
    if halves is None or not plain or apart or any(isinstance(n, Init) for n in after):
        raise _refused(c)
    return Across(tuple(n for n in before if isinstance(n, Init)), loop, halves, after, outer, inner, at + 1)


def _refused(c: Consumer) -> NoValidKernelError:
    why = "one place cannot end beside the start of the next: that wants one loop whose last products can be a trip late"
    return refuse(c.w.tiles, why, f"leave out {FLATTEN.key()}")


def write(c: Consumer, form: Across, go: Callable[[str], None], places: Places) -> None:
    """All places of a block; ``go`` writes where it is when it is at a place of the grid."""
    w, programs = c.w, places.programs
    c.products.rings |= {s.value: r for r in (*form.outer, *form.inner) for s in r.loads}
    go(places.first)
    _enter(c, form, late=False)
    with w.out.indented(f"for at in range({places.first}, {places.count - programs}, {programs}):"):
        go(places.turn("at"))
        _inner(c, form)
        aside = _aside(c, form)
        go(places.turn(f"(at + {programs})"))
        _enter(c, form, late=True)
        c.operands(form.halves)
        go(places.turn("at"))
        kept = dict(w.values)
        w.values |= aside
        _after(c, form)
        w.values = kept
        w.forget()
    w.emit(f"at = {places.last}")
    go(places.turn("at"))
    _inner(c, form)
    with _inside(c, form):
        c.end(form.halves)
    own = w.tiles.accumulated(form.loop)
    settle(w, own)
    folds.meet(w, own)
    _after(c, form)


@contextmanager
def _inside(c: Consumer, form: Across) -> Iterator[None]:
    """What is written inside is part of the loop."""
    c.w.around.append(c.w.tiles.accumulated(form.loop))
    yield
    c.w.around.pop()


def _trips(c: Consumer, form: Across) -> str:
    return c.named_trips(form.loop, trips_of(c.w, form.loop))


def _enter(c: Consumer, form: Across, late: bool) -> None:
    """The front of a place's first trip; ``late``: beside the last products of the place before it."""
    for node in form.inits:
        if node.value not in form.back:
            c.node(node)
    trips = _trips(c, form)
    with _inside(c, form):
        c.first(form.loop, form.halves, trips, c.named_operands(form.halves) if late else {})


def _inner(c: Consumer, form: Across) -> None:
    """The other trips, up to the last late products, which are left to do."""
    for node in form.inits:
        if node.value in form.back:
            c.node(node)
    trips = _trips(c, form)
    with _inside(c, form):
        c.others(form.loop, form.halves, trips)
    c.w.forget()
    c.products.ready -= {r.name for r in form.halves.rings}  # what was waited for was another trip's
    c.products.leave(r for r in form.outer if r.loads[0] not in form.after)


def _aside(c: Consumer, form: Across) -> dict[str, Value]:
    """What the loop has accumulated in its front, under names of its own."""
    w, found = c.w, dict[str, Value]()
    read = {a for n in form.after if isinstance(n, Stmt) for a in (*n.args, *([n.value] if n.kind == "store" else []))}
    for v in sorted(w.tiles.accumulated(form.loop) - form.back):
        if v in read:
            names = {}
            for combo, name in w.values[v].names.items():
                names[combo] = w.out.beside(name, "done")
                w.emit(f"{names[combo]} = {folds.met(w, v, name) if v in w.lanes_of else name}")
            found[v] = replace(w.values[v], names=names)
    return found


def _after(c: Consumer, form: Across) -> None:
    """What is behind the loop."""
    first = form.first
    for i, node in enumerate(form.after):
        c.node(node)
        c.products.leave(r for r in form.outer if r.last == first + i)
    c.products.drain()
