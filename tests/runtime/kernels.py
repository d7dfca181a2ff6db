"""Small kernels for the tests of this folder."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace

from fuser.ir.builder import Builder
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.lower.compile import KernelArtifact
from fuser.lower.compile import compile_kernel
from fuser.lower.triton_source import KernelSource
from fuser.lower.triton_source import generate_graph
from fuser.runtime import launch
from fuser.runtime.graph_executor import Executable
from fuser.runtime.launch import InterpretedKernel
from fuser.runtime.launch import LoadedKernel
from fuser.superopt.structures import one_kernel


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


class FakeDriver:
    """A CUDA driver that only writes down what is launched: ``(function, stream, addresses, dependent)``."""

    def __init__(self) -> None:
        self.launches: list[tuple[int, int, tuple[int, ...], bool]] = []
        self.arguments: dict[int, int] = {}

    def cuLaunchKernelEx(self, configured: int, function: int, packed: int, _: None) -> int:  # noqa: N802
        config = launch._Config.from_address(configured)
        parameters = (ctypes.c_void_p * self.arguments[function]).from_address(packed)
        values = tuple(ctypes.c_void_p.from_address(p).value or 0 for p in parameters if p)
        self.launches.append((function, config.stream or 0, values, bool(config.count)))
        return 0


class OnFakeDriver(Executable):
    """Generated kernels are launched through a :class:`FakeDriver`, on tensors of the CPU: they compute nothing. Function 100 is
    the first kernel of the graph."""

    fake: FakeDriver

    def _load(self, artifacts: Sequence[KernelArtifact | None] | None) -> list[LoadedKernel | InterpretedKernel | None]:
        found: list[LoadedKernel | InterpretedKernel | None] = []
        for i, s in enumerate(self.plan.sources):
            if s is None:
                found.append(None)
                continue
            artifact = KernelArtifact(s.name, s, "", b"", 90, 4, 0)
            self.fake.arguments[100 + i] = len(s.args)
            found.append(LoadedKernel(artifact, 1, 100 + i, 2, 32, 0))
        return found


def chain() -> TensorProgram:
    """E = relu(A B) D."""
    b = Builder("chain")
    return b.build(E=b.relu(b.input("A", (48, 32)) @ b.input("B", (32, 40))) @ b.input("D", (40, 16)))


def schedule_of(graph: KernelGraph, **options: str) -> Schedule:
    """Tiles of 16 and what else there must be; ``options`` are those of all kernels but the first."""
    kernels = []
    for i, block in enumerate(graph.blocks):
        counts = {a: 2 for a, e in block.extents.items() if e == FREE}
        tiles = {a: 16 for a in block.extents if a not in counts}
        loops = [a for a in tiles if a in block.reduced and tiles[a] < block.extents[a]]
        kernel = knobs("".join(loops), counts, **tiles)
        kernels.append(replace(kernel, knobs=tuple(sorted(options.items())) if i else ()))
    return Schedule(tuple(kernels))
