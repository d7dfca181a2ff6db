"""Tensor maps: what the driver is told, and how a kernel gets them."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import pytest

from fuser.errors import FuserError
from fuser.lower.compile import KernelArtifact
from fuser.lower.descriptors import Descriptor
from fuser.lower.kernel_source import KernelSource
from fuser.runtime import launch
from fuser.runtime import tensor_map
from fuser.runtime.cuda_driver import CudaError
from fuser.runtime.launch import LoadedKernel
from fuser.runtime.tensor_map import encoding

X = Descriptor("X", ("b", "m", "k"), 64, (4, 500, 64), (64_000, 128, 1), (1, 128, 64), 2, 3, 6, (1, 64, 64))


class Driver:
    """Answers as the driver does, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answer = 0
        self.maps: list[Any] = []
        self.launches: list[int] = []
        self.cuTensorMapEncodeTiled = self.encode
        self.cuLaunchKernelEx = self.launch
        self.cuGetErrorName = lambda *_: 0

    def encode(self, target: Any, *args: Any) -> int:
        target._obj.opaque[0] = 42
        self.maps.append(args)
        return self.answer

    def launch(self, _config: int, _function: int, params: int, _extra: Any) -> int:
        self.launches.append(params)
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver()
    monkeypatch.setattr(tensor_map, "driver", lambda: found)
    monkeypatch.setattr(launch, "driver", lambda: found)
    monkeypatch.setattr("fuser.runtime.cuda_driver.driver", lambda: found)
    tensor_map.tensor_map.cache_clear()
    return found


def artifact() -> KernelArtifact:
    source = KernelSource("k", "", ("X", "Y"), ("float16", "float16"), ((4, 500, 128), (64,)), ("Y",), 1, 4, 2)
    return KernelArtifact("k", source, "", b"", 90, 4, 0, descriptors=(X,))


def test_views_of_a_tensor_are_maps_of_their_own_behind_one_another(driver: Driver) -> None:
    made = artifact()
    views = replace(made, descriptors=(X, replace(X, offset=128)))
    assert views.parameters == 2 * X.parameters + 1
    kernel = LoadedKernel(views, 0, 0, 0, 0, 0)
    kernel.bind([4096, 512])(0)
    assert [m[2].value for m in driver.maps] == [4096 + 128, 4096 + 256]
    kernel.movable([4096, 0], [1])(0, [1024])
    pointers = (ctypes.c_void_p * 15).from_address(driver.launches[-1])
    assert ctypes.c_void_p.from_address(pointers[14] or 0).value == 1024


def test_the_driver_gets_dimensions_innermost_first_and_strides_in_bytes() -> None:
    kind, rank, start, shape, strides, box, steps, interleave, swizzle, promotion, fill = encoding(X, 4096)
    assert (kind.value, rank.value, start.value) == (6, 3, 4096 + 128)
    assert (list(shape), list(strides), list(box)) == ([64, 500, 4], [256, 128_000], [64, 64, 1])
    assert list(steps) == [1, 1, 1]
    assert (interleave.value, swizzle.value, promotion.value, fill.value) == (0, 3, 2, 0)


def test_a_window_must_start_at_an_aligned_address() -> None:
    with pytest.raises(FuserError, match="'X' starts at an address"):
        encoding(X, 4104)


def test_maps_are_aligned_and_encoded_once_for_each_address(driver: Driver) -> None:
    first, again, other = (tensor_map.tensor_map(X, a) for a in (4096, 4096, 8192))
    assert first is again is not other
    assert [ctypes.addressof(m) % tensor_map.ALIGNMENT for m in (first, other)] == [0, 0]
    assert len(driver.maps) == 2


def test_a_refused_map_is_an_error_that_names_the_tensor(driver: Driver) -> None:
    driver.answer = 1
    with pytest.raises(CudaError, match="cuTensorMapEncodeTiled of 'X'"):
        tensor_map.tensor_map(X, 4096)


def test_a_kernel_gets_the_map_then_extents_and_strides(driver: Driver) -> None:
    kernel = LoadedKernel(artifact(), 0, 0, 2, 0, 0)
    call = kernel.bind([4096, 512])
    call(0)
    (params,) = driver.launches
    pointers = (ctypes.c_void_p * 10).from_address(params)
    at = [p or 0 for p in pointers]
    assert ctypes.c_uint64.from_address(at[0]).value == 42
    assert [ctypes.c_int32.from_address(p).value for p in at[1:4]] == [4, 500, 64]
    assert [ctypes.c_int64.from_address(p).value for p in at[4:7]] == [64_000, 128, 1]
    assert [ctypes.c_void_p.from_address(p).value for p in at[7:]] == [512, None, None]
