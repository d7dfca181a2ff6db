"""Stable exponentials: running maxima, nested ones, and maxima of parts."""

from __future__ import annotations

from dataclasses import replace

from fuser.ir.builder import Builder
from fuser.superopt.rewrite.stabilize import stabilize_graph
from fuser.superopt.verify.shifts import unstabilize
from fuser.superopt.verify.verdict import Accepted
from fuser.superopt.verify.verifier import verify
from fuser.workloads import workload
from tests.builders import attention
from tests.builders import edit
from tests.builders import postponed

SQUARE = attention(64, 64, 64, 64, heads=4)
CAUSAL = attention(64, 64, 64, 64, causal=True)
"""All extents equal, so that no wrong access shows in a shape."""


def test_running_maximum_is_tested_as_it_stands() -> None:
    for program in (
        SQUARE,
        CAUSAL,
        attention(64, 64, 64, 64, mask=(64, 64)),
        workload("mirage/qknorm", heads=2, M=64, N=64, K=64, H=64),
    ):
        graph = stabilize_graph(postponed(program))
        folds = [s for s in graph.blocks[0].computes if s.rescale]
        assert folds
        assert isinstance(verify(program, graph), Accepted), program
        assert not any(s.rescale or s.running for s in unstabilize(graph).blocks[0].stmts)
        for s in folds:
            for rescale in ((), tuple(replace(r, degree=2) for r in s.rescale)):
                assert not verify(program, edit(graph, s.value, rescale=rescale), float_rounds=0).accepted


def test_a_maximum_of_something_else_is_not_a_shift() -> None:
    program = SQUARE
    graph = stabilize_graph(postponed(program))
    shifted = next(s for s in graph.blocks[0].computes if s.op == "sub" and s.running)
    top = graph.blocks[0].by_value[shifted.args[1]]
    wrong = edit(graph, top.value, args=("K",), axes=("b", "k"))
    assert not verify(program, wrong).accepted


def test_nested_exponentials() -> None:
    """Two attentions in a row: the law of exp has no meaning, so the running maxima are tested by degrees."""
    b = Builder("twice")
    q, k, v, w = (b.input(n, (16, 16)) for n in "QKVW")
    program = b.build(O=b.attention(b.attention(q, k, v, scale=1), k, w, scale=1))
    graph = stabilize_graph(postponed(program))
    verdict = verify(program, graph, rounds=1)
    assert isinstance(verdict, Accepted)
    assert any("nested" in note for note in verdict.heuristic)
    s = next(s for s in graph.blocks[0].computes if s.rescale)
    assert not verify(program, edit(graph, s.value, rescale=()), rounds=1, float_rounds=0).accepted


def test_masked_split_with_partial_maxima() -> None:
    """Rows that see nothing of a part: its maximum is that of nothing, and its weight is zero."""
    from fuser.superopt.rewrite.splits import split_block

    program = CAUSAL
    graph = postponed(program)
    pair = split_block(graph.blocks[0], "n")
    split = stabilize_graph(replace(graph, kernels=pair))
    assert all(any(s.rescale for s in k.stmts) for k in split.blocks)
    assert isinstance(verify(program, split), Accepted)
    load = next(s for s in split.blocks[1].loads if s.value.endswith("_max"))
    other = next(s for s in split.blocks[1].loads if s.value.startswith("sum"))
    wrong = replace(load, access=other.access)
    block = replace(split.blocks[1], stmts=tuple(wrong if s is load else s for s in split.blocks[1].stmts))
    assert not verify(program, replace(split, kernels=(split.blocks[0], block)), float_rounds=0).accepted
