"""True rewritings of µGraphs by the algebra of the op table, applied at random places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from experiments.mirage.edit import NotApplicable
from experiments.mirage.edit import fresh
from experiments.mirage.edit import pick
from experiments.mirage.edit import some_compute
from experiments.mirage.edit import swap
from experiments.mirage.edit import tidy
from experiments.mirage.edit import with_block
from experiments.mirage.rearrangements import REARRANGEMENTS
from experiments.mirage.rearrangements import library
from fuser.errors import ProgramError
from fuser.errors import UnsupportedError
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.scalar import Scalar
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.superopt.rewrite.postpone import postpone_divisions
from fuser.superopt.rewrite.splits import split_block
from fuser.superopt.rewrite.stabilize import stabilize_graph

Rewrite = Callable[[BlockGraph, np.random.Generator], BlockGraph]


def _pair(block: BlockGraph, rng: np.random.Generator, outer: tuple[str, ...], inner: tuple[str, ...]) -> tuple[Stmt, int, Stmt]:
    """A statement, the position of an operand, and the statement that makes that operand."""
    found = [
        (s, i, block.by_value[a])
        for s in block.computes
        for i, a in enumerate(s.args)
        if s.op in outer and block.by_value[a].op in inner and not s.rescale and not block.by_value[a].rescale
    ]
    return pick(rng, found)


def commute(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    s = pick(rng, [s for s in block.computes if s.entry.commutative or s.contracts])
    return swap(block, s, replace(s, args=(s.args[1], s.args[0])))


def associate(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """(a ∘ b) ∘ c = a ∘ (b ∘ c) for sums and products."""
    op = pick(rng, ("add", "mul"))
    s, i, t = _pair(block, rng, (op,), (op,))
    other = s.args[1 - i]
    inner = Stmt("compute", fresh(block, "assoc"), s.axes, s.dtype, op, (t.args[1], other))
    return swap(block, s, inner, replace(s, args=(t.args[0], inner.value)))


def reassociate(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """(A B) D = A (B D): the contraction of the outer product before the inner one."""
    s, i, t = _pair(block, rng, ("matmul",), ("matmul",))
    other = s.args[1 - i]
    j = int(rng.integers(2))
    stay, go = t.args[j], t.args[1 - j]
    if set(block.by_value[stay].axes) & set(s.reduce) or set(block.by_value[other].axes) & set(t.reduce) or block.splits:
        raise NotApplicable("an axis stands on both sides")
    inner = Stmt("compute", fresh(block, "chain"), (), s.dtype, "matmul", (go, other), s.reduce)
    return swap(block, s, inner, replace(s, args=(stay, inner.value), reduce=t.reduce))


def distribute(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """A product with a sum or a difference becomes a sum of products."""
    s, i, t = _pair(block, rng, ("mul", "matmul"), ("add", "sub"))
    if s.contracts and any(not set(s.reduce) <= {x for v in (a, s.args[1 - i]) for x in block.by_value[v].axes} for a in t.args):
        raise NotApplicable("a summand lacks the contracted axis")
    parts = []
    for a in t.args:
        args = (a, s.args[1]) if i == 0 else (s.args[0], a)
        parts.append(replace(s, value=fresh(block, f"part{len(parts)}_"), args=args))
    return swap(block, s, *parts, Stmt("compute", s.value, s.axes, s.dtype, t.op, tuple(p.value for p in parts)))


def collect(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """(a + b) / c = a/c + b/c."""
    s, i, t = _pair(block, rng, ("div",), ("add", "sub"))
    if i != 0:
        raise NotApplicable("a sum in the denominator")
    parts = [replace(s, value=fresh(block, f"over{j}_"), args=(a, s.args[1])) for j, a in enumerate(t.args)]
    return swap(block, s, *parts, Stmt("compute", s.value, s.axes, s.dtype, t.op, tuple(p.value for p in parts)))


def divide_first(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """(Σ x y) / d = Σ (x / d) y."""
    s, i, t = _pair(block, rng, ("div",), ("matmul", "sum", "mul"))
    if i != 0 or block.splits:
        raise NotApplicable("a contraction in the denominator")
    if set(block.by_value[s.args[1]].axes) & set(t.reduce):
        raise NotApplicable("the denominator has an axis of that name")
    j = int(rng.integers(len(t.args)))
    ratio = Stmt("compute", fresh(block, "ratio"), (), s.dtype, "div", (t.args[j], s.args[1]))
    args = tuple(ratio.value if k == j else a for k, a in enumerate(t.args))
    return swap(block, s, ratio, replace(t, value=s.value, args=args))


def divide_last(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """Divisions behind contractions."""
    if any(s.running or s.rescale for s in block.stmts):
        raise NotApplicable("a running maximum is there already")
    return postpone_divisions(block)


def denominators(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """(a / b) / c = a / (b c)."""
    s, i, t = _pair(block, rng, ("div",), ("div",))
    if i != 0:
        raise NotApplicable("a quotient in the denominator")
    product = Stmt("compute", fresh(block, "den"), (), s.dtype, "mul", (t.args[1], s.args[1]))
    return swap(block, s, product, replace(s, args=(t.args[0], product.value)))


def split_sum(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """A sum over several axes, one after the other; or a product with a sum over an axis of only one operand taken first."""
    spots = []
    for s in block.computes:
        if s.rescale or not s.folds or block.splits:
            continue
        if s.op in ("sum", "max") and len(s.reduce) > 1:
            spots.append((s, 0, s.reduce[:1]))
        if s.contracts:
            for i in (0, 1):
                alone = set(s.reduce) & set(block.by_value[s.args[i]].axes) - set(block.by_value[s.args[1 - i]].axes)
                if alone:
                    spots.append((s, i, tuple(sorted(alone))))
    spot = pick(rng, spots)
    s, i, over = spot
    op = s.op if s.maximizes else "sum"
    inner = Stmt("compute", fresh(block, "inner"), (), s.dtype, op, (s.args[i],), over)
    args = tuple(inner.value if j == i else a for j, a in enumerate(s.args))
    rest = tuple(a for a in s.reduce if a not in over)
    if rest:
        return swap(block, s, inner, replace(s, args=args, reduce=rest))
    return swap(block, s, inner, replace(s, op="mul", args=args, reduce=()))


def square_as_product(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    s = some_compute(rng, block, "square")
    return swap(block, s, replace(s, op="mul", args=(s.args[0], s.args[0])))


def product_as_sum(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """A contraction as an element-wise product and a sum."""
    s = some_compute(rng, block, "matmul")
    if block.splits:
        raise NotApplicable("partial results")
    product = Stmt("compute", fresh(block, "product"), (), s.dtype, "mul", s.args)
    return swap(block, s, product, replace(s, op="sum", args=(product.value,)))


def move_scale(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """A constant factor before or behind a linear operator."""
    s, _, t = _pair(block, rng, ("scale", "neg"), ("matmul", "sum", "mul", "div", "scale"))
    if block.splits:
        raise NotApplicable("partial results")
    inner = replace(s, value=fresh(block, "scaled"), args=(t.args[0],))
    return swap(block, s, inner, replace(t, value=s.value, args=(inner.value, *t.args[1:])))


def as_quotient(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """sub, scale and neg in terms of each other: a − b = a + (−b); −x = x · (−1)."""
    s = some_compute(rng, block, "sub", "neg")
    if s.running or (s.op == "sub" and block.by_value[s.args[1]].maximizes):
        raise NotApplicable("a shift by a maximum is a form of its own")
    if s.op == "neg":
        return swap(block, s, replace(s, op="scale", attrs=(("scalar", Scalar.of(-1)),)))
    negative = Stmt("compute", fresh(block, "minus"), (), s.dtype, "neg", (s.args[1],))
    return swap(block, s, negative, replace(s, op="add", args=(s.args[0], negative.value)))


def unfold_function(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """silu(x) = x · sigmoid(x)."""
    s = some_compute(rng, block, "silu")
    gate = Stmt("compute", fresh(block, "gate"), (), s.dtype, "sigmoid", s.args)
    return swap(block, s, gate, replace(s, op="mul", args=(s.args[0], gate.value)))


def exp_of_sum(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """exp(a + b) = exp(a) · exp(b), exp(a − b) = exp(a) / exp(b)."""
    s, _, t = _pair(block, rng, ("exp",), ("add", "sub"))
    if t.running or (t.op == "sub" and block.by_value[t.args[1]].maximizes):
        raise NotApplicable("a shift by a maximum is a form of its own")
    parts = [Stmt("compute", fresh(block, f"e{i}_"), (), s.dtype, "exp", (a,)) for i, a in enumerate(t.args)]
    return swap(block, s, *parts, replace(s, op="mul" if t.op == "add" else "div", args=tuple(p.value for p in parts)))


REWRITES: dict[str, Rewrite] = {
    f.__name__: f
    for f in (
        commute, associate, reassociate, distribute, collect, divide_first, divide_last, denominators, split_sum,
        square_as_product,
        product_as_sum, move_scale, as_quotient, unfold_function, exp_of_sum,
    )
} | REARRANGEMENTS  # fmt: skip


_FREE = (
    "commute",
    "product_as_sum",
    "move_scale",
    "as_quotient",
    "factor_and_inverse",
    "wider_type",
    "choice_of_one",
    "axis_of_two",
)
"""Rewritings that nearly always apply; taken less often, so that the others have their share."""


def split(graph: KernelGraph, rng: np.random.Generator) -> KernelGraph:
    """The last contraction of a kernel split over the grid, with a kernel that adds the parts."""
    block = graph.blocks[int(rng.integers(len(graph.blocks)))]
    folds = [s for s in block.computes if s.folds]
    if (
        not folds
        or not folds[-1].contracts
        or len(block.stores) != 1
        or block.splits
        or any(s.rescale or s.running for s in block.stmts)
    ):
        raise NotApplicable("nothing that splits")
    try:
        return with_block(graph, block, *split_block(block, folds[-1].reduce[0]))
    except (UnsupportedError, ProgramError) as error:  # other folds over the same axis, or an epilogue that needs more
        raise NotApplicable(error.message) from error


def rewrite(graph: KernelGraph, rng: np.random.Generator, steps: int) -> tuple[tuple[str, ...], KernelGraph]:
    """``steps`` random rewritings; sometimes a split at the end, sometimes a running maximum."""
    done: list[str] = []
    for _ in range(40 * steps):
        if len(done) == steps:
            break
        name = list(REWRITES)[int(rng.integers(len(REWRITES)))]
        if name in _FREE and rng.random() < 0.8:
            continue
        block = graph.blocks[int(rng.integers(len(graph.blocks)))]
        try:
            new = with_block(graph, block, tidy(REWRITES[name](block, rng)))
        except (NotApplicable, ProgramError):
            continue
        if new.kernels != graph.kernels:
            graph = new
            done.append(name)
    if rng.random() < 0.4:
        try:
            graph = split(graph, rng)
            done.append("split")
        except NotApplicable:
            pass
    if rng.random() < 0.5 and not any(s.running for b in graph.blocks for s in b.stmts):
        stable = stabilize_graph(graph)
        done += ["stabilize"] if stable.kernels != graph.kernels else []
        graph = stable
    if rng.random() < 0.3:
        try:
            graph = library(graph, rng)
            done.append("library")
        except NotApplicable:
            pass
    return tuple(done), graph


def random_schedule(graph: KernelGraph, rng: np.random.Generator) -> Schedule:
    """Loops in a random order, a random choice of divided axes."""
    kernels = []
    for b in graph.blocks:
        counts = {g for _, g in b.splits}
        loops = [a for a in b.reduced if b.extents[a] > 1 and a not in counts]
        chosen = [loops[i] for i in rng.permutation(len(loops))]
        free = [a for a in b.spatial if a not in b.reduced and a not in counts and b.extents[a] > 1]
        divided = [a for a in free if rng.random() < 0.7]
        tiles = {a: max(1, b.extents[a] // int(rng.integers(2, 5))) for a in (*chosen, *divided)}
        kernels.append(
            KernelSchedule(tuple(sorted(tiles.items())), TilingExpr(tuple(chosen)), tuple((g, 2) for g in sorted(counts)))
        )
    return Schedule(tuple(kernels))
