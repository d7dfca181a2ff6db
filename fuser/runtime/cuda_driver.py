"""The CUDA driver and its errors."""

from __future__ import annotations

import ctypes
import functools

from fuser.errors import EnvironmentError_
from fuser.errors import FuserError

INVALID_CONTEXT = 201
"""The driver's error where a thread has no context."""
STICKY = frozenset({700, 702, 704, 710, 714, 715, 716, 717, 718, 719, 999})
"""Driver errors after which the process cannot use the GPU any more (illegal address, launch failure, …)."""


class CudaError(FuserError):
    """A call of the CUDA driver failed; ``number`` is the CUresult."""

    exit_code = 6
    code = "cuda"

    def __init__(self, call: str, number: int, text: str) -> None:
        super().__init__(f"{call} failed: {text} ({number})")
        self.number = number

    @property
    def sticky(self) -> bool:
        return self.number in STICKY


@functools.cache
def driver() -> ctypes.CDLL:
    """The CUDA driver's library; :class:`EnvironmentError_` where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise EnvironmentError_("there is no CUDA driver on this machine", "run on a machine with an NVIDIA GPU") from error


@functools.cache
def _primary_context(index: int) -> int:
    context = ctypes.c_void_p()
    check("cuDevicePrimaryCtxRetain", driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), ctypes.c_int(index)))
    return context.value or 0


def use_device(index: int) -> None:
    """Make the context of a GPU that torch uses, its primary one, current in this thread: a new thread has none before it calls
    the CUDA runtime, which torch does not do for memory that it has at hand."""
    context = ctypes.c_void_p(_primary_context(index))
    check("cuCtxSetCurrent", driver().cuCtxSetCurrent(context))


def check(call: str, number: int) -> None:
    """Raises :class:`CudaError` where the driver answered a call with anything but success."""
    if not number:
        return
    text = ctypes.c_char_p()
    driver().cuGetErrorName(number, ctypes.byref(text))
    raise CudaError(call, number, (text.value or b"unknown error").decode())
