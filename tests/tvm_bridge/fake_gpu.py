"""A GPU in the memory of the host: TVM's own virtual machine and CUDA runtime run a library on it, kernels are carried out by
Triton's interpreter, and every launch is kept to be looked at.

The two libraries that it consists of are found before the real ones, so that it needs a process of its own.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from fuser.runtime.launch import InterpretedKernel
from fuser.runtime.launch import _Config
from tvm_bridge.back.offline_cuda import compiler
from tvm_bridge.back.recipe import Launch

LOAD, LAUNCH, BEGIN, END, REPLAY = range(5)
HOOK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
SIZES = {"handle": ctypes.c_void_p, "int32": ctypes.c_int32, "int64": ctypes.c_int64}


class Map(ctypes.Structure):
    """What ``fake_gpu.c`` encodes in the place of a tensor map."""

    _fields_ = [
        ("address", ctypes.c_void_p),
        *((n, ctypes.c_int) for n in ("type", "rank", "swizzle")),
        ("sizes", ctypes.c_uint * 5),
        ("strides", ctypes.c_uint * 4),
        ("box", ctypes.c_uint * 5),
    ]


@dataclass(frozen=True)
class Started:
    """A launch as the driver saw it: blocks, threads, bytes of shared memory, whether it is dependent; ``values`` of its
    parameters (of a tensor map: what was encoded)."""

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    dependent: bool
    values: tuple[Any, ...]
    captured: bool


@dataclass
class FakeGpu:
    """``launches`` by entry say how to read parameters and what to carry out."""

    launches: Mapping[str, Launch]
    started: list[Started] = field(default_factory=list)
    replays: int = 0
    loaded: list[int] = field(default_factory=list)
    fail_load: int = 0
    _capturing: list[Started] | None = None
    _graphs: list[list[Started]] = field(default_factory=list)

    def clear(self, launches: Mapping[str, Launch]) -> None:
        """As new, for other kernels; graphs of libraries that still run stay."""
        self.launches, self.started, self.replays, self.loaded, self.fail_load = launches, [], 0, [], 0

    def install(self, folder: Path) -> None:
        """Make TVM's CUDA library use this GPU."""
        for path in libraries(folder):
            library = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
            self._hook = getattr(self, "_hook", None) or HOOK(self._called)
            library.fake_gpu_hook(self._hook)

    def _called(self, kind: int, a: int | None, b: int | None, c: int | None) -> int:
        if kind == LOAD:
            self.loaded.append(a or 0)
            return self.fail_load
        if kind == LAUNCH:
            self._launch(ctypes.string_at(a or 0).decode(), _Config.from_address(b or 0), c or 0)
        elif kind == BEGIN:
            self._capturing = []
        elif kind == END:
            assert self._capturing is not None
            self._graphs.append(self._capturing)
            ctypes.c_void_p.from_address(c or 0).value = len(self._graphs)
            self._capturing = None
        elif kind == REPLAY:
            self.replays += 1
            for started in self._graphs[(a or 0) - 1]:
                self._run(started)
        return 0

    def _launch(self, entry: str, config: Any, params: int) -> None:
        from tvm_bridge.back.relax_launch import TENSOR_MAP
        from tvm_bridge.back.relax_launch import parameters

        types = parameters(self.launches[entry])
        addresses = (ctypes.c_void_p * len(types)).from_address(params)
        values = []
        for (kind, tag), address in zip(types, addresses, strict=True):
            if tag == TENSOR_MAP:
                assert address % 64 == 0
                values.append(Map.from_buffer_copy(Map.from_address(address)))
            else:
                values.append(SIZES[kind].from_address(address).value)
        dependent = any(config.attributes[i].id == 6 and config.attributes[i].value[0] for i in range(config.count))
        grid, block = (config.gx, config.gy, config.gz), (config.bx, config.by, config.bz)
        started = Started(entry, grid, block, config.shared, dependent, tuple(values), self._capturing is not None)
        self.started.append(started)
        if self._capturing is not None:
            self._capturing.append(started)
        else:
            self._run(started)

    def _run(self, started: Started) -> None:
        launch = self.launches[started.entry]
        source = launch.artifact.source
        tensors, values = [], list(started.values)
        places = dict[int, int]()
        for i, described in launch.artifact.passed:
            value = values.pop(0)
            if described:
                del values[: described.parameters - 1]
                value = value.address - described.offset * described.itemsize
            assert places.setdefault(i, value) == value, "all views are of one tensor"
        for i, (shape, dtype) in enumerate(zip(source.shapes, source.dtypes, strict=True)):
            tensors.append(_tensor(places[i], shape, dtype))
        sizes, hidden = values[: len(source.sizes)], values[len(source.sizes) :]
        assert not any(hidden), "hidden pointers are null"
        InterpretedKernel(source).bind([*tensors, *sizes])()


def libraries(folder: Path) -> list[Path]:
    """The CUDA runtime and the driver of the fake GPU. Alone, without a hook, launches do nothing."""
    for name, versions in (("libcudart.so.13", "libcudart.so.13"), ("libcuda.so.1", "")):
        (folder / "map").write_text(f"{versions} {{ global: cu*; fake*; }};")
        source = Path(__file__).with_name("fake_gpu.c")
        flags = ["-shared", "-fPIC", f"-Wl,-soname,{name}", f"-Wl,--version-script,{folder / 'map'}", "-w"]
        subprocess.run([compiler(), "-x", "c", *flags, "-o", folder / name, source], check=True)
    return [folder / "libcudart.so.13", folder / "libcuda.so.1"]


def _tensor(address: int, shape: tuple[int, ...], dtype: str) -> Any:
    """A torch tensor over memory of the fake GPU."""
    import torch

    kind = getattr(torch, dtype)
    count = int(np.prod(shape)) * torch.empty((), dtype=kind).element_size()
    return torch.frombuffer((ctypes.c_char * count).from_address(address), dtype=kind).reshape(shape)
