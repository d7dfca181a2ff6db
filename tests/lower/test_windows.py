"""Kernels that read windows of tensors: what they compute in Triton's interpreter, and what they look like."""

from __future__ import annotations

import pytest

from fuser.ir.fuse import fuse
from fuser.ir.schedule import Schedule
from fuser.lower.check import reduced_extents
from fuser.lower.triton_source import generate
from fuser.superopt.structures import structures
from fuser.workloads import workload
from tests.builders import schedule
from tests.interpreted import checked
from tests.ir.test_windows import joint_attention
from tests.ir.test_windows import joint_gated_mlp
from tests.ir.test_windows import rotary_attention

LAYERS = workload("graphene/mlp20", layers=3, M=70, D=32)


def cut_attention():
    """Attention behind the product of which it reads three windows, in a kernel of its own."""
    program = joint_attention(s=20, heads=2, d=16)
    return program, next(
        g
        for g in structures(program)
        if len(g.kernels) == 2
        and not any(b.splits for b in g.blocks)
        and any(s.access and s.access.window and s.access.window.tensor == "add_1" for s in g.blocks[1].loads)
    )


def test_kernels_agree_with_float64():
    joint, rotary = joint_gated_mlp(40, 48, 64), rotary_attention(40, 2, 32)
    program, graph = cut_attention()
    jobs = [
        (LAYERS, fuse(LAYERS), Schedule((schedule(m=16),))),
        (joint, fuse(joint), Schedule((schedule("k", m=16, n=32, k=16),))),
        (rotary, fuse(rotary), Schedule((schedule("n", m=16, n=16, b=1),))),
        (program, graph, Schedule(tuple(schedule() for _ in graph.blocks))),
    ]
    for outcome in (checked(*job) for job in jobs):
        assert outcome.message == ""
        assert outcome.error < 2e-3


def test_twenty_layers_stay_in_range_and_agree():
    deep = workload("graphene/mlp20", M=20, D=64)
    outcome = checked(deep, fuse(deep), Schedule((schedule(m=16),)))
    assert outcome.message == ""
    assert outcome.error < 2e-3


def test_a_kernel_that_reads_another_window_does_not_pass():
    other = workload("graphene/mlp20", layers=3, M=70, D=32)
    swapped = other.to_json()
    first = next(n for n in swapped["nodes"] if n["op"] == "slice")
    first["attrs"] |= {"start": 2, "stop": 3}
    outcome = checked(LAYERS, fuse(type(other).from_json(swapped)), Schedule((schedule(m=16),)))
    assert not outcome.passed


def test_reduced_sizes_stay_inside_of_the_windows():
    joint = joint_gated_mlp(256, 512, 1024)
    sizes = reduced_extents(fuse(joint), Schedule((schedule("k", m=16, n=32, k=16),)))
    assert sizes == {"m": 32, "n": 64, "k": 32}
    # a tensor that one kernel writes and another reads in windows keeps its size
    _, graph = cut_attention()
    assert reduced_extents(graph, Schedule((schedule(m=4), schedule()))) == graph.extents


def test_reduced_sizes_of_a_tensor_that_is_read_along_several_axes_agree():
    program = joint_attention(s=64, heads=2, d=16)
    graph = structures(program)[0]  # with stable exponentials: the scores are large
    sizes = reduced_extents(graph, Schedule((schedule(m=8),)))
    assert sizes["m"] == sizes["m1"] == 64
    outcome = checked(program, graph, Schedule((schedule(m=32, n=1),)))
    assert outcome.message == ""
    assert outcome.passed


@pytest.mark.parametrize("name", ["layers", "joint"])
def test_source_is_readable(name, golden):
    program = LAYERS if name == "layers" else joint_gated_mlp(40, 48, 64)
    tiles = schedule(m=16) if name == "layers" else schedule("k", m=16, n=32, k=16)
    golden.check(f"triton/windows_{name}.py.txt", generate(fuse(program).blocks[0], tiles).text)
