"""All tiling expressions of a block (MCFuser, section III-A), and rules 1 and 2 on them (section III-C).

Which loops an expression has
    The *computation blocks* of a block are its contractions. Element-wise operators and row folds between them are fused
    into the statements beside them, as the paper does for memory-intensive operators, and have no loops of their own; a fold
    counts as a computation block only where it sums over an axis that no contraction has (a block without contractions is
    the pure case). *Batch axes*, which every contraction keeps in both operands and in its value, are always bound to
    blockIdx with tile 1, and so are the grid axes of splits.

Deep and flat
    A deep expression is a permutation of all axes. A flat expression is, recursively, an ordered nest of a set S of axes
    such that without S the computation blocks fall into two or more components (connected by axes that they share) that
    still have loops; the components follow in program order as branches, and each branch is any expression, deep or flat,
    over its own axes. A chain of two GEMMs (m, n, k, h) has 4! = 24 deep and the 2 flat expressions ``mn(k,h)`` and
    ``nm(k,h)``. A chain of three, C[m,n] over k, E[m,h] over n, G[m,p] over h, has 5! = 120 deep and 26 flat ones: S = {m,n}
    leaves {k} and {h,p}, S = {m,h} leaves {k,n} and {p} (4 each); S = {m,n,h}, {m,n,p} and {m,h,k} leave two single loops (6
    each).
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from itertools import permutations
from itertools import product

from fuser.disjoint import DisjointSets
from fuser.errors import UnsupportedError
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import BlockGraph
from fuser.ir.placement import MAX_TURNS
from fuser.ir.placement import entangled
from fuser.ir.tiling import TilingExpr
from fuser.lower.pieces import MMA

MAX_AXES = 7
"""Most loops whose expressions are enumerated: 7 loops have 5,040 deep expressions, 8 eight times as many."""

MAX_FOLDED = 4
"""Most loops whose expressions are enumerated where nothing is contracted."""

SHORT = 64
"""Elements of a sum beside a product up to which it is no loop."""

MAX_CHAIN = 3
"""Most contractions of a block whose inner loops are tiled. A loop around a layer of a deeper chain would do all layers before it
again in each trip, or keep one of their tiles for each."""


@dataclass(frozen=True)
class Computation:
    """A computation block of the paper: ``spatial`` axes index its value, ``reduce`` axes are summed over."""

    value: str
    spatial: frozenset[str]
    reduce: frozenset[str]
    intermediate: bool

    @property
    def axes(self) -> frozenset[str]:
        return self.spatial | self.reduce


def bindable(block: BlockGraph) -> tuple[str, ...]:
    """Axes that may be divided over the grid: they index every stored value, and nothing is summed over them."""
    return tuple(a for a in block.spatial if a not in block.reduced)


@lru_cache(maxsize=1024)
def batch_axes(block: BlockGraph) -> tuple[str, ...]:
    """Axes that every contraction keeps in both operands and in its value; none in a block without contractions."""
    contractions = [s for s in block.computes if s.contracts]
    if not contractions:
        return ()
    kept = set(bindable(block)) - {g for _, g in block.splits}
    for s in contractions:
        for value in (s.axes, *(block.by_value[a].axes for a in s.args)):
            kept &= set(value)
    return tuple(a.name for a in block.axes if a.name in kept)


@lru_cache(maxsize=1024)
def computations(block: BlockGraph) -> tuple[Computation, ...]:
    """The computation blocks in program order; see the module's text for which statements count."""
    free = {a.name for a in block.axes if a.extent == FREE} | {g for _, g in block.splits}
    outside = free | set(batch_axes(block))
    contracted = {a for s in block.computes if s.contracts for a in s.related}
    found = []
    for s in block.computes:
        if s.contracts or (s.folds and not set(s.reduce) <= contracted | free):
            spatial, reduce = frozenset(s.axes) - outside, frozenset(s.reduce) - outside
            found.append(Computation(s.value, spatial, reduce, _feeds_contraction(block, s.value)))
    return tuple(found)


def _feeds_contraction(block: BlockGraph, value: str) -> bool:
    todo, seen = [value], {value}
    while todo:
        for user in block.users(todo.pop()):
            if user.contracts:
                return True
            if user.value not in seen:
                seen.add(user.value)
                todo.append(user.value)
    return False


def expression_axes(block: BlockGraph) -> tuple[str, ...]:
    """The loops of a block's expressions, in the order of its axes."""
    used = {a for c in computations(block) for a in c.axes} - short_axes(block)
    return tuple(a.name for a in block.axes if a.name in used)


@lru_cache(maxsize=1024)
def contracted(block: BlockGraph) -> dict[str, bool]:
    """Axes of contractions; True for those that take the tensor cores' tile, one for each side of each contraction."""
    batch = set(batch_axes(block))
    found: dict[str, bool] = {}
    for s in block.computes:
        if not s.contracts:
            continue
        left, right = (set(block.by_value[a].axes) - batch for a in s.args)
        for side in (left - right, right - left, set(s.reduce)):
            if side:
                longest = max(sorted(side), key=lambda a: block.extents[a])
                found |= {a: found.get(a, False) or a == longest for a in side}
    return found


def short_axes(block: BlockGraph) -> frozenset[str]:
    """Axes without a loop in a kernel with a product: what it sums beside it, the sums of a row's groups, say, and is short (no
    loop is worth its place in the expressions, which are many times as many with each); and what no tile is smaller than."""
    if not any(s.contracts for s in block.computes):
        return frozenset()
    multiplied = {a for s in block.computes if s.contracts for a in (*s.axes, *s.reduce)}
    stored = {a for s in block.stores for a in s.axes}
    small = {a.name for a in block.axes if 1 < a.extent <= SHORT}
    tiled = {name for name, by_tensor_cores in contracted(block).items() if by_tensor_cores} - set(bindable(block))
    whole = {a.name for a in block.axes if 1 < a.extent <= MMA and a.name in tiled}
    return frozenset(a for s in block.computes if not s.contracts for a in s.reduce if a in small) - multiplied - stored | whole


def too_deep(block: BlockGraph) -> str:
    """Why a search does not enumerate the expressions of a block; empty if it does."""
    axes, chain = len(expression_axes(block)), sum(s.contracts for s in block.computes)
    most = MAX_AXES if chain else MAX_FOLDED
    if axes > most:
        return f"block {block.name!r} has {axes} loops: the expressions of more than {most} are not enumerated"
    if chain > MAX_CHAIN:
        return f"block {block.name!r} has {chain} contractions: the loops of more than {MAX_CHAIN} are not tiled"
    multiplied = {s.value for s in block.computes if s.contracts}
    if len(components([c.axes for c in computations(block) if c.value in multiplied])) > 1:
        return f"block {block.name!r} has contractions without a loop in common, which are better kernels of their own"
    if entangled(block):
        return f"block {block.name!r} folds along other axes than just before more than {MAX_TURNS} times"
    return ""


def tiling_expressions(block: BlockGraph) -> tuple[TilingExpr, ...]:
    """All deep expressions, then all flat ones. Raises :class:`UnsupportedError` beyond :data:`MAX_AXES` loops."""
    axes = expression_axes(block)
    if len(axes) > MAX_AXES:
        raise UnsupportedError(too_deep(block), "divide the chain into several kernels, or leave the sizes of some axes whole")
    return tuple(_every(axes, _needed(block, axes)))


def sub_expressions(block: BlockGraph) -> tuple[TilingExpr, ...]:
    """What rule 1 leaves of all expressions of a block that is not :func:`too_deep`: found once for blocks whose computations
    have the same loops."""
    axes = expression_axes(block)
    return _left(axes, frozenset(axes).intersection(bindable(block)), _needed(block, axes))


def _needed(block: BlockGraph, axes: Sequence[str]) -> tuple[frozenset[str], ...]:
    """The loops of each computation: what is whole (:func:`short_axes`) connects none of them."""
    return tuple(c.axes & set(axes) for c in computations(block))


@lru_cache(maxsize=256)
def _left(axes: tuple[str, ...], bound: frozenset[str], needs: tuple[frozenset[str], ...]) -> tuple[TilingExpr, ...]:
    return _rule1(_every(axes, needs), bound, needs)


def _every(axes: tuple[str, ...], needs: Sequence[frozenset[str]]) -> Iterator[TilingExpr]:
    yield from map(TilingExpr, permutations(axes))
    yield from _flat(axes, needs)


def _flat(axes: tuple[str, ...], needs: Sequence[frozenset[str]]) -> Iterator[TilingExpr]:
    for bits in range(2 ** len(axes)):
        nest = tuple(a for i, a in enumerate(axes) if bits >> i & 1)
        parts = components([n - set(nest) for n in needs])
        if len(parts) < 2:
            continue
        choices = []
        for part in parts:
            own = frozenset[str]().union(*part)
            inner = tuple(a for a in axes if a in own)
            choices.append([*(TilingExpr(p) for p in permutations(inner)), *_flat(inner, part)])
        for order in permutations(nest):
            for branches in product(*choices):
                yield TilingExpr(order, branches)


def components(needs: Sequence[frozenset[str]]) -> list[list[frozenset[str]]]:
    """Groups of sets that share elements directly or through others, in order of their first member; empty sets are left out."""
    own = [n for n in needs if n]
    joined = DisjointSets(range(len(own)))
    for i, j in combinations(range(len(own)), 2):
        if own[i] & own[j]:
            joined.join(i, j)
    return [[own[i] for i in members] for members in joined.sets()]


def enclosing(paths: Sequence[tuple[str, ...]], axes: frozenset[str]) -> tuple[str, ...]:
    """Of the paths of an expression the loops around a statement under the default placement: those down to its rightmost
    related loop."""
    best = max(paths, key=lambda p: len(axes.intersection(p))) if len(paths) > 1 else paths[0]
    last = max((i for i, a in enumerate(best) if a in axes), default=-1)
    return best[: last + 1]


def sub_expression(block: BlockGraph, expr: TilingExpr) -> TilingExpr:
    """Rule 1's sub-tiling expression: what is left of ``expr`` in a thread block once loops are bound to blockIdx.

    A spatial loop is bound when it already encloses every computation block under the default placement, so that binding
    repeats no computation. Taken literally ("binding spatial loops") the rule would bind h in ``mnkh`` too and give 3
    expressions where the paper counts 5; this reading gives the paper's 5 for two GEMMs: nk, kn, nkh, knh and n(k,h). It
    keeps every program of the literal reading (``nk`` is in the set, with h bound) and those in which a block computes
    several tiles along h from one tile of the intermediate.
    """
    return _unbound(expr, frozenset(bindable(block)), [c.axes for c in computations(block)])


def _unbound(expr: TilingExpr, bound: frozenset[str], computed: Sequence[frozenset[str]]) -> TilingExpr:
    paths = tuple(expr.paths())
    for axes in computed:
        if not bound:
            return expr
        bound = bound.intersection(enclosing(paths, axes))
    return expr.without(bound)


def overwhelms(block: BlockGraph, expr: TilingExpr) -> str:
    """Rule 2: the intermediate of which several partial tiles would have to be kept, because a loop that sums it up stands
    outside of a loop that indexes it; empty if there is none.

    Only values that a later contraction reads are intermediates: the last value of a chain must be kept while it is summed up in
    any order (``nkh`` keeps one tile of the output for each trip of h, and the paper keeps ``nkh``). Nothing good is lost: where
    the loop that indexes the intermediate has one trip, ``kn`` and ``nk`` are the same program.
    """
    for c in computations(block):
        if not c.intermediate:
            continue
        for path in expr.paths():
            over = [i for i, a in enumerate(path) if a in c.reduce]
            if over and any(a in c.spatial for a in path[over[0] + 1 :]):
                return c.value
    return ""


def rule1(block: BlockGraph, expressions: Sequence[TilingExpr]) -> tuple[TilingExpr, ...]:
    """The distinct sub-tiling expressions, in order of first appearance."""
    bound, computed = frozenset(bindable(block)), [c.axes for c in computations(block)]
    return _rule1(expressions, bound, computed)


def _rule1(
    expressions: Iterable[TilingExpr], bound: frozenset[str], computed: Sequence[frozenset[str]]
) -> tuple[TilingExpr, ...]:
    return tuple(dict.fromkeys(_unbound(e, bound, computed) for e in expressions))


def rule2(block: BlockGraph, expressions: Sequence[TilingExpr]) -> tuple[TilingExpr, ...]:
    return tuple(e for e in expressions if not overwhelms(block, e))
