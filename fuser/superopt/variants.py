"""Further forms of one µGraph that compute the same by construction: library kernels and concatenated matmuls."""

from __future__ import annotations

from dataclasses import replace

from fuser.ir.mugraph import Access
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Kernel
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel


def with_libraries(graph: KernelGraph) -> KernelGraph | None:
    """The graph with every kernel that is a plain (batched) matmul left to a library. None where there is none, or nothing
    else: then it is the program as libraries do it."""
    kernels = tuple(_library(k) or k if isinstance(k, BlockGraph) else k for k in graph.kernels)
    mixed = kernels != graph.kernels and any(isinstance(k, BlockGraph) for k in kernels)
    return replace(graph, kernels=kernels) if mixed else None


def _library(block: BlockGraph) -> Kernel | None:
    """A matmul of whole tensors, if the block is no more than that."""
    if len(block.computes) != 1 or len(block.stores) != 1 or len(block.loads) != 2 or block.splits:
        return None
    (product,), (store,) = block.computes, block.stores
    if product.op != "matmul" or store.access is None or len({s.dtype for s in (*block.loads, store)}) != 1:
        return None
    operands = [block.by_value[a].access for a in product.args]
    for left, right in (operands, operands[::-1]):
        if left and right and _is_matmul(left, right, store.access, product.reduce):
            return LibraryKernel(block.name, "matmul", (left.tensor, right.tensor), store.access.tensor)
    return None


def _is_matmul(left: Access, right: Access, out: Access, reduce: tuple[str, ...]) -> bool:
    a, b, c = left.dims, right.dims, out.dims
    if min(len(a), len(b), len(c)) < 2 or set(a[-1]) != set(reduce) or a[-1] != b[-2]:
        return False
    return (*a[:-1], b[-1]) == c and b[:-2] in ((), a[:-2])


def concatenated(graph: KernelGraph) -> KernelGraph | None:
    """The graph with sums of two contractions marked ``concat``: one matmul (W ‖ X)(Y ‖ Z) of concatenated operands, that is
    one accumulator to which both contractions add. None where there is no such sum."""

    def marked(block: BlockGraph) -> BlockGraph:
        stmts = []
        for s in block.stmts:
            makers = [block.by_value[a] for a in s.args]
            if (
                s.op == "add"
                and all(m.op == "matmul" and m.axes == s.axes and len(block.users(m.value)) == 1 for m in makers)
                and len(set(s.args)) == 2
            ):
                s = replace(s, attrs=(*s.attrs, ("concat", True)))
            stmts.append(s)
        return replace(block, stmts=tuple(stmts))

    kernels = tuple(marked(k) if isinstance(k, BlockGraph) else k for k in graph.kernels)
    return replace(graph, kernels=kernels) if kernels != graph.kernels else None
