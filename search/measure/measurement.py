"""What became of a candidate, and which failure is whose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic
from typing import TypeVar

from fuser.errors import DiedError
from fuser.errors import EnvironmentError_
from fuser.errors import FuserError
from fuser.errors import OutOfResourcesError
from fuser.errors import UnsupportedError
from fuser.errors import first_line
from fuser.ir.candidate import Candidate
from fuser.ir.program import TensorProgram
from fuser.outputs import FULL
from fuser.runtime.cuda_driver import CudaError

STATUSES = ("ok", "unsupported", "invalid", "compile", "resources", "wrong", "nan", "timeout", "crash")
"""``ok``, or the class of the failure: the generator refused (unsupported, invalid), the compiler did, the device lacks shared
memory or registers, the numbers are wrong or not numbers, the kernel hung, the process died."""

NO_ROOM = ("no space left on device", "disk quota exceeded", "cannot allocate memory", "can't allocate memory", "out of memory")
"""What other people's compilers, libraries and drivers say where the machine lacks something; they have no class for it."""


@dataclass(frozen=True)
class Measurement:
    """What became of a candidate. Times are microseconds of one call, from graph replays: median, least, and ``spread`` as the
    10th to 90th percentile over the median. Errors are relative to float64: Frobenius norm, and largest over the largest value.
    ``seconds`` is what finding this out cost.

    ``lasting`` is False for a failure that may be the machine's fault (no memory, a full disk, a process that was killed): it is
    not kept, so that a later run tries again."""

    status: str = "ok"
    detail: str = ""
    time_us: float | None = None
    min_us: float | None = None
    spread: float | None = None
    error_fro: float | None = None
    error_max: float | None = None
    grid: int = 0
    shared_bytes: int = 0
    registers: int = -1
    spills: int = -1
    kernels: int = 1
    calls: int = 0
    replays: int = 0
    seconds: float = 0.0
    lasting: bool = True

    @property
    def ok(self) -> bool:
        return self.status == "ok"


Item_co = TypeVar("Item_co", covariant=True)


@dataclass(frozen=True)
class Turn(Generic[Item_co]):
    """What is measured in turn with each other, of one program, and with those ``beside``, which were measured before. What else
    was measured before is not measured again, unless ``again``. ``seconds`` are waited for compilers."""

    program: TensorProgram
    items: tuple[Item_co, ...]
    beside: tuple[Candidate, ...] = ()
    again: bool = False
    seconds: float | None = None


Found = tuple[list[Measurement], tuple[Measurement, ...]]
"""Of each item of a turn, and of those beside: of none where nothing was measured."""


def failed(error: BaseException, otherwise: str = "invalid") -> Measurement:
    """What an error means for the candidate; ``otherwise`` is the status where its class says nothing."""
    if of_the_machine(error) or isinstance(error, EnvironmentError_):
        return Measurement("resources", f"{type(error).__name__}: {first_line(error)}", lasting=False)
    if isinstance(error, DiedError):
        return Measurement("compile", error.message, lasting=not error.outside)
    if isinstance(error, OutOfResourcesError | CudaError):
        return Measurement("resources", first_line(error))
    status = "unsupported" if isinstance(error, UnsupportedError) else otherwise
    return Measurement(status, error.message if isinstance(error, FuserError) else f"{type(error).__name__}: {first_line(error)}")


def of_the_machine(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, says that memory, disk or files ran out."""
    while error is not None:
        full = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in FULL)
        if full or any(t in str(error).lower() for t in NO_ROOM):
            return True
        error = error.__cause__ or error.__context__
    return False
