"""Placement of statements in loops by dominance (MCFuser, section III-B).

What the construction guarantees, for any order of the loops:

* every statement stands in loops over all live axes that it is related to;
* inside the loop that owns an accumulator stand only loops over the accumulator's own axes, so nothing is added twice;
* an operand is made in an enclosing scope, before its reader; a finished accumulator is read after the loop that owns it;
* a value that a statement needs and cannot see is made again where it can; what nobody reads in the end is removed.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from functools import cached_property

from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.schedule import AxisPlan
from fuser.ir.tiling import Init
from fuser.ir.tiling import Loop
from fuser.ir.tiling import LoopTree
from fuser.ir.tiling import Node
from fuser.ir.tiling import TilingExpr

MAX_TURNS = 3
"""Most folds that follow one another, each along other axes than the one before, of a block without products whose loops are
placed. All in front of such a fold is done again in a loop of its own: of 100 (Sinkhorn's) that is 170,000 statements."""


@dataclass(eq=False)
class _Leaf:
    """A statement in its place. ``owner`` is the loop that completes an accumulator; ``uses`` are the leaves that it reads."""

    node: Stmt | Init
    scope: _Scope
    owner: _Scope | None = None
    uses: list[_Leaf] = field(default_factory=list)

    @property
    def value(self) -> str:
        return self.node.value


@dataclass(eq=False)
class _Scope:
    """A loop under construction (the root has no axis)."""

    axis: str = ""
    items: list[_Scope | _Leaf] = field(default_factory=list)
    parent: _Scope | None = None

    @cached_property
    def chain(self) -> tuple[_Scope, ...]:
        """Enclosing scopes, outermost first, with the root and this one."""
        return (*(self.parent.chain if self.parent else ()), self)


@dataclass(frozen=True)
class _Spot:
    """A place in the program: the end of the last scope of ``chain``, or just before the loop ``before`` in it."""

    chain: tuple[_Scope, ...]
    before: _Scope | None = None

    def slot(self) -> int:
        """Index for an insertion: in front of the accumulators that the next loop owns."""
        items = self.chain[-1].items
        if self.before is None:
            return len(items)
        at = items.index(self.before)
        while at and _is_init(items[at - 1]):
            at -= 1
        return at

    def up_to(self, level: int) -> _Spot:
        """The spot in an enclosing scope, just before the loop that leads here."""
        return self if level == len(self.chain) - 1 else _Spot(self.chain[: level + 1], self.chain[level + 1])

    def visible(self) -> Iterator[tuple[int, _Scope | _Leaf]]:
        """Items that come before the spot in an enclosing scope, the nearest first, with the level of their scope."""
        for level in reversed(range(len(self.chain))):
            items = self.chain[level].items
            end = self.slot() if level == len(self.chain) - 1 else items.index(self.chain[level + 1])
            for item in reversed(items[:end]):
                yield level, item


def _is_init(item: _Scope | _Leaf) -> bool:
    return isinstance(item, _Leaf) and isinstance(item.node, Init)


class _Placer:
    """Places the statements of one block. ``live`` are the loops of more than one trip, outermost first; ``paths`` the sequences
    of them from the root to each leaf of the tiling expression."""

    def __init__(
        self, block: BlockGraph, live: Sequence[str], paths: Sequence[tuple[str, ...]], trips: Mapping[str, int]
    ) -> None:
        self.block, self.order, self.live = block, tuple(live), frozenset(live)
        self.paths, self.trips = paths, trips
        self.root = _Scope()
        self.made: dict[str, list[_Leaf]] = {}  # every leaf that computes a value
        self.wants: dict[str, frozenset[str]] = {}

    def run(self) -> LoopTree:
        todo: list[_Leaf] = []
        for s in self.block.stmts:
            if s.kind == "compute":
                self.insert(s)
            elif s.kind == "store":
                todo.append(self.insert(s))
        kept: set[_Leaf] = set()
        while todo:
            leaf = todo.pop()
            if leaf not in kept:
                kept.add(leaf)
                todo += leaf.uses
        owner: dict[str, str] = {}
        arrays: set[str] = set()
        for leaf in (x for made in self.made.values() for x in made if x in kept and x.owner is not None):
            assert isinstance(leaf.node, Stmt) and leaf.owner is not None
            owner[leaf.value] = leaf.owner.axis
            loops = leaf.scope.chain
            arrays |= {s.axis for s in loops[loops.index(leaf.owner) + 1 :] if s.axis in leaf.node.axes}
        return LoopTree(self.freeze(self.root, kept, arrays), tuple(owner.items()), frozenset(arrays))

    def freeze(self, scope: _Scope, kept: set[_Leaf], arrays: set[str]) -> tuple[Node, ...]:
        out: list[Node] = []
        for x in scope.items:
            if isinstance(x, _Leaf):
                if x in kept:
                    out.append(x.node)
            elif body := self.freeze(x, kept, arrays):
                out.append(Loop(x.axis, self.trips[x.axis], body, x.axis in arrays))
        return tuple(out)

    # -- what the block says ----------------------------------------------------------------------------------------------

    def path(self, related: frozenset[str]) -> tuple[str, ...]:
        """Loops from the root to the rightmost related one, on the path that has most of them; then those of other branches."""
        best = max(self.paths, key=lambda p: sum(a in related for a in p))
        last = max((i for i, a in enumerate(best) if a in related), default=-1)
        return best[: last + 1] + tuple(a for a in self.order if a in related and a not in best)

    def ancestors(self, args: Sequence[str], running: Sequence[str]) -> set[str]:
        """Operands and everything that they are computed from, without what is read while it still accumulates."""
        mine = [a for a in args if a not in running]
        return {*mine}.union(*(self.block.origins[a] for a in mine))

    def wanted(self, value: str) -> frozenset[str]:
        """Axes of everything that is computed from a value: an unrelated loop around it is opened only for their sake."""
        if value not in self.wants:
            found: set[str] = set()
            for user in self.block.users(value):
                found |= user.related
                if user.kind == "compute":
                    found |= self.wanted(user.value)
            self.wants[value] = frozenset(found)
        return self.wants[value]

    def reduced(self, stmt: Stmt) -> list[str]:
        return [a for a in self.order if stmt.folds and a in stmt.reduce]

    # -- a statement in program order ---------------------------------------------------------------------------------------

    def insert(self, stmt: Stmt) -> _Leaf:
        """Find or open the loops of a statement, bring its operands there, and append it."""
        args = stmt.args if stmt.kind == "compute" else (stmt.value,)
        related = (stmt.related if stmt.kind == "compute" else frozenset(stmt.axes)) & self.live
        origin = self.ancestors(args, stmt.running)
        finished = {leaf.owner for a in origin for leaf in self.made.get(a, ()) if leaf.owner}
        homes = self.homes(args, stmt) - related
        scope, reducing = self.root, False
        for axis in self.path(related | homes):
            if axis not in related:
                blocked = any(x in finished and x.axis == axis for x in scope.items if isinstance(x, _Scope))
                if reducing or axis not in self.wanted(stmt.value) or (blocked and axis not in homes):
                    continue
            found = self.usable(scope, axis, args, stmt.running, finished)
            if found is None:
                found = _Scope(axis, parent=scope)
                scope.items.append(found)
            scope = found
            reducing = reducing or (stmt.folds and axis in stmt.reduce)
        return self.put(stmt, _Spot(scope.chain), args)

    def homes(self, args: Sequence[str], stmt: Stmt) -> frozenset[str]:
        """Loops around the operands that index neither them nor this statement, but something that is computed later."""
        found: set[str] = set()
        for a in args:
            for leaf in self.made.get(a, ())[-1:]:
                scope = leaf.owner.parent if leaf.owner else leaf.scope
                assert scope is not None
                found |= {s.axis for s in scope.chain[1:] if a not in stmt.running}
        return frozenset(found) & self.wanted(stmt.value)

    def usable(
        self, scope: _Scope, axis: str, args: Sequence[str], running: Sequence[str], finished: set[_Scope]
    ) -> _Scope | None:
        """The last loop over ``axis`` in ``scope``, unless an operand is complete only after it or is made after it."""
        at = max((i for i, x in enumerate(scope.items) if isinstance(x, _Scope) and x.axis == axis), default=-1)
        loop = scope.items[at] if at >= 0 else None
        if not isinstance(loop, _Scope) or loop in finished:
            return None
        later = set(scope.items[at + 1 :])
        spot = _Spot(loop.chain)
        missing = [a for a in args if a in self.made and self.find(a, spot, a in running) is None]
        for a in {*missing, *self.ancestors(missing, running)}:
            if any(leaf in later or later & set(leaf.scope.chain) for leaf in self.made.get(a, ())):
                return None
        return loop

    def put(self, stmt: Stmt, spot: _Spot, args: Sequence[str]) -> _Leaf:
        """Bring the operands to a spot and put the statement there; the loop that owns an accumulator gets its :class:`Init`."""
        leaf = _Leaf(stmt, spot.chain[-1])
        leaf.uses = [self.bring(a, spot, a in stmt.running) for a in args]
        leaf.uses += [self.bring(r.maximum, spot, True) for r in stmt.rescale]
        spot.chain[-1].items.insert(spot.slot(), leaf)
        if stmt.kind != "compute":
            return leaf
        over = [s for s in spot.chain[1:] if stmt.folds and s.axis in stmt.reduce]
        if over:
            leaf.owner = over[0]
            holder = leaf.owner.parent
            assert holder is not None
            init = _Leaf(Init(stmt.value), holder, leaf.owner)
            holder.items.insert(holder.items.index(leaf.owner), init)
            leaf.uses.append(init)
        self.made.setdefault(stmt.value, []).append(leaf)
        return leaf

    # -- operands -------------------------------------------------------------------------------------------------------------

    def bring(self, value: str, spot: _Spot, running: bool) -> _Leaf:
        """The leaf that makes a value visible at a spot: one that is there, or a new one at the rightmost related loop."""
        found = self.find(value, spot, running)
        if found is not None:
            return found
        stmt = self.block.by_value[value]
        over = self.reduced(stmt)
        outside = next((i for i, s in enumerate(spot.chain) if s.axis in over), len(spot.chain))
        level = max((i for i in range(outside) if spot.chain[i].axis in stmt.related), default=0)
        spot = spot.up_to(level)
        if stmt.kind == "load":
            return self.load(stmt, spot)
        if over:
            around = {s.axis for s in spot.chain}
            scope = spot.chain[-1]
            at = spot.slot()
            for axis in (*over, *(a for a in self.order if a in stmt.axes and a not in around)):
                inner = _Scope(axis, parent=scope)
                scope.items.insert(at, inner)
                scope, at = inner, 0
            spot = _Spot(scope.chain)
        return self.put(stmt, spot, stmt.args)

    def load(self, stmt: Stmt, spot: _Spot) -> _Leaf:
        """A load at a spot; one that stands later in the same scope moves there."""
        scope = spot.chain[-1]
        same = (x for x in scope.items if isinstance(x, _Leaf) and isinstance(x.node, Stmt) and x.node is stmt)
        leaf = next(same, None)
        if leaf is None:
            leaf = _Leaf(stmt, scope)
        else:
            scope.items.remove(leaf)
        scope.items.insert(spot.slot(), leaf)
        return leaf

    def find(self, value: str, spot: _Spot, running: bool) -> _Leaf | None:
        """The leaf whose value can be read at a spot: in an enclosing scope, earlier, and complete unless read while it runs."""
        if value in self.made or self.block.by_value[value].kind == "load":
            for level, item in spot.visible():
                if isinstance(item, _Scope) or item.value != value:
                    continue
                if item.owner is None and isinstance(item.node, Stmt) and item.node.kind != "store":
                    return item
                if isinstance(item.node, Init):
                    update = next(x for x in self.made[value] if item in x.uses)
                    done = item.owner not in spot.chain
                    return update if done or (running and self.earlier(update, spot, level)) else None
        return None

    @staticmethod
    def earlier(leaf: _Leaf, spot: _Spot, level: int) -> bool:
        """A leaf of the loop ``spot.chain[level + 1]`` comes before the spot."""
        way: tuple[_Scope | _Leaf, ...] = (*leaf.scope.chain, leaf)
        for i in range(level + 1, len(spot.chain)):
            items = spot.chain[i].items
            here = items.index(spot.chain[i + 1]) if i + 1 < len(spot.chain) else spot.slot()
            if i + 1 < len(spot.chain) and way[i + 1] is spot.chain[i + 1]:
                continue
            return items.index(way[i + 1]) < here
        return False


def entangled(block: BlockGraph) -> bool:
    """Whether a block folds so often along other axes than just before that all of them are better left whole."""
    last: dict[str, tuple[int, tuple[str, ...]]] = {}
    for s in block.computes:
        turns, over = max((last[a] for a in s.args if a in last), default=(0, ()))
        last[s.value] = (turns + (s.reduce != over), s.reduce) if s.folds and s.reduce else (turns, over)
    return not block.contracts and max((turns for turns, _ in last.values()), default=0) > MAX_TURNS


def place(block: BlockGraph, order: TilingExpr, plans: Mapping[str, AxisPlan]) -> LoopTree:
    """Loop tree of a block (section III-B, figures 4, 5): loops of extent 1 are dead; a load stands at its rightmost related
    loop, a compute at that of its expression; whatever reads a finished accumulator leaves the loop that owns it.

    A value that is indexed by a loop and needed in a second loop over the same axis is loaded or computed again there. Any order
    gives a tree that computes the block: a statement whose loops stand in different branches gets them all.
    """
    trips = {a: p.trips for a, p in plans.items() if p.trips > 1}
    return place_in(block, *nest(order, trips), trips)


Paths = tuple[tuple[str, ...], ...]
"""Sequences of loops from the root to each leaf of a tiling expression."""


def nest(order: TilingExpr, live: Collection[str]) -> tuple[tuple[str, ...], Paths]:
    """What a placement sees of an order: its live loops, and the paths that they form."""
    axes = dict.fromkeys((*(a for a in order.axes if a in live), *live))  # split chunks are not named in the order
    paths = [tuple(a for a in p if a in live) for p in order.paths()] or [()]
    rest = tuple(a for a in axes if not any(a in p for p in paths))
    return tuple(axes), tuple(p + rest for p in paths)


def place_in(block: BlockGraph, live: Sequence[str], paths: Paths, trips: Mapping[str, int]) -> LoopTree:
    """:func:`place` in loops that :func:`nest` has found."""
    return _Placer(block, live, paths, {a: trips[a] for a in live}).run()
