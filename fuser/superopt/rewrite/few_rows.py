"""Products of a few rows with large weights: forms that only they are worth.

A single row is no axis of a block, so that its products are multiplications and sums. With an axis of one row, whose tile is
padded as any other, tensor cores do them and the weights are fetched ahead. That is faster where weights lie along their columns:
a sum over rows of them goes across threads otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from fuser.errors import UnsupportedError
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import Access
from fuser.ir.mugraph import Axis
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import Stmt
from fuser.superopt.rewrite.splits import split_reductions
from fuser.superopt.rewrite.stabilize import stabilize_graph

FEW = 16
"""Rows that a tile of the tensor cores has at least."""


def of_few_rows(graph: KernelGraph) -> Iterator[KernelGraph]:
    """Further forms of a µGraph whose products all have at most :data:`FEW` rows: with an axis for a single row, with one sum
    split over the grid, and with two kernels' sums split."""
    products = [(b, s) for b in graph.blocks for s in b.computes if s.contracts]
    if not products or len(graph.blocks) < len(graph.kernels) or not all(_few(b, s) for b, s in products):
        return
    rowed = with_rows(graph)
    once = split_reductions(rowed or graph)
    if rowed:
        yield stabilize_graph(rowed)
        yield from once
    if sum(any(s.contracts for s in b.computes) for b in graph.blocks) > 1:
        twice = (further for split in once for further in split_reductions(split, products=True))
        # a kernel that joins parts of two sums, or joins some to leave others, took up to half as long again as two kernels
        yield from (g for g in twice if all(sum(a.extent == FREE for a in b.axes) < 2 for b in g.blocks))


def _sides(block: BlockGraph, s: Stmt) -> tuple[set[str], set[str]]:
    a, b = (set(block.by_value[v].axes) for v in s.args)
    return a - b, b - a


def _few(block: BlockGraph, s: Stmt) -> bool:
    return min(prod(block.extents[x] for x in side) for side in _sides(block, s)) <= FEW


def with_rows(graph: KernelGraph) -> KernelGraph | None:
    """The µGraph with an axis of one row in every kernel with products of a single row with weights that lie along their columns;
    None where there is no such kernel, or where something has no dimension for it."""
    kernels = tuple(_with_row(k) if isinstance(k, BlockGraph) and _along_columns(k) else k for k in graph.kernels)
    if None in kernels or kernels == graph.kernels:
        return None
    try:
        return replace(graph, kernels=tuple(k for k in kernels if k is not None)).validate()
    except UnsupportedError:
        return None


def _vector(block: BlockGraph, s: Stmt) -> str:
    """The operand that has nothing but what is summed; empty where there is none."""
    return next((v for v in s.args if set(block.by_value[v].axes) == set(s.reduce)), "")


def _along_columns(block: BlockGraph) -> bool:
    """Whether all products of a block are of one row with loaded weights whose columns lie side by side."""
    products = [s for s in block.computes if s.contracts]
    for s in products:
        vector = _vector(block, s)
        others = [v for v in s.args if v != vector]  # none where a vector is multiplied with itself
        if not vector or not s.reduce or not others:
            return False
        weight = block.by_value[others[0]]
        if weight.access is None or not weight.access.dims or set(weight.access.dims[-1]) & set(s.reduce):
            return False
    return bool(products) and not block.splits and not any(s.indexed for s in block.computes)


def _with_row(block: BlockGraph) -> BlockGraph | None:
    row = next(n for n in ("m", "row", "row_") if n not in block.extents)
    vectors = [_vector(block, s) for s in block.computes if s.contracts]
    first = {n for v in vectors for n in (v, *block.sources[v]) if block.by_value[n].kind == "load"}
    axes: dict[str, tuple[str, ...]] = {}
    out: list[Stmt] = []
    for s in block.stmts:
        access = s.access and _placed(s.access, row)
        if s.kind == "store" and row in axes[s.value]:
            if access is None:
                return None
            s = replace(s, axes=(row, *s.axes), access=access)
        elif (s.kind == "load" and s.value in first and access) or any(row in axes[a] for a in s.args if s.kind == "compute"):
            s = replace(s, axes=(row, *s.axes), access=access)
        if s.kind != "store":
            axes[s.value] = s.axes
        out.append(s)
    if any(row not in axes[s.value] for s in block.computes if s.contracts):
        return None
    return replace(block, axes=(Axis(row, 1), *block.axes), stmts=tuple(out))


def _placed(access: Access, row: str) -> Access | None:
    """An access with the row in its last dimension of one element in front of the others."""
    free = [i for i, d in enumerate(access.dims) if not d and access.window is None]
    if not free:
        return None
    return replace(access, dims=tuple((row,) if i == free[-1] else d for i, d in enumerate(access.dims)))
