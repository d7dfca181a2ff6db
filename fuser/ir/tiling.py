"""Tiling expressions (MCFuser, section III) and the loop tree that follows from one.

An expression is a nest of loops that may end in parallel branches: ``mnkh`` nests four loops (deep tiling); ``mn(k,h)`` runs the
loops k and h one after the other inside m and n (flat tiling). :func:`fuser.ir.placement.place` puts the statements
of a block into the loops by dominance.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from fuser.errors import UsageError
from fuser.ir.mugraph import Stmt


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
        return self._text("." if any(len(a) > 1 for a in self.axes) else "")

    def _text(self, dot: str) -> str:
        return dot.join(self.nest) + (f"({','.join(b._text(dot) for b in self.branches)})" if self.branches else "")

    @staticmethod
    def parse(text: str, axes: Iterable[str] = ()) -> TilingExpr:
        """Read ``mn(k,h)``; where a name has several letters all are joined by dots: ``k0.k1(n.m,h)``. ``axes`` are names
        that may occur, for a long name that stands alone."""
        text = text.replace(" ", "")
        words = re.split(r"[(),]", text)
        expr, rest = _parse(text, "." in text or any(len(a) > 1 and a in words for a in axes))
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
        return self.text

    @cached_property
    def text(self) -> str:
        """In MCFuser's notation: ``n(k(L_A,L_B,C_C),L_D,C_E),S_E``."""

        def text(nodes: tuple[Node, ...]) -> str:
            return ",".join(
                f"{n.axis}({text(n.body)})" if isinstance(n, Loop) else n.key for n in nodes if not isinstance(n, Init)
            )

        return text(self.body)
