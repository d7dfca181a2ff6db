"""Kernels that read windows of tensors: what they compute in Triton's interpreter, and what they look like."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fuser.ir.builder import Builder
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.lower.kernel_source import KernelSource
from fuser.lower.reduced import reduced_extents
from fuser.lower.triton_source import generate
from fuser.lower.triton_source import generate_graph
from fuser.superopt.structures import structures
from fuser.workloads import workload
from tests.builders import schedule
from tests.interpreted import checked
from tests.ir.test_windows import joint_attention
from tests.ir.test_windows import joint_gated_mlp
from tests.ir.test_windows import packed_rotary_attention
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
    packed = packed_rotary_attention(40, 4, 2, 32)
    program, graph = cut_attention()
    jobs = [
        (LAYERS, fuse(LAYERS), Schedule((schedule(m=16),))),
        (joint, fuse(joint), Schedule((schedule("k", m=16, n=32, k=16),))),
        (rotary, fuse(rotary), Schedule((schedule("n", m=16, n=16, b=1),))),
        (packed, fuse(packed), Schedule((schedule("n", m=16, n=16),))),
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
    # a tensor that one kernel writes and another reads in windows keeps its size along what is not all of it
    _, graph = cut_attention()
    keys = reduced_extents(graph, Schedule((schedule(m=4), schedule(m1=4))))
    assert keys == graph.extents, "of rows, all are read as keys"


def modulated() -> tuple[TensorProgram, KernelGraph, Schedule]:
    """Shift and scale come of one product in a kernel of its own, of which the next one reads windows."""
    b = Builder("modulated")
    x, c = b.input("X", (6, 150, 48)), b.input("C", (6, 32))
    both = c @ b.input("W", (32, 96))
    shift, scale = (b.op("slice", both, axis=1, start=i, stop=i + 48).reshape(6, 1, 48) for i in (0, 48))
    program = b.build(Y=(x * scale + shift) @ b.input("V", (48, 160)))
    graph = next(g for g in structures(program) if len(g.blocks) == 2 and any(s.at.window for s in g.blocks[1].loads))
    return program, graph, Schedule((schedule(m=1, n=32), schedule(b=1, m1=32, h=16)))


def test_dimensions_that_windows_are_a_part_of_keep_their_size_and_all_else_is_reduced() -> None:
    program, graph, tiled = modulated()
    outcome = checked(program, graph, tiled)
    assert outcome.passed and outcome.error < 2e-3
    small = dict(outcome.extents)
    made, read = ({a.extent: small[a.name] for a in b.axes} for b in graph.blocks)
    assert made == {6: 2, 96: 96, 32: 32}, "its rows are read whole, of its columns windows"
    assert read == {6: 2, 150: 64 + 150 % 32, 48: 48, 160: 32}


def test_another_window_does_not_pass_in_the_graph_or_in_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    program, graph, tiled = modulated()
    first, second = graph.blocks

    def moved(s: Stmt) -> Stmt:
        window = s.access.window if s.access else None
        return replace(s, access=replace(s.at, window=replace(window, starts=(0, 24)))) if window else s

    outcome = checked(program, replace(graph, kernels=(first, replace(second, stmts=tuple(map(moved, second.stmts))))), tiled)
    assert "relative Frobenius error" in outcome.message

    def shifted(*given: Any) -> tuple[KernelSource, ...]:
        first, second = generate_graph(*given)
        return first, replace(second, text=second.text.replace("matmul_0_ptr + 48", "matmul_0_ptr + 32"))

    monkeypatch.setattr("fuser.lower.triton_source.generate_graph", shifted)
    assert "relative Frobenius error" in checked(program, graph, tiled).message


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


def test_a_matrix_beside_its_transpose_is_checked_at_a_reduced_size() -> None:
    b = Builder("symmetric")
    x, y = b.input("X", (400, 400)), b.input("Y", (400, 400))
    program = b.build(Z=(x + x.transpose(1, 0)) @ (y + y.transpose(1, 0)))
    tiled = Schedule((schedule("k", m=32, n=16, k=16),))
    assert reduced_extents(fuse(program), tiled) == dict.fromkeys("mnk", 2 * 32 + 400 % 32)
    outcome = checked(program, fuse(program), tiled)
    assert outcome.passed and outcome.error < 2e-3
