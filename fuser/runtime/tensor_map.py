"""Tensor maps: descriptors (:mod:`fuser.lower.descriptors`) as the driver encodes them, with the address of a tensor.

The constants are those of the driver's header for ``cuTensorMapEncodeTiled``; dimensions go there innermost first.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from fuser.errors import FuserError
from fuser.lower.descriptors import LEAST_BYTES
from fuser.lower.descriptors import Descriptor
from fuser.runtime.cuda_driver import check
from fuser.runtime.cuda_driver import driver

BYTES = 128
ALIGNMENT = 64
"""Of a map in memory, in bytes."""
_INTERLEAVE_NONE = 0
L2_PROMOTION_128B = 2
_FILL_ZERO = 0


class TensorMap(ctypes.Structure):
    """128 bytes that only the driver can read."""

    _fields_ = [("opaque", ctypes.c_uint64 * (BYTES // 8))]


def encoding(d: Descriptor, address: int) -> tuple[Any, ...]:
    """The arguments of the driver's call after the map itself, as ctypes values."""
    rank = len(d.shape)
    start = address + d.offset * d.itemsize
    if start % LEAST_BYTES:
        raise FuserError(f"tensor {d.tensor!r} starts at an address that is not a multiple of {LEAST_BYTES} bytes", "pass a copy")
    return (
        ctypes.c_int(d.data_type),
        ctypes.c_uint32(rank),
        ctypes.c_void_p(start),
        (ctypes.c_uint64 * rank)(*reversed(d.shape)),
        (ctypes.c_uint64 * max(rank - 1, 1))(*(n * d.itemsize for n in reversed(d.strides[:-1]))),
        (ctypes.c_uint32 * rank)(*reversed(d.part)),
        (ctypes.c_uint32 * rank)(*(1 for _ in d.shape)),
        ctypes.c_int(_INTERLEAVE_NONE),
        ctypes.c_int(d.swizzle),
        ctypes.c_int(L2_PROMOTION_128B),
        ctypes.c_int(_FILL_ZERO),
    )


@functools.lru_cache(maxsize=4096)
def tensor_map(d: Descriptor, address: int) -> TensorMap:
    """The map of a tensor at an address, encoded once. Raises :class:`CudaError` where the driver refuses it."""
    # a structure of its own alignment cannot be asked of ctypes in every version: take it from a larger buffer
    room = (ctypes.c_char * (BYTES + ALIGNMENT))()
    skip = -ctypes.addressof(room) % ALIGNMENT
    found = TensorMap.from_buffer(room, skip)
    check(f"cuTensorMapEncodeTiled of {d.tensor!r}", driver().cuTensorMapEncodeTiled(ctypes.byref(found), *encoding(d, address)))
    return found
