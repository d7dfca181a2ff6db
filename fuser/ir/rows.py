"""Rows of tensors in memory: each begins at an aligned address, with zeros between its end and the next.

A thread moves 16 bytes at once where their address is a multiple of 16, and a tensor descriptor asks for such strides: rows of
197 fp16 numbers, which are read one by one, become rows of 200.
"""

from __future__ import annotations

import numpy as np

from fuser.errors import NoValidKernelError
from fuser.ir.ops import Array
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.program import Tensor

ROW_BYTES = 16
"""Bytes that a thread moves at once; rows are multiples of them."""


def row_step(dtype: str) -> int:
    """Elements that rows are multiples of."""
    return max(ROW_BYTES // DTYPE_BYTES[dtype], 1)


def pitch_of(tensor: Tensor) -> int:
    """Elements from one aligned row of a tensor to the next; 0 where its rows are aligned as they are, or no longer than what a
    thread moves."""
    step = row_step(tensor.dtype)
    columns = tensor.shape[-1] if tensor.shape else 0
    return -(-columns // step) * step if columns > step and columns % step else 0


def in_rows(x: Array, shape: tuple[int, ...]) -> Array:
    """The array with zeros behind each row, as long as those of ``shape``; as it is where it has so many elements."""
    more = shape[-1] - x.shape[-1] if shape and x.ndim else 0
    if more <= 0 or x.size == np.prod(shape, dtype=np.int64):
        return x
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, more)])


def out_of_rows(x: Array, shape: tuple[int, ...], name: str) -> Array:
    """An array of ``shape`` out of longer rows. Raises :class:`NoValidKernelError` where they do not end with zeros."""
    if x.size == np.prod(shape, dtype=np.int64):
        return x.reshape(shape)
    if np.any(x[..., shape[-1] :] != 0):
        raise NoValidKernelError(f"what is between the rows of {name!r} is not zero", "choose another schedule")
    return x[..., : shape[-1]].reshape(shape)
