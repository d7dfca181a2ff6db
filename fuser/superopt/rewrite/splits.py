"""Sums divided over the grid: a kernel that leaves partial results, many blocks of it, and one that joins them and goes on.

Kernels with products are split at the last of their sums (split-K, FlashDecoding's split keys), a program without any along
whatever it folds (:mod:`.partial`), where a kernel would have few blocks otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from fuser.errors import UnsupportedError
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import Access
from fuser.ir.mugraph import Axis
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Kernel
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.mugraph import live
from fuser.ir.program import accumulator
from fuser.superopt.rewrite.partial import parted
from fuser.superopt.rewrite.stabilize import stabilize_graph

LONG = 2048
"""Elements of a sum from which it may be worth parts; shorter ones are one block's."""
ROWS = 1 << 16
"""Sums that are many enough to fill any device without parts."""


SMALL = 4
"""What the second kernel of a split computes again is at most one part in so many of the largest operator."""


def split_folds(graph: KernelGraph) -> list[KernelGraph]:
    """A program of one kernel without products in two: along each axis that it folds, parts of it and what joins them."""
    (block,) = graph.blocks
    found: list[KernelGraph] = []
    for axis in block.reduced:
        folds = [s for s in block.computes if s.folds and axis in s.reduce]
        if all(prod(block.extents[a] for a in s.reduce) < LONG or prod(block.extents[a] for a in s.axes) > ROWS for s in folds):
            continue
        try:
            kernels = parted(block, axis)
            found.append(stabilize_graph(replace(graph, kernels=kernels).validate()))
        except UnsupportedError:
            continue
    return found


def split_reductions(graph: KernelGraph, products: bool = False) -> list[KernelGraph]:
    """For each kernel (with ``products``, each with contractions) and each axis that it sums over last: the same with that sum
    split over the grid, and a kernel that adds the parts and goes on. More blocks where a fused kernel has too few (split-K,
    FlashDecoding's split keys)."""
    found: list[KernelGraph] = []
    for i, kernel in enumerate(graph.kernels):
        if not isinstance(kernel, BlockGraph) or kernel.splits:
            continue
        if products and not any(s.contracts for s in kernel.computes):
            continue
        for axis in last_reductions(kernel):
            if kernel.extents[axis] == FREE:  # of parts that it adds
                continue
            try:
                first, second = split_block(kernel, axis)
            except UnsupportedError:
                continue  # what follows the sums needs more of the first kernel than the sums
            before, after = graph.kernels[:i], graph.kernels[i + 1 :]
            chains: list[tuple[Kernel, ...]] = [(*before, first, second, *after)]
            needed = (*graph.outputs, *(t for k in after[1:] for t in k.inputs))
            if after and isinstance(after[0], BlockGraph) and (joined := join(second, after[0], needed)):
                chains.append((*before, first, joined, *after[1:]))
            for kernels in chains:
                try:
                    found.append(stabilize_graph(replace(graph, kernels=kernels).validate()))
                except UnsupportedError:
                    continue
    return found


def join(first: BlockGraph, second: BlockGraph, needed: Sequence[str] = ()) -> BlockGraph | None:
    """Two kernels as one block that computes what the first stores where the second would load it, once more in each block of
    the grid; ``None`` where the second reads it under another shape, or others need it too (``needed``: outputs, and what
    kernels behind them read)."""
    stores = {s.access.tensor: s for s in first.stores if s.access}
    loads = [s for s in second.loads if s.access and s.access.tensor in stores]
    if set(stores) & set(needed) or {s.access.tensor for s in loads if s.access} != set(stores):
        return None
    value: dict[str, str] = {}
    for s in loads:
        made = stores[s.access.tensor]  # type: ignore[union-attr]
        if s.access != made.access or s.dtype != made.dtype:
            return None
        value[s.value] = made.value
    mine = [s for s in first.stmts if s.kind != "store"]
    names = {s.value for s in mine}
    theirs = [replace(s, args=tuple(value.get(a, a) for a in s.args)) for s in second.stmts if s not in loads]
    if clash := {s.value for s in theirs if s.kind != "store"} & names:
        same = {s.value for s in theirs if s.kind == "load" and s in mine}
        if clash - same:
            return None
        theirs = [s for s in theirs if s.value not in same or s.kind == "store"]
    extents = dict(first.extents)
    if any(extents.get(a.name, a.extent) != a.extent for a in second.axes):
        return None
    axes = (*first.axes, *(a for a in second.axes if a.name not in extents))
    return BlockGraph(second.name, axes, (*mine, *theirs), (*first.splits, *second.splits)).validate()


def last_reductions(block: BlockGraph) -> tuple[str, ...]:
    """Axes over which something is summed that no other sum follows; behind a long product, but sums of its rows: statistics of a
    normalization, say."""
    folds = [s for s in block.computes if s.folds]
    found: dict[str, None] = {}
    for s in folds:
        later = [t for t in folds if t is not s and t.reduce and s.value in _ancestors(block, t)]
        rows = s.contracts and prod(block.extents[a] for a in s.reduce) >= LONG
        rows = rows and not any(t.contracts or t.running or set(t.reduce) - set(s.axes) for t in later)
        # where nothing in between is stored, cutting there and joining has the same kernels
        rows = rows and any(x.value in _ancestors(block, t) for x in block.stores for t in later)
        if (rows or not later) and len(s.reduce) == 1 and s.adds:
            found[s.reduce[0]] = None
    return tuple(found)


def _ancestors(block: BlockGraph, stmt: Stmt) -> frozenset[str]:
    seen: set[str] = set()
    todo = list(stmt.args)
    while todo:
        value = todo.pop()
        if value not in seen:
            seen.add(value)
            todo += block.by_value[value].args
    return frozenset(seen)


def split_block(block: BlockGraph, axis: str) -> tuple[BlockGraph, BlockGraph]:
    """The block up to its sums over ``axis``, each part of which another block of the grid does, and the block that adds the
    partial results and does what follows.

    Raises :class:`UnsupportedError` where what follows needs a value of the first block that is neither loaded nor such a sum.
    """
    parts = f"{axis}_part"
    while parts in block.extents:
        parts += "_"
    sums = [s for s in block.computes if s.folds and axis in s.reduce]
    if any(not s.adds or len(s.reduce) > 1 or axis in s.axes for s in sums):
        raise UnsupportedError(f"the sums of {block.name!r} over {axis!r} cannot be split")
    partial = {s.value for s in sums}
    after = {s.value for s in block.computes if partial & _ancestors(block, s)}
    if after & partial:
        raise UnsupportedError(f"a sum over {axis!r} of {block.name!r} needs another one")
    head: list[Stmt] = []
    loads: list[Stmt] = []
    for s in block.stmts:
        if s.value in partial and s.kind == "compute":
            head.append(replace(s, axes=(parts, *s.axes)))
        elif s.kind != "store" and s.value not in after:
            head.append(s)
    tail = [s for s in block.stmts if (s.kind == "store" or s.value in after)]
    if any(s.kind == "store" and s.value not in after | partial for s in tail):
        raise UnsupportedError(f"{block.name!r} stores a value that is not summed over {axis!r}")
    begin: list[Stmt] = []
    for s in sums:
        stored = next((t.access for t in block.stores if t.value == s.value), None)
        tensor = f"{stored.tensor if stored else s.value}_part"
        access = Access(tensor, tuple((a,) for a in (parts, *s.axes)))
        # partial sums stay in fp32: rounding them would cost accuracy that the one-kernel form has
        head.append(Stmt("store", s.value, access.axes, accumulator(s.dtype), access=access))
        begin.append(Stmt("load", f"{s.value}_part", access.axes, accumulator(s.dtype), access=access))
        begin.append(Stmt("compute", s.value, s.axes, s.dtype, "sum", (f"{s.value}_part",), (parts,)))
    made = {s.value for s in (*begin, *tail)}
    again: set[str] = set()
    for name in dict.fromkeys(a for s in tail for a in s.args):
        if name in made:
            continue
        source = block.by_value[name]
        if source.kind == "load":
            loads.append(source)
            continue
        if any(axis in (*block.by_value[v].axes, *block.by_value[v].reduce) for v in (name, *_ancestors(block, source))):
            raise UnsupportedError(f"what follows the split of {block.name!r} needs {name!r} of the first kernel")
        again |= {name, *_ancestors(block, source)}
    work = {s.value: prod(block.extents[a] for a in s.related) for s in block.computes}
    if SMALL * sum(work[v] for v in again & set(work)) > max(work.values()):
        raise UnsupportedError(f"what follows the split of {block.name!r} would compute most of the first kernel again")
    # what the split has no part in is computed again: a term beside the sums, say
    loads = [s for s in block.stmts if s.kind != "store" and (s in loads or s.value in again)]
    stmts = (*begin, *loads, *tail)
    free = (Axis(parts, FREE),)

    def used(statements: Sequence[Stmt]) -> tuple[Axis, ...]:
        names = {a for s in statements for a in (*s.axes, *s.reduce, *s.constant_axes)}
        return free + tuple(a for a in block.axes if a.name in names)

    needed = live(head)
    first = BlockGraph(f"{block.name}_split", used(needed), needed, ((axis, parts),))
    return first.validate(), BlockGraph(f"{block.name}_sum", used(stmts), stmts).validate()
