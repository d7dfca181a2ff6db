"""What flows through a µGraph: a value for every device tensor, from those of its inputs, kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from typing import TypeVar

from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.mugraph import Stmt

V = TypeVar("V")


def through_kernels(
    graph: KernelGraph,
    inputs: Mapping[str, V],
    block: Callable[[BlockGraph, Mapping[str, V]], Mapping[str, V]],
    library: Callable[[LibraryKernel, Mapping[str, V]], V],
) -> dict[str, V]:
    """Inputs, intermediates and outputs. From what is there, ``block`` gives all that a kernel writes, ``library`` the result of
    a call."""
    tensors: dict[str, V] = {n: inputs[n] for n in graph.inputs}
    for k in graph.kernels:
        if isinstance(k, LibraryKernel):
            tensors[k.output] = library(k, tensors)
        else:
            tensors.update(block(k, tensors))
    return tensors


def through(
    graph: KernelGraph,
    inputs: Mapping[str, V],
    compute: Callable[[BlockGraph, Stmt, list[V]], V],
    library: Callable[[LibraryKernel, list[V]], V],
) -> dict[str, V]:
    """The same where only operators matter: what is loaded and stored stays what it is."""

    def written(block: BlockGraph, tensors: Mapping[str, V]) -> dict[str, V]:
        values: dict[str, V] = {}
        for s in block.stmts:
            if s.kind == "compute":
                values[s.value] = compute(block, s, [values[a] for a in s.args])
            elif s.kind == "load" and s.access:
                values[s.value] = tensors[s.access.source]
        return {s.access.tensor: values[s.value] for s in block.stores if s.access}

    return through_kernels(graph, inputs, written, lambda k, tensors: library(k, [tensors[n] for n in k.args]))
