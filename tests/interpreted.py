"""Generated kernels in Triton's interpreter, in the tests' own process: starting another one takes longer than most of them."""

from __future__ import annotations

from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.lower.check import check_here
from fuser.lower.checker import Check


def checked(program: TensorProgram, graph: KernelGraph, schedule: Schedule) -> Check:
    """:func:`fuser.lower.check.check` of one job, whose errors are raised."""
    return check_here(program, Candidate(graph, schedule), 0, "triton")
