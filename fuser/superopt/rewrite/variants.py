"""Further forms of one µGraph that compute the same by construction: library kernels and concatenated matmuls."""

from __future__ import annotations

from dataclasses import replace

from fuser.ir.libraries import products
from fuser.ir.libraries import with_library
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph


def with_libraries(graph: KernelGraph) -> KernelGraph | None:
    """The graph with every kernel that is a plain (batched) matmul left to a library. None where there is none, or nothing
    else: then it is the program as libraries do it."""
    found = products(graph)
    return with_library(graph, found) if found and len(found) < len(graph.blocks) else None


def concatenated(graph: KernelGraph) -> KernelGraph | None:
    """The graph with sums of two contractions marked ``concat``: one matmul (W ‖ X)(Y ‖ Z) of concatenated operands, that is
    one accumulator to which both contractions add. None where there is no such sum."""

    def marked(block: BlockGraph) -> BlockGraph:
        stmts = []
        for s in block.stmts:
            makers = [block.by_value[a] for a in s.args]
            if (
                s.op == "add"
                and all(m.contracts and m.axes == s.axes and len(block.users(m.value)) == 1 for m in makers)
                and len(set(s.args)) == 2
            ):
                s = replace(s, attrs=(*s.attrs, ("concat", True)))
            stmts.append(s)
        return replace(block, stmts=tuple(stmts))

    kernels = tuple(marked(k) if isinstance(k, BlockGraph) else k for k in graph.kernels)
    return replace(graph, kernels=kernels) if kernels != graph.kernels else None
