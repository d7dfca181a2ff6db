"""The CUDA driver and its errors."""

from __future__ import annotations

import ctypes
import functools

from fuser.errors import EnvironmentError_
from fuser.errors import FuserError

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


def check(call: str, number: int) -> None:
    """Raises :class:`CudaError` where the driver answered a call with anything but success."""
    if not number:
        return
    text = ctypes.c_char_p()
    driver().cuGetErrorName(number, ctypes.byref(text))
    raise CudaError(call, number, (text.value or b"unknown error").decode())
