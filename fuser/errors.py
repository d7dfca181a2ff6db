"""The catalogue of errors: each has a code, a message that names the culprit, and a hint that names the way out.

The command line prints ``message`` and ``hint`` and exits with ``exit_code``; a traceback is always a bug.
"""

from __future__ import annotations

from typing import ClassVar


class FuserError(Exception):
    """Base of every error that a user can cause."""

    exit_code: ClassVar[int] = 2
    code: ClassVar[str] = "error"

    def __init__(self, message: str, hint: str = "") -> None:
        message = message.strip() or f"{type(self).__name__} without a message"
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class UsageError(FuserError):
    """A command or a call was given something that it cannot take."""

    exit_code = 2
    code = "usage"


class GradientError(UsageError):
    """A gradient was asked for of what kernels have computed, which have no backward."""


class ArgumentError(UsageError, TypeError):
    """Arguments that a function does not take, or too few."""


class MissingError(UsageError, AttributeError):
    """A name that something does not have."""


class ProgramError(FuserError):
    """A tensor program that is not well formed: shapes, dtypes, names."""

    exit_code = 2
    code = "program"


class UntraceableError(ProgramError):
    """A module that is no one graph."""


class ModelFileError(FuserError):
    """A model or parameter file that cannot be read."""

    exit_code = 3
    code = "model-file"


class NothingSupportedError(FuserError):
    """A model in which there is nothing to optimize."""

    exit_code = 4
    code = "nothing-supported"


class UnsupportedError(FuserError):
    """An operator, dtype or shape that the requested stage cannot handle."""

    exit_code = 4
    code = "unsupported"


class RandomError(UnsupportedError):
    """An operator that draws random numbers."""


class NoValidKernelError(FuserError):
    """No candidate survived pruning, compilation or the numerical check."""

    exit_code = 5
    code = "no-valid-kernel"


class OutOfResourcesError(NoValidKernelError):
    """A kernel that needs more shared memory or registers than a block can have on the device."""


class DiedError(NoValidKernelError):
    """The process that compiled a kernel, or did other work for this one, died of it. ``ended`` is its exit code, negative that
    of a signal; ``outside``: it was killed, maybe for want of memory, so that the work itself may not be to blame."""

    def __init__(self, message: str, hint: str = "", ended: int = 0, outside: bool = False) -> None:
        super().__init__(message, hint)
        self.ended, self.outside = ended, outside


class EnvironmentError_(FuserError):
    """Something that is not installed, not present, or of the wrong version on this machine."""

    exit_code = 6
    code = "environment"


class LeftToTorch(UserWarning):
    """A graph, or a part of one, that torch runs as it stands, and why."""


def said(error: BaseException) -> str:
    """What an exception says; where it says nothing (an assertion, say), its class and the line that raised it."""
    while not (text := str(error).strip()):
        inner = error.__cause__ or error.__context__
        if inner is None:
            trace = error.__traceback__
            while trace and trace.tb_next:
                trace = trace.tb_next
            where = f" at {trace.tb_frame.f_code.co_name}:{trace.tb_lineno}" if trace else ""
            return f"{type(error).__name__}{where}"
        error = inner
    return text


def first_line(error: BaseException, most: int = 300) -> str:
    """The first line of what an exception says."""
    return said(error).splitlines()[0][:most]
