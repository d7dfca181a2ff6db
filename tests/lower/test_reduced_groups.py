"""Kernels by warp groups are checked as what they are: at the reduced size of a check they are written as at their own."""

from __future__ import annotations

import re

import pytest

from fuser.ir.candidate import Candidate
from fuser.ir.composites import expand
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.lower.gluon.reduced import trips_of_groups
from fuser.lower.reduced import reduced_extents
from fuser.lower.reduced import reduced_schedule
from fuser.lower.triton_source import generate_graph
from fuser.superopt.rewrite.stabilize import stabilize_graph
from tests.builders import attention
from tests.builders import chain
from tests.builders import gemm
from tests.builders import postponed


def text(graph: KernelGraph, schedule: Schedule) -> str:
    """What is generated, without its numbers and without what names and comments say of them."""
    (made,) = generate_graph(graph, schedule)
    lines = (line for line in made.text.splitlines() if not line.startswith("#"))
    return re.sub(r"\d+", "#", re.sub(r"_[0-9a-f]{8}\b", "", "\n".join(lines)))


@pytest.mark.parametrize(
    ("program", "schedule", "stages"),
    [
        (gemm(256, 256, 2048), "k [m=128 n=64 k=64] warps=8 stages=5", 3),
        (gemm(256, 256, 2048), "k [m=64 n=64 k=64] warps=4 stages=3 backend=gluon_mma", 3),
        (gemm(256, 256, 320), "k [m=128 n=64 k=64] warps=8 stages=5", 5),  # all of it has room
        (gemm(256, 256, 1000), "k [m=64 n=64 k=64] warps=8 stages=3", 3),  # sixteen trips, the last with less, for two
        (gemm(512, 256, 2048), "k [m=64 n=64 k=64] warps=8 stages=5 persistent=3 flatten=True", 5),
        (gemm(256, 256, 2048), "k [m=64 n=64 k=64] warps=4 stages=4 specialize=False", 3),
        (chain(128, 512, 128, 64), "nk [m=64 n=128 k=64 h=64] warps=4 stages=5", 5),
        (attention(128, 2048, 64, 64), "n [b=1 m=128 n=64 h=64 k=64] warps=8 stages=6", 3),
        (attention(128, 512, 64, 64), "n [b=1 m=64 n=128 h=64 k=64] warps=8 stages=4", 4),  # two trips for each of two groups
        (attention(128, 512, 64, 64), "n [b=1 m=128 n=64 h=64 k=64] warps=8 stages=3 persistent=132 flatten=True", 3),
        (attention(64, 2112, 64, 64), "n [b=1 m=64 n=64 h=64 k=64] warps=16 stages=2", 2),  # 33 trips for four
    ],
)
def test_they_are_written_at_a_reduced_size_as_at_their_own(program: TensorProgram, schedule: str, stages: int) -> None:
    graph = stabilize_graph(postponed(expand(program)))
    real = Schedule.parse(schedule if "backend" in schedule else f"{schedule} backend=gluon", graph.blocks)
    small = graph.with_extents(reduced_extents(graph, real))
    reduced = reduced_schedule(Candidate(graph, real), small)
    assert [k.num_stages for k in reduced.kernels] == [stages]
    assert text(small, reduced) == text(graph, real)


def test_loops_of_triton_run_twice() -> None:
    graph = fuse(gemm(256, 256, 2048))
    schedule = Schedule.parse("k [m=128 n=64 k=64] warps=8 stages=5", graph.blocks)
    assert trips_of_groups(graph.blocks[0], schedule.kernels[0]) == {}
    small = graph.with_extents(sizes := reduced_extents(graph, schedule))
    assert sizes["k"] == 128
    assert reduced_schedule(Candidate(graph, schedule), small) == schedule
