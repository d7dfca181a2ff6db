"""Structures in which a library does what is no more than a product of matrices, beside those in which every kernel is generated.

Where a kernel is one large matmul, a library's may be faster than any that is generated; what it cannot fuse with its
neighbours, it loses again. The model ranks both.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from fuser.ir.libraries import products
from fuser.ir.libraries import with_library
from fuser.ir.mugraph import KernelGraph

EVERY = 2
"""Most products of one structure of which every subset is tried; beyond, each alone and all of them, and where a reduction is
split, all of them only."""


def with_libraries(graphs: Iterable[KernelGraph]) -> tuple[KernelGraph, ...]:
    """The structures, and behind them those with some of their products done by a library: each once. A structure of nothing but
    products may be left to the library as a whole: it has the empty schedule then."""
    given = tuple(graphs)
    found = dict.fromkeys(given)
    for graph in given:
        names = products(graph)
        split = any(b.splits for b in graph.blocks)
        counts = (len(names),) if split else range(1, len(names) + 1) if len(names) <= EVERY else (1, len(names))
        for chosen in itertools.chain.from_iterable(itertools.combinations(names, n) for n in counts):
            found[with_library(graph, chosen)] = None
    return tuple(found)
