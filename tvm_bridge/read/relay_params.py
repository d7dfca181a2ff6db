"""Parameter files of TVM (``relay.save_param_dict``, ``tvm.runtime.save_param_dict``), read and written without TVM.

Layout, little-endian: u64 magic, u64 reserved, u64 count, names (u64 length, bytes), u64 count, tensors. A tensor is u64 magic,
u64 reserved, device (2 × i32), i32 rank, dtype (u8 code, u8 bits, u16 lanes), rank × i64 shape, i64 bytes, data.
"""

from __future__ import annotations

import base64
import binascii
import math
import mmap
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np

from fuser.errors import ModelFileError
from fuser.files import counted
from fuser.files import open_regular
from fuser.files import shown
from tvm_bridge.read.relay_graph import MAX_ELEMENTS
from tvm_bridge.read.relay_graph import MAX_RANK

Array = np.ndarray[Any, np.dtype[Any]]

PARAMS_MAGIC = 0xF7E58D4F05049CB7
TENSOR_MAGIC = 0xDD5E40F096B4A13F

_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}


class _Reader:
    """Bounds-checked reads; every error names the file and the offset in bytes."""

    def __init__(self, data: bytes | mmap.mmap, source: str, hint: str) -> None:
        self.data, self.source, self.hint, self.offset = data, source, hint, 0

    def fail(self, what: str) -> ModelFileError:
        return ModelFileError(f"{self.source}: {what} at byte {self.offset}", self.hint)

    def unpack(self, layout: str, what: str) -> tuple[Any, ...]:
        size = struct.calcsize(layout)
        if self.offset + size > len(self.data):
            raise self.fail(f"the file ends within {what}")
        found = struct.unpack_from(layout, self.data, self.offset)
        self.offset += size
        return found

    def text(self, what: str) -> str:
        (length,) = self.unpack("<Q", f"the length of {what}")
        if self.offset + length > len(self.data):
            raise self.fail(f"the file ends within {what}")
        raw = bytes(self.data[self.offset : self.offset + length])
        self.offset += length
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not UTF-8") from None

    def tensor(self, what: str) -> tuple[Array, str]:
        magic, _ = self.unpack("<QQ", f"the header of {what}")
        if magic != TENSOR_MAGIC:
            raise self.fail(f"{what} does not start with TVM's tensor magic number")
        *_, rank, code, bits, lanes = self.unpack("<iiiBBH", f"the header of {what}")
        if not 0 <= rank <= MAX_RANK:
            raise self.fail(f"{what} has rank {rank}")
        dtype = dtype_name(code, bits, lanes)
        if dtype is None:
            raise self.fail(f"{what} has the unknown dtype code {code}, {bits} bits, {lanes} lanes")
        shape = self.unpack(f"<{rank}q", f"the shape of {what}")
        (nbytes,) = self.unpack("<q", f"the size of {what}")
        stored = np.dtype("uint16" if dtype == "bfloat16" else dtype)
        if any(e < 0 for e in shape) or math.prod(max(e, 1) for e in shape) > MAX_ELEMENTS:
            raise self.fail(f"{what} has the impossible shape {shape}")
        if nbytes != math.prod(shape) * stored.itemsize:
            raise self.fail(f"{what} of shape {shape} and dtype {dtype} claims {counted(nbytes, 'byte')}")
        if self.offset + nbytes > len(self.data):
            raise self.fail(f"the file ends within the {counted(nbytes, 'byte')} of {what}")
        found = np.frombuffer(self.data, stored, count=math.prod(shape), offset=self.offset).reshape(shape)
        self.offset += nbytes
        if not found.flags.aligned:
            found = found.copy()
        return (from_bfloat16(found), dtype) if dtype == "bfloat16" else (found, dtype)


def dtype_name(code: int, bits: int, lanes: int = 1) -> str | None:
    """Name of a DLPack dtype, or None where there is no such scalar type."""
    if lanes != 1 or code not in _CODES:
        return None
    if code == 6 or (code == 1 and bits == 1):
        return "bool"
    name = f"{_CODES[code]}{bits}"
    known = (
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
        "bfloat16",
    )
    return name if name in known else None


def from_bfloat16(bits: Array) -> Array:
    """Values of bfloat16 bit patterns, exact in float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def round_bfloat16(x: Array) -> Array:
    """float32 values rounded to the nearest bfloat16 (ties to even), kept in float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), np.float32(np.nan), rounded.view(np.float32)).reshape(np.shape(x))


def decode_tensor(text: Any, source: str, what: str) -> tuple[Array, str]:
    """One base64 tensor of a model's JSON: its values and its dtype (bfloat16 comes as float32 values)."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise ModelFileError(f"{source}: {what} is not valid base64", "the file is damaged; save the model again") from None
    return _Reader(data, f"{source}: {what}", "the file is damaged; save the model again").tensor("the tensor")


def _open(path: str | Path) -> bytes | mmap.mmap:
    handle = open_regular(path)
    try:
        return mmap.mmap(handle, 0, access=mmap.ACCESS_READ) if os.fstat(handle).st_size else b""
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({error.strerror})", "check the path of the parameter file") from None
    finally:
        os.close(handle)


def read_params_typed(path: str | Path) -> dict[str, tuple[Array, str]]:
    """Name to values and dtype; bfloat16 values come in float32. Raises :class:`ModelFileError` with the byte offset."""
    reader = _Reader(_open(path), str(path), "write it with tvm.runtime.save_param_dict(params)")
    magic, _, count = reader.unpack("<QQQ", "the header")
    if magic != PARAMS_MAGIC:
        raise ModelFileError(f"{path}: is not a parameter file of TVM (wrong magic number)", reader.hint)
    if count > len(reader.data):
        raise reader.fail(f"the file claims {counted(count, 'name')}")
    names = [reader.text(f"name {i}") for i in range(count)]
    if len(set(names)) != count:
        raise ModelFileError(f"{path}: a parameter name occurs twice", reader.hint)
    (tensors,) = reader.unpack("<Q", "the number of tensors")
    if tensors != count:
        raise reader.fail(f"{counted(count, 'name')} but {counted(tensors, 'tensor')}")
    found = {name: reader.tensor(f"tensor {shown(name)}") for name in names}
    if reader.offset != len(reader.data):
        raise reader.fail(f"{len(reader.data) - reader.offset} bytes follow the last tensor")
    return found


def read_params(path: str | Path) -> dict[str, Array]:
    """Name to array of a parameter file; see :func:`read_params_typed`."""
    return {name: value for name, (value, _) in read_params_typed(path).items()}
