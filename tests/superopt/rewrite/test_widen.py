"""Scores between kernels are fp32, and no exponential is cut off from its maximum."""

from __future__ import annotations

from fuser.ir.builder import Builder
from fuser.superopt.rewrite.stabilize import unstable
from fuser.superopt.structures import structures
from tests.builders import attention


def test_no_structure_of_attention_keeps_a_bare_exponential():
    for causal in (False, True):
        graphs = structures(attention(64, 96, 32, 32, causal=causal))
        assert len(graphs) >= 4
        assert not [unstable(g) for g in graphs if unstable(g)]


def test_scores_between_kernels_are_fp32():
    cut = [g for g in structures(attention(64, 96, 32, 32)) if len(g.blocks) > 1]
    dtypes = {t.dtype for g in cut for name, t in g.device_tensors.items() if name in g.intermediates}
    assert dtypes == {"float32"}


def test_other_intermediates_keep_the_dtype_of_the_program():
    b = Builder("chain")
    program = b.build(E=(b.input("A", (64, 32)) @ b.input("B", (32, 96))) @ b.input("D", (96, 32)))
    cut = next(g for g in structures(program) if len(g.blocks) == 2 and not any(k.splits for k in g.blocks))
    assert [cut.device_tensors[n].dtype for n in cut.intermediates] == ["float16"]


def test_an_exponential_of_the_program_itself_stays_as_it_is():
    b = Builder("exp")
    program = b.build(Y=b.exp(b.input("X", (64, 32)) @ b.input("W", (32, 32))) @ b.input("V", (32, 32)))
    assert all(unstable(g) for g in structures(program))
