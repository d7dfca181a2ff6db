"""What the solver chooses is what the generator of Gluon writes."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.agreement import agreement
from fuser.device import load_device
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.lower.check import random_inputs
from fuser.lower.emulator.language import emulate
from fuser.lower.gluon.source import generate_gluon
from fuser.lower.tiles import Tiles
from fuser.superopt.rewrite.stabilize import stabilize_graph
from search.layouts.solve import plan_layouts
from tests.builders import attention
from tests.builders import chain
from tests.builders import gemm
from tests.builders import postponed


@pytest.mark.parametrize(
    ("program", "schedule"),
    [
        (gemm(256, 256, 256), "k [m=128 n=128 k=64] warps=8 stages=4 backend=gluon"),
        (chain(128, 256, 128, 64), "n [m=64 n=64 k=128 h=64] warps=4 stages=2 backend=gluon"),
        (attention(256, 256, 64, 64), "n [b=1 m=128 n=64 h=64 k=64] warps=8 stages=3 backend=gluon"),
    ],
)
def test_a_plan_of_the_solver_is_generated(program: TensorProgram, schedule: str) -> None:
    graph = stabilize_graph(postponed(program))
    (ks,) = Schedule.parse(schedule, graph.blocks).kernels
    tiles = Tiles.of(graph.blocks[0], ks)
    plan = plan_layouts(graph.blocks[0], ks, load_device("h200"))
    made = generate_gluon(tiles, "kernel", given=plan)
    for buffer in plan.buffers:
        assert f"gl.{buffer.dtype}, [{buffer.stages * buffer.pieces}," in made.text
    inputs = random_inputs(graph, np.random.default_rng(0))
    reference = program.evaluate({n: np.asarray(x, np.float64) for n, x in inputs.items()})
    (name,) = graph.outputs
    assert agreement(emulate(made, inputs)[name], reference[name], "float16", 1e-2).ok
