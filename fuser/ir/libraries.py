"""Blocks that are one product of matrices, as the call of a library (cuBLAS) that does it."""

from __future__ import annotations

import math
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from itertools import pairwise

from fuser.errors import ProgramError
from fuser.errors import UnsupportedError
from fuser.ir.access import Access
from fuser.ir.axes import axes_of
from fuser.ir.axes import views_apart
from fuser.ir.composites import expand
from fuser.ir.fuse import fuse_nodes
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Kernel
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.program import TensorProgram

Group = tuple[str, ...]
"""Axes of one dimension of a matrix or batch; empty for a dimension of extent 1."""


def library_kernels(block: BlockGraph) -> tuple[LibraryKernel, ...]:
    """The matmul, possibly batched, that a block is, behind the views of its operands that the library takes by strides; empty
    if the block is more than that, or if a library would copy an operand or need more than one call."""
    if len(block.computes) != 1 or len(block.stores) != 1 or len(block.loads) != 2 or block.splits:
        return ()
    (product,), (store,) = block.computes, block.stores
    accesses = [block.by_value[a].access for a in product.args]
    if not product.contracts or len({s.dtype for s in (*block.loads, store)}) != 1 or store.access is None:
        return ()
    if any(a is None or a.window for a in accesses) or len(store.access.dims) < 2:
        return ()
    for left, right in (accesses, accesses[::-1]):
        if left and right and (found := _matmul(block, left, right, store.access, product.reduce)):
            return found
    return ()


def with_library(graph: KernelGraph, blocks: Sequence[str]) -> KernelGraph:
    """The graph with these blocks, each of which is one product, done by a library."""
    kernels = ((k,) if k.name not in blocks or isinstance(k, LibraryKernel) else library_kernels(k) for k in graph.kernels)
    return replace(graph, kernels=tuple(chain.from_iterable(kernels))).validate()


def products(graph: KernelGraph) -> tuple[str, ...]:
    """Names of the blocks that a library could do."""
    tensors = graph.device_tensors

    def as_stored(block: BlockGraph) -> bool:
        """A library sees tensors in the shapes that they have in device memory."""
        accesses = [s.access for s in block.stmts if s.access]
        return all(a.tensor in tensors and tensors[a.tensor].shape == a.shape(block.extents) for a in accesses)

    return tuple(b.name for b in graph.blocks if library_kernels(b) and as_stored(b))


def generated(program: TensorProgram, graph: KernelGraph) -> KernelGraph | None:
    """The graph with the library's products as blocks again, over the program's axes; None where the program has no such
    products: another's algebra has made them."""
    called = {k.name for k in graph.kernels if isinstance(k, LibraryKernel) and k.contracts}
    try:
        program = views_apart(expand(program))
        axes = axes_of(program)
        kernels: list[Kernel] = []
        known = set(graph.inputs)
        for k in graph.kernels:
            if isinstance(k, BlockGraph):
                kernels.append(k)
            elif k.name in called:
                kernels.append(fuse_nodes(program, axes, _between(program, k.output, known), k.name))
            known |= set(k.outputs)
        whole = replace(graph, kernels=tuple(kernels)).validate()
    except (ProgramError, UnsupportedError):
        return None
    return whole if with_library(whole, tuple(called)) == graph else None


def _between(program: TensorProgram, goal: str, known: Collection[str]) -> set[str]:
    """Nodes that lead from tensors in device memory to ``goal``."""
    found: set[str] = set()
    todo = [goal]
    while todo:
        name = todo.pop()
        if name not in found and name not in known and name in program.producers:
            found.add(name)
            todo += program.producers[name].inputs
    return found


def _matmul(block: BlockGraph, left: Access, right: Access, out: Access, reduce: Sequence[str]) -> tuple[LibraryKernel, ...]:
    *lead, row, column = out.dims
    if not set(row) <= set(left.axes) or not set(column) <= set(right.axes):
        return ()
    if set(row) & set(right.axes) or set(column) & set(left.axes):
        return ()
    summed = tuple(a for a in left.axes if a in reduce)
    operands = []
    for access, matrix in ((left, (row, summed)), (right, (summed, column))):
        batch = [d if set(d) & set(access.axes) else () for d in lead]
        whole = (*batch, *matrix)
        missing = next((i for i, d in enumerate(batch) if d), len(batch))
        operands.append((access, whole if whole == access.dims else whole[missing:]))
    extents = block.extents
    found: list[LibraryKernel] = []
    args: list[str] = []
    for (access, wanted), side in zip(operands, ("left", "right"), strict=True):
        views = _views(access, wanted, extents, f"{block.name}_{side}")
        if views is None or not _unit_stride(access, wanted[-2:], extents):
            return ()
        found += views
        args.append(views[-1].output if views else access.tensor)
    if not _one_call(operands, lead, extents):
        return ()
    return (*found, LibraryKernel(block.name, "matmul", (args[0], args[1]), out.tensor))  # type: ignore[return-value]


def _views(access: Access, wanted: Sequence[Group], extents: Mapping[str, int], name: str) -> tuple[LibraryKernel, ...] | None:
    """Views that turn a tensor into one with the dimensions ``wanted``; None where some dimension is no single run of it."""
    place = {a: i for i, a in enumerate(access.axes)}
    if sorted(a for g in wanted for a in g) != sorted(place):
        return None
    order = sorted((g for g in wanted if g), key=lambda g: place[g[0]])
    if tuple(a for g in order for a in g) != access.axes:
        return None

    def shape(groups: Sequence[Group]) -> tuple[int, ...]:
        return tuple(math.prod(extents[a] for a in g) for g in groups)

    if tuple(wanted) == access.dims:
        return ()
    if [g for g in wanted if g] == order:
        return (LibraryKernel(name, "reshape", (access.tensor,), name, (("shape", shape(wanted)),)),)
    dims = (*[()] * (len(wanted) - len(order)), *order)
    views: list[LibraryKernel] = []
    if dims != access.dims:
        parts = f"{name}_parts"
        views.append(LibraryKernel(parts, "reshape", (access.tensor,), parts, (("shape", shape(dims)),)))
    units = iter(range(len(dims) - len(order)))
    perm = tuple(dims.index(g) if g else next(units) for g in wanted)
    source = views[-1].output if views else access.tensor
    return (*views, LibraryKernel(name, "transpose", (source,), name, (("perm", perm),)))


def _stride(access: Access, group: Group, extents: Mapping[str, int]) -> tuple[int, int]:
    """Extent and stride of a dimension; a dimension that the tensor lacks is broadcast by stride 0."""
    strides = access.strides(extents)
    inside = [a for a in group if a in strides]
    return math.prod(extents[a] for a in group), strides[inside[-1]] if inside else 0


def _unit_stride(access: Access, matrix: Sequence[Group], extents: Mapping[str, int]) -> bool:
    """Neighbours along one side of the matrix lie side by side in memory: else the library takes a copy."""
    sides = [_stride(access, g, extents) for g in matrix]
    return any(s == 1 for n, s in sides if n > 1) or all(n == 1 for n, _ in sides)


def _one_call(operands: Sequence[tuple[Access, Sequence[Group]]], lead: Sequence[Group], extents: Mapping[str, int]) -> bool:
    """Whether each operand's batch has one stride, or is rows of the left operand where the right one has none."""

    def even(access: Access, groups: Sequence[Group]) -> bool:
        steps = [x for g in groups if (x := _stride(access, g, extents))[0] > 1]
        return all(outer == n * inner for (_, outer), (n, inner) in pairwise(steps))

    (left, rows), (right, _) = operands
    batched = {a for g in lead for a in g}
    if not batched & set(right.axes) and batched <= set(left.axes) and even(left, (*lead, rows[-2])):
        return True
    return all(even(access, lead) for access, _ in operands)
