"""Code of kernels on the device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fuser.lower.compile import KernelArtifact
from fuser.lower.kernel_source import KernelSource
from fuser.runtime import graph_executor
from fuser.runtime.graph_executor import Executable
from fuser.runtime.launch import LoadedKernel


def test_equal_kernels_share_their_code(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    loaded: list[KernelArtifact] = []
    freed: list[int] = []

    def load(artifact: KernelArtifact) -> LoadedKernel:
        loaded.append(artifact)
        return LoadedKernel(artifact, len(loaded), 0, 0, 0, 0)

    def made(x: str, cubin: bytes, shared: int = 0) -> KernelArtifact:
        source = KernelSource("k", "", (x,), ("float16",), ((1,),), (x,), 1, 4, 2)
        return KernelArtifact("k", source, "", cubin, 90, 4, shared)

    artifacts = [made("A", b"1"), made("B", b"1"), None, made("C", b"2"), made("D", b"1", 1024)]
    monkeypatch.setattr(graph_executor, "load", load)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(LoadedKernel, "unload", lambda self: freed.append(self.module))
    executable: Any = Executable.__new__(Executable)
    executable.device = torch.device("cuda")
    executable.plan = SimpleNamespace(sources=[a and a.source for a in artifacts])
    executable.kernels = executable._load(artifacts)
    assert [k and k.artifact for k in executable.kernels] == artifacts  # each over its own tensors
    assert [k and k.module for k in executable.kernels] == [1, 1, None, 2, 3]
    executable.unload()
    assert freed == [1, 2, 3]
