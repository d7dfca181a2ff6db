"""True rewritings that depend on sizes, on where elements lie, and on types: the counterpart of
:mod:`experiments.mirage.boundaries`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from experiments.mirage.boundaries import behind
from experiments.mirage.boundaries import made
from experiments.mirage.edit import NotApplicable
from experiments.mirage.edit import fresh
from experiments.mirage.edit import pick
from experiments.mirage.edit import some_compute
from experiments.mirage.edit import swap
from fuser.errors import ProgramError
from fuser.ir.access import Access
from fuser.ir.access import Window
from fuser.ir.libraries import products
from fuser.ir.libraries import with_library
from fuser.ir.mugraph import AXIS
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import Axis
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar

Rewrite = Callable[[BlockGraph, np.random.Generator], BlockGraph]


def _no_maximum(s: Stmt) -> Stmt:
    if s.running or s.rescale or s.maximizes:
        raise NotApplicable("a running maximum is a form of its own")
    return s


def number_for_extent(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """The value of a constant at this size: 1/8 for 64^(-1/2)."""
    s = pick(rng, [s for s in block.computes if s.constant_axes and all(block.extents[a] != FREE for a in s.constant_axes)])
    value = Scalar.of(s.attr["scalar"]).bind(lambda e: block.extents[e.tensor])
    return swap(block, s, replace(s, attrs=(("scalar", value),)))


def factor_and_inverse(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """x · c / c, for a number, an extent or a number of parts."""
    s = _no_maximum(some_compute(rng, block))
    axis = Extent(pick(rng, [a.name for a in block.axes]), AXIS)
    factor = Scalar.power(axis, 1) if rng.integers(2) else Scalar.of(int(rng.integers(2, 9)))
    if any(u.op in ("exp", "causal_mask") for u in block.users(s.value)):
        factor = Scalar.of(2)
    up = made(block, s, "scale", s.value, scalar=factor)
    down = replace(made(block, s, "scale", up.value, scalar=factor.inverse()), value=f"{up.value}_")
    return behind(block, s, up, down)


def mask_again(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """A mask that is weaker than one before it, or that masks nothing."""
    masks = [s for s in block.computes if s.masks]
    if masks and rng.integers(3):
        s = pick(rng, masks)
        more = int(rng.integers(0, block.extents.get(s.attr["cols"], 1)))
        attrs = {**s.attr, "offset": s.attr.get("offset", 0) + more}
        return behind(block, s, made(block, s, "causal_mask", s.value, **attrs))
    into = [block.by_value[s.args[0]] for s in block.computes if s.exponential]
    s = pick(rng, [s for s in into if len(s.axes) > 1 and s.kind == "compute" and not s.folds])
    rows, cols = (str(a) for a in rng.permutation(list(_no_maximum(s).axes))[:2])
    return behind(
        block,
        s,
        made(block, s, "causal_mask", s.value, rows=rows, cols=cols, offset=block.extents[cols] - 1 + int(rng.integers(2))),
    )


def choice_of_one(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """where(c, x, x) = x."""
    s = _no_maximum(some_compute(rng, block))
    before = block.stmts[: block.stmts.index(s) + 1]
    found = [t for t in before if t.kind != "store" and set(t.axes) <= set(s.axes) and not t.running and not t.maximizes]
    c = pick(rng, found)
    return behind(block, s, made(block, s, "where", c.value, s.value, s.value))


def wider_type(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """A value in single precision; what is stored behind a cast to it would have to be in single precision too."""
    s = pick(rng, [s for s in block.computes if s.dtype in ("float16", "float32")])
    return swap(block, s, replace(s, dtype="float32"))


def spare_store(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """A value that is stored and that nothing reads."""
    stored = set(block.stores[0].axes)
    s = _no_maximum(some_compute(rng, block))
    if not s.axes or not set(s.axes) <= stored or any(t.rescale for t in block.stmts):
        raise NotApplicable("a value inside of a loop")
    access = Access(f"{block.name}_{fresh(block, 'spare')}", tuple((a,) for a in s.axes))
    return replace(block, stmts=(*block.stmts, Stmt("store", s.value, access.axes, s.dtype, access=access)))


def sum_of_pieces(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """Σ over an axis as the sum of Σ over two parts of it, each read through a window."""
    tied = {a for s in block.stmts for a in s.constant_axes}
    found = []
    for s in block.computes:
        if s.op in ("sum", "matmul") and len(s.reduce) == 1 and not s.rescale and not block.splits:
            (axis,) = s.reduce
            loads = [block.by_value[a] for a in dict.fromkeys(s.args)]
            plain = all(x.access and not x.access.window and (axis not in x.axes or (axis,) in x.access.dims) for x in loads)
            if plain and axis not in tied and block.extents[axis] > 3:
                found.append(s)
    s = pick(rng, found)
    (axis,), extent = s.reduce, block.extents[s.reduce[0]]
    cut = extent // 2 if rng.integers(2) else int(rng.integers(1, extent))
    new: list[Stmt] = []
    for i, (first, size) in enumerate(((0, cut), (cut, extent - cut))):
        name = f"{axis}_{i}"
        if name in block.extents:
            raise NotApplicable("cut already")
        block = replace(block, axes=(*block.axes, Axis(name, size)))
        args = []
        for a in s.args:
            load = block.by_value[a]
            if axis not in load.axes:
                args.append(a)
                continue
            starts = tuple(first if d == (axis,) else 0 for d in load.at.dims)
            dims = tuple((name,) if d == (axis,) else d for d in load.at.dims)
            window = Window(load.at.tensor, load.at.shape(block.extents), starts)
            access = Access(f"{load.at.tensor}{list(starts)}", dims, window)
            axes = tuple(a for a in (x.name for x in block.axes) if a in access.axes)
            value = f"{a}_{s.value}_{i}"
            if all(x.value != value for x in new):
                new.append(replace(load, value=value, axes=axes, access=access))
            args.append(value)
        new.append(replace(s, value=f"{s.value}_{i}", args=tuple(args), reduce=(name,)))
    total = Stmt("compute", s.value, s.axes, s.dtype, "add", (f"{s.value}_0", f"{s.value}_1"))
    return swap(block, s, *new, total)


def axis_of_two(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """An axis as the product of two."""
    kept = {x for pair in block.splits for x in pair} | {v for s in block.computes for k, v in s.attrs if k in ("rows", "cols")}
    kept |= {a for s in block.stmts for a in s.constant_axes} | {
        a for s in block.stmts if s.rescale or s.maximizes for a in s.reduce
    }
    kept |= {a for s in block.loads if s.access and s.access.window for a in s.axes}
    whole = [a for a in block.axes if a.name not in kept and a.extent > 3 and _factors(a.extent)]
    axis = pick(rng, whole)
    inner = pick(rng, _factors(axis.extent))
    outer, two = Axis(f"{axis.name}_o", axis.extent // inner), Axis(f"{axis.name}_i", inner)
    if {outer.name, two.name} & set(block.extents):
        raise NotApplicable("divided already")

    def names(axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(n for a in axes for n in ((outer.name, two.name) if a == axis.name else (a,)))

    def access(x: Access | None) -> Access | None:
        return x and replace(x, dims=tuple(names(d) for d in x.dims))

    return replace(
        block,
        axes=tuple(n for a in block.axes for n in ((outer, two) if a is axis else (a,))),
        stmts=tuple(replace(s, axes=names(s.axes), reduce=names(s.reduce), access=access(s.access)) for s in block.stmts),
    )


def _factors(n: int) -> list[int]:
    return [i for i in range(2, n) if n % i == 0]


REARRANGEMENTS: dict[str, Rewrite] = {
    f.__name__: f
    for f in (
        number_for_extent, factor_and_inverse, mask_again, choice_of_one, wider_type, spare_store, sum_of_pieces, axis_of_two,
    )
}  # fmt: skip


def library(graph: KernelGraph, rng: np.random.Generator) -> KernelGraph:
    """Some of the products done by a library."""
    found = products(graph)
    chosen = [n for n in found if rng.integers(2)] or [pick(rng, found)]
    try:
        return with_library(graph, chosen)
    except ProgramError as error:
        raise NotApplicable(error.message) from error
