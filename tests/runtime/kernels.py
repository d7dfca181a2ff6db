"""Small kernels for the tests of this folder."""

from __future__ import annotations

from fuser.frontends.builder import Builder
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.lower.compile import KernelArtifact
from fuser.lower.compile import compile_kernel
from fuser.lower.triton_source import KernelSource
from fuser.lower.triton_source import generate_graph
from search.structures import one_kernel


def knobs(order: str = "", splits: dict[str, int] | None = None, **tiles: int) -> KernelSchedule:
    return KernelSchedule(tuple(sorted(tiles.items())), TilingExpr.parse(order), tuple(sorted((splits or {}).items())), 4, 2)


def doubling() -> KernelSource:
    """Y = X + X over 64 elements."""
    b = Builder("doubling")
    x = b.input("X", (64,))
    graph = one_kernel(b.build(Y=x + x))
    axis = graph.blocks[0].axes[0].name
    kernel = KernelSchedule(((axis, 16),), TilingExpr.parse(""), (), 4, 2)
    return generate_graph(graph, Schedule((kernel,)))[0]


def artifact_of(source: KernelSource) -> KernelArtifact:
    return compile_kernel(source, 90)
