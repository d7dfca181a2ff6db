"""µGraphs with device tensors in another layout: in longer rows (:mod:`fuser.ir.rows`)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import replace

from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import Stmt


def laid(graph: KernelGraph, rows: Iterable[tuple[str, int]]) -> KernelGraph | None:
    """The graph with these of its inputs and outputs in rows of so many elements (0: row after row); None where some kernel
    cannot take one of them so. What lies between its kernels stays as it is."""
    wanted = {name: n for name, n in rows if name in graph.table}

    def of(s: Stmt, extents: Mapping[str, int]) -> Stmt | None:
        if s.access is None or s.access.source not in wanted:
            return s
        last = s.access.dims[-1] if s.access.dims else ()
        if s.access.window or len(last) != 1 or extents[last[0]] != graph.table[s.access.source].shape[-1]:
            return None
        return replace(s, access=replace(s.access, pitch=wanted[s.access.source]))

    kernels = []
    for k in graph.kernels:
        if not isinstance(k, BlockGraph):
            if wanted.keys() & {*k.inputs, *k.outputs}:
                return None
            kernels.append(k)
            continue
        stmts = tuple(s for s in (of(s, k.extents) for s in k.stmts) if s is not None)
        if len(stmts) < len(k.stmts):
            return None
        kernels.append(replace(k, stmts=stmts))
    return replace(graph, kernels=tuple(kernels)).validate()


def in_memory(graph: KernelGraph) -> KernelGraph:
    """The graph over tensors of the sizes that they take in memory: what lies in longer rows is as wide as these."""
    rows = rows_of(graph)
    sizes = (replace(t, shape=(*t.shape[:-1], rows[t.name])) if t.name in rows else t for t in graph.tensors)
    return replace(graph, tensors=tuple(sizes)) if rows else graph


def rows_of(graph: KernelGraph) -> Mapping[str, int]:
    """The tensors of a graph that lie in longer rows, and how long these are."""
    return {s.access.source: s.access.pitch for b in graph.blocks for s in b.stmts if s.access and s.access.pitch}


def longer_axes(block: BlockGraph) -> dict[str, int]:
    """Axes of rows that are stored longer than their columns, and how long: tiles leave zeros up to there."""
    return {s.access.axes[-1]: s.access.pitch for s in block.stores if s.access and s.access.pitch}


def reaches(extent: int, tile: int, pitch: int) -> bool:
    """Whether tiles of ``extent`` columns go on to the end of a row of ``pitch``."""
    return tile >= extent or math.ceil(extent / tile) * tile >= pitch
