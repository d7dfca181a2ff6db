"""Tiling expressions (MCFuser, section III) and the loop tree that follows from one.

An expression is a nest of loops that may end in parallel branches: ``mnkh`` nests four loops (deep tiling); ``mn(k,h)`` runs the
loops k and h one after the other inside m and n (flat tiling). :func:`place` puts the statements of a block into the loops by dominance.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING

from fuser.errors import UsageError
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Stmt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fuser.ir.schedule import AxisPlan


@dataclass(frozen=True, order=True)
class TilingExpr:
    """``nest`` loops outermost first, then either nothing or two or more ``branches`` in sequence."""

    nest: tuple[str, ...] = ()
    branches: tuple[TilingExpr, ...] = ()

    @property
    def axes(self) -> tuple[str, ...]:
        return self.nest + tuple(a for b in self.branches for a in b.axes)

    @property
    def flat(self) -> bool:
        return bool(self.branches)

    def paths(self) -> Iterator[tuple[str, ...]]:
        """Every root-to-leaf sequence of loops."""
        if not self.branches:
            yield self.nest
        for b in self.branches:
            for p in b.paths():
                yield self.nest + p

    def without(self, axes: Iterable[str]) -> TilingExpr:
        """The expression with some loops removed (bound to blockIdx, or of extent 1); branches that become empty go."""
        gone = set(axes)
        branches = [x for b in self.branches if (x := b.without(gone)).axes]
        nest = tuple(a for a in self.nest if a not in gone)
        if len(branches) == 1:
            return TilingExpr(nest + branches[0].nest, branches[0].branches)
        return TilingExpr(nest, tuple(branches))

    def __bool__(self) -> bool:
        return bool(self.nest or self.branches)

    def __str__(self) -> str:
        dot = "." if any(len(a) > 1 for a in self.axes) else ""
        text = dot.join(self.nest)
        if self.branches:
            text += f"({','.join(map(str, self.branches))})"
        return text

    @staticmethod
    def parse(text: str, axes: Iterable[str] = ()) -> TilingExpr:
        """Read ``mn(k,h)``; names of several letters are joined by dots: ``k0.k1(n,h)``."""
        expr, rest = _parse(text.replace(" ", ""), "." in text or any(len(a) > 1 and a == text for a in axes))
        if rest:
            raise UsageError(f"cannot read the tiling expression {text!r}: {rest!r} is left over")
        if len(set(expr.axes)) != len(expr.axes):
            raise UsageError(f"the tiling expression {text!r} names a loop twice")
        return expr


def _parse(text: str, dotted: bool) -> tuple[TilingExpr, str]:
    head = text
    for i, c in enumerate(text):
        if c in "(),":
            head = text[:i]
            break
    rest = text[len(head) :]
    long = dotted or "." in head or any(c.isdigit() or c == "_" for c in head)
    nest = tuple(p for p in head.split(".") if p) if long else tuple(head)
    if not rest.startswith("("):
        return TilingExpr(nest), rest
    branches: list[TilingExpr] = []
    while rest[:1] in ("(", ","):
        branch, rest = _parse(rest[1:], dotted)
        branches.append(branch)
    if rest[:1] != ")":
        raise UsageError(f"unbalanced brackets in the tiling expression {text!r}")
    return TilingExpr(nest, tuple(branches)), rest[1:]


@dataclass(frozen=True)
class Init:
    """Set an accumulator to the identity of its fold, just before the loop that owns it."""

    value: str

    @property
    def key(self) -> str:
        return f"I_{self.value}"


@dataclass(frozen=True)
class Loop:
    """``trips`` iterations over tiles of an axis. An unrolled loop indexes accumulators that outlive it."""

    axis: str
    trips: int
    body: tuple[Loop | Init | Stmt, ...]
    unrolled: bool = False


Node = Loop | Init | Stmt


@dataclass(frozen=True)
class LoopTree:
    """The body of one block. ``owner`` maps an accumulator to the axis of the loop that owns it; ``arrays`` are the axes whose
    loops are unrolled because an accumulator keeps one tile for each of their trips."""

    body: tuple[Node, ...]
    owner: tuple[tuple[str, str], ...]
    arrays: frozenset[str]

    def walk(self) -> Iterator[tuple[Stmt | Init, tuple[Loop, ...]]]:
        """Every statement with its enclosing loops, outermost first, in program order."""

        def visit(nodes: tuple[Node, ...], loops: tuple[Loop, ...]) -> Iterator[tuple[Stmt | Init, tuple[Loop, ...]]]:
            for n in nodes:
                if isinstance(n, Loop):
                    yield from visit(n.body, (*loops, n))
                else:
                    yield n, loops

        return visit(self.body, ())

    def __str__(self) -> str:
        """In MCFuser's notation: ``n(k(L_A,L_B,C_C),L_D,C_E),S_E``."""

        def text(nodes: tuple[Node, ...]) -> str:
            return ",".join(f"{n.axis}({text(n.body)})" if isinstance(n, Loop) else n.key for n in nodes if not isinstance(n, Init))

        return text(self.body)


@dataclass(eq=False)
class _Scope:
    """A loop under construction (the root has no axis)."""

    axis: str = ""
    items: list[_Scope | Init | Stmt] = field(default_factory=list)
    parent: _Scope | None = None

    def chain(self) -> tuple[_Scope, ...]:
        """Enclosing loops, outermost first, without the root."""
        up: list[_Scope] = []
        node: _Scope | None = self
        while node is not None and node.axis:
            up.append(node)
            node = node.parent
        return tuple(reversed(up))


def place(block: BlockGraph, order: TilingExpr, plans: Mapping[str, AxisPlan]) -> LoopTree:
    """Loop tree of a block (section III-B, figures 4 and 5): loops of extent 1 are dead; a load stands at its rightmost related loop; a
    compute at the rightmost related loop of its expression; whatever reads a finished accumulator leaves the loop that owns it.

    A value that is indexed by a loop and needed in a second loop over the same axis is loaded or computed again there.
    """
    live = [a for a in order.axes if plans[a].trips > 1]
    live += [a for a, p in plans.items() if p.trips > 1 and a not in live]  # split chunks not named in the order
    paths = [tuple(a for a in p if a in live) for p in order.paths()] or [()]
    rest = tuple(a for a in live if not any(a in p for p in paths))
    paths = [p + rest for p in paths]
    return _Placer(block, live, paths, {a: plans[a].trips for a in live}).run()


class _Placer:
    def __init__(self, block: BlockGraph, live: list[str], paths: list[tuple[str, ...]], trips: dict[str, int]) -> None:
        self.block, self.live, self.live_order, self.paths, self.trips = block, frozenset(live), live, paths, trips
        self.root = _Scope()
        self.where: dict[str, list[_Scope]] = {}  # scopes in which a value has been computed
        self.owner: dict[str, _Scope] = {}  # loop whose end completes an accumulator
        self.arrays: set[str] = set()

    def run(self) -> LoopTree:
        for stmt in self.block.stmts:
            if stmt.kind == "compute":
                self.compute(stmt)
            elif stmt.kind == "store":
                self.insert(stmt, (stmt.value,), frozenset(stmt.axes))
        return LoopTree(
            self.freeze(self.root), tuple((v, s.axis) for v, s in self.owner.items()), frozenset(self.arrays)
        )

    def path(self, related: frozenset[str]) -> tuple[str, ...]:
        """Loops from the root to the rightmost related one, on the path that has most of them."""
        best = max(self.paths, key=lambda p: sum(a in related for a in p))
        last = max((i for i, a in enumerate(best) if a in related), default=-1)
        return best[: last + 1]

    def compute(self, stmt: Stmt) -> None:
        related = stmt.related & self.live
        scope = self.insert(stmt, stmt.args, related)
        over = [s for s in scope.chain() if s.axis in stmt.reduce]
        if stmt.folds and over:
            owner = over[0]
            self.owner[stmt.value] = owner
            inside = scope.chain()[scope.chain().index(owner) + 1 :]
            self.arrays |= {s.axis for s in inside if s.axis in stmt.axes}
            holder = owner.parent
            assert holder is not None
            holder.items.insert(holder.items.index(owner), Init(stmt.value))

    def insert(self, stmt: Stmt, args: tuple[str, ...], related: frozenset[str]) -> _Scope:
        """Find or open the loops of a statement, bring its operands there, and append it."""
        scope = self.root
        finished = {self.owner[a] for a in self.ancestors(args, stmt.running) if a in self.owner}
        for axis in self.path(related & self.live):
            blocked = any(x in finished and x.axis == axis for x in scope.items if isinstance(x, _Scope))
            found = self.usable(scope, axis, args, finished)
            if axis not in related and (blocked or axis not in self.wanted(stmt.value)):
                continue
            if found is None:
                found = _Scope(axis, parent=scope)
                scope.items.append(found)
            scope = found
        for a in args:
            self.bring(a, scope)
        scope.items.append(stmt)
        if stmt.kind == "compute":
            self.where.setdefault(stmt.value, []).append(scope)
        return scope

    def ancestors(self, args: tuple[str, ...], running: tuple[str, ...]) -> set[str]:
        """Operands and everything that they are computed from, without what is read while it still accumulates."""
        seen: set[str] = set()
        todo = [a for a in args if a not in running]
        while todo:
            a = todo.pop()
            if a in seen:
                continue
            seen.add(a)
            d = self.block.by_value[a]
            todo += [x for x in d.args if x not in d.running]
        return seen

    def wanted(self, value: str) -> frozenset[str]:
        """Axes of everything that is computed from a value: an unrelated loop around it is opened only for their sake."""
        found: set[str] = set()
        todo, seen = [value], {value}
        while todo:
            for user in self.block.users(todo.pop()):
                found |= user.related
                if user.value not in seen:
                    seen.add(user.value)
                    todo.append(user.value)
        return frozenset(found)

    def usable(self, scope: _Scope, axis: str, args: tuple[str, ...], finished: set[_Scope]) -> _Scope | None:
        """The last loop over ``axis`` in ``scope``, unless an operand is complete only after it or is made after it."""
        at = [i for i, x in enumerate(scope.items) if isinstance(x, _Scope) and x.axis == axis]
        if not at or scope.items[at[-1]] in finished:
            return None
        later = scope.items[at[-1] + 1 :]
        for a in args:
            for place in self.where.get(a, []):
                if any(x in place.chain() for x in later if isinstance(x, _Scope)):
                    return None
            if any(isinstance(x, Stmt) and x.kind == "compute" and x.value == a for x in later):
                return None
        loop = scope.items[at[-1]]
        assert isinstance(loop, _Scope)
        return loop

    def bring(self, value: str, scope: _Scope) -> None:
        """Make a value available in a scope: load it at its rightmost related loop, or compute it again if its loop has ended."""
        stmt = self.block.by_value[value]
        chain = (self.root, *scope.chain())
        last = max((i for i, s in enumerate(chain) if s.axis in stmt.related & self.live), default=0)
        if stmt.kind == "load":
            if not any(isinstance(x, Stmt) and x.kind == "load" and x.value == value for s in chain[: last + 1] for x in s.items):
                self.put(stmt, chain, last)
            return
        if self.available(stmt, chain):
            return
        target, over = chain[last], [a for a in self.live_order if a in stmt.reduce]
        if stmt.folds and over:
            inner = _Scope(over[0], parent=target)
            self.put(Init(value), chain, last)
            self.put(inner, chain, last)
            self.owner[value] = inner
            for axis in over[1:]:
                inner.items.append(_Scope(axis, parent=inner))
                inner = inner.items[-1]  # type: ignore[assignment]
            target = inner
            for a in stmt.args:
                self.bring(a, target)
            target.items.append(stmt)
        else:
            for a in stmt.args:
                self.bring(a, target)
            self.put(stmt, chain, last)
        self.where[value].append(target)

    def available(self, stmt: Stmt, chain: tuple[_Scope, ...]) -> bool:
        """The value survives until here: it was made in an enclosing scope, or no loop that indexes it has ended since, or it is an
        accumulator that keeps one tile for each trip of those loops."""
        for place in self.where[stmt.value]:
            loops = place.chain()
            if stmt.value in self.owner and self.owner[stmt.value] in loops:
                loops = loops[: loops.index(self.owner[stmt.value])]
            if all(s in chain or s.axis not in stmt.axes for s in loops):
                return True
        return False

    def put(self, item: _Scope | Init | Stmt, chain: tuple[_Scope, ...], last: int) -> None:
        """Insert into ``chain[last]`` before the next loop of the chain and the accumulators that it owns."""
        items = chain[last].items
        at = len(items)
        if last + 1 < len(chain):
            at = items.index(chain[last + 1])
            while at and isinstance(items[at - 1], Init):
                at -= 1
        items.insert(at, item)

    def freeze(self, scope: _Scope) -> tuple[Node, ...]:
        out: list[Node] = []
        for x in scope.items:
            if isinstance(x, _Scope):
                out.append(Loop(x.axis, self.trips[x.axis], self.freeze(x), x.axis in self.arrays))
            else:
                out.append(x)
        return tuple(out)
