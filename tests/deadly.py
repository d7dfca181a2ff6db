"""A compiler that ends its process, for tests of the processes that compile: at kernels whose text has what ``MUFUSER_DEADLY``
says."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from fuser.lower import compile as compiling
from fuser.lower.quiet import quiet
from search import realise as realising
from search.measure import compiling as plans

REAL, REAL_JOB, REAL_BUILD = compiling._compiled, realising._compiled, plans.build


def compiled(source: Any, arch: int, folder: Any) -> Any:
    if os.environ["MUFUSER_DEADLY"] in source.text:
        with Path(os.environ["MUFUSER_DEATHS"]).open("a") as file:
            file.write(f"{source.name}\n")
        with quiet([]):
            os.write(2, b"x.cpp:1: Assertion `n % 8 == 0' failed.\n")
            os.kill(os.getpid(), signal.SIGSEGV)
    return REAL(source, arch, folder)


def job(*given: Any) -> Any:
    """A job of :func:`search.realise.realise` in a child."""
    compiling._compiled = compiled
    return REAL_JOB(*given)


def build(*given: Any) -> Any:
    """A plan of :class:`search.measure.compiling.CompilePool` in a child."""
    compiling._compiled = compiled
    return REAL_BUILD(*given)
