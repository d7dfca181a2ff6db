"""Operands of products that lie badly, laid anew by kernels of their own.

Warp groups multiply tf32 only where both operands lie along the sum. What lies otherwise is turned in every block that reads it;
where many do, a kernel that turns it once takes less. Rows that are no multiples of 16 bytes are read element by element, in
every block again; a copy in longer rows (:mod:`fuser.ir.rows`) is read as vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from fuser.ir.mugraph import Access
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.program import FLOAT_DTYPES
from fuser.ir.program import Tensor
from fuser.ir.rows import pitch_of

READERS = 128
"""Rows of the other operand, a tile of them, below which nothing is gained: few blocks read a turned element then."""


Way = tuple[tuple[str, ...], tuple[str, ...]]
"""Axes of a copy: those outside, and those of its rows."""


def turned(graph: KernelGraph) -> KernelGraph | None:
    """The µGraph with kernels in front of its products of float32 that lay inputs along the sum; None where all lie so."""
    return _laid(graph, _across)


def aligned(graph: KernelGraph) -> KernelGraph | None:
    """The µGraph with kernels that lay inputs of products in rows that begin at aligned addresses, and those of float32 along the
    sum; None where no row begins elsewhere."""
    odd = any(_odd(graph, b, s) for b in graph.blocks for s in b.loads)
    return _laid(graph, lambda *of: _across(*of) or _odd(*of)) if odd else None


def _laid(graph: KernelGraph, way_of: Callable[[KernelGraph, BlockGraph, Stmt], Way | None]) -> KernelGraph | None:
    kernels = []
    taken = {*graph.inputs, *graph.device_tensors, *(t for k in graph.kernels for t in k.outputs)}
    for block in graph.kernels:
        if not isinstance(block, BlockGraph):
            return None
        ways = [(load, way) for load in block.loads if (way := way_of(graph, block, load))]
        for load, way in ways:
            name = f"{load.value}_turned"
            while name in taken:
                name += "_"
            taken.add(name)
            copy, block = _apart(block, load, name, way)
            kernels.append(copy)
        kernels.append(block)
    return replace(graph, kernels=tuple(kernels)).validate() if len(kernels) > len(graph.kernels) else None


def _summed(graph: KernelGraph, block: BlockGraph, load: Stmt) -> tuple[str, ...]:
    """The axes of the sum, where nothing but products over the same ones reads an input, many times each element; nothing
    otherwise."""
    access, readers = load.at, block.users(load.value)
    if access.source not in graph.inputs or access.pitch or len({s.reduce for s in readers}) != 1:
        return ()
    if not all(s.contracts and s.args.count(load.value) == 1 for s in readers):
        return ()
    summed = readers[0].reduce
    if not set(summed) <= set(access.axes) or len(set(access.axes)) < len(access.axes):
        return ()
    others = [set(block.by_value[a].axes) - set(load.axes) for s in readers for a in s.args if a != load.value]
    return summed if max(prod(block.extents[a] for a in o) for o in others) >= READERS else ()


def _across(graph: KernelGraph, block: BlockGraph, load: Stmt) -> Way | None:
    """An input of float32 that lies across a sum, along it."""
    summed = _summed(graph, block, load) if load.dtype == "float32" else ()
    if not summed or load.at.along(summed) or any(s.dtype != "float32" for s in block.users(load.value)):
        return None
    return tuple(a for a in load.at.axes if a not in summed), tuple(a for a in load.at.axes if a in summed)


def _odd(graph: KernelGraph, block: BlockGraph, load: Stmt) -> Way | None:
    """An input whose rows begin at odd addresses, as it lies."""
    if load.dtype not in FLOAT_DTYPES or load.at.window or not _summed(graph, block, load):
        return None
    last = load.at.dims[-1]
    return (load.at.axes[:-1], last) if len(last) == 1 and pitch_of(graph.table[load.at.source]) else None


def _apart(block: BlockGraph, load: Stmt, name: str, way: Way) -> tuple[BlockGraph, BlockGraph]:
    """The kernel that lays what a statement loads, and the block that reads what it leaves."""
    outer, inner = way
    rows = Tensor(name, (1, prod(block.extents[a] for a in inner)), load.dtype)
    access = Access(name, (*((a,) for a in outer), inner), pitch=pitch_of(rows) if len(inner) == 1 else 0)
    axes = (*outer, *inner)
    stmts = (
        replace(load, axes=axes),
        Stmt("compute", name, axes, load.dtype, "cast", (load.value,), attrs=(("dtype", load.dtype),)),
        Stmt("store", name, axes, load.dtype, access=access),
    )
    copy = BlockGraph(f"{block.name}_{name}", tuple(x for x in block.axes if x.name in axes), stmts).validate()
    return copy, replace(block, stmts=tuple(replace(s, access=access) if s is load else s for s in block.stmts)).validate()
