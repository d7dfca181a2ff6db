"""Library kernels: one operator on whole tensors by torch (cuBLAS for matmuls), written into the tensor that the plan gives it.

A view of a tensor is no kernel where only library kernels read it: they take strides. Matmuls never copy an operand: batches
are folded into rows or passed with strides, also with stride zero where one operand has no batch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from itertools import pairwise
from itertools import product
from typing import Any

from fuser.files import counted
from fuser.ir.dtypes import result_dtype
from fuser.ir.library_ops import is_convolution
from fuser.ir.mugraph import AXIS
from fuser.ir.mugraph import Kernel
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.opdef import JOINED
from fuser.ir.ops import op as op_def
from fuser.ir.program import Tensor
from fuser.ir.program import infer_shape
from fuser.ir.scalar import Extent
from fuser.ir.scalar import numbers
from fuser.runtime.eager import writes
from fuser.runtime.forms import explicit_attention
from fuser.runtime.torch_program import apply
from fuser.runtime.torch_program import call_of

WHOLE = "whole"
"""The value of :data:`fuser.ir.opdef.JOINED` where that is all of a program, with the calls that the compiler leaves to
libraries."""
_WRITTEN = ("matmul", "cast", "repeat")
"""Operators that are written into a tensor in a form of their own."""


def allocates(op: str, attrs: Mapping[str, Any]) -> bool:
    """Whether torch allocates memory of its own at every call of an operator (inside a captured graph, once)."""
    entry = op_def(op)
    return not entry.strided and op not in _WRITTEN and writes(entry, attrs) is None


def joined_as(kernel: Kernel) -> bool | str:
    """How torch's compiler is to make one of a call and those beside it (:data:`WHOLE`, or True); False where it is not."""
    return isinstance(kernel, LibraryKernel) and dict(kernel.attrs).get(JOINED, False)


def call_of_result(kernel: Kernel) -> tuple[str, ...]:
    """A name for the call of torch that a kernel takes one of several results of; none for other kernels."""
    if not isinstance(kernel, LibraryKernel) or (attrs := dict(kernel.attrs)).get("field", -1) < 0:
        return ()
    return (f"{attrs['callee']} of {', '.join(kernel.args)} with {attrs['detail']}",)


def output_of(kernel: LibraryKernel, tensors: Mapping[str, Tensor]) -> Tensor:
    """Shape and dtype of what a library kernel writes. Raises :class:`fuser.errors.ProgramError` where the shapes do not fit."""
    shape = infer_shape(kernel.op, [tensors[a].shape for a in kernel.args], dict(kernel.attrs))
    dtype = result_dtype(kernel.op, [tensors[a].dtype for a in kernel.args], dict(kernel.attrs))
    return Tensor(kernel.output, shape, dtype)


def views_of(graph: KernelGraph) -> dict[str, LibraryKernel]:
    """The library kernels that need no launch, by their output: views that are no output and that only library kernels read. A
    strided tensor has no reshape without a copy, so that a reshape counts only where its operand is contiguous. A convolution
    copies what lies otherwise, so that what torch's compiler makes for one it makes as it is read."""
    generated = {t for k in graph.kernels if not isinstance(k, LibraryKernel) for t in k.inputs}
    convolved = {t for k in graph.kernels if isinstance(k, LibraryKernel) and is_convolution(k.op) for t in k.args}
    found: dict[str, LibraryKernel] = {}
    for kernel in graph.kernels:
        if not isinstance(kernel, LibraryKernel) or not kernel.entry.strided:
            continue
        strided = kernel.args[0] in found and not _contiguous(kernel.args[0], found)
        if kernel.output in (*graph.outputs, *generated) or (kernel.regroups and strided):
            continue
        if kernel.output in convolved and dict(kernel.attrs).get(JOINED) is True and not kernel.regroups:
            continue
        found[kernel.output] = kernel
    return found


def summary(graph: KernelGraph) -> str:
    """``fused``, or the number of kernels, those of a library among them, and what is split."""
    views = views_of(graph)
    kernels = [k for k in graph.kernels if k.outputs[0] not in views]
    called = len(kernels) - len(graph.blocks)
    if len(kernels) == 1:
        return "library" if called else "fused"
    splits = sorted({a for b in graph.blocks for a, _ in b.splits})
    library = f", {called} of a library" if called else ""
    return f"{counted(len(kernels), 'kernel')}{library}" + (f", {','.join(splits)} split" if splits else "")


def _contiguous(name: str, views: Mapping[str, LibraryKernel]) -> bool:
    return name not in views or (views[name].regroups and _contiguous(views[name].args[0], views))


def behind(graph: KernelGraph) -> dict[str, str]:
    """The tensors in memory behind views that lie row after row as well."""
    views = views_of(graph)
    return {n: root_of(n, views) for n in views if _contiguous(n, views)}


def root_of(name: str, views: Mapping[str, LibraryKernel]) -> str:
    """The tensor in memory behind a view."""
    while name in views:
        name = views[name].args[0]
    return name


def constants(kernel: LibraryKernel, graph: KernelGraph, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Attributes of a library kernel, with constants as numbers at the sizes of the graph."""

    def size(e: Extent) -> int:
        return graph.extents[e.tensor] if e.dim == AXIS else tensors[e.tensor].shape[e.dim]

    return numbers(kernel.attrs, size)


def view(kernel: LibraryKernel, x: Any) -> Any:
    """The strided view that a view kernel stands for."""
    return apply(kernel.op, [x], dict(kernel.attrs))


def value_of(name: str, views: Mapping[str, LibraryKernel], table: Mapping[str, Any]) -> Any:
    """A tensor that a library kernel uses, views included."""
    if name not in views:
        return table[name]
    return view(views[name], value_of(views[name].args[0], views, table))


def bind_library(op: str, attrs: Mapping[str, Any], args: list[Any], out: Any) -> Callable[[], None]:
    """A call that writes ``op`` of ``args`` into ``out``. Nothing is allocated but by operators that :func:`allocates` names."""
    if op_def(op).kind == "contract":
        return _matmul(args[0], args[1], out)
    call = _with_out(op, attrs, args, out)
    if call is not None:
        return call

    def copied() -> None:
        out.copy_(apply(op, args, attrs))

    return copied


def repeated(op: str, attrs: Mapping[str, Any], x: Any, out: Any) -> Callable[[list[Any], Any], None]:
    """The same for tensors like ``x`` and ``out`` that are only known at each call: operands, and what is written."""
    if op_def(op).kind in ("contract", "view") or op_def(op).relabels:
        return lambda xs, y: bind_library(op, attrs, xs, y)()
    into = writes(op_def(op), attrs)
    if into is None or (op_def(op).kind == "library" and not _typed(op, x.dtype, out.dtype)):
        call = call_of(op, attrs)
        return lambda xs, y: y.copy_(call(xs, explicit_attention))
    return lambda xs, y: into(*xs, out=y)


def makes(op: str, attrs: Mapping[str, Any], like: Any, fresh: bool, aligned: int) -> Callable[[list[Any]], Any]:
    """A call of torch whose result is taken as it is if it lies as ``like``, on an address that is a multiple of ``aligned``;
    ``fresh``: and if it is none of the operands."""
    call = call_of(op, attrs)
    return lambda xs: taken(call(xs, explicit_attention), like, xs if fresh else (), aligned)


def taken(x: Any, like: Any, apart: Sequence[Any], aligned: int) -> Any:
    """``x``, or a copy of it that is as ``like`` says and shares no memory with ``apart``."""
    return taken_beside(x, like, {y.untyped_storage().data_ptr() for y in apart}, (), aligned)


def taken_beside(x: Any, like: Any, given: Collection[int], fixed: Collection[int], aligned: int, padded: bool = False) -> Any:
    """The same where memory that is at addresses that were ``given`` with a call, or are ``fixed``, is others'. ``padded``: rows
    may be longer in memory."""
    lies = x.is_contiguous() or (padded and _in_rows(x))
    if x.shape == like.shape and x.dtype is like.dtype and lies and not x.data_ptr() % aligned:
        place = x.untyped_storage().data_ptr()
        if place not in given and place not in fixed:
            return x
    return x.new_empty(like.shape, dtype=like.dtype).copy_(x)


def _in_rows(x: Any) -> bool:
    """Whether a tensor lies row after row, with gaps behind rows."""
    if any(n == 0 for n in x.shape):
        return False
    least = 1
    for n, stride in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if n > 1 and stride < least:
            return False
        least = max(least, n * stride)
    return x.dim() > 0 and (x.shape[-1] == 1 or x.stride(-1) == 1)


def _with_out(op: str, attrs: Mapping[str, Any], xs: list[Any], out: Any) -> Callable[[], Any] | None:
    """The form of an operator that writes into a given tensor, if torch has one."""
    x = xs[0]
    if op_def(op).regroups:
        seen = out.view(x.shape)  # torch would copy a strided operand now, not when it is called
        return lambda: seen.copy_(x)
    if op_def(op).relabels:
        source = x if op_def(op).typed == "named" else apply(op, [x], attrs)
        return lambda: out.copy_(source)
    if op == "repeat":
        axis, times = attrs["axis"] % x.dim(), attrs["times"]
        parts = out.view(*x.shape[: axis + 1], times, *x.shape[axis + 1 :])
        source = x.unsqueeze(axis + 1).expand(parts.shape)
        return lambda: parts.copy_(source)
    into = writes(op_def(op), attrs)
    if into is None or (op_def(op).kind == "library" and not _typed(op, x.dtype, out.dtype)):
        return None
    return lambda: into(*xs, out=out)


@functools.cache
def _typed(op: str, operand: Any, out: Any) -> bool:
    """Whether a library operator has results of the dtype ``out`` by itself: only those can be written without a cast."""
    import torch

    return apply(op, [torch.empty((1, 1), dtype=operand, device="meta")], {"dim": 0}).dtype == out


def _matmul(a: Any, b: Any, out: Any) -> Callable[[], None]:
    parts = matmul_parts(a, b, out)
    if len(parts) == 1:
        return functools.partial(multiply, *parts[0])

    def call() -> None:
        for part in parts:
            multiply(*part)

    return call


def multiply(a: Any, b: Any, out: Any) -> None:
    """A product of two matrices, or of two batches of them, into ``out``."""
    import torch

    (torch.mm if out.dim() == 2 else torch.bmm)(a, b, out=out)


def matmul_parts(a: Any, b: Any, out: Any) -> list[tuple[Any, Any, Any]]:
    """A batched matmul as calls on views: one product of matrices where a batch can be rows, else products of batches with one
    stride for each operand. Several where the strides of a broadcast operand are no single number."""
    rows = math.prod(out.shape[:-1])
    if math.prod(b.shape[:-2]) == 1 and math.prod(a.shape[:-1]) == rows:
        matrix = b.reshape(b.shape[-2:])
        if _mergeable(a, a.dim() - 1) and _mergeable(out, out.dim() - 1):
            return [(_merged(a, a.dim() - 1, rows), matrix, _merged(out, out.dim() - 1, rows))]
        # rows of any dimension, the longest: each batch reads all of the matrix
        for d in sorted(range(a.dim() - 1), key=lambda d: -a.shape[d]) if a.dim() == out.dim() else ():
            x, y = a.movedim(d, -2), out.movedim(d, -2)
            if all(_mergeable(z, z.dim() - 2) and _taken(z) for z in (x, y)):
                x, y = (_merged(z, z.dim() - 2, rows // a.shape[d]) for z in (x, y))
                return [(x, matrix.expand(len(x), -1, -1), y)]
    batch = out.shape[:-2]
    a, b = a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])
    # outer batches one by one, as few as possible
    for outer in range(len(batch) + 1):
        parts = [tuple(x[i] for x in (a, b, out)) for i in product(*(range(n) for n in batch[:outer]))]
        inner = len(batch) - outer
        if all(_mergeable(x, inner) for x in parts[0]):
            count = math.prod(batch[outer:])
            return [tuple(_merged(x, inner, count) for x in part) for part in parts]  # type: ignore[misc]
    return []


def _taken(x: Any) -> bool:
    """Whether a library reads matrices of the last two dimensions as they lie: others are copied, an element at a time."""
    (m, n), (down, along) = x.shape[-2:], x.stride()[-2:]
    return (along == 1 and (down >= n or m == 1)) or (down == 1 and (along >= m or n == 1))


def _mergeable(x: Any, dims: int) -> bool:
    """Whether the first ``dims`` dimensions can be one with a single stride."""
    strides = [(n, s) for n, s in zip(x.shape[:dims], x.stride()[:dims], strict=True) if n > 1]
    return all(s == m * t for (_, s), (m, t) in pairwise(strides))


def _merged(x: Any, dims: int, count: int) -> Any:
    """The first ``dims`` dimensions as one of ``count`` elements."""
    strides = [s for n, s in zip(x.shape[:dims], x.stride()[:dims], strict=True) if n > 1]
    step = strides[-1] if strides else math.prod(x.shape[dims:])
    return x.as_strided((count, *x.shape[dims:]), (step, *x.stride()[dims:]))
