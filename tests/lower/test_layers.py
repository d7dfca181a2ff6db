"""Equal layers of a deep chain become a loop, where they are equal."""

from __future__ import annotations

import pytest

from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.candidate import Candidate
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.lower.check import check
from fuser.lower.layers import find_layers
from fuser.lower.triton_source import generate_graph
from fuser.superopt.structures import structures
from fuser.workloads import workload
from tests.interpreted import checked


def layers(order=(0, 1, 2, 3, 4), m=40, d=32, before=False, after="", dtype="float16") -> TensorProgram:
    """relu(x W[i] + v[i]) for each i of ``order``; ``before`` is a layer of its own in front, ``after`` another
    function of the last result."""
    b = Builder("layers", dtype)
    x, w, v = b.input("X", (m, d)), b.input("W", (8, d, d)), b.input("v", (8, d))

    def part(t: Ref, i: int, *shape: int) -> Ref:
        return b.op("slice", t, axis=0, start=i, stop=i + 1).reshape(*shape)

    if before:
        x = b.op("tanh", x @ b.input("F", (d, d)))
    for i in order:
        x = b.relu(x @ part(w, i, d, d) + part(v, i, d))
    return b.build(Y=b.op(after, x) if after else x)


def run(program: TensorProgram, **knobs: object) -> tuple[TensorProgram, KernelGraph, Schedule]:
    return program, fuse(program), Schedule((KernelSchedule((("m", 16),), knobs=tuple(knobs.items())),))


CASES = {
    "five": (run(layers()), 5),
    "backwards": (run(layers((7, 6, 5, 4, 3))), 5),
    "every second": (run(layers((0, 2, 4, 6))), 4),
    "one layer for itself in front": (run(layers(before=True)), 5),
    "the last result goes on in fp32": (run(layers(after="tanh")), 4),
    "padded": (run(layers(d=48), pad=True), 5),
    "three": (run(layers((0, 1, 2))), 0),
    "no rule in the order": (run(layers((0, 3, 1, 2, 5))), 0),
    "pieces": (run(layers(d=48)), 0),
    "written out": (run(layers(), unroll=True), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_the_layers_that_a_loop_does(name):
    (_, graph, schedule), count = CASES[name]
    (source,) = generate_graph(graph, schedule)
    loops = [line.strip() for line in source.text.splitlines() if line.strip().startswith("for layer")]
    assert loops == ([f"for layer in range({count}):"] if count else [])


@pytest.fixture(scope="module")
def outcomes():
    return dict(zip(CASES, check([(p, Candidate(g, s)) for (p, g, s), _ in CASES.values()]), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_kernels_agree_with_float64(name, outcomes):
    assert outcomes[name].message == ""
    assert outcomes[name].error < 2e-3


def test_windows_walk_by_their_step():
    (block,) = fuse(layers((7, 6, 5, 4, 3))).blocks
    found = find_layers(block, block.stmts)
    assert found is not None
    assert dict(found.steps) == {"W[7]": -32 * 32, "v[7]": -32}
    assert (found.initial, found.count, found.size) == ("X", 5, 5)
    assert found.renamed(1, ("m", "k")) == ("m", "n")


def test_layers_with_other_tiles_are_other_layers():
    (block,) = fuse(layers()).blocks
    last = block.stores[0].axes[-1]
    found = find_layers(block, block.stmts, {last: 16})
    assert found is not None
    assert found.count == 4


def test_source_is_readable(golden):
    program = workload("graphene/mlp20", M=70, D=32)
    (source,) = generate_graph(fuse(program), Schedule((KernelSchedule((("m", 16),)),)))
    body = source.text[source.text.index("import triton") :]
    golden.check("triton/layers_rolled.py.txt", body.replace(source.name, "kernel"))


def test_a_kernel_behind_another_starts_with_the_first_weights_alone():
    """With programmatic dependent launch, weights are loaded before the wait, but not those of all layers at once."""
    program = workload("graphene/mlp20", M=64, D=32)
    graph = next(g for g in structures(program) if len(g.kernels) == 2)
    schedule = Schedule((KernelSchedule((("m", 16),)), KernelSchedule((("m", 16),), knobs=(("pdl", "early"),))))
    text = generate_graph(graph, schedule)[1].text
    early, late = text.split("gdc_wait()\n")
    assert early.count("tl.load(W_ptr") == 2
    assert "for layer in range(8):" in late
    outcome = checked(program, graph, schedule)
    assert outcome.message == ""
    assert outcome.error < 2e-3
