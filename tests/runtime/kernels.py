"""Small kernels for the tests of this folder."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from fuser.ir.builder import Builder
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.lower.compile import KernelArtifact
from fuser.lower.compile import compile_kernel
from fuser.lower.kernel_source import KernelSource
from fuser.lower.triton_source import generate_graph
from fuser.runtime import launch
from fuser.runtime.graph_executor import Executable
from fuser.runtime.launch import InterpretedKernel
from fuser.runtime.launch import LoadedKernel
from fuser.superopt.structures import one_kernel


def doubling() -> KernelSource:
    """Y = X + X over 64 elements."""
    b = Builder("doubling")
    x = b.input("X", (64,))
    graph = one_kernel(b.build(Y=x + x))
    axis = graph.blocks[0].axes[0].name
    kernel = KernelSchedule(((axis, 16),))
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
