"""Schedules that nobody would choose, of every structure: they compute what the program says, or are refused."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.soundness.schedules import KINDS
from experiments.soundness.schedules import choose
from fuser.device import load_device
from fuser.errors import NoValidKernelError
from fuser.ir.builder import Builder
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.lower.triton_source import generate
from fuser.superopt.structures import one_kernel
from fuser.superopt.structures import structures
from tests.builders import attention
from tests.builders import chain
from tests.builders import gated_mlp
from tests.builders import rms_gemm
from tests.builders import schedule
from tests.interpreted import checked

DEVICE = load_device("h200")


ATTENTION = attention(19, 50, 24, 20)
PROGRAMS = {
    "attention": ATTENTION,
    "causal": attention(19, 50, 24, 20, causal=True),
    "chain": chain(37, 50, 24, 20, "relu"),
    "rms_norm": rms_gemm(5, 100, 36),
    "gated": gated_mlp(7, 50, 34),
}


def draw(name: str, kinds: tuple[str, ...], seed: int) -> list[tuple[str, TensorProgram, KernelGraph, Schedule]]:
    """A schedule of each structure, of every second kind in turn."""
    found = []
    for i, graph in enumerate(structures(PROGRAMS[name])):
        for kind in kinds[i % 2 :: 2]:
            chosen = choose(graph, kind, np.random.default_rng([seed, i, KINDS.index(kind)]), DEVICE)
            if chosen is not None:
                found.append((kind, PROGRAMS[name], graph, chosen))
    return found


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == "attention" else n for n in PROGRAMS])
def test_ugly_schedules_agree_with_float64(name: str) -> None:
    pytest.importorskip("torch")
    jobs = draw(name, ("odd", "ragged", "parts", "loops"), 1)
    assert len({kind for kind, *_ in jobs}) == 4
    outcomes = [checked(p, g, s) for _, p, g, s in jobs]
    wrong = [(kind, str(s), o.error, o.message) for (kind, _, _, s), o in zip(jobs, outcomes, strict=True) if not o.passed]
    assert not wrong


def test_a_maximum_of_an_earlier_loop_rescales_nothing():
    """Sums that get a loop of their own, behind the one that has found the maximum, have no maximum that moves."""
    pytest.importorskip("torch")
    program = ATTENTION
    graph = structures(program)[1]
    assert graph.blocks[0].splits
    first = schedule("(m,h,n)", splits={"n_part": 1}, b=1, m=16, n=16, h=10)
    assert str(first.order) == "(m,h,n)"
    outcome = checked(program, graph, Schedule((first, schedule("hm", splits={"n_part": 1}, b=1, m=16, h=16))))
    assert outcome.passed


def test_every_trip_of_an_unrolled_loop_masks_what_it_loads():
    """Rows in an inner loop: the ragged end of the keys is minus infinity in each of its trips."""
    pytest.importorskip("torch")
    b = Builder("softmax")
    program = b.build(O=b.softmax(b.input("S", (24, 70))) @ b.input("V", (70, 20)))
    outcome = checked(program, one_kernel(program), Schedule((schedule("km", m=7, k=50, n=20),)))
    assert outcome.passed


def test_accumulators_of_single_elements_are_refused():
    b = Builder("batched")
    program = b.build(E=(b.input("A", (3, 32, 16)) @ b.input("B", (3, 16, 32))) @ b.input("D", (3, 32, 16)))
    with pytest.raises(NoValidKernelError, match="single element of 'b'"):
        generate(one_kernel(program).blocks[0], schedule("nb", b=1, m=16, n=16))


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_says_what_is_ugly(kind: str) -> None:
    graph = structures(ATTENTION)[1]
    chosen = choose(graph, kind, np.random.default_rng(0), DEVICE)
    assert chosen is not None
    first = chosen.kernels[0]
    if kind == "thin":
        assert (first.num_warps, first.tile["m"]) == (1, 1)
    if kind == "wide":
        assert (first.num_warps, first.num_stages) == (16, 1)
    if kind == "ragged":
        assert any(e % first.tile.get(a, e) for a, e in graph.blocks[0].extents.items() if e)
    if kind in ("options", "tuned"):
        assert any(k.knobs for k in chosen.kernels)


def test_each_trip_of_an_unrolled_loop_has_its_own_masks():
    b = Builder("one_query")
    q, k, v = b.input("Q", (2, 1, 32)), b.input("K", (2, 70, 32)), b.input("V", (2, 70, 16))
    scores = b.op("reshape", b.op("sum", q * k, axis=(2,), keepdims=False), shape=(2, 1, 70))
    program = b.build(O=b.softmax(scores) @ v)
    block = schedule("(r,k)", b=1, r=8, k=16)
    graph = one_kernel(program)
    found = checked(program, graph, Schedule((block,)))
    assert found.passed and found.error < 1e-3, found
