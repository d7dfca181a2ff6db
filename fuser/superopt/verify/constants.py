"""Constants that are the same number at the real size in other words: 1/8 for |k|^(-1/2) where k has 64 elements.

At reduced sizes constants follow the extents that they are tied to, so the same number written differently would differ there.
A constant of a µGraph that equals one of the program's at the real size is therefore tested as that one; and where that is not
enough (a fourth root applied twice), both sides are tested with the numbers of the real size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fuser.ir.composites import expand
from fuser.ir.mugraph import AXIS
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import Kernel
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar

Attrs = tuple[tuple[str, Any], ...]
Known = list[tuple[Scalar, Scalar]]  # each constant of a program: at its real size, and at the reduced one
Size = Callable[[Extent], int | None]

_EQUAL = 1e-15
"""Relative difference of two constants that are the same number, written as the nearest double perhaps."""


def known_constants(program: TensorProgram, small: TensorProgram) -> Known:
    """The constants of a program and of the same one at reduced sizes."""
    found: dict[tuple[Scalar, Scalar], None] = {}
    for node, reduced in zip(program.nodes, small.nodes, strict=True):
        big, own = program.bound(node), small.bound(reduced)
        for key in _constants(node.attrs):
            found[Scalar.of(big[key]).normal(), Scalar.of(own[key]).normal()] = None
    return list(found)


def with_known_constants(graph: KernelGraph, small: KernelGraph, known: Known) -> KernelGraph:
    """A µGraph at reduced sizes, with the program's value of each constant that equals one of the program's at the real size."""
    kernels = []
    for old, new in zip(graph.kernels, small.kernels, strict=True):
        pairs = zip(_values(old, graph), _values(new, small), strict=True)
        kernels.append(_with_values(new, [_chosen(real, own, known) for real, own in pairs]))
    return replace(small, kernels=tuple(kernels))


def constant(program: TensorProgram, graph: KernelGraph) -> bool:
    """Some operator of either has a constant."""
    every = [*(n.attrs for n in expand(program).nodes), *(a for k in graph.kernels for a in _attrs(k))]
    return any(True for attrs in every for _ in _constants(attrs))


def as_numbers(program: TensorProgram, graph: KernelGraph) -> tuple[TensorProgram, KernelGraph]:
    """Both with the numbers that their constants are at the real size."""
    nodes = tuple(replace(n, attrs=_with(n.attrs, _bound(n.attrs, _of_tensors(program.table)))) for n in program.nodes)
    kernels = tuple(_with_values(k, _values(k, graph)) for k in graph.kernels)
    return replace(program, nodes=nodes), replace(graph, kernels=kernels)


def _constants(attrs: Attrs) -> Iterator[str]:
    return (k for k, v in attrs if k == "scalar" or isinstance(v, Scalar))


def _attrs(kernel: Kernel) -> Iterable[Attrs]:
    return [kernel.attrs] if isinstance(kernel, LibraryKernel) else [s.attrs for s in kernel.stmts]


def _with(attrs: Attrs, values: Mapping[str, Scalar]) -> Attrs:
    return tuple((k, values.get(k, v)) for k, v in attrs)


def _of_tensors(tensors: Mapping[str, Any]) -> Size:
    return lambda e: tensors[e.tensor].shape[e.dim] if e.tensor in tensors else None


def _of_axes(extents: Mapping[str, int]) -> Size:
    return lambda e: extents.get(e.tensor) if e.dim == AXIS and extents.get(e.tensor) != FREE else None


def _bound(attrs: Attrs, size: Size) -> dict[str, Scalar]:
    """The constants with their extents replaced; those of which an extent is not known are left out."""
    found: dict[str, Scalar] = {}
    for key in _constants(attrs):
        value = Scalar.of(dict(attrs)[key]).bind(lambda e: size(e) or e)
        if not value.extents:
            found[key] = value
    return found


def _values(kernel: Kernel, graph: KernelGraph) -> list[dict[str, Scalar]]:
    size = _of_tensors(graph.device_tensors) if isinstance(kernel, LibraryKernel) else _of_axes(kernel.extents)
    return [_bound(attrs, size) for attrs in _attrs(kernel)]


def _with_values(kernel: Kernel, values: Sequence[Mapping[str, Scalar]]) -> Kernel:
    if isinstance(kernel, LibraryKernel):
        return replace(kernel, attrs=_with(kernel.attrs, values[0]))
    stmts = zip(kernel.stmts, values, strict=True)
    return replace(kernel, stmts=tuple(replace(s, attrs=_with(s.attrs, v)) if v else s for s, v in stmts))


def _chosen(real: Mapping[str, Scalar], own: Mapping[str, Scalar], known: Known) -> dict[str, Scalar]:
    """Constants that are one of the program's at the real size, and none of these at the reduced one."""
    found: dict[str, Scalar] = {}
    for key in real.keys() & own.keys():
        same = [small for big, small in known if _equal(big, real[key])]
        if same and own[key] not in same:
            found[key] = same[0]
    return found


def _equal(a: Scalar, b: Scalar) -> bool:
    return a == b or math.isclose(a.value(), b.value(), rel_tol=_EQUAL, abs_tol=0.0)
