"""Operands of products that lie across their sums, laid along them by kernels of their own.

Warp groups multiply tf32 only where both operands lie along the sum. What lies otherwise is turned in every block that reads it;
where many do, a kernel that turns it once takes less.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from fuser.ir.mugraph import Access
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.program import Tensor
from fuser.ir.rows import pitch_of

READERS = 128
"""Rows of the other operand, a tile of them, below which nothing is gained: few blocks read a turned element then."""


def turned(graph: KernelGraph) -> KernelGraph | None:
    """The µGraph with kernels in front of its products of float32 that lay inputs along the sum; None where all lie so."""
    kernels = []
    taken = {*graph.inputs, *graph.device_tensors, *(t for k in graph.kernels for t in k.outputs)}
    for block in graph.kernels:
        if not isinstance(block, BlockGraph):
            return None
        for load in [s for s in block.loads if _across(graph, block, s)]:
            name = f"{load.value}_turned"
            while name in taken:
                name += "_"
            taken.add(name)
            copy, block = _apart(block, load, name)
            kernels.append(copy)
        kernels.append(block)
    return replace(graph, kernels=tuple(kernels)).validate() if len(kernels) > len(graph.kernels) else None


def _across(graph: KernelGraph, block: BlockGraph, load: Stmt) -> bool:
    """Whether nothing but products of float32 over the same axes reads an input, and it does not lie along their sum."""
    access, readers = load.at, block.users(load.value)
    if load.dtype != "float32" or access.source not in graph.inputs or access.pitch or len({s.reduce for s in readers}) != 1:
        return False
    if not all(s.contracts and s.args.count(load.value) == 1 and s.dtype == "float32" for s in readers):
        return False
    summed = readers[0].reduce
    if access.along(summed) or not set(summed) <= set(access.axes) or len(set(access.axes)) < len(access.axes):
        return False
    others = [set(block.by_value[a].axes) - set(load.axes) for s in readers for a in s.args if a != load.value]
    return max(prod(block.extents[a] for a in o) for o in others) >= READERS


def _apart(block: BlockGraph, load: Stmt, name: str) -> tuple[BlockGraph, BlockGraph]:
    """The kernel that turns what a statement loads, and the block that reads what it leaves."""
    reduce = block.users(load.value)[0].reduce
    outer = tuple(a for a in load.at.axes if a not in reduce)
    summed = tuple(a for a in load.at.axes if a in reduce)
    rows = Tensor(name, (1, prod(block.extents[a] for a in summed)), load.dtype)
    access = Access(name, (*((a,) for a in outer), summed), pitch=pitch_of(rows) if len(summed) == 1 else 0)
    axes = (*outer, *summed)
    stmts = (
        replace(load, axes=axes),
        Stmt("compute", name, axes, load.dtype, "cast", (load.value,), attrs=(("dtype", load.dtype),)),
        Stmt("store", name, axes, load.dtype, access=access),
    )
    copy = BlockGraph(f"{block.name}_{name}", tuple(x for x in block.axes if x.name in axes), stmts).validate()
    return copy, replace(block, stmts=tuple(replace(s, access=access) if s is load else s for s in block.stmts)).validate()
