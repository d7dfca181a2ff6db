"""Rows that the blocks of a cluster share out."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from fuser.errors import NoValidKernelError
from fuser.errors import UsageError
from fuser.interpret.reference import interpret
from fuser.ir.builder import Builder
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.lower.check import random_inputs
from fuser.lower.check import run_graph
from fuser.lower.compile import compile_graph
from fuser.lower.triton_source import generate_graph
from fuser.superopt.structures import structures
from tests.conftest import Golden

KINDS = ("softmax", "layer_norm", "total", "largest")


def row_program(kind: str, rows: int, columns: int) -> TensorProgram:
    b = Builder(kind)
    x = b.input("X", (rows, columns))
    if kind == "total":
        return b.build(Y=b.sum(x, 1))
    if kind == "largest":
        return b.build(Y=x - b.op("max", x, axis=(1,), keepdims=True))
    return b.build(Y=getattr(b, kind)(x))


def shared_out(program: TensorProgram, tile: int, warps: int = 4) -> tuple[KernelGraph, Schedule]:
    graph = structures(program)[0]
    (block,) = graph.blocks
    (axis,) = block.reduced
    rows = "".join(f"{a}=1 " for a in block.extents if a != axis)
    return graph, Schedule.parse(f"- [{rows}{axis}={tile}] warps={warps} stages=2 cluster={axis}", graph.blocks)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(KINDS), st.integers(1, 3), st.integers(65, 512), st.integers(0, 99))
def test_a_row_in_parts_is_the_whole_row(kind: str, rows: int, columns: int, seed: int) -> None:
    program = row_program(kind, rows, columns)
    graph, schedule = shared_out(program, 64)
    inputs = random_inputs(graph, np.random.default_rng(seed))
    wanted = interpret(graph, schedule, inputs)["Y"]
    found = run_graph(graph, schedule, inputs)["Y"]
    assert np.allclose(found, wanted, atol=4e-3 * max(1.0, float(np.abs(wanted).max())))


def test_generated_text(golden: Golden) -> None:
    (source,) = generate_graph(*shared_out(row_program("softmax", 3, 200), 64))
    golden.check("triton/softmax_in_a_cluster.py.txt", source.text)
    assert (source.grid, source.cluster, source.exchanges) == (12, 4, 2)


def test_every_launcher_starts_clusters_and_no_block_leaves_one_that_reads_it() -> None:
    (artifact,) = compile_graph(*shared_out(row_program("layer_norm", 4, 9000), 2048), 90)
    assert ".reqnctapercluster 5, 1, 1" in artifact.ptx
    assert artifact.cubin.startswith(b"\x7fELF") and artifact.spills == 0
    body = artifact.ptx.partition(".entry")[2]
    steps = re.findall(r"st\.shared\.b32 \[here\]|barrier\.cluster\.(?:arrive\.release|wait\.acquire)|ld\.shared::cluster", body)
    kinds = "".join(str(x)[16] if str(x).startswith("barrier") else str(x)[0] for x in steps)  # store, load, arrive, wait
    assert kinds == "sawlllll" * 2 + "aw"
    assert body.rindex("barrier.cluster.wait") < body.rindex("ret;")


def test_what_has_no_such_form_is_refused() -> None:
    with pytest.raises(NoValidKernelError, match=r"10 blocks would share out .* 8 at most"):
        generate_graph(*shared_out(row_program("softmax", 2, 640), 64))
    graph, schedule = shared_out(row_program("softmax", 4, 256), 64)
    taller = Schedule.parse(str(schedule).replace("m=1", "m=2"), graph.blocks)
    with pytest.raises(NoValidKernelError, match="more than one number a block"):
        generate_graph(graph, taller)
    with pytest.raises(UsageError, match="reduced"):
        generate_graph(graph, Schedule.parse(str(schedule).replace(" cluster=n", ""), graph.blocks))
    with pytest.raises(NoValidKernelError, match="sm_90"):
        compile_graph(graph, schedule, 80)
    with pytest.raises(UsageError, match="persistent"):
        generate_graph(graph, Schedule.parse(f"{schedule} persistent=2", graph.blocks))


def test_blocks_that_have_it_all_exchange_nothing() -> None:
    graph, schedule = shared_out(row_program("softmax", 4, 64), 64)
    (source,) = generate_graph(graph, schedule)
    assert (source.cluster, source.exchanges) == (1, 0)
    assert "cluster" not in source.text.partition("@triton.jit")[2]
