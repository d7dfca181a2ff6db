"""Scores that one kernel hands to another in device memory keep fp32.

What goes into an exponential must be right to an absolute error, not to a relative one: a score of 10,000 in fp16 is off by up to
4, its exponential by a factor of 50, and a product of queries and keys before its scale may overflow. In one kernel scores are
fp32 registers; between kernels they would be rounded to the program's dtype.
"""

from __future__ import annotations

from dataclasses import replace

from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import NARROW


def widen_scores(graph: KernelGraph) -> KernelGraph:
    """The graph with every intermediate tensor that reaches an exponential without a contraction in between in fp32."""
    written = {s.access.source for b in graph.blocks for s in b.stores if s.access}
    inside = {t for t in graph.intermediates if t in written}
    wide: set[str] = set()
    # kernels in reverse: a tensor that one turns into a wide one is wide too
    for block in reversed(graph.blocks):
        wide |= _scores(block, wide) & inside
    if not wide:
        return graph
    kernels = tuple(_widened(k, wide) if isinstance(k, BlockGraph) else k for k in graph.kernels)
    return replace(graph, kernels=kernels)


def _scores(block: BlockGraph, wide: set[str]) -> set[str]:
    """Tensors that this block loads and that reach an exponential, or a wide tensor, through element-wise operators."""
    todo = [a for s in block.computes if s.exponential for a in s.args]
    todo += [s.value for s in block.stores if s.access and s.access.source in wide]
    seen: set[str] = set()
    found: set[str] = set()
    while todo:
        value = todo.pop()
        if value in seen:
            continue
        seen.add(value)
        source = block.by_value[value]
        if source.access is not None:
            found.add(source.access.source)
        elif not source.contracts:
            todo += source.args
    return found


def _widened(block: BlockGraph, wide: set[str]) -> BlockGraph:
    stmts = tuple(
        replace(s, dtype="float32") if s.access and s.access.source in wide and s.dtype in NARROW else s for s in block.stmts
    )
    return replace(block, stmts=stmts)
