"""Small errors in µGraphs: a mutation makes it compute something else, most of the time, and nearly all keep it well formed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from experiments.mirage.boundaries import BOUNDARIES
from experiments.mirage.edit import NotApplicable
from experiments.mirage.edit import fresh
from experiments.mirage.edit import pick
from experiments.mirage.edit import rename_uses
from experiments.mirage.edit import replaced
from experiments.mirage.edit import some_compute
from experiments.mirage.edit import swap
from experiments.mirage.edit import tidy
from experiments.mirage.edit import with_block
from experiments.mirage.edit import without
from fuser.errors import ProgramError
from fuser.ir.mugraph import AXIS
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar

Mutation = Callable[[BlockGraph, np.random.Generator], BlockGraph]


def wrong_axis(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """A fold over another axis of its operand."""
    s = pick(rng, [s for s in block.computes if s.folds])
    have = {a for v in s.args for a in block.by_value[v].axes}
    new = pick(rng, sorted(have - set(s.reduce)))
    old = pick(rng, s.reduce)
    return swap(block, s, replace(s, reduce=tuple(str(new) if a == old else a for a in s.reduce)))


def missing_accumulator(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """A sum that keeps the largest term in place of adding, or an axis that is not summed over and stays in an earlier value."""
    s = pick(rng, [s for s in block.computes if s.folds])
    if s.sums:
        return swap(block, s, replace(s, op="max", rescale=()))
    if s.maximizes:
        return swap(block, s, replace(s, op="sum"))
    product = Stmt("compute", fresh(block, "product"), s.axes, s.dtype, "mul", s.args)
    return swap(block, s, product, replace(s, op="max", args=(product.value,), rescale=()))


def missing_reduction(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """A fold that is skipped, or that leaves out one of its axes; a later fold may take the axis."""
    s = pick(rng, [s for s in block.computes if s.folds])
    if len(s.reduce) > 1:
        return swap(block, s, replace(s, reduce=s.reduce[1:]))
    if len(s.args) == 2:
        return swap(block, s, replace(s, op="mul", reduce=(), rescale=()))
    return without(block, s, s.args[0])


def wrong_range(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """A fold over a part of its range that depends on another axis: what lies above the diagonal is left out."""
    s = pick(rng, [s for s in block.computes if s.folds])
    counts = {a.name for a in block.axes if a.extent == FREE}  # a mask over parts has no meaning of its own
    spots = [
        (i, r, c)
        for i, a in enumerate(s.args)
        for c in s.reduce
        for r in block.by_value[a].axes
        if c in block.by_value[a].axes and r not in s.reduce and not counts & {r, c}
    ]
    spot = pick(rng, spots)
    i, rows, cols = spot
    arg = block.by_value[s.args[i]]
    new = [fresh(block, f"part_{k}_") for k in ("zero", "mask", "keep", "cut")]
    attrs = (("cols", cols), ("offset", int(rng.integers(0, 3))), ("rows", rows))
    # the zero comes from a tensor that has both axes: an exponential of an exponential has no value in a field
    zero = pick(rng, [x for x in block.loads if {rows, cols} <= set(x.axes) <= set(arg.axes)])
    steps = (
        Stmt("compute", new[0], zero.axes, "float32", "sub", (zero.value, zero.value)),
        Stmt("compute", new[1], arg.axes, "float32", "causal_mask", (new[0],), (), attrs),
        Stmt("compute", new[2], arg.axes, "float32", "exp", (new[1],)),
        Stmt("compute", new[3], arg.axes, "float32", "mul", (arg.value, new[2])),
    )
    args = tuple(new[3] if j == i else a for j, a in enumerate(s.args))
    return swap(block, s, *steps, replace(s, args=args))


def swapped_operands(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    s = pick(rng, [s for s in block.computes if len(s.args) == 2 and s.args[0] != s.args[1] and not s.entry.commutative])
    if s.contracts:  # by name, the operands of a product commute: exchange them with those of another statement instead
        return wrong_operand(block, rng)
    return swap(block, s, replace(s, args=(s.args[1], s.args[0]), running=()))


def wrong_operand(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """An operand that is another value with axes that the statement can use."""
    s = some_compute(rng, block)
    before = list(itertools.takewhile(lambda x: x is not s, block.stmts))
    i = int(rng.integers(len(s.args)))
    axes = set(block.by_value[s.args[i]].axes)
    other = pick(rng, [x.value for x in before if x.kind != "store" and x.value != s.args[i] and set(x.axes) <= axes])
    return swap(block, s, replace(s, args=tuple(str(other) if j == i else a for j, a in enumerate(s.args)), running=()))


def dropped_operator(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """A unary operator (a scale, a shift, a root, an exponential) or one operand of a binary one left out."""
    s = pick(rng, [s for s in block.computes if not s.folds])
    return without(block, s, pick(rng, s.args))


def dropped_scale(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    s = some_compute(rng, block, "scale", "shift", "neg")
    return without(block, s, s.args[0])


def wrong_constant(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """A constant with another coefficient, another exponent, or tied to another extent."""
    s = some_compute(rng, block, "scale", "shift")
    value = Scalar.of(s.attr["scalar"])
    how = int(rng.integers(4))
    if how == 0:
        new = Scalar(value.coeff * Fraction(int(rng.integers(2, 9)), int(rng.integers(9, 12))), value.powers)
    elif how == 1:
        new = value.inverse()
    elif how == 2:
        new = Scalar(value.coeff, tuple((b, e * 2) for b, e in value.powers))
    else:
        names = [a for a in block.extents if block.extents[a] > 1]
        new = value.bind(lambda _: Extent(pick(rng, names), AXIS))
    if new.normal() == value.normal():
        raise NotApplicable("the same constant")
    return swap(block, s, replace(s, attrs=(("scalar", new.normal()),)))


_CONFUSED = (
    ("add", "sub", "mul", "div", "maximum"),
    ("exp", "square", "sqrt", "relu", "sigmoid", "silu", "tanh", "neg", "gelu", "rsqrt"),
    ("sum", "max"),
)


def wrong_operator(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    s = some_compute(rng, block)
    group = next((g for g in _CONFUSED if s.op in g), None)
    if group is None:
        raise NotApplicable(f"nothing is confused with {s.op}")
    other = pick(rng, [o for o in group if o != s.op])
    return swap(block, s, replace(s, op=other, running=(), rescale=() if other == "max" else s.rescale))


def wrong_access(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """A tensor that is read or written along other axes of the same extents (a transposed access, for one)."""
    s = pick(rng, [s for s in block.stmts if s.kind != "compute"])
    if rng.integers(2) or s.kind == "store":
        order = list(s.at.axes)
        i, j = rng.permutation(len(order))[:2] if len(order) > 1 else (0, 0)
        order[i], order[j] = order[j], order[i]
    else:
        old = pick(rng, s.at.axes)
        new = pick(rng, [a for a in block.extents if block.extents[a] == block.extents[old] and a not in s.at.axes])
        order = [new if a == old else a for a in s.at.axes]
    renamed = dict(zip(s.at.axes, order, strict=True))
    dims = tuple(tuple(renamed[a] for a in d) for d in s.at.dims)
    access = replace(s.at, dims=dims)
    if access.shape(block.extents) != s.at.shape(block.extents) or access == s.at:
        raise NotApplicable("the access would have another shape")
    axes = tuple(a.name for a in block.axes if a.name in order)
    return swap(block, s, replace(s, access=access, axes=axes if s.kind == "load" else access.axes))


def wrong_tensor(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """A load of another tensor of the same shape."""
    s = pick(rng, block.loads)
    shape = s.at.shape(block.extents)
    others = [x.access.tensor for x in block.loads if x.access and x.access.shape(block.extents) == shape]
    other = pick(rng, [o for o in others if o != s.at.tensor])
    return swap(block, s, replace(s, access=replace(s.at, tensor=other)))


def missing_mask(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """A causal mask that is absent, or shifted by a few elements."""
    s = some_compute(rng, block, "causal_mask")
    if rng.integers(2):
        return without(block, s, s.args[0])
    shift = pick(rng, (-2, -1, 1, 2))
    return swap(block, s, replace(s, attrs=tuple((k, v + shift if k == "offset" else v) for k, v in s.attrs)))


def wrong_degree(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """An accumulator that is not rescaled by its running maximum, or by another power of it."""
    s = pick(rng, [s for s in block.computes if s.rescale])
    if rng.integers(2):
        return swap(block, s, replace(s, rescale=()))
    degree = pick(rng, (-1, 2, 3))
    return swap(block, s, replace(s, rescale=tuple(replace(r, degree=degree) for r in s.rescale)))


def swapped_steps(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """Two element-wise operators in the wrong order: a division behind a non-linear function, a scale behind an exponential."""
    pairs = [
        (a, b)
        for a in block.computes
        for b in block.computes
        if not a.folds and not b.folds and a.op != b.op and a.value in b.args and len(block.users(a.value)) == 1 and not b.running
    ]
    pair = pick(rng, pairs)
    a, b = pair
    source = a.args[0]
    first = replace(b, value=fresh(block, "first"), args=tuple(source if x == a.value else x for x in b.args))
    last = replace(a, value=b.value, args=tuple(first.value if i == 0 else x for i, x in enumerate(a.args)))
    return swap(swap(block, b, first, last), a)


def early_value(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """The result before its last element-wise step is stored or used further: an epilogue that is missing."""
    s = pick(rng, [s for s in block.computes if not s.folds and len(s.args) == 2])
    return rename_uses(block, s.value, s.args[0], s)


ALGEBRA: dict[str, Mutation] = {
    f.__name__: f
    for f in (
        wrong_axis, missing_accumulator, missing_reduction, wrong_range, swapped_operands, wrong_operand, dropped_operator,
        dropped_scale, wrong_constant, wrong_operator, wrong_access, wrong_tensor, missing_mask, wrong_degree, swapped_steps,
        early_value,
    )
}  # fmt: skip
MUTATIONS = ALGEBRA | BOUNDARIES
_ILL_FORMED = ("wrong_store", "wrong_type")
"""What a check of the form alone may find: the mutant stands as it is."""


def mutate(
    graph: KernelGraph, rng: np.random.Generator, tries: int = 60, names: Sequence[str] = tuple(MUTATIONS)
) -> tuple[str, KernelGraph]:
    """A random mutant and the name of its mutation, one of ``names``."""
    for _ in range(tries):
        name = names[int(rng.integers(len(names)))]
        block = graph.blocks[int(rng.integers(len(graph.blocks)))]
        try:
            new = MUTATIONS[name](block, rng)
            mutant = replaced(graph, block, new) if name in _ILL_FORMED else with_block(graph, block, tidy(new))
        except (NotApplicable, ProgramError):
            continue
        if mutant.kernels != graph.kernels:
            return name, mutant
    raise NotApplicable(f"no mutation of {graph.name!r} was found")
